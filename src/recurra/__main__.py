"""``python -m recurra`` is the command line."""

from recurra.cli.main import main

if __name__ == "__main__":
    main()
