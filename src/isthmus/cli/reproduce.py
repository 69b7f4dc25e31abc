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
from isthmus.cli.parts.attention import heads_as_mixtures
from isthmus.cli.parts.capacity import (
    bounds_on_capacity,
    merging_of_basins,
    retrieval_against_numbers,
)
from isthmus.cli.parts.clustering import (
    creation_of_memories,
    dynamics_of_posteriors,
    tour_of_clustering,
)
from isthmus.cli.parts.completion import completion_of_digits
from isthmus.cli.parts.hero import three_uses_of_one_energy
from isthmus.cli.parts.incontext import landscapes_in_context, likelihood_in_context
from isthmus.cli.parts.landscapes import landscapes_on_a_line, landscapes_on_a_plane
from isthmus.cli.parts.sampling import samples_of_two_moons
from isthmus.figures import Section, page, save, write_atomically

__all__ = ["PARTS", "run"]

Part = Callable[[int], Section]

# The name of a part is that of its figure's file and of its entry in results.json.
PARTS: list[tuple[str, Part]] = [
    ("hero", three_uses_of_one_energy),
    ("landscapes-1d", landscapes_on_a_line),
    ("landscapes-2d", landscapes_on_a_plane),
    ("completion", completion_of_digits),
    ("samples", samples_of_two_moons),
    ("incontext-landscapes", landscapes_in_context),
    ("incontext-likelihood", likelihood_in_context),
    ("memory-creation", creation_of_memories),
    ("elbo-dynamics", dynamics_of_posteriors),
    ("clustering-tour", tour_of_clustering),
    ("basins-merging", merging_of_basins),
    ("capacity-sweep", retrieval_against_numbers),
    ("capacity-bounds", bounds_on_capacity),
    ("attention-heads", heads_as_mixtures),
]
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
        for name, part in PARTS:
            began = time.monotonic()
            sections[name] = part(arguments.seed)
            save(sections[name].figure, out / f"{name}.png")
            report(name, time.monotonic() - began)
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
