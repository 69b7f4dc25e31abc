"""Calls of functions in child processes with limits on time and memory.

The first call starts a server that imports what children need. For each call it forks a supervisor,
which forks the child, waits for its answer or end, kills what the child has started, and reports.
When the caller is gone, supervisors kill their children and the server ends. multiprocessing, loky
and pebble cannot start processes in the workers of Dask, import the main script again, and do not
report the time and memory of a call.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import cloudpickle

from isthmus.errors import InvalidInputError
from isthmus.validation import as_count

# Results must not depend on the number of calls at a time: every child has one thread.
ENVIRONMENT = {
    **{f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")},
    "VECLIB_MAXIMUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "MPLBACKEND": "Agg",
}
LOST = "The process that watches over the call was killed, or ran out of memory."
MESSAGE_LENGTH = 500
PR_SET_PDEATHSIG = 1
MAXRSS_PER_MEGABYTE = 1024 if sys.platform == "linux" else 2**20


@dataclass(frozen=True)
class Limits:
    """Limits on one call; ``math.inf`` stands for none.

    Parameters
    ----------
    seconds : float
        CPU time.
    megabytes : float
        Memory, beyond what the child has when it starts. Enforced on Linux.
    wall_seconds : float, optional
        Wall-clock time, for a call that waits and takes no CPU time. The default is ten times
        `seconds` plus 30, so that a busy machine stops no call that would end in time.
    """

    seconds: float = 60.0
    megabytes: float = 4096.0
    wall_seconds: float = None  # type: ignore[assignment]  # __post_init__ fills it in

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            number = isinstance(value, Real) and not isinstance(value, bool)
            if not (number and float(value) > 0) and (name, value) != ("wall_seconds", None):
                raise InvalidInputError(f"Limits are numbers above zero; {name} is {value!r}.")
        if vars(self)["wall_seconds"] is None:
            object.__setattr__(self, "wall_seconds", 10 * self.seconds + 30)


@dataclass(frozen=True)
class Outcome:
    """The end of one call; "failed" if the function raised, "crashed" if it gave no answer.

    `seconds` is the CPU time of the child and of its own children, `peak_megabytes` the memory
    beyond what it had when it started; None if unknown.
    """

    status: Literal["ok", "failed", "timeout", "memory", "crashed"]
    value: Any = None
    message: str = ""
    seconds: float | None = None
    peak_megabytes: float | None = None


@dataclass(frozen=True, eq=False)
class Call:
    """One call for :func:`run_all`.

    The function is pickled by reference where it can be imported, by value otherwise. `log` is a
    file for what the child prints, with the traceback if it fails; by default prints go to the
    standard error stream. `warm` is called in the server before it forks the child, to import
    modules and to fill caches that children then share; its errors are ignored.
    """

    name: str
    function: Callable[..., Any]
    args: tuple[Any, ...] = ()
    limits: Limits = field(default_factory=Limits)
    log: str | Path | None = None
    warm: Callable[[], object] | None = None


def run_limited(function: Callable[..., Any], *args: Any, **options: Any) -> Outcome:
    """Call a function in a child process and wait for its outcome; see :class:`Call` for options.

    The child has the environment variables, the module search path and the working directory of
    the caller at the time of the call, and one thread. Threads may call this at the same time.

    >>> run_limited(pow, 2, 10, limits=Limits(seconds=5)).value
    1024
    >>> run_limited(int, "ten", limits=Limits(seconds=5)).message
    "ValueError: invalid literal for int() with base 10: 'ten'"
    """
    return next(run_all([Call("", function, args, **options)]))[1]


def run_all(
    calls: Sequence[Call], *, jobs: int = 1, started: Callable[[Call], None] | None = None
) -> Generator[tuple[Call, Outcome], None, None]:
    """Run calls, at most `jobs` at a time, and yield each with its outcome as soon as it ends.

    `started` is called with each call when it starts. When the iterator is closed or an exception
    such as KeyboardInterrupt leaves it, the remaining children are killed.
    """
    jobs = as_count(jobs, "jobs")
    waiting, running = deque(calls), dict[Connection, Call]()
    try:
        while waiting or running:
            while waiting and len(running) < jobs:
                call = waiting.popleft()
                running[_send(call)] = call
                if started is not None:
                    started(call)
            for connection in wait(list(running)):
                assert isinstance(connection, Connection)
                call = running.pop(connection)
                outcome = Outcome("crashed", message=LOST)
                with connection, contextlib.suppress(EOFError, OSError):
                    content, seconds, peak = connection.recv()
                    status, value, message = cloudpickle.loads(content)
                    outcome = Outcome(status, value, message, seconds, peak)
                yield call, outcome
    finally:
        for connection in running:
            connection.close()  # which ends the child


def cores() -> int:
    """Return the number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # does not exist on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1


_server: tuple[subprocess.Popen[bytes], socket.socket] | None = None
_lock = threading.Lock()


def _send(call: Call) -> Connection:
    """Start a call; its answer comes over the connection, whose closing ends it."""
    state = (os.getcwd(), dict(os.environ), [place for place in sys.path if place])
    log = None if call.log is None else os.path.abspath(call.log)
    work = [cloudpickle.dumps(each) for each in (call.warm, (call.function, call.args))]
    ours, theirs = Pipe()
    with theirs, _lock:
        try:
            socket.send_fds(_control(), [b"."], [theirs.fileno()])
        except OSError:  # the server was killed
            _close()
            socket.send_fds(_control(), [b"."], [theirs.fileno()])
    with contextlib.suppress(OSError):  # killed just now; then there is no answer either
        ours.send((state, call.limits, log, *work))
    return ours


def _control() -> socket.socket:
    """Return the socket of the server, which is started if necessary."""
    global _server
    if _server is None:
        control, far = socket.socketpair()
        path = os.pathsep.join(filter(None, sys.path))
        code = f"from isthmus.paper.processes import _serve; _serve({far.fileno()})"
        with far:
            process = subprocess.Popen(
                # -P: code in the current directory is not imported by accident.
                [sys.executable, "-P", "-c", code],
                stdin=subprocess.DEVNULL,
                env={**os.environ, **ENVIRONMENT, "PYTHONPATH": path},
                pass_fds=[far.fileno()],
                start_new_session=True,  # Ctrl-C is for the caller, which ends the children
            )
        _server = process, control
    return _server[1]


@atexit.register
def _close() -> None:
    """End the server; running calls continue while their connections are open."""
    global _server
    if _server is not None:
        process, control = _server
        control.close()
        process.kill()
        process.wait()
    _server = None


def _forget() -> None:
    """Start anew in a fork, whose server is the parent's."""
    global _server, _lock
    _server, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget)


def _serve(number: int) -> None:
    """Fork a supervisor for every connection handed over, until the caller is gone."""
    control = socket.socket(fileno=number)
    os.dup2(2, 1)  # the standard output stream of the caller is for its own results
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    while handles := socket.recv_fds(control, 1, 1)[1]:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:  # supervisors that have ended
                pass
        with Connection(handles[0]) as connection, contextlib.suppress(EOFError, OSError):
            (directory, environment, path), limits, log, warm, work = connection.recv()
            with contextlib.suppress(Exception):
                sys.path[:] = path
                os.environ.clear()
                os.environ.update({**environment, **ENVIRONMENT})
                os.chdir(directory)
                if (function := cloudpickle.loads(warm)) is not None:
                    function()
            if os.fork() == 0:
                control.close()
                _supervise(connection, limits, log, work)


def _supervise(connection: Connection, limits: Limits, log: str | None, work: bytes) -> None:
    """Fork the child, wait for its answer or for its end, and send the outcome."""
    answers, writable = Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        connection.close()
        answers.close()
        _work(writable, limits, log, work)
    writable.close()
    content, late, before = b"", False, math.inf
    with contextlib.suppress(EOFError):
        before = answers.recv()
        timeout = None if math.isinf(limits.wall_seconds) else limits.wall_seconds
        ready = wait([answers, connection], timeout)
        late = not ready
        if answers in ready:
            content = answers.recv_bytes()
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    seconds = used.ru_utime + used.ru_stime
    if not content:
        content = pickle.dumps(_end(os.waitstatus_to_exitcode(status), late, seconds, limits))
    peak = max(used.ru_maxrss / MAXRSS_PER_MEGABYTE - before, 0.0)
    with contextlib.suppress(OSError):  # nobody waits for the answer any more
        connection.send((content, seconds, peak))
    os._exit(0)


def _end(code: int, late: bool, seconds: float, limits: Limits) -> tuple[str, None, str]:
    """Return the status and the message of a call whose process gave no answer."""
    if code == -signal.SIGXCPU:
        return "timeout", None, f"Not done after {limits.seconds:g} s of CPU time."
    if late:
        words = f"{limits.wall_seconds:g} s by the clock, with {seconds:.1f} s of CPU time used"
        return "timeout", None, f"Not done after {words}."
    message = f"The process ended with exit code {code} and without a result."
    if code == -signal.SIGKILL:
        message = "Killed (SIGKILL), as the system does when memory runs out."
    elif code < 0:
        name = signal.Signals(-code).name
        message = f"The process crashed: {signal.strsignal(-code)} ({name})."
    return "crashed", None, message


def _work(writable: Connection, limits: Limits, log: str | None, work: bytes) -> None:
    """Do the call in the child and send its status, value and message."""
    try:
        os.setpgid(0, 0)
        if sys.platform == "linux":
            # Do not outlive the supervisor, and be the first to go when memory runs out.
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            with contextlib.suppress(OSError):
                Path("/proc/self/oom_score_adj").write_text("1000")
        if log is not None:
            with open(log, "wb") as file:
                for stream in (1, 2):
                    os.dup2(file.fileno(), stream)
            faulthandler.enable()
        writable.send(_limit(limits))
        try:
            function, args = cloudpickle.loads(work)
            content = cloudpickle.dumps(("ok", function(*args), ""))
        except BaseException as error:  # sys.exit() is one way to give up, too
            if log is not None:
                traceback.print_exc()
            words = " ".join(f"{type(error).__name__}: {error}".split())[:MESSAGE_LENGTH]
            short = isinstance(error, MemoryError) or "allocate memory" in words
            content = pickle.dumps(("memory" if short else "failed", None, words))
        writable.send_bytes(content)
        sys.stdout.flush()
    finally:
        os._exit(1)  # whatever the function leaves behind, such as threads, delays nothing


def _limit(limits: Limits) -> float:
    """Set the limits of this process; return the megabytes that it occupies already."""
    import resource  # does not exist on Windows

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if math.isfinite(limits.seconds):
        seconds = max(1, round(limits.seconds))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    if sys.platform != "linux":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / MAXRSS_PER_MEGABYTE
    pages = Path("/proc/self/statm").read_text().split()
    size, resident = (int(count) * resource.getpagesize() for count in pages[:2])
    if math.isfinite(limits.megabytes):
        size += round(limits.megabytes * 2**20)
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    return resident / 2**20
