"""`isthmus` and `python -m isthmus`: the entry point of the command line."""

import sys


def main() -> int:
    """Run the command line and return its exit code.

    Nothing is imported before, so that Ctrl-C prints one line from the start.
    """
    try:
        from isthmus.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        print("isthmus: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
