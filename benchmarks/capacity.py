"""Speed and memory of certificates and of Gaussian mean shift, as ratios from one run.

    python benchmarks/capacity.py
    python benchmarks/capacity.py --sizes small
    python benchmarks/capacity.py --figures docs/img

All on one thread, in CPU seconds, once each. Certificates are of standard normal patterns in 64
dimensions at a bandwidth where next to none is certified, against scikit-learn's exact search
for as many neighbours on the same data. Mean shift is of twelve blobs in 8 dimensions, against
scikit-learn's flat-kernel ``MeanShift`` from every row, at a radius that finds the same blobs;
beyond 2,000 rows scikit-learn is timed on part of the rows as seeds, since its cost is in
proportion to them. Blobs that overlap are the harder case, where far memories cannot be left out.
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

from isthmus.capacity import certify, measured_capacity, sweep
from isthmus.cluster import GaussianMeanShift
from isthmus.figures import capacity_bounds, certificate_plot, retrieval_sweep, save

DIM, SIGMA, NEIGHBORS = 64, 3.0, 128
COUNTS, ROWS = (10_000, 30_000, 100_000), (2_000, 5_000, 20_000)
# Centres are drawn from a cube of twice this side.
BOXES = {"apart": 10.0, "overlapping": 4.0}
BLOB_SIGMA, FLAT_RADIUS, SEEDS = 1.5, 4.0, 200


def patterns(count: int) -> NDArray[np.float64]:
    return np.random.default_rng(0).standard_normal((count, DIM))


def cpu_seconds(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def certified_alone(count: int) -> tuple[float, float, float]:
    """CPU seconds, growth of peak memory in MB and share proved, in a fresh process."""
    command = [sys.executable, __file__, "--alone", str(count)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    seconds, megabytes, proved = map(float, output.split())
    return seconds, megabytes, proved


def print_certified(count: int) -> None:
    certify(patterns(3000), SIGMA, iterate="none")  # load libraries before measuring
    X = patterns(count)
    before = memory_kilobytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    start = time.process_time()
    found = certify(X, SIGMA, iterate="none")
    seconds = time.process_time() - start
    print(seconds, (memory_kilobytes("VmHWM") - before) / 1024, found.fraction_stored)


def memory_kilobytes(field: str) -> int:
    """A field of this process's memory use, as Linux tells it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


def certificates(counts: tuple[int, ...]) -> None:
    print("| patterns | CPU s | of exact neighbour search | extra MB | proved |")
    print("|---|---|---|---|---|")
    for count in counts:
        X = patterns(count)
        search = NearestNeighbors(n_neighbors=NEIGHBORS + 1, algorithm="brute", n_jobs=1).fit(X)
        queries = X[: min(count, 4000)]
        theirs = cpu_seconds(lambda: search.kneighbors(queries)) * count / len(queries)  # noqa: B023
        ours, megabytes, proved = certified_alone(count)
        row = f"| {count:,} | {ours:.1f} | {ours / theirs:.2f} | {megabytes:.0f} | {proved:.0%} |"
        print(row, flush=True)


def mean_shift(rows: tuple[int, ...]) -> None:
    print("| blobs | rows | CPU s | scikit-learn CPU s | times faster | clusters, both |")
    print("|---|---|---|---|---|---|")
    GaussianMeanShift(BLOB_SIGMA).fit(make_blobs(600, 8, random_state=1)[0])  # load libraries
    for name, box in BOXES.items():
        for count in rows:
            X, _ = make_blobs(count, 8, centers=12, center_box=(-box, box), random_state=0)
            model = GaussianMeanShift(BLOB_SIGMA)
            ours = cpu_seconds(lambda: model.fit(X))  # noqa: B023
            seeds = X if count <= ROWS[0] else X[:SEEDS]
            peer = MeanShift(bandwidth=FLAT_RADIUS, seeds=seeds, n_jobs=1)
            theirs = cpu_seconds(lambda: peer.fit(X)) * count / len(seeds)  # noqa: B023
            print(
                f"| {name} | {count:,} | {ours:.2f} | {theirs:.1f} | {theirs / ours:.0f}x "
                f"| {len(model.cluster_centers_)}, {len(peer.cluster_centers_)} |",
                flush=True,
            )


def figures(folder: Path) -> None:
    """Draw what docs/capacity.md shows, and print how many patterns were found stored."""
    measured = {
        "random patterns, half stored": ("random", 0.5, (2, 3, 4, 5, 6)),
        "random patterns, 95 % stored": ("random", 0.95, (2, 3, 4, 5, 6)),
        "spread patterns, 95 % stored": ("spread", 0.95, (2, 3, 4, 5)),
    }
    counts = {
        name: {dim: measured_capacity(dim, share, placement) for dim in dims}  # type: ignore[arg-type]
        for name, (placement, share, dims) in measured.items()
    }
    for name, found in counts.items():
        print(f"{name}: " + ", ".join(f"{count} at D = {dim}" for dim, count in found.items()))
    save(capacity_bounds(range(2, 41), counts), folder / "capacity-bounds.png")
    found = sweep(
        (2, 3, 5, 9), (4, 12, 36, 100, 300), seeds=4, n_particles=15, max_patterns=8, max_steps=100
    )
    save(retrieval_sweep(found), folder / "capacity-sweep.png")
    X = np.random.default_rng(3).uniform(-8, 8, (40, 2))
    save(certificate_plot(certify(X, 0.5), X), folder / "certificate.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", choices=["small", "all"], default="all")
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help="draw, measure nothing")
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.alone:
        print_certified(options.alone)
        return
    if options.figures:
        figures(options.figures)
        return
    small = options.sizes == "small"
    mean_shift(ROWS[:1] if small else ROWS)
    print()
    certificates(COUNTS[:1] if small else COUNTS)


if __name__ == "__main__":
    main()
