"""Single operations that a user waits for, each as a ratio of CPU times in one run.

    python benchmarks/speed.py            # the table in benchmarks/RESULTS.md
    python benchmarks/speed.py --quick    # smaller memories

Each row compares an operation with a reference that reads the same data: one query of ``attend``
with ``log_prob`` of a memory that was used before, and of compressed memories with float32; a step
in float64 with its two matrix products; a density on a grid with linear bins and a Fourier
transform on one of 8 cells for each sigma; the chosen bandwidth with a Gaussian mixture of
scikit-learn; queries of data without clusters under ``index="auto"`` with ``index=False``. The
smallest of three calls counts. `error` is the largest error of a log-density, of ours and of the
reference.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from measuring import Row, cpu_seconds, print_rows
from numpy.typing import NDArray
from scipy.interpolate import RegularGridInterpolator
from scipy.signal import fftconvolve
from sklearn.mixture import GaussianMixture
from torch import Tensor

import isthmus as ist
from isthmus.attend import CompressedKeys, Keys

REPEATS, CELLS, COARSE_CELLS, SIGMA = 3, 8, 3, 0.1


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def row(operation: str, ours: float, reference: float, **more: float) -> Row:
    return {"operation": operation, "seconds": ours, "ratio": ours / reference, **more}


def one_query(count: int) -> Iterator[Row]:
    memories, query = draw(count, 64), draw(1, 64, seed=1)
    kde = ist.GaussianKDE(memories, 1.0, index=False)
    kde.log_prob(query)
    reference = cpu_seconds(lambda: kde.log_prob(query), REPEATS)
    for metric in ("sqeuclidean", "dot"):
        ours = cpu_seconds(
            lambda metric=metric: ist.attend(query, memories, beta=0.5, metric=metric), REPEATS
        )
        yield row(f"attend, one query x {count:.0e} x 64, {metric} / log_prob", ours, reference)


def compressed(count: int) -> Iterator[Row]:
    """Yield one query of compressed memories, from a file that is mapped, against float32."""
    memories, query = draw(count, 64), draw(1, 64, seed=1)
    kernel: dict[str, Any] = {"beta": 1 / 18, "metric": "sqeuclidean"}
    keys = Keys.of(memories)
    exact = ist.attend(query, keys, **kernel).logsumexp
    reference = cpu_seconds(lambda: ist.attend(query, keys, **kernel), REPEATS)
    for kind in ("int8", "float16"):
        with TemporaryDirectory() as folder:
            path = Path(folder) / "keys"
            CompressedKeys(memories, kind).save(path)
            start = time.perf_counter()
            small = CompressedKeys.load(path)
            loaded = time.perf_counter() - start
            ours = cpu_seconds(lambda small=small: ist.attend(query, small, **kernel), REPEATS)
            found = ist.attend(query, small, **kernel)
            assert found.error_bound is not None
            yield row(
                f"attend, one query x {count:.0e} x 64, {kind} / float32",
                ours,
                reference,
                GB=path.stat().st_size / 1e9,
                **{"s to load": loaded, "error": float((found.logsumexp - exact).abs())},
                bound=float(found.error_bound.logsumexp),
            )


def in_float64(count: int) -> Iterator[Row]:
    for dim in (2, 16):
        memories, queries = (draw(size, dim, dtype=torch.float64) for size in (count, 2000))
        weights = torch.rand(2000, count, dtype=torch.float64)
        kde = ist.GaussianKDE(memories, 1.0, index=False)
        kde.step(queries)
        products = cpu_seconds(lambda q=queries, m=memories, w=weights: (q @ m.T, w @ m), REPEATS)
        ours = cpu_seconds(lambda kde=kde, q=queries: kde.step(q), REPEATS)
        yield row(f"float64 step, 2e3 x {count:.0e} x {dim} / two products", ours, products)


def fourier(points: NDArray[np.float64]) -> RegularGridInterpolator:
    """Return the density by linear bins and a Fourier transform."""
    step, reach = SIGMA / CELLS, 8 * CELLS
    low = points.min(0) - (reach + 3) * step
    places = (points - low) / step
    shape = tuple(np.floor(places.max(0)).astype(int) + reach + 4)
    first = np.floor(places).astype(int)
    part, total = places - first, np.zeros(int(np.prod(shape)))
    for corner in np.ndindex(*(2,) * points.shape[1]):
        share = np.prod(np.where(corner, part, 1 - part), axis=1)
        nodes = np.ravel_multi_index(tuple((first + corner).T), shape)
        total += np.bincount(nodes, share, minlength=len(total))
    line = np.exp(-0.5 * (np.arange(-reach, reach + 1) / CELLS) ** 2) / (SIGMA * (2 * np.pi) ** 0.5)
    kernel = line if points.shape[1] == 1 else np.outer(line, line)
    table = fftconvolve(total.reshape(shape), kernel, mode="same") / len(points)
    axes = [start + step * np.arange(size) for start, size in zip(low, shape, strict=True)]
    return RegularGridInterpolator(axes, table)


def on_grid(count: int) -> Iterator[Row]:
    for dim in (1, 2):
        points = draw(count, dim, dtype=torch.float64)
        kde = ist.GaussianKDE(points, SIGMA, index=False)
        array, queries = points.numpy(), kde.sample(16, seed=3)
        reference = cpu_seconds(lambda array=array: fourier(array), REPEATS)
        exact = kde.log_prob(queries).numpy()
        other = float(np.abs(np.log(fourier(array)(queries.numpy())) - exact).max())
        for cells in (CELLS, COARSE_CELLS):
            ours = cpu_seconds(lambda kde=kde, cells=cells: kde.on_grid(cells), REPEATS)
            error = float(np.abs(kde.on_grid(cells).log_prob(queries).numpy() - exact).max())
            name = f"on_grid({cells}), {count:.0e} x {dim} / linear bins and FFT, {CELLS} cells"
            yield row(name, ours, reference, error=error, **{"error of reference": other})


def chosen_bandwidth(quick: bool) -> Iterator[Row]:
    for count, dim in ((1000, 8), (10_000, 10))[: 1 if quick else 2]:
        X = draw(count, dim, dtype=torch.float64).numpy()
        X[: count // 3] *= 0.2
        mixture = GaussianMixture(5, random_state=0)
        reference = cpu_seconds(lambda X=X, mixture=mixture: mixture.fit(X), 1)
        ours = cpu_seconds(lambda X=X: ist.GaussianKDE(X, "auto"), 1)
        yield row(f'GaussianKDE(X, "auto"), {count} x {dim} / GaussianMixture', ours, reference)


def without_structure(count: int) -> Iterator[Row]:
    memories = draw(count, 16)
    ist.GaussianKDE(memories[:3000], 1.0, index=True).log_prob(memories[:99])  # compiles the loops
    for name, setting in (("first 20,000 queries", "auto"), ("after", "auto")):
        kde = ist.GaussianKDE(memories, 1.0, index=setting)
        if name == "after":
            kde.log_prob(draw(20_000, 16, seed=2))
        queries = draw(20_000, 16, seed=1)
        ours = cpu_seconds(lambda kde=kde, queries=queries: kde.log_prob(queries), 1)
        dense = ist.GaussianKDE(memories, 1.0, index=False)
        reference = cpu_seconds(lambda dense=dense, queries=queries: dense.log_prob(queries), 1)
        yield row(f'index="auto", {count} x 16 without structure, {name} / False', ours, reference)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="smaller memories")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    print(f"load {os.getloadavg()[0]:.1f}, one thread\n")
    print_rows(one_query(100_000 if quick else 1_000_000))
    print_rows(compressed(200_000 if quick else 10_000_000))
    print_rows(in_float64(5000))
    print_rows(on_grid(100_000 if quick else 1_000_000))
    print_rows(chosen_bandwidth(quick))
    print_rows(without_structure(40_000))


if __name__ == "__main__":
    main()
