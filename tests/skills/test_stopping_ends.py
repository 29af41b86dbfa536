"""What is held back at the end of a text is cut before the earliest stop string in it."""

from gapless.skills.stopping import StopFilter


def test_of_several_stops_in_what_was_held_the_earliest_counts() -> None:
    stream = StopFilter(["abcd", "bc", "c"])
    assert stream.feed("abc") + stream.finish() == "a"
    assert stream.found
