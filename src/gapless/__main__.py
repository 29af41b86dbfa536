"""The command's front door, for `gapless` and for `python -m gapless`.

It imports nothing at first, so that Ctrl-C is heard while the command line itself is still being read in.
"""

import sys

INTERRUPTED = 130


def run() -> int:
    """Run the process's command line and return its exit code."""
    try:
        from gapless.cli.main import main

        return main()
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(run())
