"""The process that forks a child for every fit; started by :mod:`isthmus.study.isolation`."""

from __future__ import annotations

import ctypes
import os
import resource
import select
import signal
import socket
import sys
import time
from importlib import import_module
from typing import IO, Any

import cloudpickle

from isthmus.errors import IsthmusError
from isthmus.study.fitting import Prepared, fit, prepare
from isthmus.study.isolation import Limits, Request, read_message, write_message

__all__ = ["main"]

MESSAGE_LENGTH = 500
PR_SET_PDEATHSIG = 1
# Imported here once, not in every child.
COMMON = ("isthmus.cluster", "sklearn.cluster", "sklearn.metrics", "sklearn.mixture")


def main() -> None:
    """Answer requests until the process that asks is gone."""
    requests = os.fdopen(os.dup(0), "rb", buffering=0)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a fit prints must not get between the answers
    for module in COMMON:
        import_module(module)
    data: tuple[Any, Prepared] | None = None
    while True:
        try:
            request: Request = read_message(requests)
        except EOFError:
            return
        key = (request.task.dataset, request.task.rows, request.data_home)
        try:
            if data is None or data[0] != key:
                data = None  # frees the memory first
                data = (key, prepare(*key))
            answer = _supervise(request, data[1], requests)
        except Exception as error:
            answer = _not_started(request, error)
        write_message(answers, answer)


def _not_started(request: Request, error: Exception) -> IsthmusError:
    """Why a fit could not even begin, which is not its method's doing."""
    kind, words = IsthmusError, f"{type(error).__name__}: {error}"
    if isinstance(error, IsthmusError):
        kind, words = type(error), str(error)
    task = f"{request.task.method} on {request.task.dataset}"
    return kind(f"{task} could not be started on {socket.gethostname()}: {words}")


def _supervise(
    request: Request, data: Prepared, requests: IO[bytes]
) -> dict[str, Any] | IsthmusError:
    """Fork, wait for the answer or an end of another kind, and say which it was."""
    readable, writable = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(readable)
        _work(request, data, writable)
    os.close(writable)
    deadline = time.monotonic() + request.limits.wall_seconds
    answer: dict[str, Any] | IsthmusError | None = None
    before = 0.0
    late = False
    with os.fdopen(readable, "rb", buffering=0) as pipe:  # what is in a buffer, select cannot see
        try:
            before = read_message(pipe)
            ready, _, _ = select.select([pipe, requests], [], [], request.limits.wall_seconds)
            if requests in ready and pipe not in ready:  # nobody waits for the answer any more
                _kill(child)
                sys.exit(0)
            if pipe in ready:
                answer = read_message(pipe)
        except EOFError:
            answer = None
        late = answer is None and time.monotonic() >= deadline
    _kill(child)
    _, status, used = os.wait4(child, 0)
    if isinstance(answer, IsthmusError):
        return answer
    spent = {
        "seconds": used.ru_utime + used.ru_stime,
        "peak_megabytes": max(_megabytes(used) - before, 0.0),
    }
    if answer is None:
        answer = _ended(status, late, spent["seconds"], request.limits)
    return {**spent, **answer}


def _ended(status: int, late: bool, seconds: float, limits: Limits) -> dict[str, Any]:
    """What became of a fit that gave no answer."""
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number == signal.SIGXCPU:
        return {
            "status": "timeout",
            "message": f"Not done after {limits.seconds:g} s of CPU time.",
        }
    if late:
        used = f"with {seconds:.1f} s of CPU time used"
        return {
            "status": "timeout",
            "message": f"Not done after {limits.wall_seconds:g} s by the clock, {used}.",
        }
    how = (
        signal.Signals(number).name if number else f"exit code {os.waitstatus_to_exitcode(status)}"
    )
    return {"status": "crashed", "message": f"The process ended by itself: {how}."}


def _kill(child: int) -> None:
    """End the child and whatever it may have started."""
    for kill in (os.killpg, os.kill):
        try:
            kill(child, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue


def _work(request: Request, data: Prepared, writable: int) -> None:
    """The child's whole life."""
    try:
        os.setpgid(0, 0)
        if sys.platform == "linux":  # not to outlive the server
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        before = _resident()
        with os.fdopen(writable, "wb") as pipe:
            write_message(pipe, before)
            _limit(request.limits)
            answer = _answer(request, data)
            if isinstance(answer, dict):
                answer["peak_megabytes"] = max(_peak() - before, 0.0)
            write_message(pipe, answer)
    finally:
        os._exit(0)


def _answer(request: Request, data: Prepared) -> dict[str, Any] | IsthmusError:
    try:
        method = cloudpickle.loads(request.method)
    except Exception as error:  # of a module that is not there, for example
        return _not_started(request, error)
    try:
        return {"status": "ok", "message": "", **fit(request.task, method, data)}
    except BaseException as error:  # sys.exit() is one way to give up, too
        return _failure(error)


def _limit(limits: Limits) -> None:
    seconds = max(1, round(limits.seconds))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if sys.platform == "linux":
        size = _status("VmSize") + limits.megabytes
        bytes_ = round(size * 2**20)
        resource.setrlimit(resource.RLIMIT_AS, (bytes_, bytes_))


def _status(name: str) -> float:
    """A line of /proc/self/status, in megabytes."""
    with open("/proc/self/status") as file:
        line = next(line for line in file if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024


def _resident() -> float:
    return _status("VmRSS") if sys.platform == "linux" else _peak()


def _peak() -> float:
    """The most memory that this process ever had, in megabytes."""
    return _megabytes(resource.getrusage(resource.RUSAGE_SELF))


def _megabytes(used: resource.struct_rusage) -> float:
    return used.ru_maxrss / (1024 if sys.platform == "linux" else 2**20)


def _failure(error: BaseException) -> dict[str, Any]:
    words = f"{type(error).__name__}: {error}"[:MESSAGE_LENGTH]
    short = isinstance(error, MemoryError) or "allocate memory" in words
    return {"status": "memory" if short else "failed", "message": words}


if __name__ == "__main__":
    main()
