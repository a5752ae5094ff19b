"""``python -m molflt`` is the command ``molflt``."""

from molflt.cli.main import main

if __name__ == "__main__":
    main()
