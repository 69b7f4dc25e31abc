"""`isthmus reproduce`: every part in turn, its figure, its numbers, and one page of them all."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from isthmus import __version__
from isthmus.cli.files import path, writable_directory
from isthmus.cli.parts import PARTS
from isthmus.figures import Section, page, save, write_atomically

__all__ = ["run"]

TITLE = "isthmus: memory and probability, joined"
INTRODUCTION = (
    "What follows when an energy function is read as a negative log-likelihood, a picture each. "
    "The same command with the same seed draws the same page."
)


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().parse_args(argv)
    out = writable_directory(arguments.out)
    sections: dict[str, Section] = {}
    with _progress(len(PARTS), arguments.quiet) as report:
        for part in PARTS:
            began = time.monotonic()
            sections[part.name] = part.make(arguments.seed)
            save(sections[part.name].figure, out / f"{part.name}.png")
            report(part.name, time.monotonic() - began)
    results = {
        "isthmus": __version__,
        "seed": arguments.seed,
        "parts": {name: section.numbers for name, section in sections.items()},
    }
    write_atomically(out / "results.json", json.dumps(results, indent=2, allow_nan=False) + "\n")
    index = write_atomically(out / "index.html", page(TITLE, INTRODUCTION, list(sections.values())))
    print(index)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="isthmus reproduce",
        description="Redo the paper, figure by figure, into one self-contained page.",
    )
    parser.add_argument(
        "--out", type=path, default=Path("report"), metavar="DIR", help="default: %(default)s"
    )
    parser.add_argument(
        "--seed", type=_seed, default=0, metavar="N", help="of everything random; default: 0"
    )
    parser.add_argument("--quiet", action="store_true", help="no progress on stderr")
    return parser


def _seed(text: str) -> int:
    # What numpy's, and so scikit-learn's, generators can take.
    if not text.isdecimal() or (seed := int(text)) >= 2**32:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number from 0 to {2**32 - 1}")
    return seed


@contextmanager
def _progress(total: int, quiet: bool) -> Iterator[Callable[[str, float], None]]:
    """Yield a function to be told of each part that is done: a bar on a terminal, else lines."""
    if quiet:
        yield lambda name, seconds: None
    elif sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress

        with Progress(console=Console(stderr=True)) as bar:
            task = bar.add_task("isthmus reproduce", total=total)

            def advance(name: str, seconds: float) -> None:
                bar.console.print(f"{name}  {seconds:.1f} s", highlight=False)
                bar.advance(task)

            yield advance
    else:
        yield lambda name, seconds: print(f"{name}  {seconds:.1f} s", file=sys.stderr, flush=True)
