"""`isthmus bench [NAME ...]`: the benchmarks of the documentation, measured on this machine."""

from __future__ import annotations

import io
import json
import os
import re
import runpy
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from isthmus.cli.files import path, writable_directory
from isthmus.cli.options import Parser, add_json, add_quiet, make_parser, show_progress
from isthmus.errors import InvalidInputError
from isthmus.files import shipped

__all__ = ["run"]


@dataclass(frozen=True)
class Benchmark:
    """A script, and how it is called.

    Attributes
    ----------
    summary : str
        What is measured against what.
    short, full : tuple of str
        Arguments of the script; ``{out}`` and ``{data}`` stand for directories.
    times : tuple of str
        How long the two take, about, on one free core.
    """

    summary: str
    short: tuple[str, ...]
    full: tuple[str, ...]
    times: tuple[str, str]


BENCHMARKS = {
    "attend": Benchmark(
        "one retrieval update against chunked torch, scikit-learn and scipy",
        ("--sizes", "small"),
        (),
        ("20 s", "minutes"),
    ),
    "capacity": Benchmark(
        "certificates and Gaussian mean shift against scikit-learn's neighbours and mean shift",
        ("--sizes", "small"),
        (),
        ("30 s", "minutes"),
    ),
    "cluster": Benchmark(
        "the clusterers against k-means, Gaussian mixtures and a plain ClAM",
        ("--rows", "5000"),
        (),
        ("minutes", "minutes"),
    ),
    "incontext": Benchmark(
        "in-context energies against encoding the context anew; in full, training too",
        ("--only", "condition"),
        (),
        ("60 s", "25 min"),
    ),
    "attention": Benchmark(
        "pre-norm, QK-norm and SALN attention at learning rates up to 1",
        ("--seeds", "1", "--out", "{out}/attention.json"),
        ("--seeds", "5", "--out", "{out}/attention.json"),
        ("minutes", "6 min"),
    ),
    "quality": Benchmark(
        "agreement with known classes on 15 datasets, against scikit-learn's clusterers",
        ("--data", "{data}", "--cache", "{out}/quality.jsonl"),
        ("--data", "{data}", "--cache", "{out}/quality.jsonl"),
        ("hours", "hours"),
    ),
}
DEFAULT = "attend"
DESCRIPTION = """
Run the benchmarks of the documentation on this machine. Every method is measured in the
same run, on the same data and the same number of threads, so that ratios can be trusted
where times cannot. Without a name, the shortest is run: well under two minutes.

Memory is measured as Linux tells it; other systems cannot run attend, capacity, cluster
and incontext.
"""
FILES = """
--out  finished runs of attention and quality are kept there, and not done again
quality reads the datasets in the directory that ISTHMUS_DATA names
"""
EXAMPLES = """
isthmus bench
isthmus bench --list
isthmus bench capacity incontext --json
isthmus bench cluster --full
"""
NUMBER = re.compile(r"(-?[\d,]*\.?\d+(?:e[+-]?\d+)?)x?")


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().parse_args(argv)
    if arguments.list:
        _list(arguments.json)
        return 0
    names = list(dict.fromkeys(arguments.names)) or [DEFAULT]
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        raise InvalidInputError(
            f"{unknown[0]!r} is not a benchmark; there are {', '.join(BENCHMARKS)}."
        )
    scripts = _scripts()
    calls = {name: _call(name, arguments.full, arguments.out) for name in names}
    found: dict[str, Any] = {}
    with show_progress("bench", len(names), arguments.quiet or not arguments.json) as report:
        for done, (name, call) in enumerate(calls.items()):
            report(name, done)
            if arguments.json:
                found[name] = _measured(scripts / f"{name}.py", call)
            else:
                print(f"{name}: {BENCHMARKS[name].summary}\n", flush=True)
                _run_script(scripts / f"{name}.py", call)
                print(flush=True)
    if arguments.json:
        print(json.dumps(found, indent=2))
    return 0


def _list(as_json: bool) -> None:
    if as_json:
        listed = {
            name: {"summary": each.summary, "short": each.times[0], "full": each.times[1]}
            for name, each in BENCHMARKS.items()
        }
        print(json.dumps(listed, indent=2))
        return
    lines = [
        (name, each.times[0], each.times[1], each.summary) for name, each in BENCHMARKS.items()
    ]
    for name, short, full, summary in [("name", "short", "--full", "what is measured"), *lines]:
        print(f"{name:<10}  {short:<7}  {full:<7}  {summary}")


def _scripts() -> Path:
    """The directory of the scripts: that of the clone, or else what was installed with isthmus."""
    folder = shipped("benchmarks")
    if folder is not None and all((folder / f"{name}.py").is_file() for name in BENCHMARKS):
        return folder
    raise InvalidInputError(
        "The benchmarks are not part of this installation; install isthmus from a clone of its "
        "repository, with `pip install -e .` there."
    )


def _call(name: str, full: bool, out: Path) -> list[str]:
    """The arguments of the script; the directories that it needs are there afterwards."""
    benchmark = BENCHMARKS[name]
    words = benchmark.full if full else benchmark.short
    places: dict[str, str] = {}
    if any("{data}" in word for word in words):
        places["data"] = os.environ.get("ISTHMUS_DATA", "")
        if not Path(places["data"]).is_dir() or not places["data"]:
            raise InvalidInputError(
                f"{name} needs datasets: set ISTHMUS_DATA to a directory of .npz files."
            )
    if any("{out}" in word for word in words):
        places["out"] = str(writable_directory(out))
    return [word.format(**places) for word in words]


def _run_script(script: Path, call: list[str]) -> None:
    """Run a script in this process, so that Ctrl-C and errors reach `main`."""
    with _in_place_of_this_program(script, call):
        runpy.run_path(str(script), run_name="__main__")


@contextmanager
def _in_place_of_this_program(script: Path, call: list[str]) -> Iterator[None]:
    """What Python gives a script that it starts: its arguments, and imports from beside it."""
    before = sys.argv, sys.path
    sys.argv, sys.path = [str(script), *call], [str(script.parent), *sys.path]
    try:
        yield
    finally:
        sys.argv, sys.path = before


def _measured(script: Path, call: list[str]) -> dict[str, Any]:
    """What a script prints, for machines: tables as lists of rows, and all other lines."""
    text, began = io.StringIO(), time.monotonic()
    with redirect_stdout(text):
        _run_script(script, call)
    tables, lines = parsed(text.getvalue())
    return {
        "arguments": call,
        "seconds": round(time.monotonic() - began, 1),
        "tables": tables,
        "lines": lines,
    }


def parsed(text: str) -> tuple[list[list[dict[str, Any]]], list[str]]:
    """Tables in Markdown, each a list of rows by column, and the lines outside of them.

    Cells such as ``3.1x`` and ``10,000`` become numbers; others stay as they are.
    """
    tables: list[list[dict[str, Any]]] = []
    others: list[str] = []
    columns: list[str] | None = None
    for line in text.splitlines():
        if not line.startswith("|"):
            columns = None
            if line.strip():
                others.append(line)
            continue
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        if columns is None:
            columns = cells
            tables.append([])
        elif not all(set(cell) <= set("-: ") and cell for cell in cells):
            tables[-1].append(dict(zip(columns, map(_value, cells), strict=True)))
    return tables, others


def _value(cell: str) -> float | str:
    match = NUMBER.fullmatch(cell)
    return float(match[1].replace(",", "")) if match else cell


def _parser() -> Parser:
    parser = make_parser("bench", DESCRIPTION.strip(), EXAMPLES, FILES)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHMARKS)}; default: {DEFAULT}"
    )
    parser.add_argument("--list", action="store_true", help="what there is, and how long it takes")
    parser.add_argument("--full", action="store_true", help="as large as in the documentation")
    parser.add_argument(
        "--out",
        type=path,
        default=Path("report/bench"),
        metavar="DIR",
        help="default: %(default)s",
    )
    add_json(parser)
    add_quiet(parser)
    return parser
