"""`isthmus COMMAND`: find the command, run it, and print an error as one line."""

from __future__ import annotations

import io
import logging
import os
import sys
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from isthmus import __version__
from isthmus.cli.options import (
    EXIT_CODES,
    HELP,
    Parser,
    as_line,
    make_parser,
    sections,
    warn,
)
from isthmus.errors import IsthmusError
from isthmus.extras import advice
from isthmus.io.reading import LIMIT_VARIABLE
from isthmus.printing import definitions

EXAMPLES = """
isthmus cluster data.csv -o clusters.csv
isthmus certify data.csv
isthmus sample data.csv -n 100 -o more.csv
isthmus reproduce
"""
TRACEBACK = "ISTHMUS_TRACEBACK"
ENVIRONMENT = f"""
ISTHMUS_DATA         a directory of datasets, searched before anything is downloaded
{LIMIT_VARIABLE}
                     bytes that a compressed table may hold; see docs/cli.md
{TRACEBACK}=1  print the traceback of an error
"""
BUG, BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 1, 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    if sys.stdout is None:
        print("isthmus: stdout is closed; send it to a file, or to /dev/null.", file=sys.stderr)
        return BAD_INPUT
    stream: Any = sys.stdout
    own: Any = sys.__stdout__
    if stream is own and isinstance(getattr(stream, "buffer", None), io.FileIO):
        # Unbuffered, where Python drops what does not fit.
        layout = (1, stream.encoding, stream.errors)
        sys.stdout = open(stream.fileno(), "w", *layout, closefd=False)  # noqa: SIM115
    try:
        try:
            with _notes_in_one_line(quiet="--quiet" in arguments):
                return dispatch(arguments)
        finally:
            _flush()
    except BrokenPipeError:
        return BROKEN_PIPE
    except KeyboardInterrupt:
        print("isthmus: interrupted", file=sys.stderr)
        return INTERRUPTED
    except Exception as error:
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        line, code = _explain(error)
        print(as_line(line), file=sys.stderr)
        return code


def _flush() -> None:
    """Write what is left of stdout; if it cannot be written, discard it."""
    try:
        sys.stdout.flush()
    except OSError as error:
        nowhere = os.open(os.devnull, os.O_WRONLY)  # so that closing stdout raises no error
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
        if isinstance(error, BrokenPipeError):
            raise
        raise OSError(f"stdout is cut short: {error.strerror}.") from None


def dispatch(arguments: Sequence[str]) -> int:
    """Run the command that the first argument names; errors are raised."""
    parser = _parser()
    name = parser.parse_args(arguments[:1]).command
    if name is None:
        parser.print_help()
        return 0
    # Each command is a module of its name, imported when it is called: --help needs no torch.
    found = make_parser(name, import_module(f"isthmus.cli.{name}")).parse_args(arguments[1:])
    found.progress = False if getattr(found, "quiet", False) else None
    code: int = found.action(found)
    return code


def _explain(error: Exception) -> tuple[str, int]:
    """Return the message of an error and the exit code."""
    words = str(error) or type(error).__name__
    if isinstance(error, MemoryError) or "can't allocate memory" in words:
        return f"there is not enough memory ({words}). Use fewer rows or columns.", BAD_INPUT
    if isinstance(error, ImportError) and not (error.name or "").startswith("isthmus"):
        return words if "pip install" in words else advice(error.name or words), BAD_INPUT
    if isinstance(error, UnicodeEncodeError):
        return f"the output stream cannot show all text ({words}). Set PYTHONUTF8=1.", BAD_INPUT
    if isinstance(error, IsthmusError | OSError):
        return words, BAD_INPUT
    place = traceback.extract_tb(error.__traceback__)[-1]
    return (
        f"this is a bug in isthmus: {type(error).__name__}: {words} "
        f"({Path(place.filename).name}, line {place.lineno}). Please report it, with the output of "
        f"{TRACEBACK}=1.",
        BUG,
    )


@contextmanager
def _notes_in_one_line(quiet: bool) -> Iterator[None]:
    """Print warnings, and the note that loops are compiled, as one line each, or not at all."""
    before, log, handler = warnings.formatwarning, logging.getLogger("isthmus.compiled"), _Lines()
    log.setLevel(logging.WARNING if quiet else logging.INFO)
    log.addHandler(handler)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if quiet else "always", UserWarning)
        warnings.formatwarning = lambda message, *_, **__: f"{as_line(message)}\n"
        try:
            yield
        finally:
            warnings.formatwarning = before
            log.removeHandler(handler)


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        warn(record.getMessage())


def _parser() -> Parser:
    texts = {
        "commands": "\n".join(definitions({name: text["summary"] for name, text in HELP.items()})),
        "environment": ENVIRONMENT,
        "exit codes": EXIT_CODES,
        "examples": EXAMPLES,
    }
    parser = Parser(
        prog="isthmus",
        usage="isthmus COMMAND [argument ...]",
        description=(
            "Associative memory and probabilistic modelling, joined: cluster, complete, certify\n"
            "and sample the rows of a table, and reproduce the paper."
        ),
        epilog=f"{sections(texts)}\n\n`isthmus COMMAND --help` describes a command.",
    )
    parser.add_argument("--version", action="version", version=f"isthmus {__version__}")
    words = "one of the commands below"
    parser.add_argument("command", nargs="?", metavar="COMMAND", choices=HELP, help=words)
    return parser
