"""Speed and memory of one retrieval update, against its peers, as ratios from one run.

    python benchmarks/attend.py                 # the table in benchmarks/RESULTS.md
    python benchmarks/attend.py --sizes small   # the first row only
    python benchmarks/attend.py --one-query     # one query against 1e6 x 64 memories

Every method sees the same memories and fresh queries from the same distribution, on the same
number of threads. Ratios are of CPU time (all threads added up), which other work on the
machine disturbs least; the smallest of the repeats counts. Chunked torch is timed with blocks
of 64, 256 and 1024 queries and the fastest counts (its memory is that of 256). scikit-learn
and scipy compute the density only, and are timed on part of the queries, since their cost is
proportional to it. `limit` is the share of the matrix-multiply limit, `error` the relative
error against float64, `MB` the extra memory.

The second table is one update of one query on a memory that has been used before. The reference
is plain torch on the same memories: `memories @ query` and the softmax, which reads them once but
lacks the weighted mean, and the same with the mean, which reads them twice.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from functools import partial

import numpy as np
import torch
from measuring import Row, cpu_seconds, in_fresh_process, peak_megabytes, print_rows
from scipy.stats import gaussian_kde
from sklearn.neighbors import KernelDensity
from torch import Tensor

import isthmus as ist
from isthmus.attend import attend

SIZES = [(10_000, 10_000, 16), (100_000, 10_000, 64), (1_000_000, 1_000, 64)]
SIGMA = 2.0
PEER_QUERIES = 100
CHUNK_ROWS = (64, 256, 1024)
CHECKED_QUERIES = 64
ONE_QUERY = {False: (100_000, 64), True: (1_000_000, 64)}


def data(memories: int, queries: int, dim: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(memories, dim, generator=generator), torch.randn(
        queries, dim, generator=generator
    )


def fused(queries: Tensor, memories: Tensor) -> tuple[Tensor, Tensor]:
    return attend(queries, memories, beta=0.5 / SIGMA**2, metric="sqeuclidean")


def chunked(queries: Tensor, memories: Tensor, rows: int = 256) -> tuple[Tensor, Tensor]:
    """Blocks of queries, a matrix product and a softmax: a careful version in plain torch."""
    squares = memories.square().sum(1)
    sums, means = [], []
    for block in queries.split(rows):
        logits = (2 * block @ memories.T - squares) * (0.5 / SIGMA**2)
        sums.append(torch.logsumexp(logits, 1) - block.square().sum(1) * (0.5 / SIGMA**2))
        means.append(torch.softmax(logits, 1) @ memories)
    return torch.cat(sums), torch.cat(means)


METHODS = {"fused": fused, "chunked": chunked}


def gemm_flops_per_second() -> float:
    """Return the machine's matrix-multiply limit, from square float32 products."""
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


def peak(method: str, size: tuple[int, ...]) -> float:
    """Return the growth of this process's peak memory while the method runs once."""
    memories, queries = data(*size)
    function = METHODS[method]
    function(queries[:512], memories[:512])  # load libraries before measuring
    return peak_megabytes(lambda: function(queries, memories))[0]


@torch.no_grad()
def measure_size(
    size: tuple[int, int, int], seed: int = 0, threads: int = 1, repeats: int = 3
) -> Row:
    memories, queries = data(*size, seed)
    n_memories, n_queries, dim = size
    limit = gemm_flops_per_second()
    ours = cpu_seconds(lambda: fused(queries, memories), repeats)
    plain = min(cpu_seconds(partial(chunked, queries, memories, rows)) for rows in CHUNK_ROWS)

    few = queries[:PEER_QUERIES].numpy().astype(np.float64)
    share = n_queries / len(few)
    tree = KernelDensity(bandwidth=SIGMA).fit(memories.numpy().astype(np.float64))
    tree_seconds = cpu_seconds(lambda: tree.score_samples(few)) * share
    scipy_kde = gaussian_kde(memories.numpy().astype(np.float64).T, bw_method=SIGMA)
    scipy_seconds = cpu_seconds(lambda: scipy_kde.logpdf(few.T)) * share
    peaks = {
        method: in_fresh_process(__file__, "--peak", method, "--threads", threads, *size)
        for method in METHODS
    }
    return {
        "memories": n_memories,
        "queries": n_queries,
        "D": dim,
        "times faster than chunked": plain / ours,
        "than KernelDensity": tree_seconds / ours,
        "than gaussian_kde": scipy_seconds / ours,
        "limit": 4 * n_memories * n_queries * dim / ours / limit,
        "error": relative_error(fused(queries, memories), queries, memories),
        "MB": peaks["fused"],
        "MB chunked": peaks["chunked"],
    }


@torch.no_grad()
def measure_one_query(n_memories: int, dim: int, seed: int = 0, repeats: int = 20) -> Iterator[Row]:
    """Yield a row for each memory: one step of one query against plain torch."""
    memories, (query,) = data(n_memories, 1, dim, seed)
    for memory in (ist.GaussianKDE(memories, SIGMA), ist.ModernHopfield(memories, 1 / dim)):
        stored = memory.memories
        memory.step(query)  # keeps the centre and the norms
        functions = (
            partial(memory.step, query),
            lambda stored=stored: torch.softmax(stored @ query, 0),
            lambda stored=stored: torch.softmax(stored @ query, 0) @ stored,
        )
        # In turns, so that other work on the machine disturbs all of them alike.
        seconds = [[cpu_seconds(function) for function in functions] for _ in range(repeats)]
        ours, once, twice = (min(column) for column in zip(*seconds, strict=True))
        yield {
            "table": "One query",
            "energy": type(memory).__name__,
            "memories": n_memories,
            "D": dim,
            "ms": 1e3 * ours,
            "times memories @ query and softmax": ours / once,
            "times the same with the mean": ours / twice,
        }


def measure(full: bool = False, seed: int = 0, threads: int = 1, repeats: int = 3) -> Iterator[Row]:
    """Yield a row for each size, and then for one query on each memory."""
    torch.set_num_threads(threads)
    for size in SIZES if full else SIZES[:1]:
        yield measure_size(size, seed, threads, repeats)
    yield from measure_one_query(*ONE_QUERY[full], seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", choices=["small", "all"], default="all")
    parser.add_argument("--one-query", action="store_true", help="only the second table")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--peak", choices=list(METHODS), help=argparse.SUPPRESS)
    parser.add_argument("size", type=int, nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        torch.set_num_threads(options.threads)
        with torch.no_grad():
            print(json.dumps(peak(options.peak, tuple(options.size))))
        return
    if options.one_query:
        torch.set_num_threads(options.threads)
        print_rows(measure_one_query(*ONE_QUERY[options.sizes == "all"], options.seed))
        return
    print_rows(measure(options.sizes == "all", options.seed, options.threads, options.repeats))


if __name__ == "__main__":
    main()
