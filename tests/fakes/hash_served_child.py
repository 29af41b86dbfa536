"""The engine's own process, with a hash model in it."""

from tests.fakes.hash_served import arrange

from gapless.api import child


def main() -> None:
    arrange()
    child.main()
