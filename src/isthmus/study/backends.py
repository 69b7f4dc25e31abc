"""Places that run calls: processes of this machine, or the workers of a Dask cluster."""

from __future__ import annotations

import asyncio
import re
import secrets
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from isthmus.errors import InvalidInputError
from isthmus.processes import Call, Outcome, run_all
from isthmus.validation import as_choice

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["Runner", "open_backend"]

Outcomes = Generator[tuple[Call, Outcome], None, None]
Runner = Callable[[Sequence[Call]], Outcomes]
"""Runs calls and yields each with its outcome as soon as it ends."""

ADDRESS = re.compile(
    r"(tcp|tls|ws|wss|ucx)://(?P<host>[\w.-]+|\[[\da-fA-F:.]+\]):(?P<port>\d{1,5})"
)
# Time that a scheduler has to answer.
PATIENCE_SECONDS = 10


@contextmanager
def open_backend(backend: str, jobs: int, scheduler: str | None) -> Iterator[Runner]:
    """Yield the runner of a backend; raise at once if its scheduler cannot be reached."""
    if as_choice(backend, "backend", ("local", "loky", "dask")) != "dask":
        yield partial(run_all, jobs=jobs)
    elif scheduler is None:
        raise InvalidInputError("backend='dask' needs the scheduler's address: tcp://host:port.")
    else:
        with _connect(scheduler) as client:
            yield partial(_run_on_dask, client)


@contextmanager
def _connect(scheduler: str) -> Iterator[Client]:
    try:
        from distributed import Client
    except ImportError:
        raise InvalidInputError(
            "backend='dask' requires dask and distributed: pip install 'isthmus[dask]'."
        ) from None
    form = ADDRESS.fullmatch(scheduler)
    if form is None or not 0 < int(form["port"]) < 2**16:
        raise InvalidInputError(
            f"A scheduler's address looks like tcp://10.0.0.1:8786, not {scheduler!r}."
        )
    _require_scheduler(scheduler)
    with Client(scheduler, set_as_default=False, timeout=PATIENCE_SECONDS) as client:
        yield client


def _require_scheduler(address: str) -> None:
    """Raise unless a scheduler answers at the address.

    Dask's own client would wait for much longer, and cannot be closed when nothing answers.
    """
    from distributed import Security
    from distributed.core import rpc
    from distributed.utils import LoopRunner

    async def ask() -> None:
        arguments = Security().get_connection_args("client")
        async with rpc(address, timeout=PATIENCE_SECONDS, connection_args=arguments) as there:
            await asyncio.wait_for(there.identity(), PATIENCE_SECONDS)

    try:
        LoopRunner().run_sync(ask)
    except Exception as error:  # another kind of server may answer anything
        words = " ".join(f"{error}".split()) or "no answer"
        raise InvalidInputError(
            f"No Dask scheduler answers at {address} ({words}). `dask scheduler` starts one and "
            "prints its address."
        ) from None


def _run_on_dask(client: Client, calls: Sequence[Call]) -> Outcomes:
    """Run calls on the workers of a scheduler, which replaces lost workers by others."""
    from distributed import as_completed
    from distributed.scheduler import KilledWorker

    # Two runs on one scheduler may have the same tasks with other methods or limits.
    run = secrets.token_hex(8)
    futures = {
        client.submit(_run_one, call, key=f"isthmus-{run}-{call.name}"): call for call in calls
    }
    for future in as_completed(list(futures), loop=client.loop):
        error = future.exception()
        if error is None:
            outcome = future.result()
        elif isinstance(error, KilledWorker):
            outcome = Outcome("crashed", message="The task failed on every worker.")
        else:
            raise error
        future.release()
        yield futures.pop(future), outcome


def _run_one(call: Call) -> Outcome:
    return next(run_all([call]))[1]
