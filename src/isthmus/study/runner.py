"""Running a study: what is missing, in processes of its own, stored as soon as it is done."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import isthmus
from isthmus.datasets import load
from isthmus.datasets.manifest import entry
from isthmus.errors import InvalidInputError
from isthmus.files import write_atomically
from isthmus.study.backends import connected, on_dask, on_loky
from isthmus.study.isolation import Limits, Request
from isthmus.study.methods import Method
from isthmus.study.plan import read_plan, updated, write_plan
from isthmus.study.settings import Settings, require_count
from isthmus.study.store import Store
from isthmus.study.tasks import Task

__all__ = ["Progress", "Run", "run", "status"]

Backend = Literal["loky", "dask"]

# What any fit takes, in numbers of a table that take as long to work through. By the recorded
# times of the whole study: about 0.9 s a fit, and 4 s for a million numbers more.
FIXED_COST = 200_000
PROGRESS = "progress.json"


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
    seconds_left: float | None = None
    """About how long a run that is at it now will take; None if there is none."""
    set_aside: int = 0
    """Results that counted before this run, which asked for others of these datasets and
    methods."""

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
    recorded as such; one that cannot be started, its data missing, stops the run. Results depend
    on the task alone: not on the backend, nor on how many jobs there are, except for the time
    taken.

    In a directory with results of other runs, what counts for each dataset and method are the
    fits that the newest run with both of them asked for; see :meth:`Store.read`.

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
    require_count("jobs", jobs, at_least=1)
    tasks, methods = settings.tasks(), settings.chosen
    places = _places(methods)
    if backend == "loky":
        for dataset in dict.fromkeys(task.dataset for task in tasks):
            load(dataset, data_home)  # downloads what is missing, or says so before any work
    store = Store(out)
    with _workers(backend, jobs, scheduler) as outcomes, store.writing():
        rows, counted = store.read(everything=True), store.read()
        write_plan(store.directory, updated(read_plan(store.directory), tasks, places, rows))
        set_aside = len({row["id"] for row in counted} - {row["id"] for row in store.read()})
        wanted = {task.id: task for task in tasks}
        statuses = {row["id"]: row["status"] for row in rows if row["id"] in wanted}
        kept = {key: word for key, word in statuses.items() if word == "ok" or not retry}
        left = [task for task in tasks if task.id not in kept]
        requests = _requests(left, methods, data_home, settings.limits)
        work, worked = sum(map(_cost, left)), 0
        start, done = time.monotonic(), 0
        with _told(store.directory) as tell:
            for outcome in outcomes(requests):
                task = wanted[outcome["id"]]
                place = places[task.method, task.parameters]
                row = _row(task, methods[task.method], place, outcome)
                store.append([row])
                kept[task.id] = row["status"]
                done, worked = done + 1, worked + _cost(task)
                seconds = time.monotonic() - start
                progress = Progress(done, len(left), seconds, row, worked / work)
                tell(progress)
                if report is not None:
                    report(progress)
        store.compact()
    before, ended = len(tasks) - len(left), dict(Counter(kept.values()))
    return Run(store.directory, len(tasks), before, done, ended, set_aside=set_aside)


def status(out: str | Path) -> Run:
    """How far everything is that counts in this directory; it may be running now."""
    store = Store(out)
    plan = read_plan(store.directory)
    if plan is None:
        raise InvalidInputError(
            f"There is no study in {store.directory}; start one with `isthmus study run`."
        )
    total = sum(map(len, plan.values()))
    ended = Counter(row["status"] for row in store.read())
    left = _seconds_left(store.directory)
    return Run(store.directory, total, ended.total(), 0, dict(ended), left)


@contextmanager
def _told(directory: Path) -> Iterator[Callable[[Progress], None]]:
    """Yield what keeps a note of the time left for `status`, which is gone when the run ends."""
    path, due = directory / PROGRESS, 0.0

    def tell(progress: Progress) -> None:
        nonlocal due
        now = time.time()
        if now >= due:
            note = {"process": os.getpid(), "ends": now + progress.seconds_left}
            write_atomically(path, json.dumps(note) + "\n")
            due = now + 1

    try:
        yield tell
    finally:
        path.unlink(missing_ok=True)


def _seconds_left(directory: Path) -> float | None:
    """By the note of a run that is there now; one that was killed leaves its note behind."""
    try:
        note = json.loads((directory / PROGRESS).read_text())
        process, ends = int(note["process"]), float(note["ends"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return max(0.0, ends - time.time()) if _alive(process) else None


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


def _cost(task: Task) -> int:
    """About how much work a fit is, by the size of the table that it gets."""
    known = entry(task.dataset)
    return FIXED_COST + min(known.n_samples, task.rows or known.n_samples) * known.n_features


Outcomes = Callable[[Sequence[Request]], Iterator[dict[str, Any]]]


@contextmanager
def _workers(backend: str, jobs: int, scheduler: str | None) -> Iterator[Outcomes]:
    """Yield what does requests there; a cluster that cannot be reached is told at once."""
    if backend == "loky":
        yield partial(on_loky, jobs=jobs)
        return
    if backend != "dask":
        raise InvalidInputError(f"backend must be 'loky' or 'dask', not {backend!r}.")
    if scheduler is None:
        raise InvalidInputError("backend='dask' needs the scheduler's address: tcp://host:port.")
    with connected(scheduler) as client:
        yield partial(on_dask, client=client)


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
