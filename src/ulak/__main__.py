"""`python -m ulak` is the `ulak` command."""

import sys

from ulak.cli import main

if __name__ == "__main__":
    sys.exit(main())
