"""Each fit in a process of its own, with limits: what it does to itself stays there.

A server process imports everything once and holds the dataset; it forks a child for every fit.
The child gets limits on its CPU time and memory and is killed if it hangs. When the process that
asked is gone, the server and the child end too.
"""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import IO, Any

from isthmus.errors import InvalidInputError
from isthmus.study.tasks import Task

__all__ = ["Limits", "Request", "isolated", "read_message", "write_message"]

LENGTH = struct.Struct(">Q")
ONE_THREAD = {
    f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR", "VECLIB_MAXIMUM")
}


@dataclass(frozen=True)
class Limits:
    """What one fit may use.

    Parameters
    ----------
    seconds : float
        Of CPU time. One that waits is stopped after three times as long by the clock.
    megabytes : float
        Of memory, beyond what Python and the dataset take.
    """

    seconds: float = 40.0
    megabytes: float = 4096.0

    def __post_init__(self) -> None:
        if not (self.seconds > 0 and self.megabytes > 0):
            raise InvalidInputError("Limits of time and memory must be above zero.")

    @property
    def wall_seconds(self) -> float:
        """How long a fit may take by the clock; it may have to share its core."""
        return 3 * self.seconds + 2


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
    head = file.read(LENGTH.size)
    if len(head) < LENGTH.size:
        raise EOFError
    (length,) = LENGTH.unpack(head)
    content = file.read(length)
    if len(content) < length:
        raise EOFError
    return pickle.loads(content)


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
        answer: dict[str, Any] = read_message(self.process.stdout)
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

    Returns
    -------
    dict
        Columns of the results; ``status`` is "ok", "failed" (it raised), "timeout", "memory" or
        "crashed".
    """
    try:
        _servers.server = _servers.server or _Server()
        answer = _servers.server.ask(request)
    except (EOFError, OSError) as error:
        _servers.close()
        words = "The process that starts fits ended: it was killed, or out of memory."
        answer = {"status": "crashed", "message": f"{words} {error}".strip()}
    except BaseException:  # interrupted: an answer that still comes would be taken for the next
        _servers.close()
        raise
    return {"id": request.task.id, **answer}


def end_server() -> None:
    """End the server of this thread, if it has one."""
    _servers.close()


Worker = Callable[[Request], dict[str, Any]]
