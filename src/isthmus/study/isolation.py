"""Each fit in a process of its own, with limits: what it does to itself stays there.

A server process imports everything once and holds the dataset; it forks a child for every fit.
The child gets limits on its CPU time and memory and is killed if it hangs. When the process that
asked is gone, the server and the child end too.
"""

from __future__ import annotations

import math
import os
import pickle
import struct
import subprocess
import sys
import threading
from dataclasses import dataclass
from numbers import Real
from typing import IO, Any

from isthmus.errors import InvalidInputError, IsthmusError
from isthmus.study.tasks import Task

__all__ = ["Limits", "Request", "end_server", "isolated", "read_message", "write_message"]

LENGTH = struct.Struct(">Q")
ONE_THREAD = {
    f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB_MAXIMUM")
}
LOST = "The process that starts fits was killed over it twice, or out of memory."


@dataclass(frozen=True)
class Limits:
    """What one fit may use.

    Parameters
    ----------
    seconds : float
        Of CPU time.
    megabytes : float
        Of memory, beyond what Python and the dataset take.
    clock_seconds : float, optional
        By the clock, for one that waits and takes no CPU time. By default ten times `seconds` and
        30 more, so that a busy machine stops nothing that would have ended in time.
    """

    seconds: float = 60.0
    megabytes: float = 4096.0
    clock_seconds: float | None = None

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if name == "clock_seconds" and value is None:
                continue
            number = isinstance(value, Real) and not isinstance(value, bool)
            if not (number and 0 < value < math.inf):
                raise InvalidInputError(
                    f"A limit is a finite number above zero; {name} is {value!r}."
                )

    @property
    def wall_seconds(self) -> float:
        """How long a fit may take by the clock; it may have to share its core."""
        return 10 * self.seconds + 30 if self.clock_seconds is None else self.clock_seconds


@dataclass(frozen=True)
class Request:
    """A task and all that is needed to do it, on this machine or another."""

    task: Task
    method: bytes
    """Pickled, by value where it is not importable."""
    data_home: str | None
    limits: Limits


def write_message(file: IO[bytes], message: Any) -> None:
    """Write one object, with its length before it."""
    content = pickle.dumps(message)
    file.write(LENGTH.pack(len(content)) + content)
    file.flush()


def read_message(file: IO[bytes]) -> Any:
    """Read one object; EOFError if the other side is gone."""
    (length,) = LENGTH.unpack(_read(file, LENGTH.size))
    return pickle.loads(_read(file, length))


def _read(file: IO[bytes], length: int) -> bytes:
    """So many bytes: a pipe gives no more at once than it holds."""
    content = bytearray()
    while len(content) < length:
        part = file.read(length - len(content))
        if not part:
            raise EOFError
        content += part
    return bytes(content)


class _Server:
    """The server process of one thread."""

    def __init__(self) -> None:
        environment = {**os.environ, **ONE_THREAD}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "isthmus.study.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C is for the process that asks, which then ends this
        )

    def ask(self, request: Request) -> dict[str, Any]:
        """Do one task."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        write_message(self.process.stdin, request)
        answer: dict[str, Any] | IsthmusError = read_message(self.process.stdout)
        if isinstance(answer, IsthmusError):
            raise answer
        return answer

    def close(self) -> None:
        """End the process, which then ends what it may be doing."""
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except BrokenPipeError:
                continue
        self.process.wait()


class _Servers(threading.local):
    server: _Server | None = None

    def close(self) -> None:
        """End this thread's server."""
        if self.server is not None:
            self.server.close()
            self.server = None


_servers = _Servers()


def isolated(request: Request) -> dict[str, Any]:
    """Do a task in a process of its own and return its outcome, whatever it was.

    When the process that starts fits is lost, which a fit cannot easily do to it, the task is
    done once more in a new one.

    Returns
    -------
    dict
        Columns of the results; ``status`` is "ok", "failed" (it raised), "timeout", "memory" or
        "crashed".

    Raises
    ------
    IsthmusError
        The fit could not be started, its dataset missing for example. That says nothing about
        the method, so it is no outcome.
    """
    try:
        answer = _asked(request) or _asked(request) or {"status": "crashed", "message": LOST}
    except IsthmusError:  # an answer as well; the server is as good as before
        raise
    except BaseException:  # interrupted: an answer that still comes would be taken for the next
        _servers.close()
        raise
    return {"id": request.task.id, **answer}


def _asked(request: Request) -> dict[str, Any] | None:
    """The server's answer; None if the server was lost over it."""
    try:
        _servers.server = _servers.server or _Server()
        return _servers.server.ask(request)
    except (EOFError, OSError) as error:
        if isinstance(error, IsthmusError):  # an answer: a dataset that is not found
            raise
        _servers.close()
        return None


def end_server() -> None:
    """End the server of this thread, if it has one."""
    _servers.close()
