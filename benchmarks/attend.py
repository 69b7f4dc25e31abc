"""Speed and memory of one retrieval update, against its peers, as ratios from one run.

    python benchmarks/attend.py                 # the table in docs/performance.md
    python benchmarks/attend.py --sizes small   # the first row only

Every method sees the same memories and fresh queries from the same distribution, on the same
number of threads. Ratios are of CPU time (all threads added up), which other work on the
machine disturbs least; the smallest of the repeats counts. Chunked torch is timed with blocks
of 64, 256 and 1024 queries and the fastest counts (its memory is that of 256). scikit-learn
and scipy give the density only, and are timed on part of the queries, since their cost is in
proportion to it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from scipy.stats import gaussian_kde
from sklearn.neighbors import KernelDensity
from torch import Tensor

from isthmus.attend import attend

SIZES = [(10_000, 10_000, 16), (100_000, 10_000, 64), (1_000_000, 1_000, 64)]
SIGMA = 2.0
PEER_QUERIES = 100
CHUNK_ROWS = (64, 256, 1024)
CHECKED_QUERIES = 64


def data(memories: int, queries: int, dim: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(memories, dim, generator=generator), torch.randn(
        queries, dim, generator=generator
    )


def fused(queries: Tensor, memories: Tensor) -> tuple[Tensor, Tensor]:
    return attend(queries, memories, beta=0.5 / SIGMA**2, metric="sqeuclidean")


def chunked(queries: Tensor, memories: Tensor, rows: int = 256) -> tuple[Tensor, Tensor]:
    """What a careful person writes in torch: blocks of queries, matrix product, softmax."""
    squares = memories.square().sum(1)
    sums, means = [], []
    for block in queries.split(rows):
        logits = (2 * block @ memories.T - squares) * (0.5 / SIGMA**2)
        sums.append(torch.logsumexp(logits, 1) - block.square().sum(1) * (0.5 / SIGMA**2))
        means.append(torch.softmax(logits, 1) @ memories)
    return torch.cat(sums), torch.cat(means)


def cpu_seconds(function: Callable[[], object], repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        start = time.process_time()
        function()
        best = min(best, time.process_time() - start)
    return best


def gemm_flops_per_second() -> float:
    """The machine's matrix-multiply limit, from square float32 products."""
    square = torch.randn(1024, 1024)
    return 2 * 1024**3 / cpu_seconds(lambda: square @ square, 20)


def relative_error(result: tuple[Tensor, Tensor], queries: Tensor, memories: Tensor) -> float:
    part = queries[:CHECKED_QUERIES].double()
    logits = -torch.cdist(part, memories.double()).square() * (0.5 / SIGMA**2)
    exact = (torch.logsumexp(logits, 1), torch.softmax(logits, 1) @ memories.double())
    return max(
        ((found[:CHECKED_QUERIES] - truth).norm() / truth.norm()).item()
        for found, truth in zip(result, exact, strict=True)
    )


def peak_extra_megabytes(size: tuple[int, int, int], method: str, threads: int) -> float:
    """Growth of a fresh process's peak memory while the method runs once."""
    command = [sys.executable, __file__, "--peak", method, "--threads", str(threads)]
    found = subprocess.run(
        [*command, *map(str, size)], check=True, capture_output=True, text=True, env=os.environ
    )
    return float(found.stdout)


def print_peak(method: str, size: tuple[int, int, int]) -> None:
    memories, queries = data(*size)
    function = fused if method == "fused" else chunked
    with torch.no_grad():
        function(queries[:512], memories[:512])  # load libraries before measuring
        before = memory_kilobytes("VmRSS")
        function(queries, memories)
    print((memory_kilobytes("VmHWM") - before) / 1024)


def memory_kilobytes(field: str) -> int:
    """A field of this process's memory use, as Linux tells it. Resets the peak it is about."""
    with open("/proc/self/status") as status:
        found = next(line for line in status if line.startswith(field))
    if field == "VmRSS":
        with open("/proc/self/clear_refs", "w") as clear:
            clear.write("5")
    return int(found.split()[1])


def measure(size: tuple[int, int, int], repeats: int, threads: int) -> dict[str, float]:
    memories, queries = data(*size)
    n_memories, n_queries, dim = size
    limit = gemm_flops_per_second()
    ours = cpu_seconds(lambda: fused(queries, memories), repeats)
    plain = min(cpu_seconds(partial(chunked, queries, memories, rows), 1) for rows in CHUNK_ROWS)

    few = queries[:PEER_QUERIES].numpy().astype(np.float64)
    share = n_queries / len(few)
    tree = KernelDensity(bandwidth=SIGMA).fit(memories.numpy().astype(np.float64))
    tree_seconds = cpu_seconds(lambda: tree.score_samples(few), 1) * share
    scipy_kde = gaussian_kde(memories.numpy().astype(np.float64).T, bw_method=SIGMA)
    scipy_seconds = cpu_seconds(lambda: scipy_kde.logpdf(few.T), 1) * share
    return {
        "chunked": plain / ours,
        "sklearn": tree_seconds / ours,
        "scipy": scipy_seconds / ours,
        "limit": 4 * n_memories * n_queries * dim / ours / limit,
        "error": relative_error(fused(queries, memories), queries, memories),
        "peak": peak_extra_megabytes(size, "fused", threads),
        "peak_chunked": peak_extra_megabytes(size, "chunked", threads),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", choices=["small", "all"], default="all")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peak", choices=["fused", "chunked"], help=argparse.SUPPRESS)
    parser.add_argument("size", type=int, nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.peak:
        print_peak(options.peak, tuple(options.size))
        return
    print(f"threads: {options.threads}; times faster than, share of the matrix-multiply limit,")
    print("relative error against float64, extra memory in MB (chunked torch in brackets)\n")
    print("| memories, queries, D | chunked | KernelDensity | gaussian_kde | limit | error | MB |")
    print("|---|---|---|---|---|---|---|")
    for size in SIZES[: 1 if options.sizes == "small" else None]:
        with torch.no_grad():
            row = measure(size, options.repeats, options.threads)
        print(
            f"| {size[0]:,}, {size[1]:,}, {size[2]} | {row['chunked']:.1f}x "
            f"| {row['sklearn']:.0f}x | {row['scipy']:.1f}x | {row['limit']:.2f} "
            f"| {row['error']:.0e} | {row['peak']:.0f} ({row['peak_chunked']:.0f}) |",
            flush=True,
        )


if __name__ == "__main__":
    main()
