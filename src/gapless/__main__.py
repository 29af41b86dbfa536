"""`python -m gapless`: the command line without its script on the path."""

import sys

from gapless.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
