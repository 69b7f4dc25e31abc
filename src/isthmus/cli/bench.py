"""`isthmus bench [NAME ...]`: run the benchmarks of the documentation on this machine."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

from isthmus.cli.files import path, writable_directory
from isthmus.cli.options import (
    Parser,
    add_json,
    add_quiet,
    add_seed,
    did_you_mean,
    make_parser,
    warn,
)
from isthmus.errors import InvalidInputError
from isthmus.files import shipped

__all__ = ["run"]


class Benchmark(NamedTuple):
    """A module of the benchmarks: its summary, usual times, results file and use of datasets."""

    summary: str
    short: str
    full: str
    results: str = ""
    needs_data: bool = False


BENCHMARKS = {
    "attend": Benchmark(
        "one retrieval update against chunked torch, scikit-learn and scipy", "20 s", "minutes"
    ),
    "capacity": Benchmark(
        "certificates and Gaussian mean shift against scikit-learn", "30 s", "minutes"
    ),
    "cluster": Benchmark(
        "the clusterers against k-means, Gaussian mixtures and a plain ClAM", "minutes", "minutes"
    ),
    "incontext": Benchmark(
        "in-context energies against encoding the context again; --full: and training",
        "60 s",
        "25 min",
    ),
    "attention": Benchmark(
        "pre-norm, QK-norm and SALN attention at learning rates up to 1",
        "minutes",
        "6 min",
        "attention.json",
    ),
    "tables": Benchmark("reading a CSV file against pandas", "10 s", "2 min"),
    "quality": Benchmark(
        "agreement with known classes on 15 datasets, against scikit-learn's clusterers",
        "hours",
        "hours",
        "quality.jsonl",
        needs_data=True,
    ),
}
DEFAULT = "attend"
DESCRIPTION = """
Run the benchmarks of the documentation on this machine. Every method is measured in the
same run, on the same data and the same number of threads, so ratios are reliable even
where times are not. Without a name, the shortest benchmark runs: well under two minutes.

Memory is measured through /proc, so attend, capacity, cluster and incontext need Linux.
"""
FILES = """
--out  attention and quality store finished runs there, and do not repeat them
quality reads the datasets in the directory that ISTHMUS_DATA names
"""
EXAMPLES = """
isthmus bench
isthmus bench --list
isthmus bench capacity incontext --json
isthmus bench cluster --full
"""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().parse_args(argv)
    if arguments.list:
        _print_list(arguments.json)
        return 0
    names = list(dict.fromkeys(arguments.names)) or [DEFAULT]
    for name in names:
        if name not in BENCHMARKS:
            raise InvalidInputError(
                f"{name!r} is not a benchmark; {did_you_mean(name, BENCHMARKS)}"
            )
    folder = _folder()
    places = {name: _places(name, arguments.out) for name in names}
    results: dict[str, Any] = {}
    with _importable(folder):
        print_rows = import_module("measuring").print_rows
        for name in names:
            rows = import_module(name).measure(arguments.full, arguments.seed, **places[name])
            if not arguments.json:
                print(f"{name}: {BENCHMARKS[name].summary}\n", flush=True)
                print_rows(rows)
                print(flush=True)
                continue
            if not arguments.quiet:
                warn(f"running {name}")
            start = time.monotonic()
            found = [_plain(row) for row in rows]
            seconds = round(time.monotonic() - start, 1)
            results[name] = {"seed": arguments.seed, "seconds": seconds, "rows": found}
    if arguments.json:
        print(json.dumps(results, indent=2, allow_nan=False))
    return 0


def _print_list(as_json: bool) -> None:
    if as_json:
        listed = {
            name: {"summary": one.summary, "short": one.short, "full": one.full}
            for name, one in BENCHMARKS.items()
        }
        print(json.dumps(listed, indent=2))
        return
    print(f"{'name':<10}  {'short':<7}  {'--full':<7}  summary")
    for name, one in BENCHMARKS.items():
        print(f"{name:<10}  {one.short:<7}  {one.full:<7}  {one.summary}")


def _folder() -> Path:
    """Return the directory of the benchmarks: in the clone, or in the installed package."""
    folder = shipped("benchmarks")
    if folder is not None and all((folder / f"{name}.py").is_file() for name in BENCHMARKS):
        return folder
    raise InvalidInputError(
        "The benchmarks are not part of this installation; install isthmus from a clone of its "
        "repository, with `pip install -e .` there."
    )


def _places(name: str, out: Path) -> dict[str, Path]:
    """Return the paths that a benchmark reads and writes; its output directory exists."""
    places = {}
    if BENCHMARKS[name].needs_data:
        data = os.environ.get("ISTHMUS_DATA", "")
        if not data or not Path(data).is_dir():
            raise InvalidInputError(
                f"{name} needs datasets: set ISTHMUS_DATA to a directory of .npz files."
            )
        places["data"] = Path(data)
    if BENCHMARKS[name].results:
        places["out"] = writable_directory(out) / BENCHMARKS[name].results
    return places


@contextmanager
def _importable(folder: Path) -> Iterator[None]:
    """Import benchmarks from their folder, and forget them afterwards."""
    before = dict(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name, module in list(sys.modules.items()):
            place = getattr(module, "__file__", None)
            if name not in before and place is not None and Path(place).parent == folder:
                del sys.modules[name]


def _plain(value: Any) -> Any:
    """Replace numbers that JSON cannot hold by None."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _parser() -> Parser:
    parser = make_parser("bench", DESCRIPTION.strip(), EXAMPLES, FILES)
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"{', '.join(BENCHMARKS)}; default: {DEFAULT}"
    )
    parser.add_argument("--list", action="store_true", help="list the benchmarks and their times")
    parser.add_argument("--full", action="store_true", help="the sizes of the documentation")
    parser.add_argument(
        "--out",
        type=path,
        default=Path("report/bench"),
        metavar="DIR",
        help="directory of stored runs (default: %(default)s)",
    )
    add_seed(parser)
    add_json(parser)
    add_quiet(parser)
    return parser
