"""Speed and memory of the clusterers against scikit-learn's, as ratios from one run.

    python benchmarks/cluster.py                          # the tables of RESULTS.md
    python benchmarks/cluster.py --threads 2
    python benchmarks/cluster.py --basin-flow             # the comparisons of BasinFlow only
    ISTHMUS_DATA=path/to/npz/files python benchmarks/cluster.py --covertype

Blobs of 100,000 rows, 64 features and 50 overlapping clusters, float32. Methods take turns on
the same rows, on the same number of threads; times are CPU times (all threads added up), which
other work on the machine disturbs least. They are added up over ten seeds (three for the methods
other than KMeans and ClAMELBO), since how many iterations a fit needs, and which local optimum
it finds, is a matter of luck; the error of a mean inertia is that of its mean over seeds. Memory is
the peak of a process that does nothing else, its libraries and its data included.
"""

from __future__ import annotations

import argparse
import json
import os
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import Row, in_fresh_process, memory_megabytes, print_rows, timed
from numpy.typing import NDArray
from sklearn.cluster import HDBSCAN, KMeans, MiniBatchKMeans
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score, pairwise_distances_argmin_min
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from isthmus.cluster import BasinFlow, ClAM, ClAMCRP, ClAMCRPELBO, ClAMELBO

N_CLUSTERS, DIM = 50, 64
BATCH = 5000
SEEDS, FEW_SEEDS = 10, 3
COVERTYPE_CLASSES = 7


def blobs(rows: int, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    points, y = make_blobs(
        rows, DIM, centers=N_CLUSTERS, cluster_std=6, center_box=(-10, 10), random_state=seed
    )
    return points.astype(np.float32), y


def finding(what: str, ratio: float, target: str, holds: bool | None, **details: Any) -> Row:
    return {"what": what, "ratio": ratio, "target": target, "holds": holds, "details": details}


def turns(
    functions: dict[str, Callable[[int], Any]], seeds: range, repeats: int = 1
) -> tuple[dict[str, float], dict[str, list[Any]]]:
    """CPU time of each function over all seeds, measured in turns, and their results."""
    totals = dict.fromkeys(functions, 0.0)
    results: dict[str, list[Any]] = {name: [] for name in functions}
    for seed in seeds:
        for name, function in functions.items():
            measured = [
                timed(lambda function=function, seed=seed: function(seed)) for _ in range(repeats)
            ]
            totals[name] += min(seconds for seconds, _ in measured)
            results[name].append(measured[0][1])
    return totals, results


def inertia(points: NDArray[Any], model: Any) -> float:
    distances = pairwise_distances_argmin_min(points, model.cluster_centers_.astype(points.dtype))[
        1
    ]
    return float(np.square(distances.astype(np.float64)).sum())


def streamed(points: NDArray[Any], seed: int) -> ClAMELBO:
    model = ClAMELBO(N_CLUSTERS, n_init=1, random_state=seed)
    for start in range(0, len(points), BATCH):
        model.partial_fit(points[start : start + BATCH])
    return model


def fits(points: NDArray[Any], y: NDArray[Any], seed: int) -> Iterator[Row]:
    """Compare whole fits, with the number of clusters given and not given."""
    seconds, models = turns(
        {
            "KMeans": lambda seed: KMeans(N_CLUSTERS, n_init=1, random_state=seed).fit(points),
            "ClAMELBO": lambda seed: ClAMELBO(N_CLUSTERS, n_init=1, random_state=seed).fit(points),
        },
        range(seed, seed + SEEDS),
    )
    spreads = {name: [inertia(points, model) for model in found] for name, found in models.items()}
    reference = np.mean(spreads["KMeans"])
    worse = float(np.mean(spreads["ClAMELBO"]) / reference)
    error = np.hypot(*(np.std(found, ddof=1) for found in spreads.values()))
    error = float(error / reference / np.sqrt(SEEDS))
    ratio = seconds["ClAMELBO"] / seconds["KMeans"]
    first = models["KMeans"][0]
    continued = ClAMELBO(N_CLUSTERS, init=first.cluster_centers_).fit(points)
    yield finding(
        "ClAMELBO fit / KMeans fit",
        ratio,
        "at most 2, same inertia",
        ratio <= 2 and worse <= 1 + 2 * error,
        inertia=worse,
        standard_error=error,
        inertia_from_one_start=inertia(points, continued) / spreads["KMeans"][0],
    )
    unknown, found = turns(
        {"CRP": lambda seed: ClAMCRP(random_state=seed).fit(points)}, range(seed, seed + FEW_SEEDS)
    )
    ratio = unknown["CRP"] / FEW_SEEDS / (seconds["KMeans"] / SEEDS)
    ari, peer_ari = (
        float(np.mean([adjusted_rand_score(y, model.labels_) for model in group]))
        for group in (found["CRP"], models["KMeans"])
    )
    yield finding(
        "ClAMCRP fit, K unknown / KMeans fit, K given",
        ratio,
        "at most 15",
        ratio <= 15,
        K=[int(model.n_clusters_) for model in found["CRP"]],
        ARI=ari,
        KMeans_ARI=peer_ari,
    )


def streams(points: NDArray[Any], seed: int) -> Iterator[Row]:
    """Compare one epoch in batches with MiniBatchKMeans until it stops by itself."""
    seconds, models = turns(
        {
            "theirs": lambda seed: MiniBatchKMeans(N_CLUSTERS, n_init=1, random_state=seed).fit(
                points
            ),
            "ours": lambda seed: streamed(points, seed),
        },
        range(seed, seed + SEEDS),
        repeats=3,
    )
    spread = {name: np.mean([inertia(points, model) for model in models[name]]) for name in models}
    ratio = seconds["ours"] / seconds["theirs"]
    yield finding(
        "ClAMELBO, one streaming epoch / MiniBatchKMeans fit",
        ratio,
        "at most 0.33",
        ratio <= 1 / 3,
        inertia=float(spread["ours"] / spread["theirs"]),
    )


def iterations(points: NDArray[Any], seed: int) -> Iterator[Row]:
    """Compare one iteration of ClAMELBO with one of scikit-learn's spherical mixture."""
    means = points[np.random.RandomState(seed).permutation(len(points))[:N_CLUSTERS]]
    few, many = 2, 7

    def ours(max_iter: int) -> Any:
        model = ClAMELBO(N_CLUSTERS, init=means, weights="learned", tol=0, max_iter=max_iter)
        return model.fit(points)

    def mixture(max_iter: int) -> Any:
        model = GaussianMixture(
            N_CLUSTERS,
            covariance_type="spherical",
            means_init=means,
            init_params="random_from_data",
            tol=0,
            max_iter=max_iter,
            random_state=seed,
        )
        return model.fit(points)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are stopped on purpose
        times = {
            (function, count): min(
                timed(lambda function=function, count=count: function(count))[0] for _ in range(3)
            )
            for function in (ours, mixture)
            for count in (few, many)
        }
    ratio = (times[mixture, many] - times[mixture, few]) / (times[ours, many] - times[ours, few])
    yield finding(
        "ClAMELBO iteration, times faster than GaussianMixture(spherical)",
        ratio,
        "at least 2",
        ratio >= 2,
    )


def stream_memory(threads: int) -> Iterator[Row]:
    """Compare the peak memory of long and short streams."""
    for name in ("ClAMELBO", "ClAMCRP"):
        short, long = (
            in_fresh_process(
                __file__, "--threads", threads, "--stream", name, "--batches", batches
            )["megabytes"]
            for batches in (10, 200)
        )
        yield finding(
            f"{name}.partial_fit, peak memory of 200 batches / of 10",
            long / short,
            "no growth",
            long <= 1.05 * short,
            MB=long,
        )


def one_stream(name: str, batches: int) -> dict[str, Any]:
    centres = np.random.RandomState(0).uniform(-10, 10, (N_CLUSTERS, DIM))
    model = ClAMCRP(random_state=0) if name == "ClAMCRP" else ClAMELBO(N_CLUSTERS, random_state=0)
    generator = np.random.RandomState(1)
    for _ in range(batches):
        batch = centres[generator.randint(N_CLUSTERS, size=BATCH)]
        batch = batch + generator.normal(scale=3.0, size=batch.shape)
        model.partial_fit(batch.astype(np.float32))
    return {"megabytes": memory_megabytes("VmHWM"), "found": model.n_clusters_}


def wide_blobs(rows: int, dim: int, seed: int) -> NDArray[Any]:
    """Return ten blobs that overlap little."""
    return make_blobs(rows, dim, centers=10, cluster_std=5, random_state=seed)[0]


def basin_flow(threads: int, seed: int, large: bool) -> Iterator[Row]:
    """Compare BasinFlow, which finds K, with KMeans told K and with HDBSCAN; then its growth."""
    BasinFlow(random_state=0).fit(wide_blobs(200, 2, 0))  # compiles
    points = wide_blobs(6000, 50, seed)
    seconds, models = turns(
        {
            "KMeans": lambda seed: KMeans(10, n_init=10, random_state=seed).fit(points),
            "BasinFlow": lambda seed: BasinFlow(random_state=seed).fit(points),
        },
        range(seed, seed + FEW_SEEDS),
    )
    ratio = seconds["BasinFlow"] / seconds["KMeans"]
    found = [int(model.n_clusters_) for model in models["BasinFlow"]]
    what = "BasinFlow fit, K unknown / KMeans(n_init=10) fit, K given, 6,000 x 50"
    yield finding(what, ratio, "at most 40", ratio <= 40, K=found)
    if not large:
        return
    medium = wide_blobs(20_000, 20, seed)
    ours, model = timed(lambda: BasinFlow(random_state=seed).fit(medium))
    theirs, peer = timed(lambda: HDBSCAN(copy=True).fit(medium))
    details = {"K": model.n_clusters_, "HDBSCAN_K": int(peer.labels_.max()) + 1}
    what = "BasinFlow fit / HDBSCAN fit, 20,000 x 20"
    yield finding(what, ours / theirs, "at most 1", ours <= theirs, **details)
    one, two = (
        in_fresh_process(__file__, "--threads", threads, "--flow-rows", rows)
        for rows in (100_000, 200_000)
    )
    ratio, megabytes = two["seconds"] / one["seconds"], one["megabytes"]
    holds = ratio <= 2.2 and one["seconds"] <= 60 and megabytes <= 2048
    yield finding(
        "BasinFlow fit, 200,000 x 54 / 100,000 x 54",
        ratio,
        "linear; 100,000 in 60 s and 2 GB",
        holds,
        seconds_of_100000=one["seconds"],
        MB=megabytes,
    )


def one_flow(rows: int) -> dict[str, Any]:
    BasinFlow(random_state=0).fit(wide_blobs(200, 2, 0))
    points = wide_blobs(rows, 54, 0)
    seconds, model = timed(lambda: BasinFlow(random_state=0).fit(points))
    found = model.n_clusters_
    return {"seconds": seconds, "megabytes": memory_megabytes("VmHWM"), "found": found}


COVERTYPE: dict[str, Callable[[], Any]] = {
    "KMeans": lambda: KMeans(COVERTYPE_CLASSES, n_init=1, random_state=0),
    "ClAMELBO": lambda: ClAMELBO(COVERTYPE_CLASSES, random_state=0),
    "ClAM": lambda: ClAM(COVERTYPE_CLASSES, random_state=0),
    "ClAMCRP": lambda: ClAMCRP(random_state=0),
    "ClAMCRPELBO": lambda: ClAMCRPELBO(random_state=0),
}


def one_covertype(name: str, data: Path) -> dict[str, Any]:
    with np.load(data / "forest_covertype.npz", allow_pickle=False) as file:
        points = StandardScaler().fit_transform(file["X"].astype(np.float32))
    before = memory_megabytes("VmHWM")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seconds, model = timed(lambda: COVERTYPE[name]().fit(points))
    return {
        "seconds": seconds,
        "found": len(model.cluster_centers_),
        "iterations": model.n_iter_,
        "before": before,
        "megabytes": memory_megabytes("VmHWM"),
    }


def covertype(data: Path, threads: int) -> Iterator[Row]:
    """Yield a row for each fit of Covertype, 581,012 x 54, standardised, float32, K = 7."""
    reference = None
    for name in COVERTYPE:
        found = in_fresh_process(__file__, "--threads", threads, "--fit", name, "--data", data)
        reference = reference or found["seconds"]
        yield {
            "table": "Covertype",
            "fit": name,
            "CPU time / KMeans": found["seconds"] / reference,
            "CPU minutes here": found["seconds"] / 60,
            "K": found["found"],
            "iterations": found["iterations"],
            "peak MB": found["megabytes"],
            "MB of the data alone": found["before"],
            "under 3 GB": found["megabytes"] < 3000,
        }


def measure(
    full: bool = False, seed: int = 0, *, rows: int | None = None, threads: int = 1
) -> Iterator[Row]:
    """Yield a row for each comparison, on 5,000 or on 100,000 rows."""
    torch.set_num_threads(threads)
    with threadpool_limits(threads):
        points, y = blobs(rows or (100_000 if full else 5000), seed)
        yield from fits(points, y, seed)
        yield from iterations(points, seed)
        yield from streams(points, seed)
        yield from stream_memory(threads)
        yield from basin_flow(threads, seed, large=full or rows is not None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--covertype", action="store_true", help="fit Covertype instead")
    parser.add_argument("--basin-flow", action="store_true", help="compare BasinFlow only")
    parser.add_argument("--flow-rows", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--data", type=Path, default=os.environ.get("ISTHMUS_DATA"))
    parser.add_argument("--fit", choices=list(COVERTYPE), help=argparse.SUPPRESS)
    parser.add_argument("--stream", choices=["ClAMELBO", "ClAMCRP"], help=argparse.SUPPRESS)
    parser.add_argument("--batches", type=int, default=10, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if (options.covertype or options.fit) and options.data is None:
        parser.error("name the directory of forest_covertype.npz: --data, or ISTHMUS_DATA")
    with threadpool_limits(options.threads):
        if options.fit:
            print(json.dumps(one_covertype(options.fit, Path(options.data))))
        elif options.flow_rows:
            print(json.dumps(one_flow(options.flow_rows)))
        elif options.basin_flow:
            print_rows(basin_flow(options.threads, options.seed, large=True))
        elif options.stream:
            print(json.dumps(one_stream(options.stream, options.batches)))
        elif options.covertype:
            print_rows(covertype(Path(options.data), options.threads))
        else:
            rows = measure(seed=options.seed, rows=options.rows, threads=options.threads)
            print_rows(rows)


if __name__ == "__main__":
    main()
