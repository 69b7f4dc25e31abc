"""`isthmus`, and `python -m isthmus`: where the command line begins."""

import sys

__all__ = ["main"]


def main() -> int:
    """Run the command line and return its exit code.

    Nothing is imported before, so that Ctrl-C is told in one line from the beginning.
    """
    try:
        from isthmus.cli.main import main as run

        return run()
    except KeyboardInterrupt:
        print("isthmus: interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
