"""Memories and fits on Dask workers: two against one, the overhead of a pass, and files.

python benchmarks/distributed.py            a minute on a quiet machine
python benchmarks/distributed.py --full     larger sizes
python benchmarks/distributed.py --part large --rows 50000000    more rows than one worker may hold

Ratios are of wall time, measured side by side in one run, so they mean little while other work
keeps the cores busy; the load average is printed with them.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import Row, in_fresh_process, peak_megabytes, print_rows

# This file has the name of a package that it needs, which must be found first.
HERE = Path(__file__).resolve().parent
sys.path.sort(key=lambda folder: Path(folder or ".").resolve() == HERE)

SIZES = {False: (200_000, 32, 200), True: (2_000_000, 64, 1000)}
SMALL = ((1_000, 8, 4), (1_000, 8, 64))
FILES = {False: (250_000, 1_000_000), True: (2_000_000, 16_000_000)}
FILE_COLUMNS, GROUP_ROWS, LARGE_COLUMNS = 8, 100_000, 16


def wall_seconds(function: Callable[..., Any], *arguments: Any, repeats: int = 5) -> float:
    """Return the wall time of the fastest of several calls."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function(*arguments)
        times.append(time.perf_counter() - start)
    return min(times)


def efficiency(full: bool) -> Iterator[Row]:
    """Yield the time of a pass, and of an iteration of ClAMELBO, on two workers against one."""
    import dask.array as da

    import isthmus as ist
    from isthmus.cluster import ClAMELBO
    from isthmus.distributed import shard

    rows, dim, queries = SIZES[full]
    data = da.random.default_rng(0).normal(size=(rows, dim), chunks=(rows // 8, dim))
    data = data.astype(np.float32)
    points = torch.randn(queries, dim, generator=torch.Generator().manual_seed(0))
    times: dict[str, list[float]] = {"pass of a GaussianKDE": [], "fit of ClAMELBO": []}
    for workers in (1, 2):
        with on_workers(workers):
            memory = shard(ist.GaussianKDE, data, sigma=1.0)
            memory.step(points)
            times["pass of a GaussianKDE"].append(wall_seconds(memory.step, points))
            model = ClAMELBO(64, init=np.eye(64, dim), max_iter=5, tol=0)
            times["fit of ClAMELBO"].append(wall_seconds(model.fit, data, repeats=1))
    for what, (one, two) in times.items():
        yield {
            "table": "two workers against one",
            "work": what,
            "rows": rows,
            "D": dim,
            "s on one": one,
            "s on two": two,
            "speed-up": one / two,
            "load": os.getloadavg()[0],
        }


def generated(number: int, rows: int) -> np.ndarray:
    """Return one block of rows about eight centres, made on the worker that needs it."""
    rng = np.random.default_rng(number)
    centres = 9 * np.random.default_rng(0).normal(size=(8, LARGE_COLUMNS))
    drawn = rng.standard_normal((rows, LARGE_COLUMNS), np.float32)
    drawn += centres[rng.integers(8, size=rows)].astype(np.float32)
    return drawn


def large(rows: int) -> Iterator[Row]:
    """Yield time, memory and traffic of work on generated blocks, a worker killed in between."""
    import dask.array as da
    import psutil
    from dask import delayed

    import isthmus as ist
    from isthmus.cluster import BasinFlow, ClAMELBO
    from isthmus.distributed import shard

    size = rows // 32
    blocks = [
        da.from_delayed(
            delayed(generated, pure=True)(number, size), (size, LARGE_COLUMNS), np.float32
        )
        for number in range(32)
    ]
    data = da.concatenate(blocks)
    points = torch.from_numpy(generated(99, 1000))
    with on_workers(2) as client:

        def kill_in(seconds: float) -> None:
            worker = next(iter(client.run(os.getpid).values()))
            threading.Timer(seconds, os.kill, (worker, signal.SIGKILL)).start()

        def measured(work: str, call: Callable[[], Any]) -> Row:
            before, start = psutil.net_io_counters(pernic=True)["lo"].bytes_sent, time.time()
            call()
            sent = psutil.net_io_counters(pernic=True)["lo"].bytes_sent - before
            memory = client.run(lambda: psutil.Process().memory_info().rss / 1e6)
            return {
                "table": "blocks made on the workers",
                "work": work,
                "rows": rows,
                "seconds": time.time() - start,
                "largest worker, MB": max(memory.values()),
                "MB sent": sent / 1e6,
                "load": os.getloadavg()[0],
            }

        made: dict[str, Any] = {}
        yield measured(
            "shard", lambda: made.update(kde=shard(ist.GaussianKDE, data, sigma=1.0, index=False))
        )
        yield measured("log_prob of 1,000 points", lambda: made["kde"].log_prob(points))
        before = made["kde"].log_prob(points[:20])
        kill_in(1.0)
        yield measured(
            "the same, a worker killed", lambda: made.update(again=made["kde"].log_prob(points))
        )
        torch.testing.assert_close(made["again"][:20], before)
        made.clear()
        model = ClAMELBO(8, init=generated(98, 8), max_iter=5, tol=0, n_init=1)
        yield measured("ClAMELBO, 5 iterations", lambda: model.fit(data))
        found = model.memories_
        kill_in(5.0)
        yield measured("the same, a worker killed", lambda: model.fit(data))
        np.testing.assert_allclose(model.memories_, found, rtol=1e-4)
        yield measured("BasinFlow", lambda: BasinFlow(random_state=0).fit(data))


def overhead(full: bool) -> Iterator[Row]:
    """Yield the time of a pass over few rows, which is that of the tasks."""
    import dask.array as da

    import isthmus as ist
    from isthmus.distributed import shard

    with on_workers(2):
        for rows, dim, shards in SMALL:
            data = da.ones((rows, dim), chunks=(-(-rows // shards), dim))
            memory, points = shard(ist.GaussianKDE, data, sigma=1.0), torch.zeros(16, dim)
            memory.step(points)
            alone = ist.GaussianKDE(np.ones((rows, dim)), 1.0)
            yield {
                "table": "overhead of a pass",
                "rows": rows,
                "shards": memory.n_shards,
                "ms": 1e3 * wall_seconds(memory.step, points),
                "ms in one process": 1e3 * wall_seconds(alone.step, points),
                "load": os.getloadavg()[0],
            }


def files(full: bool) -> Iterator[Row]:
    """Yield the peak memory of clustering files of growing size, each in a fresh process."""
    for rows in FILES[full]:
        yield in_fresh_process(__file__, "--file", rows)


def one_file(rows: int) -> Row:
    """Return the extra peak memory of clustering one file."""
    import pandas as pd
    import pyarrow
    from pyarrow import parquet

    from isthmus.cluster import cluster_file

    rng = np.random.default_rng(0)
    columns = [f"x{place + 1}" for place in range(FILE_COLUMNS)]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rows.parquet"
        schema = pyarrow.schema([(name, pyarrow.float64()) for name in columns])
        with parquet.ParquetWriter(path, schema) as writer:
            for _ in range(rows // GROUP_ROWS or 1):
                X = rng.normal(size=(GROUP_ROWS, FILE_COLUMNS)) + 9 * rng.integers(
                    0, 4, size=(GROUP_ROWS, 1)
                )
                frame = pd.DataFrame(X, columns=columns)
                writer.write_table(pyarrow.Table.from_pandas(frame, preserve_index=False))
        start = time.perf_counter()
        peak, _ = peak_megabytes(
            lambda: cluster_file(path, Path(folder) / "out.parquet", method="elbo", n_clusters=4)
        )
        seconds = time.perf_counter() - start
    return {
        "table": "files read in row groups (isthmus cluster)",
        "rows": rows,
        "MB as a table": rows * FILE_COLUMNS * 8 / 1e6,
        "peak MB": peak,
        "seconds": seconds,
    }


class on_workers:  # noqa: N801  # used like a function
    """Start a cluster of single-threaded worker processes, with its client as the default."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __enter__(self) -> Any:
        from distributed import Client, LocalCluster

        self.cluster = LocalCluster(
            n_workers=self.count, threads_per_worker=1, dashboard_address=None, silence_logs=50
        )
        self.client = Client(self.cluster)
        self.client.run(torch.set_num_threads, 1)
        return self.client

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self.cluster.close()


def measure(full: bool, seed: int = 0) -> Iterator[Row]:
    """Yield the rows of all tables."""
    for part in (overhead, efficiency, files):
        yield from part(full)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--full", action="store_true", help="larger sizes")
    parser.add_argument("--file", type=int, metavar="ROWS", help="measure one file of this size")
    parts = ("overhead", "efficiency", "files", "large")
    parser.add_argument("--part", choices=parts, help="one table")
    parser.add_argument("--rows", type=int, default=2_000_000, help="of the part large")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    if arguments.file is not None:
        print(json.dumps(one_file(arguments.file)))
    elif arguments.part == "large":
        print_rows(large(arguments.rows))
    elif arguments.part is not None:
        print_rows(globals()[arguments.part](arguments.full))
    else:
        print_rows(measure(arguments.full))


if __name__ == "__main__":
    main()
