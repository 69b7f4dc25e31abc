"""Running a study: what is missing, in processes of its own, stored as soon as it is done."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import isthmus
from isthmus.datasets import load, names
from isthmus.datasets.manifest import entry
from isthmus.errors import InvalidInputError
from isthmus.files import write_atomically
from isthmus.study.backends import on_dask, on_loky
from isthmus.study.isolation import Limits, Request
from isthmus.study.methods import Method, choose_methods
from isthmus.study.store import Store
from isthmus.study.tasks import Task, make_tasks

__all__ = ["QUICK", "Progress", "Run", "Settings", "run", "status"]

Backend = Literal["loky", "dask"]


@dataclass(frozen=True)
class Settings:
    """Which part of the study to do, and how much of it.

    Parameters
    ----------
    datasets : sequence of str, optional
        All 15 by default.
    methods : sequence of str or Method, optional
        All twelve by default; a :class:`Method` of your own stands beside names.
    seeds : sequence of int
    rows : int
        At most so many rows of each dataset, the same for all methods; 0 for all.
    entries : int, optional
        Only so many entries of each grid.
    limits : Limits
        On each fit.
    """

    datasets: Sequence[str] | None = None
    methods: Sequence[str | Method] | None = None
    seeds: Sequence[int] = (0, 1, 2)
    rows: int = 5000
    entries: int | None = None
    limits: Limits = field(default_factory=Limits)

    def tasks(self) -> list[Task]:
        """All fits."""
        _require_count("rows", self.rows, at_least=0)
        datasets = names() if self.datasets is None else self.datasets
        return make_tasks(datasets, self.chosen, tuple(self.seeds), self.rows, self.entries)

    @property
    def chosen(self) -> dict[str, Method]:
        """The methods by name."""
        return choose_methods(self.methods)


QUICK = Settings(
    datasets=("iris", "wine", "wisconsin_breast_cancer", "zoo", "ecoli"),
    seeds=(0,),
    rows=1000,
    entries=3,
    limits=Limits(seconds=30, megabytes=2048),
)
"""A short look: five small datasets, three entries of each grid, one seed. The first three
datasets come with scikit-learn."""

# What any fit takes, in numbers of a table that take as long to work through.
FIXED_COST = 20_000


@dataclass(frozen=True)
class Progress:
    """How far a run is."""

    done: int
    total: int
    seconds: float
    row: dict[str, Any]
    """The result that came last."""
    share: float
    """How much of the work that is, fits on larger datasets being more of it."""

    @property
    def seconds_left(self) -> float:
        """If the rest goes as the part so far."""
        return self.seconds / self.share * (1 - self.share)


@dataclass(frozen=True)
class Run:
    """What a run did, or how far it is."""

    directory: Path
    total: int
    before: int
    """Done by earlier runs."""
    done: int
    """Done by this one."""
    statuses: dict[str, int]
    """How the fits that are done ended."""

    @property
    def missing(self) -> int:
        """Fits that are still to do."""
        return self.total - self.before - self.done

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {word}" for word, count in sorted(self.statuses.items()))
        text = f"{self.directory}: {self.before + self.done} of {self.total} fits done"
        return f"{text} ({ends})" if ends else text


def run(
    out: str | Path,
    settings: Settings | None = None,
    *,
    jobs: int = 1,
    backend: Backend = "loky",
    scheduler: str | None = None,
    data_home: str | Path | None = None,
    retry: bool = False,
    report: Callable[[Progress], None] | None = None,
) -> Run:
    """Do what is missing of a study.

    A result is on disk as soon as its fit is done. The run may be killed at any moment; the same
    call then goes on with what is missing. A fit that crashes, hangs or takes too much memory is
    recorded as such. Results depend on the task alone: not on the backend, nor on how many
    jobs there are, except for the time taken.

    Parameters
    ----------
    out : str or Path
        The directory of the results.
    settings : Settings, optional
        The whole study by default.
    jobs : int
        Fits at a time, on this machine.
    backend : {"loky", "dask"}
    scheduler : str
        Where the Dask scheduler is, such as ``tcp://10.0.0.1:8786``. Its workers need isthmus
        and the data.
    data_home : str or Path, optional
        As in :func:`isthmus.datasets.load`.
    retry : bool
        Do again what did not end well.
    report : callable, optional
        Called with a :class:`Progress` after every fit.

    Returns
    -------
    Run
    """
    settings = settings or Settings()
    _require_count("jobs", jobs, at_least=1)
    tasks, methods = settings.tasks(), settings.chosen
    places = _places(methods)
    if backend == "loky":
        for dataset in dict.fromkeys(task.dataset for task in tasks):
            load(dataset, data_home)  # downloads what is missing, or says so before any work
    store = Store(out)
    with store.writing():
        _write_plan(store.directory, tasks)
        wanted = {task.id: task for task in tasks}
        statuses = {row["id"]: row["status"] for row in store.read() if row["id"] in wanted}
        kept = {key: word for key, word in statuses.items() if word == "ok" or not retry}
        left = [task for task in tasks if task.id not in kept]
        requests = _requests(left, methods, data_home, settings.limits)
        work, worked = sum(map(_cost, left)), 0
        start, done = time.monotonic(), 0
        for outcome in _outcomes(requests, backend, jobs, scheduler):
            task = wanted[outcome["id"]]
            row = _row(task, methods[task.method], places[task.method, task.parameters], outcome)
            store.append([row])
            kept[task.id] = row["status"]
            done, worked = done + 1, worked + _cost(task)
            if report is not None:
                seconds = time.monotonic() - start
                report(Progress(done, len(left), seconds, row, worked / work))
        store.compact()
    return Run(
        store.directory, len(tasks), len(tasks) - len(left), done, dict(Counter(kept.values()))
    )


def status(out: str | Path) -> Run:
    """How far the last run in this directory is; it may be running now."""
    store = Store(out)
    try:
        planned = set(json.loads((store.directory / "plan.json").read_text()))
    except FileNotFoundError:
        raise InvalidInputError(
            f"There is no study in {store.directory}; start one with `isthmus study run`."
        ) from None
    ended = Counter(row["status"] for row in store.read() if row["id"] in planned)
    return Run(store.directory, len(planned), ended.total(), 0, dict(ended))


def _require_count(name: str, value: Any, at_least: int) -> None:
    # Not isthmus.validation, which imports torch: the processes that only wait need none.
    if isinstance(value, bool) or not isinstance(value, int) or value < at_least:
        raise InvalidInputError(f"{name} must be a whole number from {at_least} up, not {value!r}.")


def _cost(task: Task) -> int:
    """About how much work a fit is, by the size of the table that it gets."""
    known = entry(task.dataset)
    return FIXED_COST + min(known.n_samples, task.rows or known.n_samples) * known.n_features


def _outcomes(
    requests: list[Request], backend: str, jobs: int, scheduler: str | None
) -> Iterable[dict[str, Any]]:
    if backend == "loky":
        return on_loky(requests, jobs)
    if backend != "dask":
        raise InvalidInputError(f"backend must be 'loky' or 'dask', not {backend!r}.")
    if scheduler is None:
        raise InvalidInputError("backend='dask' needs the scheduler's address: tcp://host:port.")
    return on_dask(requests, scheduler)


def _requests(
    tasks: list[Task],
    methods: dict[str, Method],
    data_home: str | Path | None,
    limits: Limits,
) -> list[Request]:
    import cloudpickle

    pickled = {name: cloudpickle.dumps(method) for name, method in methods.items()}
    home = None if data_home is None else os.fspath(data_home)
    return [Request(task, pickled[task.method], home, limits) for task in tasks]


def _places(methods: dict[str, Method]) -> dict[tuple[str, str], int]:
    """Where in its grid each of a method's settings stands."""
    return {
        (name, json.dumps(settings, sort_keys=True)): place
        for name, method in methods.items()
        for place, settings in enumerate(method.grid)
    }


def _row(task: Task, method: Method, place: int, outcome: dict[str, Any]) -> dict[str, Any]:
    return {
        "dataset": task.dataset,
        "method": task.method,
        "kind": method.kind,
        "parameters": task.parameters,
        "entry": place,
        "seed": task.seed,
        "version": isthmus.__version__,
        "finished": time.time(),
        **outcome,
    }


def _write_plan(directory: Path, tasks: list[Task]) -> None:
    write_atomically(directory / "plan.json", json.dumps([task.id for task in tasks]) + "\n")
