"""Where tasks are done: in processes of this machine, or on a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from isthmus.errors import InvalidInputError
from isthmus.study.isolation import Request, end_server, isolated

__all__ = ["on_dask", "on_loky"]

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
                    delayed(isolated)(request) for request in list(left.values())
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


def on_dask(requests: Sequence[Request], scheduler: str) -> Iterator[dict[str, Any]]:
    """Outcomes in the order they are done, from the workers of a Dask scheduler.

    When a worker is lost, Dask gives what it was doing to another. Each outcome is yielded once.
    """
    try:
        from distributed import Client, as_completed
        from distributed.scheduler import KilledWorker
    except ImportError:
        raise InvalidInputError(
            "backend='dask' takes dask and distributed: pip install 'isthmus[dask]'."
        ) from None
    with Client(scheduler, set_as_default=False) as client:
        futures = {
            client.submit(isolated, request, key=f"isthmus-{request.task.id}", pure=False): request
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
