"""What commands share: a parser with an example, options of one spelling, and progress."""

from __future__ import annotations

import argparse
import difflib
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from isthmus.cli.files import path
from isthmus.errors import InvalidInputError
from isthmus.files import write_atomically

__all__ = [
    "EXIT_CODES",
    "Parser",
    "add_json",
    "add_output",
    "add_quiet",
    "add_seed",
    "counts",
    "did_you_mean",
    "epilog",
    "make_parser",
    "names",
    "positive_number",
    "put",
    "sections",
    "show_progress",
    "tell",
    "warn",
    "whole_number",
]

EXIT_CODES = """
0    done
1    a bug in isthmus; ISTHMUS_TRACEBACK=1 shows where
2    an option, a file or its contents is not right: one line on stderr says what, no file is left
130  interrupted; what can go on later is kept
141  whoever was reading the output went away
"""

# What numpy's and torch's generators can both take as a seed.
LARGEST = 2**32


class Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, as every other error is told; options are written out."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"allow_abbrev": False, **options})

    # argparse has overloads for namespaces of other kinds, which nothing here uses.
    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse, and refuse what is not known here, where the nearest option can be named."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            word = unknown[0].partition("=")[0]
            near = difflib.get_close_matches(word, re.findall(r"--[\w-]+", self.format_usage()), 1)
            advice = f"; did you mean {near[0]}?" if near else ""
            self.error(f"unrecognized arguments: {' '.join(unknown)}{advice}")
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Raise what `main` prints as its one line."""
        raise InvalidInputError(f"{message} (see {self.prog} --help)")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            # A command needs no name before it; an option does.
            named = None if isinstance(action, argparse._SubParsersAction) else action
            words = f"{value!r} is not {'one' if named else 'a command'}"
            raise argparse.ArgumentError(named, f"{words}; {did_you_mean(value, action.choices)}")


def make_parser(
    command: str, description: str, examples: str, files: str = "", **more: Any
) -> Parser:
    """A parser for ``isthmus COMMAND`` whose help ends in files, exit codes and examples.

    Parameters
    ----------
    command : str
    description : str
        What the command does.
    examples, files : str
        One a line: commands to type; what is read and written.
    **more
        For ``argparse.ArgumentParser``.
    """
    return Parser(
        prog=f"isthmus {command}",
        description=description,
        epilog=epilog(examples, files),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **more,
    )


def epilog(examples: str, files: str = "") -> str:
    """What help says after the options: files, exit codes, and examples last."""
    title = "examples" if "\n" in examples.strip() else "example"
    return sections({"files": files, "exit codes": EXIT_CODES, title: examples})


def sections(texts: dict[str, str]) -> str:
    """Texts of several lines, indented under their titles; empty ones are left out."""
    return "\n\n".join(
        f"{title}:\n" + "\n".join(f"  {line}" for line in text.strip().splitlines())
        for title, text in texts.items()
        if text.strip()
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The known word that is nearest to one that is not known; all of them if none is near."""
    known = list(known)
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"


def add_seed(parser: argparse.ArgumentParser) -> None:
    """Add ``--seed``."""
    parser.add_argument(
        "--seed",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="of everything random; default: 0",
    )


def add_quiet(parser: argparse.ArgumentParser) -> None:
    """Add ``--quiet``."""
    parser.add_argument("--quiet", action="store_true", help="no progress and notes on stderr")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument("--json", action="store_true", help="print JSON, for machines")


def add_output(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup,
    name: str,
    required: bool = False,
    words: str = "",
) -> None:
    """Add ``-o``; it is stdout by default, unless it is required."""
    where = words or ("where to write" if required else "default: stdout")
    parser.add_argument("-o", "--output", type=path, metavar=name, required=required, help=where)


def whole_number(at_least: int) -> Callable[[str], int]:
    """A type of argument: a whole number from so much up."""

    def convert(text: str) -> int:
        if not text.isdecimal() or not at_least <= int(text) < LARGEST:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {at_least} up")
        return int(text)

    return convert


def positive_number(text: str) -> float:
    """A type of argument: a finite number above zero."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above zero")
    return number


def counts(text: str) -> tuple[int, ...]:
    """A type of argument: whole numbers, separated by commas."""
    return tuple(whole_number(0)(part.strip()) for part in text.split(","))


def names(text: str) -> tuple[str, ...]:
    """A type of argument: names, separated by commas."""
    return tuple(part.strip() for part in text.split(","))


def put(text: str, target: Path | None) -> None:
    """Print the result; or write it to a file, all of it or nothing, and print the path."""
    if target is None:
        sys.stdout.write(text)
    else:
        print(write_atomically(target, text))


def warn(words: str) -> None:
    """Say something on stderr that does not stop the work."""
    print(f"isthmus: {words}", file=sys.stderr, flush=True)


def tell(notes: Iterable[str], quiet: bool) -> None:
    """Say several such things, unless nothing is to be said."""
    for note in () if quiet else notes:
        warn(note)


@contextmanager
def show_progress(
    title: str, total: int, quiet: bool = False
) -> Iterator[Callable[[str, int], None]]:
    """Yield a function to be told what was done last and how much is done: a bar on a terminal.

    Where stderr is no terminal, nothing is shown.
    """
    if quiet or not sys.stderr.isatty():
        yield lambda last, done: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[last]}"),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(title, total=total, last="")
        yield lambda last, done: bar.update(task, completed=done, last=last)
