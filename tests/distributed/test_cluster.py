"""Memories on a cluster of two worker processes, of which one is killed; clusters that fail."""

import socket
import threading
import time
import warnings
from collections.abc import Iterator
from typing import Any

import dask.array as da
import numpy as np
import pytest
import torch

import isthmus as ist
from isthmus.distributed import connect, connection, shard
from isthmus.errors import ClusterError, InvalidInputError

distributed = pytest.importorskip("distributed")

X = np.random.default_rng(0).normal(size=(300, 4))
POINTS = torch.from_numpy(0.8 * np.random.default_rng(1).normal(size=(20, 4)))


@pytest.mark.slow
def test_shards_stay_on_both_workers_and_give_the_same_answers(client: Any) -> None:
    many = shard(ist.GaussianKDE, da.from_array(X, chunks=(40, 4)), client=client, sigma=0.6)
    one = ist.GaussianKDE(X, 0.6)
    torch.testing.assert_close(many.log_prob(POINTS), one.log_prob(POINTS), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(many.sample(9, seed=1), one.sample(9, seed=1))
    places = client.who_has(many._shards.parts)
    assert len({worker for workers in places.values() for worker in workers}) == 2


@pytest.mark.slow
def test_a_worker_killed_during_retrieval_changes_nothing(client: Any, kill_worker: Any) -> None:
    data = da.from_array(X, chunks=(60, 4))
    many = shard(ist.GaussianKDE, data, client=client, sigma=0.6)
    killed = []

    class Killing(type(many)):  # type: ignore[misc]
        def step_and_energy(self, x: Any, observed: Any = None) -> Any:
            if not killed:
                killed.append(True)
                kill_worker()
            return many.step_and_energy(x, observed)

    killing = Killing(many._shards, many._entries, ist.GaussianKDE, {"sigma": 0.6})
    found = ist.retrieve(killing, POINTS, tol=1e-9)
    expected = ist.retrieve(ist.GaussianKDE(X, 0.6), POINTS, tol=1e-9)
    assert killed
    torch.testing.assert_close(found.state, expected.state, rtol=0, atol=1e-8)


@pytest.fixture
def listener() -> Iterator[str]:
    """The address of something that listens, takes calls, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"


def test_a_wrong_address_is_an_error_within_seconds(
    listener: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PATIENCE_SECONDS", 1)
    for address in (listener, "tcp://127.0.0.1:1"):
        start = time.monotonic()
        with pytest.raises(ClusterError, match="No Dask scheduler answers at tcp://127"):
            shard(ist.GaussianKDE, da.from_array(X), sigma=1.0, client=address)
        assert time.monotonic() - start < 15
    for address in ("somewhere", "tcp://127.0.0.1:99999", "file:///tmp/x:1", ""):
        with pytest.raises(ClusterError, match="No Dask scheduler answers"):
            connect(address)
    with pytest.raises(InvalidInputError, match="security belongs to"):
        shard(ist.GaussianKDE, da.from_array(X), sigma=1.0, security=distributed.Security())


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_scheduler_that_dies_is_an_error_within_seconds() -> None:
    import subprocess
    import sys

    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    address, quiet = f"tcp://127.0.0.1:{port}", {"stderr": subprocess.DEVNULL}
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--no-dashboard"]
    scheduler = subprocess.Popen([*command, "--port", str(port)], **quiet)
    command = [sys.executable, "-m", "distributed.cli.dask_worker", address, "--no-dashboard"]
    worker = subprocess.Popen([*command, "--nthreads", "1", "--no-nanny"], **quiet)
    try:
        deadline = time.monotonic() + 60
        while True:
            try:
                client = connect(address)
                break
            except ClusterError:
                assert time.monotonic() < deadline
        client.wait_for_workers(1, timeout=60)
        many = shard(ist.GaussianKDE, da.from_array(X, chunks=(60, 4)), client=client, sigma=0.6)

        def wait(block: Any) -> Any:
            time.sleep(30)

        threading.Timer(1.0, scheduler.kill).start()
        start = time.monotonic()
        with pytest.raises(ClusterError, match="lost on the way"):
            many._shards.reduce(wait)
        with pytest.raises(ClusterError, match="scheduler is gone"):
            many.energy(POINTS)
        assert time.monotonic() - start < 20
        client.close()
    finally:
        for process in (scheduler, worker):
            process.kill()
            process.wait()


@pytest.mark.slow
def test_security_is_passed_on() -> None:
    pytest.importorskip("cryptography")
    security = distributed.Security.temporary()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with distributed.LocalCluster(
            n_workers=1,
            threads_per_worker=1,
            security=security,
            protocol="tls",
            dashboard_address=None,
            silence_logs=50,
        ) as secure:
            address = secure.scheduler_address
            assert address.startswith("tls://")
            with pytest.raises(ClusterError, match="No Dask scheduler answers"):
                connect(address)
            with connect(address, security=security) as client:
                many = shard(ist.GaussianKDE, da.from_array(X), client=client, sigma=0.6)
                assert many.n_memories == 300
