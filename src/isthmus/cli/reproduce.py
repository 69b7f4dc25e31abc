"""`isthmus reproduce`: the whole paper, part by part, and one page of them all."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus import __version__
from isthmus.cli.engine.inputs import environment, inputs_of
from isthmus.cli.engine.store import Store
from isthmus.cli.files import path, writable_directory
from isthmus.cli.options import (
    EXIT_CODES,
    Parser,
    add_json,
    add_quiet,
    add_seed,
    make_parser,
    names,
    positive_number,
    sections,
    show_progress,
    warn,
    whole_number,
)
from isthmus.cli.parts import CHAPTERS, PARTS, Part
from isthmus.errors import InvalidInputError
from isthmus.files import write_atomically

if TYPE_CHECKING:
    from isthmus.figures.page import Entry

__all__ = ["run"]

TITLE = "Bridging associative memory and probabilistic modelling, redone"
INTRODUCTION = (
    "Every figure and claim of the paper (Schaeffer et al., 2024, arXiv 2402.10202), computed "
    "afresh; only the clustering study and the training at high rates are shown as recorded, with "
    "a part of each done again. Each part shows its figure, the numbers behind it, the command "
    "that made it, and what became of what the paper says: it held, it held with a correction, "
    "or it did not."
)
EXAMPLES = """
isthmus reproduce
isthmus reproduce --only capacity hero --out my-report
isthmus reproduce --full --jobs 8
"""
FILES = """
DIR/index.html    the page, which needs no other file
DIR/results.json  all of it for machines
DIR/parts         what is done, kept for the next run; logs of what was printed on the way
"""
CODES = EXIT_CODES.replace(
    "1    a bug in isthmus",
    "1    a part failed: stderr and the page say which, and why\n1    a bug in isthmus",
)
HALF_AN_HOUR, A_WEEK = 1800.0, 7 * 86400.0
SOME_FAILED, INTERRUPTED = 1, 130


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().parse_args(argv)
    chosen = _chosen(arguments.only)
    store = Store(arguments.out, arguments.full)
    if arguments.list:
        return _list(chosen, arguments, store)
    writable_directory(arguments.out)
    with store.writing():
        try:
            _make(chosen, arguments, store)
        except KeyboardInterrupt:
            warn("interrupted; the same command goes on from here")
            return INTERRUPTED
        entries = _report(arguments, store)
    wanted = {part.name for part in chosen}
    failed = [entry for entry in entries if entry.name in wanted and entry.status == "failed"]
    if failed:
        reasons = "; ".join(f"{entry.name}: {entry.message.rstrip('.')}" for entry in failed)
        few = "1 part" if len(failed) == 1 else f"{len(failed)} parts"
        logs = f" Logs are in {store.directory}." if any(entry.log for entry in failed) else ""
        warn(f"{few} failed ({reasons}).{logs}")
    return SOME_FAILED if failed else 0


def _make(chosen: Sequence[Part], arguments: argparse.Namespace, store: Store) -> None:
    """Make what is not there yet."""
    from isthmus.cli.engine.child import Request
    from isthmus.cli.engine.processes import make_parts

    requests = [
        Request(part, inputs_of(part, arguments.seed, arguments.full), arguments.out)
        for part in chosen
    ]
    if not arguments.fresh:
        requests = [
            request for request in requests if not store.finished(request.part.name, request.inputs)
        ]
    before = len(chosen) - len(requests)
    with show_progress("isthmus reproduce", len(chosen), arguments.quiet) as progress:
        make_parts(
            requests,
            store,
            jobs=arguments.jobs,
            limit=arguments.limit or (A_WEEK if arguments.full else HALF_AN_HOUR),
            report=lambda running, over: progress(", ".join(running), before + over),
        )


def _report(arguments: argparse.Namespace, store: Store) -> list[Entry]:
    """Write the page and the results, and print where they are."""
    from isthmus.cli.engine.results import entry_of, results_of, results_text
    from isthmus.figures.page import page

    seed, full, out = arguments.seed, arguments.full, arguments.out
    entries = [entry_of(part, seed, full, store) for part in PARTS]
    versions = ", ".join(f"{name} {version}" for name, version in environment().items())
    facts = (
        f"isthmus {__version__}",
        f"seed {seed}",
        "the paper's sizes" if full else "quick sizes",
    )
    results = results_of(entries, seed, full, store)
    html = page(TITLE, INTRODUCTION, entries, chapters=CHAPTERS, facts=(*facts, versions))
    data = write_atomically(out / "results.json", results_text(results))
    index = write_atomically(out / "index.html", html)
    if arguments.json:
        told = {"page": str(index), "results": str(data), **results["summary"]}
        print(json.dumps(told, indent=2))
    else:
        print(index)
    return entries


def _list(chosen: Sequence[Part], arguments: argparse.Namespace, store: Store) -> int:
    """Print the parts, and which of them are done."""
    done = {
        part.name: store.finished(part.name, inputs_of(part, arguments.seed, arguments.full))
        for part in chosen
    }
    if arguments.json:
        rows = [
            {"name": part.name, "chapter": part.chapter, "done": done[part.name]} for part in chosen
        ]
        print(json.dumps(rows, indent=2))
        return 0
    width = max(len(part.name) for part in chosen)
    wide = max(len(part.chapter) for part in chosen)
    for part in chosen:
        line = f"{part.name:<{width}}  {part.chapter:<{wide}}  {'done' * done[part.name]}"
        print(line.rstrip())
    return 0


def _chosen(only: Sequence[tuple[str, ...]] | None) -> list[Part]:
    """The parts of those names or chapters, in the order of the page; all if there are none."""
    wanted = {name for group in only or () for name in group}
    known = {part.name for part in PARTS} | {part.chapter for part in PARTS}
    unknown = sorted(wanted - known)
    if unknown:
        chapters = ", ".join(dict.fromkeys(part.chapter for part in PARTS))
        parts = ", ".join(part.name for part in PARTS)
        raise InvalidInputError(
            f"--only {', '.join(unknown)}: no such part or chapter. Chapters: {chapters}. "
            f"Parts: {parts}."
        )
    return [part for part in PARTS if not wanted or {part.name, part.chapter} & wanted]


def _cores() -> int:
    """How many cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # not on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _parser() -> Parser:
    parser = make_parser(
        "reproduce",
        "Redo the paper, figure by figure and claim by claim, into one self-contained page.\n"
        "What is done is kept: the same command goes on where it was stopped. A part that fails\n"
        "is told on the page and on stderr, stops no other, and makes the exit code 1.",
        EXAMPLES,
        FILES,
    )
    parser.epilog = sections({"files": FILES, "exit codes": CODES, "examples": EXAMPLES})
    parser.add_argument(
        "--only",
        type=names,
        nargs="+",
        action="extend",
        metavar="NAME",
        help="parts or chapters to make, as --list names them; default: all",
    )
    parser.add_argument(
        "--full",
        action="store_true",
        help="the paper's sizes and the whole study: hours, not minutes",
    )
    parser.add_argument(
        "--out", type=path, default=Path("report"), metavar="DIR", help="default: %(default)s"
    )
    add_seed(parser)
    parser.add_argument(
        "--jobs",
        type=whole_number(1),
        default=_cores(),
        metavar="N",
        help="parts at a time, a core each; default: as many as there are cores",
    )
    parser.add_argument(
        "--limit",
        type=positive_number,
        metavar="SECONDS",
        help="that a part may take; default: half an hour, with --full a week",
    )
    parser.add_argument("--fresh", action="store_true", help="make again what is done already")
    parser.add_argument("--list", action="store_true", help="print the names of the parts, and end")
    add_quiet(parser)
    add_json(parser)
    return parser
