"""``python -m recurra`` is the command line."""

import sys

from recurra.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
