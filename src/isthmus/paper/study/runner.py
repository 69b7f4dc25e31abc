"""Run a study: do the fits that are missing, and store each result as soon as it is there."""

from __future__ import annotations

import json
import os
import socket
import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import as_completed
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

import isthmus
from isthmus.errors import InvalidInputError, IsthmusError
from isthmus.io.files import write_atomically
from isthmus.io.reading import reading
from isthmus.paper.datasets.loading import load
from isthmus.paper.processes import Call, Outcome, cores, run_all, run_limited
from isthmus.paper.study.methods import Method, judge
from isthmus.paper.study.settings import Settings, Task
from isthmus.paper.study.store import Store
from isthmus.progress import progress as progress_bar
from isthmus.scaling import Scaling
from isthmus.validation import as_choice, as_count

if TYPE_CHECKING:
    from distributed import Client

Backend = Literal["local", "dask"]
Outcomes = Generator[tuple[Call, Outcome], None, None]

# Holds the process of a run in progress and the estimated time of its end, for `status`.
PROGRESS = "progress.json"


@dataclass(frozen=True)
class Prepared:
    """Rows of a dataset with `n_available`, in random order, all features of variance one."""

    X: NDArray[np.float64]
    y: NDArray[np.int64]
    n_available: int


def prepare(dataset: str, rows: int, data_home: str | Path | None = None) -> Prepared:
    """Load a dataset, take a fixed random subsample of at most `rows`, and standardise it.

    Zero `rows` stand for all. Constant columns become zero.
    """
    X, y = load(dataset, data_home, progress=False)
    kept = np.random.default_rng(0).permutation(len(X))[: rows or None]
    sample = X[kept].astype(np.float64)
    return Prepared(Scaling.of(sample).into(sample), y[kept], len(X))


# Shared by the fits on one dataset that a worker does.
_prepared = lru_cache(maxsize=2)(prepare)


def fit(task: Task, method: Method, data: Prepared) -> dict[str, Any]:
    """Fit a method and return the columns of its result."""
    X, y = data.X[: method.max_rows], data.y[: method.max_rows]
    n_classes = len(np.unique(y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about convergence, which is recorded
        model = method.estimator(task.settings, n_classes, task.seed, X)
        start = time.process_time()
        labels = np.asarray(model.fit_predict(X))
        seconds = time.process_time() - start
        objective = method.judged(model, X)
        scores = judge(X, y, labels)
    converged = getattr(model, "converged_", None)
    if converged is None and hasattr(model, "n_iter_") and hasattr(model, "max_iter"):
        converged = np.max(model.n_iter_) < model.max_iter
    sizes = np.unique(labels, return_counts=True)[1]
    return {
        "n_rows": len(X),
        "n_available": data.n_available,
        "n_features": X.shape[1],
        "n_classes": n_classes,
        **scores,
        "n_clusters": len(sizes),
        "largest_share": float(sizes.max() / len(labels)),
        "objective": objective if np.isfinite(objective) else None,
        "converged": None if converged is None else bool(converged),
        "seconds": seconds,
    }


def _fit(task: Task, method: Method, place: tuple[Any, ...]) -> dict[str, Any] | IsthmusError:
    """Fit in a worker; return an error, no result of the method, if the data cannot be read."""
    try:
        data = _prepared(*place)
    except IsthmusError as error:
        name, host = f"{task.method} on {task.dataset}", socket.gethostname()
        return type(error)(f"{name} could not be started on {host}: {error}")
    return fit(task, method, data)


@dataclass(frozen=True)
class Progress:
    """Progress of a run: its fits, its newest result, and the finished share of the work."""

    done: int
    total: int
    seconds: float
    row: dict[str, Any]
    share: float

    @property
    def seconds_left(self) -> float:
        """Estimate of the remaining time."""
        return self.seconds / self.share * (1 - self.share)


@dataclass(frozen=True)
class Run:
    """Result of a run, or its state if it is still in progress.

    `total` counts all fits, `before` and `done` those of earlier runs and of this run, and
    `statuses` the finished ones by status. `set_aside` results no longer count, because this run
    replaced their datasets and methods. `seconds_left` is estimated for a run in progress.
    """

    directory: Path
    total: int
    before: int
    done: int
    statuses: dict[str, int]
    seconds_left: float | None = None
    set_aside: int = 0

    @property
    def missing(self) -> int:
        """Number of fits still to do."""
        return self.total - self.before - self.done

    def as_dict(self) -> dict[str, Any]:
        """Return the state for JSON."""
        return {
            "directory": str(self.directory),
            "fits": self.total,
            "missing": self.missing,
            "ended": self.statuses,
            "seconds_left": self.seconds_left,
        }

    def __str__(self) -> str:
        ends = ", ".join(f"{count} {word}" for word, count in sorted(self.statuses.items()))
        text = f"{self.directory}: {self.before + self.done} of {self.total} fits done"
        return f"{text} ({ends})" if ends else text


def run(
    out: str | Path,
    settings: Settings | None = None,
    *,
    jobs: int | None = 1,
    backend: Backend = "local",
    scheduler: str | None = None,
    data_home: str | Path | None = None,
    retry: bool = False,
    report: Callable[[Progress], None] | None = None,
    progress: bool | None = None,
) -> Run:
    """Do the fits of a study that are missing in a directory.

    Each result is stored as soon as its fit ends; after an interruption the same call continues.
    A fit that crashes, hangs or exceeds a limit is recorded as such; one that cannot be started,
    for example because its data are missing, stops the run. Apart from times, results depend on
    the task alone. For each dataset and method the newest run counts; see :meth:`Store.read`.

    Parameters
    ----------
    out : str or Path
        Directory of the results.
    settings : Settings, optional
        Default: the whole study.
    jobs : int or None
        Number of fits at a time on this machine; None for one per core.
    backend : {"local", "dask"}
    scheduler : str
        Address of the Dask scheduler, such as ``tcp://10.0.0.1:8786``. Its workers need isthmus
        and the data.
    data_home : str or Path, optional
        See :func:`isthmus.datasets.load`.
    retry : bool
        Repeat fits that failed or were stopped.
    report : callable, optional
        Called with a :class:`Progress` after every fit.
    progress : bool, optional
        Show a progress bar. Default: on a terminal, if the run takes more than two seconds.
    """
    settings = settings or Settings()
    jobs = cores() if jobs is None else as_count(jobs, "jobs")
    tasks = {task.id: task for task in settings.tasks()}
    if backend != "dask":
        for dataset in dict.fromkeys(task.dataset for task in tasks.values()):
            load(dataset, data_home)  # downloads it, or raises before any work
    store = Store(out)
    runner: Callable[[Sequence[Call]], Outcomes] = partial(run_all, jobs=jobs)
    with ExitStack() as stack:
        if as_choice(backend, "backend", ("local", "dask")) == "dask":
            if scheduler is None:
                raise InvalidInputError("backend='dask' needs a scheduler: tcp://host:port.")
            from isthmus.distributed.connection import connect

            runner = partial(_run_on_dask, stack.enter_context(connect(scheduler)))
        stack.enter_context(store.writing())
        counted = {row["id"] for row in store.read()}
        store.set_plan(tasks.values())
        rows = store.read()
        set_aside = len(counted - {row["id"] for row in rows})
        statuses = {
            row["id"]: row["status"]
            for row in rows
            if row["id"] in tasks and (row["status"] == "ok" or not retry)
        }
        left = [task for key, task in tasks.items() if key not in statuses]
        home, methods = None if data_home is None else os.fspath(data_home), settings.chosen
        calls = [
            Call(
                task.id,
                _fit,
                (task, methods[task.method], (task.dataset, task.rows, home)),
                settings.limits,
            )
            for task in left
        ]
        before, start = len(statuses), time.monotonic()
        note = store.directory / PROGRESS
        stack.callback(note.unlink, missing_ok=True)
        outcomes = stack.enter_context(closing(runner(calls)))
        show = stack.enter_context(progress_bar("study (%)", 100, show=progress))
        for done, (call, outcome) in enumerate(outcomes, 1):
            task = tasks[call.name]
            row = _row(task, methods[task.method].kind, outcome)
            store.append([row])
            statuses[task.id] = row["status"]
            now = Progress(done, len(left), time.monotonic() - start, row, done / len(left))
            write_atomically(note, json.dumps([os.getpid(), time.time() + now.seconds_left]))
            show(100 * now.share, f"{done}/{now.total} fits, {task.dataset} {task.method}")
            if report is not None:
                report(now)
    ended = dict(Counter(statuses.values()))
    return Run(store.directory, len(tasks), before, len(left), ended, set_aside=set_aside)


def status(out: str | Path) -> Run:
    """Return the state of the fits that count in a directory, also while a run is in progress."""
    store = Store(out)
    plan = store.plan()
    if not plan:
        raise InvalidInputError(
            f"There is no study in {store.directory}; start one with `isthmus study run`."
        )
    ended = Counter(row["status"] for row in store.read())
    seconds_left = None
    with suppress(OSError, InvalidInputError), reading(store.directory / PROGRESS, "note") as path:
        process, ends = json.loads(path.read_text())
        left = int(ends - time.time())  # not infinite
        with suppress(PermissionError):  # a process of another user
            os.kill(process, 0)  # raises if there is no such process: a killed run left its note
        seconds_left = max(0.0, left)
    return Run(store.directory, len(plan), ended.total(), 0, dict(ended), seconds_left)


def _row(task: Task, kind: str, outcome: Outcome) -> dict[str, Any]:
    """Return the row of a result; raise if the fit could not be started."""
    if isinstance(outcome.value, IsthmusError):
        raise outcome.value
    ended = {name: value for name, value in vars(outcome).items() if name != "value"}
    when = {"version": isthmus.__version__, "finished": time.time()}
    return {"id": task.id, "kind": kind, **vars(task), **when, **ended, **(outcome.value or {})}


def _run_on_dask(client: Client, calls: Sequence[Call]) -> Outcomes:
    """Run calls on the workers of a scheduler, which replaces lost workers by others."""
    from distributed.scheduler import KilledWorker

    pool = client.get_executor(pure=False)
    futures = {
        pool.submit(run_limited, call.function, *call.args, limits=call.limits): call
        for call in calls
    }
    for future in as_completed(futures):
        try:
            yield futures[future], future.result()
        except KilledWorker:
            message = "The task failed on every worker."
            yield futures[future], Outcome("crashed", message=message)
