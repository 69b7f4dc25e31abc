"""Parts in processes of their own, several at a time: what one does to itself stays there."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from isthmus.cli.engine.child import Request
from isthmus.cli.engine.record import Record
from isthmus.cli.engine.store import Store

__all__ = ["make_parts"]

# The same numbers, however many parts run at a time: each has one thread.
ENVIRONMENT = {
    **{f"{name}_NUM_THREADS": "1" for name in ("OMP", "OPENBLAS", "MKL", "NUMEXPR")},
    "VECLIB_MAXIMUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
    "MPLBACKEND": "Agg",
}
LOOK_EVERY = 0.05
MESSAGE_LENGTH = 500
TAIL = 16_384


class _Process:
    """A part in the making."""

    def __init__(self, request: Request, log: Path) -> None:
        self.request = request
        self.log = log
        self.began = time.monotonic()
        environment = {**os.environ, **ENVIRONMENT}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "isthmus.cli.engine.child"],
                stdin=subprocess.PIPE,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,  # Ctrl-C is for the engine, which then ends this
            )
        assert self.process.stdin is not None
        # If it has ended already, that is noticed like any other end.
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(pickle.dumps(request))
            self.process.stdin.flush()

    @property
    def seconds(self) -> float:
        """Since it was started."""
        return time.monotonic() - self.began

    def ended(self, limit: float) -> bool:
        """Whether it is over, by itself or because its time is up."""
        return self.process.poll() is not None or self.seconds > limit

    def problem(self, limit: float) -> str:
        """Why it ended without a result."""
        code = self.process.poll()
        if code is None:
            return f"Not done after {limit:g} s; --limit gives it longer."
        last = self._last_line()
        if code == -signal.SIGKILL:
            return "Killed (SIGKILL), as the system does where memory runs out."
        if code < 0:
            return f"Crashed: {signal.strsignal(-code) or f'signal {-code}'}."
        if code == 0 or not last:
            return f"Ended with exit code {code}, and without a result."
        return last[:MESSAGE_LENGTH]

    def _last_line(self) -> str:
        with self.log.open("rb") as file:
            file.seek(max(0, self.log.stat().st_size - TAIL))
            lines = file.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def close(self) -> None:
        """End it, and whatever it may have started."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            self.process.kill()
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.wait()


def make_parts(
    requests: Sequence[Request],
    store: Store,
    *,
    jobs: int,
    limit: float,
    report: Callable[[Sequence[str], int], None],
) -> None:
    """Make parts, each in a process of its own; one that fails is stored as a failure.

    Parameters
    ----------
    requests : sequence of Request
    store : Store
        Where they are kept.
    jobs : int
        How many at a time.
    limit : float
        Seconds that each may take.
    report : callable
        Told the names of those in the making, and how many are over, at every change.
    """
    waiting, running, over = deque(requests), list[_Process](), 0
    try:
        while waiting or running:
            changed = False
            while waiting and len(running) < jobs:
                request = waiting.popleft()
                store.forget(request.part.name)
                running.append(_Process(request, store.log(request.part.name)))
                changed = True
            for one in [one for one in running if one.ended(limit)]:
                _settle(one, store, limit)
                running.remove(one)
                over += 1
                changed = True
            if changed:
                report([one.request.part.name for one in running], over)
            else:
                time.sleep(LOOK_EVERY)
    finally:
        for one in running:
            one.close()


def _settle(one: _Process, store: Store, limit: float) -> None:
    """See what became of a part that is over, and store its failure if that is it."""
    name, inputs = one.request.part.name, one.request.inputs
    problem, seconds = one.problem(limit), one.seconds
    succeeded = one.process.poll() == 0
    one.close()
    if not (succeeded and store.finished(name, inputs)):
        store.write(name, Record(inputs, "failed", seconds, message=problem))
    if one.log.stat().st_size == 0:
        one.log.unlink()
