"""Speed and memory of certificates and of Gaussian mean shift, as ratios from one run.

    python benchmarks/capacity.py
    python benchmarks/capacity.py --sizes small

All on one thread, in CPU seconds, once each. Certificates are of standard normal patterns in 64
dimensions at a bandwidth where next to none is certified, against scikit-learn's exact search
for as many neighbours on the same data. Mean shift is of twelve blobs in 8 dimensions, against
scikit-learn's flat-kernel ``MeanShift`` from every row, at a radius that finds the same blobs;
beyond 2,000 rows scikit-learn is timed on part of the rows as seeds, since its cost is in
proportion to them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import MeanShift
from sklearn.datasets import make_blobs
from sklearn.neighbors import NearestNeighbors

from isthmus.capacity import certify
from isthmus.cluster import GaussianMeanShift

DIM, SIGMA, NEIGHBORS = 64, 3.0, 128
COUNTS, ROWS = (10_000, 100_000), (2_000, 5_000, 20_000)
BLOB_SIGMA, FLAT_RADIUS, SEEDS = 1.5, 4.0, 200


def patterns(count: int) -> NDArray[np.float64]:
    return np.random.default_rng(0).standard_normal((count, DIM))


def cpu_seconds(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def extra_megabytes(count: int) -> float:
    """Growth of a fresh process's peak memory while it certifies."""
    command = [sys.executable, __file__, "--peak", str(count)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def print_peak(count: int) -> None:
    certify(patterns(3000), SIGMA, iterate="none")  # load libraries before measuring
    X = patterns(count)
    before = memory_kilobytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    certify(X, SIGMA, iterate="none")
    print((memory_kilobytes("VmHWM") - before) / 1024)


def memory_kilobytes(field: str) -> int:
    """A field of this process's memory use, as Linux tells it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


def certificates(counts: tuple[int, ...]) -> None:
    print("| patterns | CPU s | over exact neighbour search | extra MB | proved |")
    print("|---|---|---|---|---|")
    for count in counts:
        X = patterns(count)
        search = NearestNeighbors(n_neighbors=NEIGHBORS + 1, algorithm="brute", n_jobs=1).fit(X)
        queries = X[: min(count, 10_000)]
        theirs = cpu_seconds(lambda: search.kneighbors(queries)) * count / len(queries)  # noqa: B023
        ours = cpu_seconds(lambda: certify(X, SIGMA, iterate="none"))  # noqa: B023
        proved = certify(X[:3000], SIGMA, iterate="none").fraction_stored
        print(
            f"| {count:,} | {ours:.1f} | {ours / theirs:.2f} | {extra_megabytes(count):.0f} "
            f"| {proved:.0%} |",
            flush=True,
        )


def mean_shift(rows: tuple[int, ...]) -> None:
    print("\n| rows | CPU s | scikit-learn CPU s | times faster | clusters, both |")
    print("|---|---|---|---|---|")
    for count in rows:
        X, _ = make_blobs(count, 8, centers=12, random_state=0)
        model = GaussianMeanShift(BLOB_SIGMA)
        ours = cpu_seconds(lambda: model.fit(X))  # noqa: B023
        seeds = X if count <= ROWS[0] else X[:SEEDS]
        peer = MeanShift(bandwidth=FLAT_RADIUS, seeds=seeds, n_jobs=1)
        theirs = cpu_seconds(lambda: peer.fit(X)) * count / len(seeds)  # noqa: B023
        print(
            f"| {count:,} | {ours:.2f} | {theirs:.0f} | {theirs / ours:.0f}x "
            f"| {len(model.cluster_centers_)}, {len(peer.cluster_centers_)} |",
            flush=True,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", choices=["small", "all"], default="all")
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.peak:
        print_peak(options.peak)
        return
    small = options.sizes == "small"
    mean_shift(ROWS[:1] if small else ROWS)
    print()
    certificates(COUNTS[:1] if small else COUNTS)


if __name__ == "__main__":
    main()
