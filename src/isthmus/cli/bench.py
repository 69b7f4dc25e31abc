"""`isthmus bench [NAME ...]`: run the benchmarks of the documentation on this machine."""

from __future__ import annotations

import argparse
import json
import math
import os
import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from isthmus.cli import options
from isthmus.errors import InvalidInputError
from isthmus.io.files import make_directory, shipped
from isthmus.printing import aligned


class Benchmark(NamedTuple):
    """A module of the benchmarks: usual times, summary, results file and use of datasets."""

    short: str
    full: str
    summary: str
    results: str = ""
    needs_data: bool = False


BENCHMARKS = {
    "attend": Benchmark("20 s", "minutes", "retrieval against chunked torch, scikit-learn, scipy"),
    "pruned": Benchmark("minutes", "30 min", "attention over an index against all memories"),
    "capacity": Benchmark("30 s", "minutes", "certificates and mean shift against scikit-learn"),
    "cluster": Benchmark("minutes", "minutes", "clusterers against k-means, mixtures, plain ClAM"),
    "incontext": Benchmark(
        "60 s", "25 min", "in-context energies against encoding again; --full: and training"
    ),
    "attention": Benchmark(
        "minutes", "6 min", "pre-norm, QK-norm and SALN attention, rates up to 1", "attention.json"
    ),
    "bags": Benchmark("30 s", "2 min", "pooling of bags of digits: Hopfield, attention, mean, max"),
    "distributed": Benchmark("minutes", "minutes", "memories and fits on two Dask workers, files"),
    "tables": Benchmark("10 s", "2 min", "reading a CSV file against pandas"),
    "quality": Benchmark(
        "hours",
        "hours",
        "agreement with known classes on 15 datasets, against scikit-learn's clusterers",
        "quality.jsonl",
        needs_data=True,
    ),
}
DEFAULT = "attend"


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    if arguments.list:
        _print_list(arguments.json)
        return 0
    names = list(dict.fromkeys(arguments.names)) or [DEFAULT]
    for name in names:
        if name not in BENCHMARKS:
            raise InvalidInputError(
                f"{name!r} is not a benchmark; {options.did_you_mean(name, BENCHMARKS)}"
            )
    folder = _folder()
    places = {name: _places(name, arguments.out) for name in names}
    print_rows = _function(folder, "measuring", "print_rows")
    results: dict[str, Any] = {}
    for name in names:
        measure = _function(folder, name, "measure")
        rows = measure(arguments.full, arguments.seed, **places[name])
        if not arguments.json:
            print(f"{name}: {BENCHMARKS[name].summary}\n", flush=True)
            print_rows(rows)
            print(flush=True)
            continue
        options.print_notes([f"running {name}"], arguments.quiet)
        start = time.monotonic()
        found = [_plain(row) for row in rows]
        seconds = round(time.monotonic() - start, 1)
        results[name] = {"seed": arguments.seed, "seconds": seconds, "rows": found}
    if arguments.json:
        print(json.dumps(results, indent=2, allow_nan=False))
    return 0


def _print_list(as_json: bool) -> None:
    if as_json:
        print(json.dumps({name: one._asdict() for name, one in BENCHMARKS.items()}, indent=2))
        return
    rows = [(name, *one[:3]) for name, one in BENCHMARKS.items()]
    print(*aligned([("name", "short", "--full", "summary"), *rows], left=range(4)), sep="\n")


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
        places["out"] = make_directory(out) / BENCHMARKS[name].results
    return places


def _function(folder: Path, module: str, name: str) -> Callable[..., Any]:
    """Return a function of a module in the folder, which may import others there."""
    sys.path.insert(0, str(folder))
    try:
        function: Callable[..., Any] = runpy.run_path(str(folder / f"{module}.py"))[name]
    finally:
        sys.path.remove(str(folder))
    return function


def _plain(value: Any) -> Any:
    """Replace numbers that JSON cannot hold by None."""
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def parser() -> options.Parser:
    """Return the parser of the command."""
    parser = options.make_parser("bench", run)
    add = parser.add_argument
    known = f"{', '.join(BENCHMARKS)} (default: {DEFAULT})"
    add("names", nargs="*", metavar="NAME", help=known)
    add("--list", action="store_true", help="list the benchmarks and their times")
    add("--full", action="store_true", help="the sizes of the documentation")
    out = Path("report/bench")
    add("--out", **options.DIRECTORY, default=out, help="of stored runs (default: %(default)s)")
    options.add_shared(parser, *options.COMMON)
    return parser
