"""Run the command line as `python -m muster.cli`."""

from muster.cli.main import main

if __name__ == "__main__":
    main()
