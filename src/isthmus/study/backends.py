"""Where tasks are done: in processes of this machine, or on a Dask cluster."""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from isthmus.errors import InvalidInputError
from isthmus.study.isolation import Request, end_server, isolated

if TYPE_CHECKING:
    from distributed import Client

__all__ = ["connected", "on_dask", "on_loky"]

ADDRESS = re.compile(
    r"(tcp|tls|ws|wss|ucx)://(?P<host>[\w.-]+|\[[\da-fA-F:.]+\]):(?P<port>\d{1,5})"
)
# How long a scheduler may take to answer.
PATIENCE_SECONDS = 10
# How often a worker process looks whether the one that started it is still there.
LOOK_SECONDS = 0.5

# So many deaths of worker processes in a row, without a result in between, and it is given up.
PATIENCE = 3


def on_loky(requests: Sequence[Request], jobs: int) -> Iterator[dict[str, Any]]:
    """Outcomes in the order they are done, from so many processes of this machine.

    When one of the processes is killed, what it was doing is done again.
    """
    from joblib import Parallel, delayed
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    left = {request.task.id: request for request in requests}
    losses = 0
    try:
        while left:
            parallel = Parallel(
                n_jobs=jobs, backend="loky", batch_size=1, return_as="generator_unordered"
            )
            try:
                for outcome in parallel(
                    delayed(_isolated_for)(os.getpid(), request) for request in list(left.values())
                ):
                    left.pop(outcome["id"])
                    losses = 0
                    yield outcome
            except TerminatedWorkerError:
                losses += 1
                if losses >= PATIENCE:
                    raise
    finally:
        end_server()  # with one job, it is this process that has it


def _isolated_for(asker: int, request: Request) -> dict[str, Any]:
    """`isolated`, in a process that ends when the one that asks is gone."""
    if os.getpid() != asker:
        _end_with(asker)
    return isolated(request)


@cache
def _end_with(asker: int) -> None:
    """Have this process end soon after its parent, whose kill -9 tells nobody."""

    def watch() -> None:
        while os.getppid() == asker:
            time.sleep(LOOK_SECONDS)
        os._exit(1)  # which closes the pipe to the server of fits, and so ends that

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def connected(scheduler: str) -> Iterator[Client]:
    """A client of a Dask scheduler, after a look whether there is one."""
    try:
        from distributed import Client
    except ImportError:
        raise InvalidInputError(
            "backend='dask' takes dask and distributed: pip install 'isthmus[dask]'."
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
    """Raise unless a scheduler answers there.

    Dask's own client would ask for much longer, and cannot be closed when nobody answers.
    """
    from distributed import Security
    from distributed.core import rpc
    from distributed.utils import LoopRunner

    async def look() -> None:
        async with rpc(
            address,
            timeout=PATIENCE_SECONDS,
            connection_args=Security().get_connection_args("client"),
        ) as there:
            await asyncio.wait_for(there.identity(), PATIENCE_SECONDS)

    try:
        LoopRunner().run_sync(look)
    except Exception as error:  # what else may listen there can answer anything
        words = " ".join(f"{error}".split()) or "no answer"
        raise InvalidInputError(
            f"No Dask scheduler answers at {address} ({words}). `dask scheduler` starts one and "
            "prints its address."
        ) from None


def on_dask(requests: Sequence[Request], client: Client) -> Iterator[dict[str, Any]]:
    """Outcomes in the order they are done, from the workers of a Dask scheduler.

    When a worker is lost, Dask gives what it was doing to another. Each outcome is yielded once.
    """
    from distributed import as_completed
    from distributed.scheduler import KilledWorker

    # Two runs on one scheduler may have the same tasks, with other methods or limits.
    run = secrets.token_hex(8)
    futures = {
        client.submit(isolated, request, key=f"isthmus-{run}-{request.task.id}"): request
        for request in requests
    }
    for future in as_completed(list(futures), loop=client.loop):
        request = futures[future]
        error = future.exception()
        if error is None:
            yield future.result()
        elif isinstance(error, KilledWorker):
            words = "Every worker that tried this task died of it."
            yield {"id": request.task.id, "status": "crashed", "message": words}
        else:
            raise error
        future.release()
        del futures[future]
