"""Calls of functions in child processes with limits on time and memory.

A worker, a process that has imported what children need, forks a child for each call, waits for
its answer or end, kills what the child has started, and reports. When the caller is gone, workers
kill their children and end. multiprocessing, loky and pebble cannot start processes in the workers
of Dask, import the main script again, and do not report the time and memory of a call.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import math
import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any, Literal

import cloudpickle

from isthmus.validation import as_count, as_number

# Results must not depend on the number of calls at a time: every child has one thread.
ENVIRONMENT = {
    **{f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")},
    "VECLIB_MAXIMUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "MPLBACKEND": "Agg",
}
LOST = "The process that watches over the call was killed, or ran out of memory."
MESSAGE_LENGTH = 500
SECONDS_TO_END = 3.0
PR_SET_PDEATHSIG = 1
MAXRSS_PER_MEGABYTE = 1024 if sys.platform == "linux" else 2**20


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
    seconds: float | None = None  # CPU time of the child and of its own children
    peak_megabytes: float | None = None  # on Linux beyond what it had when it started


@dataclass(frozen=True, eq=False)
class Call:
    """One call for :func:`run_all`.

    The function is pickled by reference where it can be imported, by value otherwise. `log` is a
    file for what the child prints, with the traceback if it fails; by default prints go to the
    standard error stream. `warm` is called in the worker before it forks the child, to import
    modules and to fill caches that later children share; its errors are ignored.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    limits: Limits = field(default_factory=Limits)
    log: str | Path | None = None
    warm: Callable[[], object] | None = None


def run_limited(function: Callable[..., Any], *args: Any, **options: Any) -> Outcome:
    """Call a function in a child process and wait for its outcome; options are those of a Call.

    The child has the caller's environment, search path and directory, and one thread. Threads may
    call this at the same time.
    """
    return next(run_all([Call("", function, args, **options)]))[1]


def run_all(
    calls: Sequence[Call], *, jobs: int = 1, started: Callable[[Call], None] | None = None
) -> Generator[tuple[Call, Outcome], None, None]:
    """Run calls, at most `jobs` at a time, and yield each with its outcome as soon as it ends.

    `started` is called with each call when it starts. Closing the iterator kills the others.
    """
    jobs = as_count(jobs, "jobs")
    waiting, running = deque(calls), dict[Connection, tuple[_Worker, Call]]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                call = waiting.popleft()
                worker = _send(call)
                running[worker.connection] = worker, call
                if started is not None:
                    started(call)
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)
                worker, call = running.pop(connection)
                try:
                    content, seconds, peak = connection.recv()
                except (EOFError, OSError):
                    worker.end()
                    outcome = Outcome("crashed", message=LOST)
                else:
                    _idle.append(worker)
                    used = {"seconds": seconds, "peak_megabytes": peak}
                    outcome = Outcome(**cloudpickle.loads(content), **used)
                yield call, outcome
    finally:
        for worker, _ in running.values():
            worker.end()


def cores() -> int:
    """Return the number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # does not exist on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


class _Worker:
    """A process that does one call after another, each in a child of its own."""

    def __init__(self) -> None:
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
                start_new_session=True,  # Ctrl-C is for the caller, which ends the children
            )

    def end(self) -> None:
        """End the process and its child."""
        self.connection.close()
        try:
            self.process.wait(SECONDS_TO_END)
        except subprocess.TimeoutExpired:  # it is still warming up, and has no child
            self.process.kill()
            self.process.wait()


_idle: list[_Worker] = []
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_idle.clear)  # they are the parent's


def _send(call: Call) -> _Worker:
    """Start a call in a worker, which then sends the outcome."""
    state = (os.getcwd(), dict(os.environ), [place for place in sys.path if place])
    log = None if call.log is None else os.path.abspath(call.log)
    work = [cloudpickle.dumps(each) for each in (call.warm, (call.function, call.args))]
    while True:
        try:
            worker = _idle.pop()
        except IndexError:
            worker = _Worker()
        try:
            worker.connection.send((state, call.limits, log, *work))
        except OSError:  # it was killed meanwhile
            worker.end()
        else:
            return worker


def _serve(number: int) -> None:
    """Do calls until the caller is gone."""
    os.dup2(2, 1)  # the standard output stream of the caller is for its own results
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    with Connection(number) as caller, contextlib.suppress(EOFError, OSError):
        while True:
            (directory, environment, path), limits, log, warm, work = caller.recv()
            with contextlib.suppress(Exception):
                sys.path[:] = path
                os.environ.clear()
                os.environ.update({**environment, **ENVIRONMENT})
                os.chdir(directory)
                if (function := cloudpickle.loads(warm)) is not None:
                    function()
            caller.send(_supervise(caller, limits, log, work))
    os._exit(0)


def _supervise(
    caller: Connection, limits: Limits, log: str | None, work: bytes
) -> tuple[bytes, float, float]:
    """Fork the child, and return its pickled outcome, its CPU time and the memory that it took."""
    answers, writable = Pipe(duplex=False)
    size = before = 0
    if sys.platform == "linux":
        pages = Path("/proc/self/statm").read_text().split()
        size, before = (int(count) * os.sysconf("SC_PAGE_SIZE") for count in pages[:2])
    if (child := os.fork()) == 0:
        caller.close()
        answers.close()
        _work(writable, limits, size, log, work)
    writable.close()
    content = b""
    with answers, contextlib.suppress(EOFError):
        timeout = None if math.isinf(limits.wall_seconds) else limits.wall_seconds
        ready = wait([answers, caller], timeout)  # the caller has nothing to say until it is gone
        if answers in ready:
            content = answers.recv_bytes()
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    seconds = used.ru_utime + used.ru_stime
    if not content:
        code = os.waitstatus_to_exitcode(status)
        state, message = "crashed", f"The process ended with exit code {code} and without a result."
        if code == -signal.SIGXCPU:
            state, message = "timeout", f"Not done after {limits.seconds:g} s of CPU time."
        elif not ready:
            words = f"{limits.wall_seconds:g} s by the clock, with {seconds:.1f} s of CPU time used"
            state, message = "timeout", f"Not done after {words}."
        elif code == -signal.SIGKILL:
            message = "Killed (SIGKILL), as the system does when memory runs out."
        elif code < 0:
            name = signal.Signals(-code).name
            message = f"The process crashed: {signal.strsignal(-code)} ({name})."
        content = pickle.dumps({"status": state, "message": message})
    peak = used.ru_maxrss / MAXRSS_PER_MEGABYTE - before / 2**20
    return content, seconds, max(peak, 0.0)


def _work(writable: Connection, limits: Limits, size: int, log: str | None, work: bytes) -> None:
    """Do the call in the child, which has `size` bytes, and send the outcome."""
    import resource

    try:
        os.setpgid(0, 0)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if math.isfinite(limits.seconds):
            seconds = max(1, round(limits.seconds))
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
        if sys.platform == "linux":
            # Do not outlive the worker, and be the first to go when memory runs out.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            with contextlib.suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text("1000")
            if math.isfinite(limits.megabytes):
                size += round(limits.megabytes * 2**20)
                resource.setrlimit(resource.RLIMIT_AS, (size, size))
        if log is not None:
            with open(log, "wb") as file:
                for stream in (1, 2):
                    os.dup2(file.fileno(), stream)
            faulthandler.enable()
        try:
            function, args = cloudpickle.loads(work)
            content = cloudpickle.dumps({"status": "ok", "value": function(*args)})
        except BaseException as error:  # sys.exit() is one way to give up, too
            if log is not None:
                traceback.print_exc()
            words = " ".join(f"{type(error).__name__}: {error}".split())[:MESSAGE_LENGTH]
            short = isinstance(error, MemoryError) or "allocate memory" in words
            state = "memory" if short else "failed"
            content = pickle.dumps({"status": state, "message": words})
        writable.send_bytes(content)
        sys.stdout.flush()
    finally:
        os._exit(1)  # whatever the function leaves behind, such as threads, delays nothing
