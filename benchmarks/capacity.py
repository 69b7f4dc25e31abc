"""Speed and memory of certificates and of Gaussian mean shift, as ratios from one run.

    python benchmarks/capacity.py
    python benchmarks/capacity.py --sizes small
    python benchmarks/capacity.py --figures docs/img

All on one thread, in CPU seconds, once each. Certificates are of standard normal patterns in 64
dimensions at a bandwidth where hardly any is certified, against scikit-learn's exact search
for as many neighbours on the same data. Mean shift is of twelve blobs in 8 dimensions, against
scikit-learn's flat-kernel ``MeanShift`` from every row, at a radius that finds the same blobs;
beyond 2,000 rows scikit-learn is timed on part of the rows as seeds, since its cost is
proportional to them. Overlapping blobs are harder, since far memories cannot be left out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure
from measuring import Row, cpu_seconds, in_fresh_process, peak_megabytes, print_rows, timed
from numpy.typing import NDArray
from sklearn.cluster import MeanShift
from sklearn.datasets import load_digits, make_blobs
from sklearn.neighbors import NearestNeighbors

import isthmus as ist
from isthmus.capacity import certify, measured_capacity, sweep
from isthmus.cluster import GaussianMeanShift
from isthmus.figures import capacity_bounds, certificate_plot, retrieval_sweep, save

DIM, SIGMA, NEIGHBORS = 64, 3.0, 128
COUNTS, ROWS = (10_000, 30_000, 100_000), (2_000, 5_000, 20_000)
# Centres are drawn from a cube of twice this side.
BOXES = {"apart": 10.0, "overlapping": 4.0}
BLOB_SIGMA, FLAT_RADIUS, SEEDS = 1.5, 4.0, 200
# Noise, in multiples of what is certified; patterns and draws per pattern that are tried.
LEVELS, TRIED, DRAWS = (0.5, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0), 25, 80


def patterns(count: int, seed: int) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal((count, DIM))


def certified_alone(count: int, seed: int) -> dict[str, float]:
    """Return CPU seconds, growth of peak memory and share proved, in this process."""
    certify(patterns(3000, seed), SIGMA, iterate="none")  # load libraries before measuring
    X = patterns(count, seed)
    megabytes, (seconds, found) = peak_megabytes(
        lambda: timed(lambda: certify(X, SIGMA, iterate="none"))
    )
    return {"seconds": seconds, "megabytes": megabytes, "proved": found.fraction_stored}


def certificates(counts: Sequence[int], seed: int) -> Iterator[Row]:
    for count in counts:
        X = patterns(count, seed)
        search = NearestNeighbors(n_neighbors=NEIGHBORS + 1, algorithm="brute", n_jobs=1).fit(X)
        queries = X[: min(count, 4000)]
        theirs = cpu_seconds(lambda: search.kneighbors(queries)) * count / len(queries)  # noqa: B023
        ours = in_fresh_process(__file__, "--alone", count, "--seed", seed)
        yield {
            "table": "Certificates",
            "patterns": count,
            "CPU s": ours["seconds"],
            "of exact neighbour search": ours["seconds"] / theirs,
            "extra MB": ours["megabytes"],
            "share proved": ours["proved"],
        }


def mean_shift(rows: Sequence[int], seed: int) -> Iterator[Row]:
    GaussianMeanShift(BLOB_SIGMA).fit(make_blobs(600, 8, random_state=1)[0])  # load libraries
    for name, box in BOXES.items():
        for count in rows:
            X, _ = make_blobs(count, 8, centers=12, center_box=(-box, box), random_state=seed)
            model = GaussianMeanShift(BLOB_SIGMA)
            ours = cpu_seconds(lambda: model.fit(X))  # noqa: B023
            seeds = X if count <= ROWS[0] else X[:SEEDS]
            peer = MeanShift(bandwidth=FLAT_RADIUS, seeds=seeds, n_jobs=1)
            theirs = cpu_seconds(lambda: peer.fit(X)) * count / len(seeds)  # noqa: B023
            yield {
                "table": "Mean shift",
                "blobs": name,
                "rows": count,
                "CPU s": ours,
                "scikit-learn CPU s": theirs,
                "times faster": theirs / ours,
                "clusters": len(model.cluster_centers_),
                "scikit-learn clusters": len(peer.cluster_centers_),
            }


def measure(full: bool = False, seed: int = 0) -> Iterator[Row]:
    """Yield rows on mean shift, then on certificates."""
    torch.set_num_threads(1)
    yield from mean_shift(ROWS if full else ROWS[:1], seed)
    yield from certificates(COUNTS if full else COUNTS[:1], seed)


def noise_recall(delta: float = 1e-3, seed: int = 0) -> Figure:
    """Draw the share of noisy patterns that are recalled, by noise over what is certified."""
    rng = np.random.default_rng(seed)
    digits = load_digits().data
    data = {
        "random patterns, D = 256": (rng.standard_normal((400, 256)), 3.0),
        "pictures of digits, D = 64": (digits[rng.permutation(len(digits))[:400]], 4.0),
    }
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    axes = figure.subplots()
    for name, (X, sigma) in data.items():
        found = certify(X, sigma, iterate="none", noise=True, delta=delta)
        rows = np.flatnonzero((found.decided == "proved") & (found.noise > 0))[:TRIED]
        memory, homes = ist.GaussianKDE(X, sigma), torch.from_numpy(X[rows])
        goals = ist.retrieve(memory, homes, tol=1e-6 * sigma).state
        shares = []
        for level in LEVELS:
            draws = rng.standard_normal((DRAWS, len(rows), X.shape[1]))
            away = torch.from_numpy(level * found.noise[rows][:, None] * draws)
            ends = ist.retrieve(memory, homes + away, tol=1e-6 * sigma).state
            near = torch.linalg.vector_norm(ends - goals, dim=-1) < 1e-2 * sigma
            shares.append(float(near.double().mean()))
        print(name, *(f"{share:.3f}" for share in shares))
        axes.plot(LEVELS, shares, "o-", label=name)
    axes.plot([0, 1], [1 - delta] * 2, lw=3, color="black", label=f"proved: at least {1 - delta:g}")
    axes.set(xlabel="standard deviation of the noise / certified level", ylabel="share recalled")
    axes.legend(loc="lower left")
    return figure


def figures(folder: Path) -> None:
    """Draw the figures of docs/capacity.md, and print the measured capacities."""
    measured = {
        "random patterns, half stored": ("random", 0.5, (2, 3, 4, 5, 6)),
        "random patterns, 95 % stored": ("random", 0.95, (2, 3, 4, 5, 6)),
        "spread patterns, 95 % stored": ("spread", 0.95, (2, 3, 4, 5)),
    }
    counts = {
        name: {dim: measured_capacity(dim, share, placement) for dim in dims}  # type: ignore[arg-type]
        for name, (placement, share, dims) in measured.items()
    }
    counts["symmetric arrangements, all stored"] = {2: 18, 4: 120, 8: 17_280}  # see the tests
    for name, found in counts.items():
        print(f"{name}: " + ", ".join(f"{count} at D = {dim}" for dim, count in found.items()))
    save(capacity_bounds(range(2, 41), counts), folder / "capacity-bounds.png")
    found = sweep(
        (2, 3, 5, 9), (4, 12, 36, 100, 300), seeds=4, n_particles=15, max_patterns=8, max_steps=100
    )
    save(retrieval_sweep(found), folder / "capacity-sweep.png")
    save(noise_recall(), folder / "noise.png")
    X = np.random.default_rng(3).uniform(-8, 8, (40, 2))
    save(certificate_plot(certify(X, 0.5), X), folder / "certificate.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", choices=["small", "all"], default="all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figures", type=Path, metavar="FOLDER", help="draw, measure nothing")
    parser.add_argument("--alone", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.alone:
        print(json.dumps(certified_alone(options.alone, options.seed)))
    elif options.figures:
        figures(options.figures)
    else:
        print_rows(measure(options.sizes == "all", options.seed))


if __name__ == "__main__":
    main()
