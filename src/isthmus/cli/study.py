"""`isthmus study run|status|table|plot`: the clustering study."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.cli import options
from isthmus.errors import InvalidInputError
from isthmus.io.files import check_writable, make_directory

if TYPE_CHECKING:
    from isthmus.paper.study.methods import Kind
    from isthmus.study import Settings

DIRECTORY = Path("study")
KINDS: dict[str, Kind] = {"given": "K given", "unknown": "K unknown"}


def _run(arguments: argparse.Namespace) -> int:
    from isthmus import study

    settings = _settings(arguments)
    settings.tasks()  # raises for invalid settings before any work
    with _new_directory(arguments.output) as out:
        if arguments.quick and arguments.datasets is None:
            settings = _available(settings, arguments.data)
        try:
            done = study.run(
                out,
                settings,
                jobs=arguments.jobs,
                backend="local" if arguments.scheduler is None else "dask",
                scheduler=arguments.scheduler,
                data_home=arguments.data,
                retry=arguments.retry,
                progress=False if arguments.quiet else None,
            )
        except KeyboardInterrupt:
            options.warn(f"interrupted; the same command continues with the missing fits in {out}")
            return 130
    print(done)
    if done.set_aside:
        options.warn(
            f"{done.set_aside} earlier results in {out} no longer count: this run replaced those "
            "of its datasets and methods"
        )
    return 0


@contextmanager
def _new_directory(out: Path) -> Iterator[Path]:
    """Make the directory if necessary, and remove it again if it stays empty."""
    made = [each for each in (out, *out.parents) if not each.exists()]
    try:
        yield make_directory(out, "--out")
    finally:
        for each in made:
            with suppress(OSError):  # not empty
                each.rmdir()


def _settings(arguments: argparse.Namespace) -> Settings:
    from isthmus.study import QUICK, Limits, Settings

    start = QUICK if arguments.quick else Settings()
    count = arguments.seeds or len(start.seeds)
    given: dict[str, Any] = {
        "datasets": arguments.datasets,
        "methods": arguments.methods,
        "seeds": tuple(range(arguments.seed, arguments.seed + count)),
        "rows": arguments.rows,
        "entries": arguments.entries,
        "limits": Limits(
            arguments.time_limit or start.limits.seconds,
            arguments.memory_limit or start.limits.megabytes,
        ),
    }
    return replace(start, **{name: value for name, value in given.items() if value is not None})


def _available(settings: Settings, data: Path | None) -> Settings:
    kept = settings.available(data)
    missing = [name for name in settings.datasets or () if name not in (kept.datasets or ())]
    if missing:
        options.warn(
            f"without {' and '.join(missing)}: not on this machine, and the download failed. "
            f"`isthmus datasets fetch {' '.join(missing)}` explains how to get them."
        )
    return kept


def _status(arguments: argparse.Namespace) -> int:
    import json
    from datetime import timedelta

    from isthmus.study import status

    found = status(arguments.directory)
    print(json.dumps(found.as_dict()) if arguments.json else found)
    if found.seconds_left is not None and not arguments.json:
        left = timedelta(seconds=round(found.seconds_left))
        print(f"A run is in progress, about {left} remaining.")
    elif found.missing and not arguments.json:
        print(f"{found.missing} fits are missing; run the same command again to do them.")
    return 0


def _table(arguments: argparse.Namespace) -> int:
    from isthmus.paper.study.comparison import VIEWS
    from isthmus.paper.study.fitting import METRICS
    from isthmus.study import make_report

    target = arguments.output and check_writable(arguments.output)
    chosen: dict[str, Any] = {
        "metrics": _chosen("metric", arguments.metric, METRICS),
        "kinds": [KINDS[word] for word in _chosen("question", arguments.question, KINDS)],
        "views": _chosen("view", arguments.view, VIEWS),
    }
    report = make_report(_rows(arguments.directory))
    options.put(report.to_json(**chosen) if arguments.json else report.text(**chosen), target)
    return 0


def _plot(arguments: argparse.Namespace) -> int:
    from isthmus.figures.style import save
    from isthmus.study import study_figures

    rows = _rows(arguments.directory)
    out = make_directory(arguments.output or arguments.directory, "--out")
    for name, figure in study_figures(rows).items():
        print(save(figure, out / f"{name}.png"), flush=True)
    return 0


def _rows(directory: Path) -> list[dict[str, Any]]:
    from isthmus.study import Store, status

    found = status(directory)
    if found.missing:
        options.warn(f"{found.missing} of {found.total} fits are still missing in {directory}")
    return Store(directory).read()


def _chosen(option: str, words: Sequence[str], known: Any) -> list[str]:
    """Return the chosen names; "all" stands for all of them."""
    if tuple(words) == ("all",):
        return list(known)
    for word in words:
        if word not in known:
            raise InvalidInputError(
                f"--{option}: there is no {word!r}; there are {', '.join(known)}, and all."
            )
    return list(words)


def parser() -> options.Parser:
    """Return the parser of the command."""
    parser = options.make_parser("study")
    run, status, table, plot = options.add_commands(parser, _run, _status, _table, _plot)
    words = f"directory of the study (default: {DIRECTORY})"
    for each in (status, table, plot):
        each.add_argument(
            "directory", nargs="?", **options.DIRECTORY, default=DIRECTORY, help=words
        )
    _add_run_options(run)
    options.add_shared(status, "--json")

    names: dict[str, Any] = {"type": options.names, "metavar": "NAME,..."}
    add = table.add_argument
    add("--metric", **names, default=("ari",), help="ari,nmi,...|all (default: ari)")
    words = "number of clusters given|unknown|all (default: all)"
    add("--question", **names, default=("all",), help=words)
    words = "selected|grid|oracle|all (default: selected)"
    add("--view", **names, default=("selected",), help=words)
    options.add_shared(table, "--json")
    options.add_output(table, "FILE")
    options.add_output(plot, "DIR", words="for the PNGs (default: the directory of the study)")
    return parser


def _add_run_options(one: argparse.ArgumentParser) -> None:
    add = one.add_argument
    count, size, number = options.whole_number(1), options.whole_number(0), options.positive_number
    add("--quick", action="store_true", help="small datasets and short grids; a few minutes")
    add("--datasets", type=options.names, metavar="NAME,...", help="default: all")
    add("--methods", type=options.names, metavar="NAME,...", help="default: all")
    add("--seeds", type=count, metavar="N", help="number of seeds (default: 3, --quick 1)")
    words = "first seed; the others are N+1, N+2, ... (default: 0)"
    add("--seed", type=size, default=0, metavar="N", help=words)
    words = "largest number of rows per dataset, 0 for all (default: 5000, --quick 1000)"
    add("--rows", type=size, metavar="N", help=words)
    words = "settings from each grid (default: all, few on large tables; --quick 3)"
    add("--entries", type=count, metavar="N", help=words)
    add("--jobs", type=count, metavar="N", help="fits at a time (default: one per core)")
    add("--scheduler", metavar="tcp://HOST:PORT", help="run on this Dask cluster instead")
    words = "CPU seconds per fit (default: 60, --quick 30)"
    add("--time-limit", type=number, metavar="S", help=words)
    words = "memory per fit, in addition to the data (default: 4096, --quick 2048)"
    add("--memory-limit", type=number, metavar="MB", help=words)
    add("--retry", action="store_true", help="repeat fits that failed or were stopped")
    add("--data", **options.DIRECTORY, help="directory of the datasets")
    options.add_shared(one, "--quiet")
    options.add_output(one, "DIR", words=f"directory of the results (default: {DIRECTORY})")
    one.set_defaults(output=DIRECTORY)
