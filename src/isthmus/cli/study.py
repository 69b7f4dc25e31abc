"""`isthmus study run|status|table|plot`: the clustering study."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.cli import options
from isthmus.io.files import check_writable, make_directory
from isthmus.validation import as_choice

if TYPE_CHECKING:
    from isthmus.paper.study.methods import Kind
    from isthmus.study import Settings

KINDS: dict[str, Kind] = {"given": "K given", "unknown": "K unknown"}


def run_run(arguments: argparse.Namespace) -> int:
    """Do the missing fits."""
    from isthmus import study

    settings = _settings(arguments)
    settings.tasks()  # raises for invalid settings before any work
    out = make_directory(arguments.output, "--out")
    if arguments.quick and arguments.datasets is None:
        wanted, settings = settings.datasets or (), settings.available(arguments.data)
        if missing := [name for name in wanted if name not in (settings.datasets or ())]:
            options.warn(
                f"without {' and '.join(missing)}: not on this machine, and the download failed. "
                f"`isthmus datasets fetch {' '.join(missing)}` explains how to get them."
            )
    try:
        done = study.run(
            out,
            settings,
            backend="local" if arguments.scheduler is None else "dask",
            data_home=arguments.data,
            **options.settings(arguments, "jobs scheduler retry progress"),
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


def _settings(arguments: argparse.Namespace) -> Settings:
    from isthmus.study import QUICK, Limits, Settings

    start = QUICK if arguments.quick else Settings()
    count, limits = arguments.seeds or len(start.seeds), start.limits
    given = options.settings(arguments, "datasets methods rows entries")
    return replace(
        start,
        seeds=tuple(range(arguments.seed, arguments.seed + count)),
        limits=Limits(
            arguments.time_limit or limits.seconds, arguments.memory_limit or limits.megabytes
        ),
        **{name: value for name, value in given.items() if value is not None},
    )


def run_status(arguments: argparse.Namespace) -> int:
    """Print the progress."""
    import json
    from datetime import timedelta

    from isthmus.study import status

    found = status(arguments.directory)
    if arguments.json:
        print(json.dumps(found.as_dict()))
        return 0
    print(found)
    if found.seconds_left is not None:
        left = timedelta(seconds=round(found.seconds_left))
        print(f"A run is in progress, about {left} remaining.")
    elif found.missing:
        print(f"{found.missing} fits are missing; run the same command again to do them.")
    return 0


def run_table(arguments: argparse.Namespace) -> int:
    """Print tables and verdict."""
    from isthmus.paper.study.comparison import VIEWS
    from isthmus.paper.study.methods import METRICS
    from isthmus.study import make_report

    target = arguments.output and check_writable(arguments.output)
    chosen: dict[str, Any] = {
        "metrics": _chosen("--metric", arguments.metric, METRICS),
        "kinds": [KINDS[word] for word in _chosen("--question", arguments.question, KINDS)],
        "views": _chosen("--view", arguments.view, VIEWS),
    }
    report = make_report(_rows(arguments.directory))
    options.put(report.to_json(**chosen) if arguments.json else report.text(**chosen), target)
    return 0


def run_plot(arguments: argparse.Namespace) -> int:
    """Draw the figures."""
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
    for word in words:
        as_choice(word, option, (*known, "all"))
    return list(known) if "all" in words else list(words)
