"""`isthmus COMMAND`: parse, dispatch, and turn errors into one clear line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module

from isthmus import __version__

# A module per command, imported only when it is called: --help needs no torch.
COMMANDS = {
    "icl": "in-context energies: train, evaluate, sample, plot",
    "reproduce": "redo the paper, figure by figure, into a report",
}

__all__ = ["main"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = _parser()
    if not arguments:
        parser.print_help()
        return 0
    chosen, rest = parser.parse_known_args(arguments[:1])[0], arguments[1:]
    try:
        code: int = import_module(f"isthmus.cli.{chosen.command}").run(rest)
    except KeyboardInterrupt:
        print("isthmus: interrupted", file=sys.stderr)
        return 130
    except (ValueError, TypeError, OSError, RuntimeError, ArithmeticError) as error:
        print(f"isthmus: {' '.join(str(error).split())}", file=sys.stderr)
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    width = max(map(len, COMMANDS))
    table = "\n".join(f"  {name:<{width}}  {summary}" for name, summary in COMMANDS.items())
    parser = argparse.ArgumentParser(
        prog="isthmus",
        description="Associative memory and probabilistic modelling, joined.",
        epilog=f"commands:\n{table}\n\n`isthmus COMMAND --help` says more about each.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"isthmus {__version__}")
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND", help="one of those below")
    return parser


if __name__ == "__main__":
    sys.exit(main())
