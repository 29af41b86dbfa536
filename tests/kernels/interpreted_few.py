"""Run by itself, with TRITON_INTERPRET=1: a scene of each kind of kernels, those that say most in little time."""

from __future__ import annotations

import sys

from tests.kernels import interpreted_prompts, interpreted_sparse, interpreted_step, interpreted_tower

STEP, PROMPTS, SPARSE, TOWER = 1, 1, 2, 1
"""Numbers of scenes."""


def main() -> None:
    """The kind in a line of its own, then its lines."""
    for kind, scenes, number in (
        (interpreted_step, interpreted_step.SCENES, STEP),
        (interpreted_prompts, interpreted_prompts.SCENES, PROMPTS),
        (interpreted_tower, interpreted_tower.SCENES, TOWER),
    ):
        scenes[:] = scenes[number : number + 1]  # type: ignore[index]
        print("kind", kind.__name__.rpartition("_")[2])
        kind.main()
    print("kind sparse")
    interpreted_sparse.main([SPARSE])


if __name__ == "__main__":
    sys.exit(main())
