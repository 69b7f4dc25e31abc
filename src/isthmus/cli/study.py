"""`isthmus study run|status|table|plot`: the clustering study, from first fit to verdict."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.cli.files import path, writable_directory, writable_file
from isthmus.cli.options import (
    add_json,
    add_output,
    add_quiet,
    epilog,
    make_parser,
    names,
    positive_number,
    put,
    warn,
    whole_number,
)
from isthmus.errors import InvalidInputError

if TYPE_CHECKING:
    from isthmus.study import Progress, Settings
    from isthmus.study.methods import Kind

__all__ = ["run"]

PLACE = Path("study")
KINDS: dict[str, Kind] = {"given": "K given", "unknown": "K unknown"}
FILES = "DIR/results/*.parquet  one row a fit, for pandas, polars, duckdb"
EXAMPLES = {
    "run": "isthmus study run --quick\nisthmus study run -o study --jobs 2\n"
    "isthmus study run --datasets iris,wine --methods ClAM,ClAM+ELBO,KMeans",
    "status": "isthmus study status study",
    "table": "isthmus study table study\n"
    "isthmus study table study --metric all --view all -o tables.md",
    "plot": "isthmus study plot study -o figures",
}


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().parse_args(argv)
    code: int = arguments.action(arguments)
    return code


def _run(arguments: argparse.Namespace) -> int:
    settings = _settings(arguments)
    settings.tasks()  # says what is wrong before any work is done
    with _directory(arguments.output) as out:
        if arguments.quick and arguments.datasets is None:
            settings = _obtainable(settings, arguments.data)
        return _work(out, settings, arguments)


def _work(out: Path, settings: Settings, arguments: argparse.Namespace) -> int:
    from isthmus import study

    try:
        with _progress(len(settings.tasks()), arguments.quiet) as report:
            done = study.run(
                out,
                settings,
                jobs=arguments.jobs or _cores(),
                backend="loky" if arguments.scheduler is None else "dask",
                scheduler=arguments.scheduler,
                data_home=arguments.data,
                retry=arguments.retry,
                report=report,
            )
    except KeyboardInterrupt:
        warn(f"interrupted; the same command goes on with what is missing in {out}")
        return 130
    print(done)
    if done.set_aside:
        warn(
            f"{done.set_aside} earlier results in {out} no longer count: for each dataset and "
            "method, those that the newest run asked for do"
        )
    return 0


@contextmanager
def _directory(out: Path) -> Iterator[Path]:
    """The directory, made if need be; if nothing is put there, it is gone again afterwards."""
    made = [each for each in (out, *out.parents) if not each.exists()]
    try:
        yield writable_directory(out)
    finally:
        for each in made:
            with suppress(OSError):  # it is in use
                each.rmdir()


def _settings(arguments: argparse.Namespace) -> Settings:
    from isthmus.study import QUICK, Limits, Settings

    start = QUICK if arguments.quick else Settings()
    count = arguments.seeds or len(start.seeds)
    said: dict[str, Any] = {
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
    return replace(start, **{name: value for name, value in said.items() if value is not None})


def _obtainable(settings: Settings, data: Path | None) -> Settings:
    """The settings without those datasets that cannot be had, which are named."""
    import warnings

    from isthmus.datasets import load
    from isthmus.errors import DatasetNotFoundError

    kept, missing = [], []
    for name in settings.datasets or ():
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a network error and one more try
                load(name, data)
            kept.append(name)
        except DatasetNotFoundError:
            missing.append(name)
    if missing:
        warn(
            f"without {' and '.join(missing)}: not on this machine, and not to be downloaded. "
            f"`isthmus datasets fetch {' '.join(missing)}` says what to put where."
        )
    return replace(settings, datasets=tuple(kept))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@contextmanager
def _progress(total: int, quiet: bool) -> Iterator[Callable[[Progress], None] | None]:
    """Yield a function to be told of each fit: a bar on a terminal, else None."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn
    from rich.progress import Progress as Bar

    texts = ("{task.fields[counted]}", "{task.fields[left]}", "{task.fields[last]}")
    columns = (TextColumn("fits"), BarColumn(), *map(TextColumn, texts))
    with Bar(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task("", total=1.0, counted=f"0/{total}", left="", last="")

        def told(progress: Progress) -> None:
            bar.update(
                task,
                completed=progress.share,
                counted=f"{progress.done}/{progress.total}",
                left=f"{_clock(progress.seconds_left)} left",
                last=f"{progress.row['dataset']} {progress.row['method']}",
            )

        yield told


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _status(arguments: argparse.Namespace) -> int:
    import json

    from isthmus.study import status

    found = status(arguments.directory)
    if arguments.json:
        fields = {"directory": str(found.directory), "fits": found.total, "missing": found.missing}
        left = found.seconds_left
        print(json.dumps({**fields, "ended": found.statuses, "seconds_left": left}))
        return 0
    print(found)
    if found.seconds_left is not None:
        print(f"a run is at it, with about {_clock(found.seconds_left)} left")
    elif found.missing:
        print(f"{found.missing} are missing; the command that began them goes on with them")
    return 0


def _table(arguments: argparse.Namespace) -> int:
    from isthmus.study import make_report
    from isthmus.study.metrics import METRICS
    from isthmus.study.tables import VIEWS

    target = arguments.output and writable_file(arguments.output)
    chosen: dict[str, Any] = {
        "metrics": _chosen("metric", arguments.metric, METRICS),
        "kinds": [KINDS[word] for word in _chosen("question", arguments.question, KINDS)],
        "views": _chosen("view", arguments.view, VIEWS),
    }
    report = make_report(_rows(arguments.directory))
    put(report.to_json(**chosen) if arguments.json else report.text(**chosen), target)
    return 0


def _plot(arguments: argparse.Namespace) -> int:
    from isthmus.figures.files import save
    from isthmus.report.study_figures import study_figures

    rows = _rows(arguments.directory)
    out = writable_directory(arguments.output or arguments.directory)
    for name, figure in study_figures(rows).items():
        print(save(figure, out / f"{name}.png"), flush=True)
    return 0


def _rows(directory: Path) -> list[dict[str, Any]]:
    from isthmus.study import Store, status

    found = status(directory)
    if found.missing:
        warn(f"{found.missing} of {found.total} fits are still missing in {directory}")
    return Store(directory).read()


def _chosen(option: str, words: Sequence[str], known: Any) -> list[str]:
    """Those that were named; all of them for the word "all"."""
    if tuple(words) == ("all",):
        return list(known)
    for word in words:
        if word not in known:
            raise InvalidInputError(
                f"--{option}: there is no {word!r}; there are {', '.join(known)}, and all."
            )
    return list(words)


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(
        "study",
        "The clustering study: methods on datasets, resumable, with a verdict.",
        "\n".join(EXAMPLES.values()),
        files=FILES,
        allow_abbrev=False,
    )
    commands = parser.add_subparsers(metavar="run|status|table|plot", required=True)

    def command(
        name: str, action: Callable[[argparse.Namespace], int], description: str
    ) -> argparse.ArgumentParser:
        one = commands.add_parser(
            name,
            help=description,
            description=description[0].upper() + description[1:] + ".",
            epilog=epilog(EXAMPLES[name], FILES),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        one.set_defaults(action=action)
        if name != "run":
            words = f"of the study; default: {PLACE}"
            one.add_argument(
                "directory", type=path, nargs="?", default=PLACE, metavar="DIR", help=words
            )
        return one

    _add_run_options(command("run", _run, "do what is missing of a study"))
    add_json(command("status", _status, "say how far a study is, while it runs or later"))

    table = command("table", _table, "print scores, ranks, tests and the verdict, as Markdown")
    for option, default, words in (
        ("metric", ("ari",), "ari,nmi,...|all; default: ari"),
        ("question", ("all",), "is K given|unknown|all; default: all"),
        ("view", ("selected",), "selected|grid|oracle|all; default: selected"),
    ):
        table.add_argument(
            f"--{option}", type=names, default=default, metavar="NAME,...", help=words
        )
    add_json(table)
    add_output(table, "FILE")

    plot = command("plot", _plot, "draw violins, critical differences and a map of scores")
    add_output(plot, "DIR", words="where to put the PNGs; default: the study's own directory")
    return parser


def _add_run_options(one: argparse.ArgumentParser) -> None:
    add = one.add_argument
    add("--quick", action="store_true", help="small datasets, short grids, a few minutes")
    add("--datasets", type=names, metavar="NAME,...", help="default: all 15")
    add("--methods", type=names, metavar="NAME,...", help="default: all 12")
    add("--seeds", type=whole_number(1), metavar="N", help="so many; default: 3, --quick 1")
    add(
        "--seed",
        type=whole_number(0),
        default=0,
        metavar="N",
        help="the first of them; N+1, ... follow; default: 0",
    )
    add(
        "--rows",
        type=whole_number(0),
        metavar="N",
        help="at most so many of each dataset, 0 for all; default: 5000, --quick 1000",
    )
    add(
        "--entries",
        type=whole_number(1),
        metavar="N",
        help="so many of each grid; default: all 8, --quick 3",
    )
    add("--jobs", type=whole_number(1), metavar="N", help="fits at a time; default: one a core")
    add("--scheduler", metavar="tcp://HOST:PORT", help="run on this Dask cluster instead")
    add(
        "--time-limit",
        type=positive_number,
        metavar="S",
        help="CPU seconds a fit may take; default: 60, --quick 30",
    )
    add(
        "--memory-limit",
        type=positive_number,
        metavar="MB",
        help="a fit may take, beyond the data; default: 4096, --quick 2048",
    )
    add("--retry", action="store_true", help="do again what did not end well")
    add("--data", type=path, metavar="DIR", help="where the datasets are")
    add_quiet(one)
    add_output(one, "DIR", words=f"the directory of the results; default: {PLACE}")
    one.set_defaults(output=PLACE)
