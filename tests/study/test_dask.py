"""The same study on a Dask cluster, of which a worker is killed."""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from isthmus.errors import DatasetNotFoundError
from isthmus.study import Method, Progress, Settings, Store, run, status

distributed = pytest.importorskip("distributed")


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
