"""The same study on a Dask cluster, of which a worker is killed."""

import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from isthmus.distributed import connection
from isthmus.errors import DatasetNotFoundError, InvalidInputError
from isthmus.study import Method, Progress, Settings, Store, run, status

distributed = pytest.importorskip("distributed")


@pytest.fixture
def listener() -> Iterator[str]:
    """The address of something that listens, takes calls, and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize(
    "address",
    [
        "foo",
        "",
        "tcp://a:b",
        "tcp://a",
        "http://a:80",
        "tcp://a:99999",
        "tcp://:1",
        "10.0.0.1:8786",
    ],
)
def test_an_address_of_another_form_is_refused_before_anything_is_written(
    address: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInputError, match=r"looks like tcp://10\.0\.0\.1:8786, not"):
        run(tmp_path / "out", Settings(("iris",), ("KMeans",)), backend="dask", scheduler=address)
    assert not (tmp_path / "out").exists()


def test_a_missing_scheduler_is_an_early_error_and_nothing_is_written(
    listener: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PATIENCE_SECONDS", 1)
    for address in (listener, "tcp://127.0.0.1:1"):
        start = time.monotonic()
        with pytest.raises(InvalidInputError, match="No Dask scheduler answers at tcp://127"):
            run(
                tmp_path / "out",
                Settings(("iris",), ("KMeans",)),
                backend="dask",
                scheduler=address,
            )
        assert time.monotonic() - start < 15
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_runs_on_one_scheduler_keep_apart_and_missing_data_are_no_result(tmp_path: Path) -> None:
    def slow(**settings: Any) -> Any:
        from sklearn.cluster import KMeans

        time.sleep(5)
        return KMeans(**settings)

    def fails(**_: Any) -> Any:
        raise ValueError("another method")

    def start(name: str, factory: Any) -> Any:
        settings = Settings(("iris",), (Method("same", factory),), seeds=(0,))
        return run(tmp_path / name, settings, backend="dask", scheduler=address).statuses

    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=True, dashboard_address=None
    ) as cluster:
        address = cluster.scheduler_address
        with ThreadPoolExecutor() as pool:
            ends = list(pool.map(start, ["first", "second"], [slow, fails]))
        assert ends == [{"ok": 1}, {"failed": 1}]
        settings = Settings(("zoo",), ("KMeans",), seeds=(0,), entries=2)
        with pytest.raises(DatasetNotFoundError, match="KMeans on zoo could not be started on "):
            run(
                tmp_path / "zoo",
                settings,
                backend="dask",
                scheduler=address,
                data_home=tmp_path / "nowhere",
            )
    assert Store(tmp_path / "zoo").read() == []
    assert status(tmp_path / "zoo").missing == 2


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_worker_killed_on_the_way_loses_nothing_and_repeats_nothing(
    tmp_path: Path, small: Settings
) -> None:
    ids: list[str] = []
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:

        def report(progress: Progress) -> None:
            ids.append(progress.row["id"])
            if len(ids) == 2:
                next(iter(cluster.workers.values())).process.process.kill()

        address = cluster.scheduler_address
        done = run(tmp_path / "dask", small, backend="dask", scheduler=address, report=report)
        again = run(tmp_path / "dask", small, backend="dask", scheduler=address)
    assert done.done == len(set(ids)) == len(ids) == 10
    assert done.statuses == {"ok": 10}
    assert again.done == 0
    run(tmp_path / "loky", small)
    scores = [
        {row["id"]: (row["ari"], row["silhouette"]) for row in Store(tmp_path / name).read()}
        for name in ("dask", "loky")
    ]
    assert scores[0] == scores[1]
