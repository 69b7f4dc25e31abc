"""Calls of functions in worker processes with limits on time and memory.

A worker does one call after another. It is replaced after a call that fails or exceeds a limit,
and ends when the caller is gone. multiprocessing and loky cannot start processes in the workers of
Dask, import the main script again, and have no limits on a call.
"""

from __future__ import annotations

import faulthandler
import math
import os
import re
import signal
import subprocess
import sys
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Literal

import cloudpickle

from isthmus.validation import as_count, as_number

# Results must not depend on the number of calls at a time: every worker has one thread.
ENVIRONMENT = {
    **{f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")},
    "VECLIB_MAXIMUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "MPLBACKEND": "Agg",
}
MESSAGE_LENGTH = 500


@dataclass(frozen=True)
class Limits:
    """Limits on one call; ``math.inf`` stands for none.

    `seconds` are of CPU time, `megabytes` of memory beyond what the child has when it starts
    (enforced on Linux), and `wall_seconds` of time by the clock. The default of the last is ten
    times `seconds` plus 30, so that a busy machine stops no call that would end in time.
    """

    seconds: float = 60.0
    megabytes: float = 4096.0
    wall_seconds: float = None  # type: ignore[assignment]  # __post_init__ fills it in

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value != math.inf and (name, value) != ("wall_seconds", None):
                as_number(value, name, above=0)
        if vars(self)["wall_seconds"] is None:
            object.__setattr__(self, "wall_seconds", 10 * self.seconds + 30)


@dataclass(frozen=True)
class Outcome:
    """The end of one call; "failed" if the function raised, "crashed" if it gave no answer."""

    status: Literal["ok", "failed", "timeout", "memory", "crashed"]
    value: Any = None
    message: str = ""
    seconds: float | None = None  # CPU time, with that of processes it started
    peak_megabytes: float | None = None  # on Linux: the most that the worker has had so far


@dataclass(frozen=True, eq=False)
class Call:
    """One call for :func:`run_all`.

    The function is pickled by reference where it can be imported, by value otherwise. `log` is a
    file for what it prints, with the traceback if it fails; by default prints go to the standard
    error stream.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    limits: Limits = field(default_factory=Limits)
    log: str | Path | None = None


def run_limited(function: Callable[..., Any], *args: Any, **options: Any) -> Outcome:
    """Call a function in a worker and wait for its outcome; options are those of a Call.

    The worker has the caller's environment, search path and directory, and one thread. Threads may
    call this at the same time.
    """
    return next(run_all([Call("", function, args, **options)]))[1]


def run_all(calls: Sequence[Call], *, jobs: int = 1) -> Generator[tuple[Call, Outcome], None, None]:
    """Run calls, at most `jobs` at a time, and yield each with its outcome as soon as it ends.

    Closing the iterator kills the others.
    """
    jobs = as_count(jobs, "jobs")
    waiting, running = deque(calls), dict[Connection, tuple[_Worker, Call, float]]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                call = waiting.popleft()
                worker = _send(call)
                deadline = time.monotonic() + call.limits.wall_seconds
                running[worker.connection] = worker, call, deadline
            left = min(each[2] for each in running.values()) - time.monotonic()
            ready = wait(list(running), None if math.isinf(left) else max(left, 0))
            for connection, (worker, call, deadline) in [*running.items()]:
                if connection in ready or time.monotonic() >= deadline:
                    del running[connection]
                    yield call, worker.outcome(call.limits)
    finally:
        for worker, _, _ in running.values():
            worker.end()


def cores() -> int:
    """Return the number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # does not exist on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


class _Worker:
    """A process that does one call after another."""

    def __init__(self, state: tuple[Any, ...]) -> None:
        self.state = state
        path = os.pathsep.join(filter(None, sys.path))
        self.connection, theirs = Pipe()
        with theirs:
            code = f"from {__name__} import _serve; _serve({theirs.fileno()})"
            self.process = subprocess.Popen(
                # -P: code in the current directory is not imported by accident.
                [sys.executable, "-P", "-c", code],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path},
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for the caller, which ends the workers
            )

    def end(self) -> int:
        """End the process and all that it started, and return its exit code."""
        self.connection.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait()

    def outcome(self, limits: Limits) -> Outcome:
        """Return the outcome that has arrived, or say why there is none."""
        if not self.connection.poll():
            self.end()
            return Outcome("timeout", message=f"Not done after {limits.wall_seconds:g} s.")
        with suppress(EOFError, OSError):
            status, value, *others = self.connection.recv()
            if status != "ok":
                self.end()
                return Outcome(status, None, *others)
            _idle.append(self)
            return Outcome(status, cloudpickle.loads(value), *others)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(1)
        code = self.end()
        if code == -signal.SIGXCPU:
            words = f"Not done after {limits.seconds:g} s of CPU time."
            return Outcome("timeout", message=words, seconds=limits.seconds)
        words = f"The process ended with exit code {code} and without a result."
        if code < 0:
            name = signal.Signals(-code).name
            words = f"The process crashed: {signal.strsignal(-code)} ({name})."
        return Outcome("crashed", message=words)


_idle: list[_Worker] = []
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_idle.clear)  # they are the parent's


def _send(call: Call) -> _Worker:
    """Start a call in a worker, which then sends the outcome."""
    log = None if call.log is None else os.path.abspath(call.log)
    content = cloudpickle.dumps((call.function, call.args))
    state = (os.getcwd(), dict(os.environ), [*sys.path])
    while True:
        try:
            worker = _idle.pop()
        except IndexError:
            worker = _Worker(state)
        with suppress(OSError):  # it was killed meanwhile
            if worker.state == state:
                worker.connection.send((call.limits, log, content))
                return worker
        worker.end()


def _serve(number: int) -> None:
    """Do calls until the caller is gone."""
    os.dup2(2, 1)  # the standard output stream of the caller is for its own results
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()
    caller, calls = Connection(number), SimpleQueue[Any]()

    def listen() -> None:
        with suppress(EOFError, OSError):
            while True:
                calls.put(caller.recv())
        os.killpg(0, signal.SIGKILL)  # also what the call has started

    Thread(target=listen, daemon=True).start()
    while True:
        caller.send(_work(*calls.get()))


def _work(limits: Limits, log: str | None, content: bytes) -> tuple[Any, ...]:
    """Do a call, and return its status, pickled value and message, CPU seconds and peak memory."""
    import resource

    def limit(kind: int, most: float = math.inf) -> None:
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (hard if math.isinf(most) else math.ceil(most), hard))

    streams = os.dup(1), os.dup(2)
    if log is not None:
        with open(log, "wb") as file:
            for stream in (1, 2):
                os.dup2(file.fileno(), stream)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    start, value = os.times(), b""
    try:
        function, args = cloudpickle.loads(content)
        limit(resource.RLIMIT_CPU, time.process_time() + max(1, limits.seconds))
        if (size := _megabytes("VmSize")) is not None:
            limit(resource.RLIMIT_AS, (size + limits.megabytes) * 2**20)
        status, message, value = "ok", "", cloudpickle.dumps(function(*args))
    except BaseException as error:  # sys.exit() is one way to give up, too
        if log is not None:
            traceback.print_exc()
        message = " ".join(f"{type(error).__name__}: {error}".split())[:MESSAGE_LENGTH]
        short = isinstance(error, MemoryError) or "allocate memory" in message
        status = "memory" if short else "failed"
    for kind in (resource.RLIMIT_CPU, resource.RLIMIT_AS):
        limit(kind)
    sys.stdout.flush()
    for stream, before in enumerate(streams, 1):
        os.dup2(before, stream)
        os.close(before)
    seconds = sum(os.times()[:4]) - sum(start[:4])
    return status, value, message, seconds, _megabytes("VmHWM")


def _megabytes(name: str) -> float | None:
    """Return a size of this process, where the system tells it."""
    with suppress(OSError):
        found = re.search(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())
        return int(found[1]) / 1024 if found else None
    return None
