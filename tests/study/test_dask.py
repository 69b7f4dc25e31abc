"""The same study on a Dask cluster, of which a worker is killed."""

from pathlib import Path

import pytest

from isthmus.study import Progress, Settings, Store, run

distributed = pytest.importorskip("distributed")


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
