"""A Dask cluster of two worker processes over TCP, started once."""

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            protocol="tcp",
            dashboard_address=None,
            silence_logs=50,
        ) as running:
            yield running


@pytest.fixture
def client(cluster: Any) -> Iterator[Any]:
    with distributed.Client(cluster, set_as_default=False) as connected:
        connected.wait_for_workers(2)
        yield connected


@pytest.fixture
def kill_worker(cluster: Any) -> Any:
    """Kill one of the two workers at once; its nanny starts another."""

    def kill() -> None:
        next(iter(cluster.workers.values())).process.process.kill()

    return kill
