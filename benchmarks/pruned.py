"""Pruned attention against all memories and against other packages, as ratios from one run.

    python benchmarks/pruned.py                  # the tables of RESULTS.md
    python benchmarks/pruned.py --sizes small    # synthetic sets of 100,000 memories

Ratios are of CPU seconds on one thread; above 1 means that the index is faster. Queries are rows
that were kept apart, not memories. Sigma is chosen for each set so that the softmax over the
memories has a given perplexity (`eff`, geometric mean over queries). All memories are timed on a
few hundred of the queries, scikit-learn and scipy on fewer (in float64, and density only), and
their time is scaled up: their cost is proportional to the queries. The index is built before; its
cost is given as the number of queries that all memories answer in the same time. `error` is the
largest error of a log-sum-exp against float64 brute force among 64 queries, most of it rounding in
float32; `bound` is the largest certified error by memories left out. `outside bounds` counts
queries whose error exceeds the sum of that bound and the estimate of rounding.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec

import numpy as np
import torch
from measuring import Row, cpu_seconds, print_rows, timed
from scipy.stats import gaussian_kde
from sklearn.neighbors import KernelDensity
from torch import Tensor

import isthmus as ist
from isthmus.attend import Index, Keys, attend
from isthmus.capacity import certify
from isthmus.cluster import GaussianMeanShift
from isthmus.datasets import load
from isthmus.errors import DatasetNotFoundError

QUERIES, DENSE_QUERIES, CHECKED, PEER_QUERIES = 16_384, 256, 64, 10
# Queries that choose sigma.
FITTED = 16
RTOL = 1e-6
# Other packages are timed on sets of at most this many memories.
PEER_MEMORIES = 200_000


def gaussian(count: int, dim: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, generator=generator)


def clustered(count: int, dim: int, seed: int) -> Tensor:
    """Return 1,000 round clusters, far apart relative to their width."""
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(1000, dim, generator=generator)
    chosen = torch.randint(1000, (count,), generator=generator)
    return centres[chosen] + 0.1 * torch.randn(count, dim, generator=generator)


def covertype(columns: int) -> Callable[[int, int, int], Tensor]:
    def rows(count: int, dim: int, seed: int) -> Tensor:
        X = load("forest_covertype").X[:, :columns].astype(np.float32)
        X = (X - X.mean(0)) / np.maximum(X.std(0), 1e-9)
        return torch.from_numpy(np.random.default_rng(seed).permutation(X)[:count])

    return rows


def fashion(count: int, dim: int, seed: int) -> Tensor:
    X = load("fashion_mnist").X.astype(np.float32) / 255
    X = np.random.default_rng(seed).permutation(X)[:count]
    X = X - X.mean(0)
    _, axes = np.linalg.eigh(X[:10_000].T @ X[:10_000])
    return torch.from_numpy(np.ascontiguousarray(X @ axes[:, ::-1][:, :dim]))


# Name, rows, memories, dimensions, perplexities.
SETS = [
    ("clustered", clustered, 100_000, 64, (1.2, 10)),
    ("gaussian", gaussian, 1_000_000, 3, (10, 100)),
    ("covertype", covertype(54), 564_000, 54, (10, 100)),
    ("gaussian", gaussian, 100_000, 3, (10, 100)),
    ("gaussian", gaussian, 100_000, 16, (10,)),
    ("clustered", clustered, 10_000, 16, (10,)),
    ("Fashion-MNIST, PCA", fashion, 50_000, 64, (1.2, 10)),
    ("covertype", covertype(10), 564_000, 10, (10, 100)),
    ("clustered", clustered, 1_000_000, 16, (10, 100)),
]
SMALL = [SETS[0], SETS[3]]


def perplexity(queries: Tensor, memories: Tensor, sigma: float) -> float:
    logits = -torch.cdist(queries, memories).square() / (2 * sigma**2)
    entropy = torch.distributions.Categorical(logits=logits).entropy()
    return math.exp(float(entropy.mean()))


def sigma_for(target: float, queries: Tensor, memories: Tensor) -> float:
    """Return the bandwidth at which the softmax has a perplexity, by bisection."""
    low, high = 5e-3, 5.0
    for _ in range(10):
        middle = math.sqrt(low * high)
        wide = perplexity(queries, memories, middle) > target
        low, high = (low, middle) if wide else (middle, high)
    return math.sqrt(low * high)


def exact(queries: Tensor, memories: Tensor, sigma: float) -> Tensor:
    """Return the log-sum-exp in float64, from differences, in blocks of memories."""
    sums = [
        torch.logsumexp(
            torch.cdist(
                queries.double(), block.double(), compute_mode="donot_use_mm_for_euclid_dist"
            ).square()
            / (-2 * sigma**2),
            1,
        )
        for block in memories.split(50_000)
    ]
    return torch.logsumexp(torch.stack(sums), 0)


def peers(queries: Tensor, memories: Tensor, sigma: float) -> dict[str, float | None]:
    """Return CPU seconds for a query by scikit-learn and scipy."""
    if len(memories) > PEER_MEMORIES:
        return {"KernelDensity": None, "gaussian_kde": None}
    few, rows = queries[:PEER_QUERIES].double().numpy(), memories.double().numpy()
    tree = KernelDensity(bandwidth=sigma, rtol=RTOL).fit(rows)
    seconds: dict[str, float | None] = {}
    seconds["KernelDensity"] = cpu_seconds(lambda: tree.score_samples(few)) / len(few)
    try:
        kde = gaussian_kde(rows.T, bw_method=1.0)
        seconds["gaussian_kde"] = cpu_seconds(lambda: kde.logpdf(few.T)) / len(few)
    except np.linalg.LinAlgError:  # columns that depend on others
        seconds["gaussian_kde"] = None
    return seconds


def one_set(
    name: str,
    make: Callable[[int, int, int], Tensor],
    count: int,
    dim: int,
    targets: tuple[float, ...],
    seed: int,
) -> Iterator[Row]:
    points = make(count + QUERIES, dim, seed)
    memories, queries = points[:-QUERIES].contiguous(), points[-QUERIES:].contiguous()
    build, index = timed(lambda: Index(memories))
    keys = Keys.of(memories)
    few = queries[:DENSE_QUERIES]
    for target in targets:
        sigma = sigma_for(target, queries[:FITTED], memories)
        beta = 0.5 / sigma**2
        dense = cpu_seconds(lambda: attend(few, keys, beta=beta, metric="sqeuclidean"), 2)  # noqa: B023
        dense /= len(few)
        seconds, found = timed(
            lambda: attend(queries, keys, beta=beta, metric="sqeuclidean", index=index)  # noqa: B023
        )
        ours = seconds / len(queries)
        bound = found.error_bound
        error = exact(queries[:CHECKED], memories, sigma) - found.logsumexp[:CHECKED]
        allowed = (bound.logsumexp + bound.rounding)[:CHECKED].double()
        energy = ist.GaussianKDE(memories, sigma)
        energy.log_prob(queries)
        others = peers(queries, memories, sigma)
        yield {
            "table": "Queries",
            "set": name,
            "memories": len(memories),
            "D": dim,
            "eff": target,
            "times faster than all": dense / ours,
            **{f"than {peer}": each and each / ours for peer, each in others.items()},
            "auto": "index" if energy.index_report().used else "all",
            "build, queries": build / dense,
            "error": float(error.abs().max()),
            "bound": float(bound.logsumexp.max()),
            "outside bounds": int((error.abs() > allowed).sum()),
        }


def mean_shift(count: int, dim: int, sigma: float, seed: int) -> Row:
    """Compare whole fits with and without the index."""
    X = clustered(count, dim, seed).numpy() if dim > 3 else gaussian(count, dim, seed).numpy()
    seconds, model = timed(lambda: GaussianMeanShift(sigma).fit(X))
    energy = ist.GaussianKDE(X, sigma, index=False)
    few = torch.from_numpy(X[:DENSE_QUERIES])
    update = cpu_seconds(lambda: energy.step(few), 2) / len(few) * count
    return {
        "table": "GaussianMeanShift",
        "rows": count,
        "D": dim,
        "sigma": sigma,
        "CPU s": seconds,
        "clusters": len(model.cluster_centers_),
        "updates of all rows by all memories in this time": seconds / update,
    }


def leave_one_out(count: int, part: int, seed: int) -> Row:
    """Score rows of covertype by the others, on part of the rows, scaled up."""
    memories = covertype(54)(count, 54, seed)
    sigma = sigma_for(10, memories[:FITTED], memories)
    energy = ist.GaussianKDE(memories, sigma, index=True)
    rows = memories[torch.randperm(len(memories), generator=torch.Generator().manual_seed(0))]
    energy.log_prob(rows[:64])  # builds the index
    seconds = cpu_seconds(lambda: energy.log_prob(rows[:part])) / part
    dense = ist.GaussianKDE(memories, sigma, index=False)
    all_seconds = cpu_seconds(lambda: dense.log_prob(rows[:DENSE_QUERIES])) / DENSE_QUERIES
    return {
        "table": "log_prob of all rows of covertype (54 columns), scaled up from part of them",
        "rows": len(memories),
        "timed": part,
        "sigma": sigma,
        "CPU min": seconds * len(memories) / 60,
        "times faster than all": all_seconds / seconds,
    }


def certificate(count: int, sigma: float, seed: int) -> Row:
    rng = np.random.default_rng(seed)
    centres = 3 * rng.normal(size=(30, 9))
    X = centres[rng.integers(30, size=count)] + 0.5 * rng.normal(size=(count, 9))
    certify(X[:500], sigma)
    seconds, found = timed(lambda: certify(X, sigma))
    return {
        "table": "certify",
        "patterns": count,
        "D": 9,
        "sigma": sigma,
        "CPU s": seconds,
        "stored": found.fraction_stored,
        "proved": float((found.decided == "proved").mean()),
    }


def measure(full: bool = False, seed: int = 0) -> Iterator[Row]:
    """Yield a row for each measurement."""
    torch.set_num_threads(1)
    warm = gaussian(3000, 5, seed)
    attend(warm, warm, index=Index(warm))  # compiles
    if find_spec("pykeops") is None:
        print("pykeops is not installed; it is left out.", file=sys.stderr)
    for one in SETS if full else SMALL:
        try:
            yield from one_set(*one, seed)
        except DatasetNotFoundError as error:
            print(f"{one[0]} is left out: {error}", file=sys.stderr)
    if not full:
        return
    yield mean_shift(100_000, 3, 0.3, seed)
    yield mean_shift(50_000, 16, 0.3, seed)
    yield leave_one_out(581_012, 8192, seed)
    for sigma in (0.15, 0.3):
        yield certificate(58_000, sigma, seed)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", choices=["small", "all"], default="all")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print_rows(measure(options.sizes == "all", options.seed))


if __name__ == "__main__":
    main()
