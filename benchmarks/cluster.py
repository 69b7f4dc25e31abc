"""Speed and memory of the clusterers against scikit-learn's, as ratios from one run.

    python benchmarks/cluster.py                          # the table in docs/clustering.md
    python benchmarks/cluster.py --threads 2
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
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from naive_clam import NaiveClAM
from numpy.typing import NDArray
from sklearn.cluster import KMeans, MiniBatchKMeans
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score, pairwise_distances_argmin_min
from sklearn.mixture import GaussianMixture
from sklearn.preprocessing import StandardScaler
from threadpoolctl import threadpool_limits

from isthmus.cluster import ClAM, ClAMCRP, ClAMCRPELBO, ClAMELBO
from isthmus.cluster.data import Frame, Rows
from isthmus.cluster.gradient import Task, reconstruction_gradient
from isthmus.cluster.statistics import Parameters

N_CLUSTERS, DIM = 50, 64
BATCH = 5000
GRADIENT_BATCH = 256
NAIVE_BATCHES = 8
TURNS = 5
SEEDS = range(10)
FEW_SEEDS = range(3)
COVERTYPE_CLASSES = 7


class Finding(NamedTuple):
    """One line of the table."""

    what: str
    target: str
    measured: str
    holds: bool


def blobs(rows: int) -> tuple[NDArray[Any], NDArray[Any]]:
    points, y = make_blobs(
        rows, DIM, centers=N_CLUSTERS, cluster_std=6, center_box=(-10, 10), random_state=0
    )
    return points.astype(np.float32), y


def cpu_seconds(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def turns(
    functions: dict[str, Callable[[int], Any]], seeds: range, repeats: int = 1
) -> tuple[dict[str, float], dict[str, list[Any]]]:
    """CPU time of each function over all seeds, measured in turns, and their results."""
    totals = dict.fromkeys(functions, 0.0)
    results: dict[str, list[Any]] = {name: [] for name in functions}
    for seed in seeds:
        for name, function in functions.items():
            measured = [
                cpu_seconds(lambda function=function, seed=seed: function(seed))
                for _ in range(repeats)
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


def fits(points: NDArray[Any], y: NDArray[Any]) -> Iterator[Finding]:
    """Whole fits that are told the number of clusters, and one that is not."""
    seconds, models = turns(
        {
            "KMeans": lambda seed: KMeans(N_CLUSTERS, n_init=1, random_state=seed).fit(points),
            "ClAMELBO": lambda seed: ClAMELBO(N_CLUSTERS, n_init=1, random_state=seed).fit(points),
        },
        SEEDS,
    )
    spreads = {name: [inertia(points, model) for model in found] for name, found in models.items()}
    reference = np.mean(spreads["KMeans"])
    worse = np.mean(spreads["ClAMELBO"]) / reference
    error = np.hypot(*(np.std(found, ddof=1) for found in spreads.values()))
    error = error / reference / np.sqrt(len(SEEDS))
    ratio = seconds["ClAMELBO"] / seconds["KMeans"]
    first = models["KMeans"][0]
    continued = ClAMELBO(N_CLUSTERS, init=first.cluster_centers_).fit(points)
    same_start = inertia(points, continued) / spreads["KMeans"][0]
    yield Finding(
        "ClAMELBO fit / KMeans fit",
        "at most 2x, same inertia",
        f"{ratio:.2f}x, inertia {worse:.3f}x (+- {error:.3f}); {same_start:.4f}x from one start",
        ratio <= 2 and worse <= 1 + 2 * error,
    )
    unknown, found = turns({"CRP": lambda seed: ClAMCRP(random_state=seed).fit(points)}, FEW_SEEDS)
    ratio = unknown["CRP"] / len(FEW_SEEDS) / (seconds["KMeans"] / len(SEEDS))
    sizes = ", ".join(str(model.n_clusters_) for model in found["CRP"])
    agreement = [
        np.mean([adjusted_rand_score(y, model.labels_) for model in group])
        for group in (found["CRP"], models["KMeans"])
    ]
    yield Finding(
        "ClAMCRP fit, K unknown / KMeans fit, K told",
        "at most 15x",
        f"{ratio:.1f}x, K {sizes}, ARI {agreement[0]:.2f} (KMeans {agreement[1]:.2f})",
        ratio <= 15,
    )


def streams(points: NDArray[Any]) -> Iterator[Finding]:
    """One epoch in batches, against MiniBatchKMeans until it stops by itself."""
    seconds, models = turns(
        {
            "theirs": lambda seed: MiniBatchKMeans(N_CLUSTERS, n_init=1, random_state=seed).fit(
                points
            ),
            "ours": lambda seed: streamed(points, seed),
        },
        SEEDS,
        repeats=3,
    )
    spread = {name: np.mean([inertia(points, model) for model in models[name]]) for name in models}
    ratio = seconds["ours"] / seconds["theirs"]
    yield Finding(
        "ClAMELBO, one streaming epoch / MiniBatchKMeans fit",
        "at most 0.33x",
        f"{ratio:.2f}x, inertia {spread['ours'] / spread['theirs']:.3f}x",
        ratio <= 1 / 3,
    )


def iterations(points: NDArray[Any]) -> Iterator[Finding]:
    """One iteration of ClAMELBO against one of scikit-learn's round Gaussian mixture."""
    seeds = points[np.random.RandomState(0).permutation(len(points))[:N_CLUSTERS]]
    few, many = 2, 7

    def ours(max_iter: int) -> Any:
        model = ClAMELBO(N_CLUSTERS, init=seeds, weights="learned", tol=0, max_iter=max_iter)
        return model.fit(points)

    def mixture(max_iter: int) -> Any:
        model = GaussianMixture(
            N_CLUSTERS,
            covariance_type="spherical",
            means_init=seeds,
            init_params="random_from_data",
            tol=0,
            max_iter=max_iter,
            random_state=0,
        )
        return model.fit(points)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # they are stopped on purpose
        times = {
            (function, count): min(
                cpu_seconds(lambda function=function, count=count: function(count))[0]
                for _ in range(3)
            )
            for function in (ours, mixture)
            for count in (few, many)
        }
    ratio = (times[mixture, many] - times[mixture, few]) / (times[ours, many] - times[ours, few])
    yield Finding(
        "ClAMELBO iteration, times faster than GaussianMixture(spherical)",
        "at least 2x",
        f"{ratio:.1f}x",
        ratio >= 2,
    )


def gradients(dim: int) -> Iterator[Finding]:
    """An epoch of gradient descent against the direct transcription, on the same batches."""
    points = torch.randn(40 * GRADIENT_BATCH * NAIVE_BATCHES, dim).numpy()
    rows = Rows.of(points, np.ones(len(points)), Frame.of(points, np.ones(len(points))))
    memories = rows.values[:N_CLUSTERS].clone()
    beta, steps, rate = 0.5, 10, 0.1
    uniform = memories.new_full((N_CLUSTERS,), -np.log(N_CLUSTERS))
    batches = torch.randperm(len(rows)).split(GRADIENT_BATCH)

    def naive_epoch(count: int) -> None:
        model = NaiveClAM(memories, beta, steps, rate)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        for batch in batches[:count]:
            optimizer.zero_grad()
            model.loss(rows.values[batch]).backward()
            optimizer.step()

    def our_epoch(count: int) -> None:
        learned = torch.nn.Parameter(memories.clone())
        optimizer = torch.optim.Adam([learned], lr=0.01)
        with torch.no_grad():
            for batch in batches[:count]:
                task = Task.reconstruction(rows.take(batch))
                parameters = Parameters(learned, beta, uniform)
                found = reconstruction_gradient(task, parameters, steps, rate)
                learned.grad = found.means / len(batch)
                optimizer.step()

    # Turns of about the same length, so that other work on the machine disturbs both alike.
    naive, ours, many = np.inf, np.inf, 20 * NAIVE_BATCHES
    for _ in range(TURNS):
        naive = min(naive, cpu_seconds(lambda: naive_epoch(NAIVE_BATCHES))[0] / NAIVE_BATCHES)
        ours = min(ours, cpu_seconds(lambda: our_epoch(many))[0] / many)
    ratio, error = naive / ours, gradient_error(rows, beta, steps, rate)
    yield Finding(
        f"ClAM gradient epoch, D = {dim} (T = 10, batches of 256), times faster than naive_clam.py",
        "at least 30x" if dim == DIM else "",
        f"{ratio:.0f}x, gradients differ by {error:.0e} in float64",
        ratio >= 30,
    )


def gradient_error(rows: Rows, beta: float, steps: int, rate: float) -> float:
    values = rows.values[:GRADIENT_BATCH].double()
    memories = rows.values[-N_CLUSTERS:].double()
    naive = NaiveClAM(memories, beta, steps, rate)
    naive.loss(values).backward()
    task = Task(values, values, None, None, values.new_ones(len(values)))
    parameters = Parameters(memories, beta, memories.new_zeros(N_CLUSTERS))
    ours = reconstruction_gradient(task, parameters, steps, rate).means / len(values)
    assert naive.memories.grad is not None
    return float((naive.memories.grad - ours).norm() / ours.norm())


def peak_megabytes() -> float:
    """The most memory that this process has held, as Linux tells it."""
    with open("/proc/self/status") as status:
        line = next(line for line in status if line.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def in_a_process(arguments: list[str], threads: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--threads", str(threads), *arguments]
    found = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
    result: dict[str, Any] = json.loads(found.stdout)
    return result


def stream_memory(threads: int) -> Iterator[Finding]:
    """Whether peak memory grows with the length of a stream."""
    for name in ("ClAMELBO", "ClAMCRP"):
        short, long = (
            in_a_process(["--stream", name, "--batches", str(n)], threads)["megabytes"]
            for n in (10, 200)
        )
        yield Finding(
            f"{name}.partial_fit, peak memory of 200 batches / of 10",
            "no growth",
            f"{long / short:.3f}x ({long:.0f} MB)",
            long <= 1.05 * short,
        )


def one_stream(name: str, batches: int) -> dict[str, Any]:
    centres = np.random.RandomState(0).uniform(-10, 10, (N_CLUSTERS, DIM))
    model = ClAMCRP(random_state=0) if name == "ClAMCRP" else ClAMELBO(N_CLUSTERS, random_state=0)
    generator = np.random.RandomState(1)
    for _ in range(batches):
        batch = centres[generator.randint(N_CLUSTERS, size=BATCH)]
        batch = batch + generator.normal(scale=3.0, size=batch.shape)
        model.partial_fit(batch.astype(np.float32))
    return {"megabytes": peak_megabytes(), "found": model.n_clusters_}


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
    before = peak_megabytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seconds, model = cpu_seconds(lambda: COVERTYPE[name]().fit(points))
    return {
        "seconds": seconds,
        "found": len(model.cluster_centers_),
        "iterations": model.n_iter_,
        "before": before,
        "megabytes": peak_megabytes(),
    }


def print_covertype(data: Path, threads: int) -> None:
    print("\nCovertype, 581,012 x 54, standardised, float32; K = 7 where it is told\n")
    print("| fit | CPU time / KMeans | CPU minutes here | K | iterations | peak MB | under 3 GB |")
    print("|---|---|---|---|---|---|---|")
    reference = None
    for name in COVERTYPE:
        found = in_a_process(["--fit", name, "--data", str(data)], threads)
        reference = reference or found["seconds"]
        print(
            f"| {name} | {found['seconds'] / reference:.1f}x | {found['seconds'] / 60:.1f} "
            f"| {found['found']} | {found['iterations']} | {found['megabytes']:.0f} "
            f"(data alone {found['before']:.0f}) | {yes_or_no(found['megabytes'] < 3000)} |",
            flush=True,
        )


def yes_or_no(holds: bool) -> str:
    return "yes" if holds else "no"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--covertype", action="store_true", help="fit Covertype instead")
    parser.add_argument("--data", type=Path, default=os.environ.get("ISTHMUS_DATA"))
    parser.add_argument("--fit", choices=list(COVERTYPE), help=argparse.SUPPRESS)
    parser.add_argument("--stream", choices=["ClAMELBO", "ClAMCRP"], help=argparse.SUPPRESS)
    parser.add_argument("--batches", type=int, default=10, help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    if (options.covertype or options.fit) and options.data is None:
        parser.error("name the directory of forest_covertype.npz: --data, or ISTHMUS_DATA")
    with threadpool_limits(options.threads):
        if options.fit:
            print(json.dumps(one_covertype(options.fit, Path(options.data))))
        elif options.stream:
            print(json.dumps(one_stream(options.stream, options.batches)))
        elif options.covertype:
            print_covertype(Path(options.data), options.threads)
        else:
            print_blobs(options.rows, options.threads)


def print_blobs(rows: int, threads: int) -> None:
    points, y = blobs(rows)
    print(f"{rows:,} x {DIM}, {N_CLUSTERS} blobs, float32, threads: {threads}\n")
    print("| what | target | measured | holds |\n|---|---|---|---|")
    parts = (
        fits(points, y),
        iterations(points),
        streams(points),
        gradients(DIM),
        gradients(4 * DIM),
        stream_memory(threads),
    )
    for part in parts:
        for finding in part:
            print(
                f"| {finding.what} | {finding.target} | {finding.measured} "
                f"| {yes_or_no(finding.holds) if finding.target else ''} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
