"""Agreement with known classes on 15 real datasets, against scikit-learn's clusterers.

    ISTHMUS_DATA=path/to/npz/files python benchmarks/quality.py  # tables of RESULTS.md

Features are standardised, and nothing else is done to them. Sets of more than 10,000 rows are
cut to 10,000 random ones, the same for all. Boston's last column is left out, since its labels are
made from it. Every method runs with its defaults, or with the settings in `known` and `unknown`
below, on three seeds (HDBSCAN has none). The defaults of the other isthmus clusterers were chosen
on the development half of the datasets only. Those of BasinFlow were chosen on both halves: all its
numbers here are development results.

Each result is appended to a cache when it is known, so that an interrupted run resumes
where it stopped; `--fresh` starts again.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import Row, print_rows
from numpy.typing import NDArray
from sklearn.cluster import HDBSCAN, KMeans
from sklearn.metrics import (
    adjusted_rand_score,
    normalized_mutual_info_score,
    pairwise_distances,
    silhouette_score,
)
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.preprocessing import StandardScaler

from isthmus.cluster import BasinFlow, ClAM, ClAMCRP, ClAMCRPELBO, ClAMELBO

DEVELOPMENT = (
    "iris",
    "wine",
    "ecoli",
    "zoo",
    "image_segmentation",
    "libras_movement",
    "wisconsin_breast_cancer",
)
REPORTED = (
    "boston_housing",
    "microarray_gcm",
    "usps_digits",
    "olivetti_faces",
    "yale_faces",
    "fashion_mnist",
    "kdd_cup",
    "forest_covertype",
)
HALVES = {
    "Development half: defaults were chosen here": DEVELOPMENT,
    "Reported half: used for choosing BasinFlow only": REPORTED,
}
SEEDS = 3
# Stopped unfinished after about 20 minutes on a busy machine; the tables say so.
LEFT_OUT = {("fashion_mnist", "HDBSCAN")}
LARGEST = 10_000
LABEL_COLUMNS = {"boston_housing": 13}

Labeller = Callable[[NDArray[Any]], NDArray[Any]]


def dataset(directory: Path, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    with np.load(directory / f"{name}.npz", allow_pickle=False) as file:
        points, y = file["X"], file["y"]
    if name in LABEL_COLUMNS:
        points = np.delete(points, LABEL_COLUMNS[name], axis=1)
    if len(points) > LARGEST:
        kept = np.random.default_rng(0).permutation(len(points))[:LARGEST]
        points, y = points[kept], y[kept]
    return StandardScaler().fit_transform(points.astype(np.float64)).astype(np.float32), y


def known(n_clusters: int, dim: int, seed: int) -> dict[str, Labeller]:
    """Return the methods that need the number of classes."""
    shape = "full" if dim <= 50 else "diag"
    mixture = GaussianMixture(n_clusters, covariance_type=shape, reg_covar=1e-3, random_state=seed)
    return {
        "KMeans": KMeans(n_clusters, n_init=10, random_state=seed).fit_predict,
        "ClAM": ClAM(n_clusters, random_state=seed).fit_predict,
        "ClAMELBO": ClAMELBO(n_clusters, random_state=seed).fit_predict,
        "GaussianMixture": mixture.fit_predict,
    }


def unknown(seed: int) -> dict[str, Labeller]:
    """Return the methods that find the number of clusters themselves."""
    bayesian = BayesianGaussianMixture(
        n_components=20, covariance_type="diag", max_iter=200, reg_covar=1e-3, random_state=seed
    )
    return {
        "BasinFlow": BasinFlow(random_state=seed).fit_predict,
        "ClAMCRP": ClAMCRP(random_state=seed).fit_predict,
        "ClAMCRPELBO": ClAMCRPELBO(random_state=seed).fit_predict,
        "KMeans + silhouette": lambda points: by_silhouette(points, seed),
        "BayesianGaussianMixture": bayesian.fit_predict,
        # Its noise, label -1, counts as one cluster.
        "HDBSCAN": HDBSCAN(copy=True).fit_predict,
    }


METHODS = (*known(2, 1, 0), *unknown(0))


def by_silhouette(points: NDArray[Any], seed: int) -> NDArray[Any]:
    """Run k-means with 2 to 20 clusters, and return the labels of the best silhouette."""
    distances = pairwise_distances(points)
    np.fill_diagonal(distances, 0)
    best, labels = -np.inf, np.zeros(len(points), dtype=int)
    for n_clusters in range(2, 21):
        found = KMeans(n_clusters, n_init=3, random_state=seed).fit_predict(points)
        score = silhouette_score(distances, found, metric="precomputed")
        if score > best:
            best, labels = score, found
    return labels


def jobs(
    names: tuple[str, ...], first: int, methods: tuple[str, ...]
) -> Iterator[tuple[str, str, int]]:
    """Yield (dataset, method, seed)."""
    for name in names:
        for method in methods:
            if (name, method) in LEFT_OUT:
                continue
            for seed in range(first, first + (1 if method == "HDBSCAN" else SEEDS)):
                yield name, method, seed


def run(
    directory: Path, cache: Path, seed: int, methods: tuple[str, ...]
) -> dict[tuple[str, str, int], dict[str, Any]]:
    """Return every result, from the cache or measured now."""
    results = {}
    if cache.exists():
        for line in cache.read_text().splitlines():
            found = json.loads(line)
            results[found["dataset"], found["method"], found["seed"]] = found
    names = tuple(sorted(DEVELOPMENT + REPORTED, key=file_size(directory)))
    wanted = list(jobs(names, seed, methods))
    loaded: tuple[str, NDArray[Any], NDArray[Any]] | None = None
    for number, job in enumerate(wanted, 1):
        if job in results:
            continue
        name, method, seed = job
        if loaded is None or loaded[0] != name:
            loaded = (name, *dataset(directory, name))
        results[job] = {
            "dataset": name,
            "method": method,
            "seed": seed,
            **judged(loaded[1], loaded[2], method, seed),
        }
        with cache.open("a") as file:
            file.write(json.dumps(results[job]) + "\n")
        print(f"{number}/{len(wanted)} {json.dumps(results[job])}", file=sys.stderr, flush=True)
    return {job: results[job] for job in wanted}


def file_size(directory: Path) -> Callable[[str], int]:
    return lambda name: (directory / f"{name}.npz").stat().st_size


def judged(points: NDArray[Any], y: NDArray[Any], method: str, seed: int) -> dict[str, Any]:
    labellers = known(len(np.unique(y)), points.shape[1], seed) | unknown(seed)
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about convergence; every method is judged as it is
        labels = labellers[method](points)
    return {
        "ari": adjusted_rand_score(y, labels),
        "nmi": normalized_mutual_info_score(y, labels),
        "found": len(np.unique(labels)),
        "classes": len(np.unique(y)),
        "seconds": time.process_time() - start,
    }


def rows_of(results: dict[tuple[str, str, int], dict[str, Any]]) -> Iterator[Row]:
    """Yield two tables for each half: with the number of clusters given, and not given."""

    def mean(name: str, method: str, field: str) -> float:
        found = [entry[field] for job, entry in results.items() if job[:2] == (name, method)]
        return float(np.mean(found)) if found else np.nan

    measured = {job[1] for job in results}
    given, not_given = (
        [method for method in methods if method in measured]
        for methods in (known(2, 1, 0), unknown(0))
    )
    kinds = {
        "the number of clusters is given: ARI / NMI": (given, ("ari", "nmi")),
        "the number of clusters is not given: ARI / NMI / clusters found": (
            not_given,
            ("ari", "nmi", "found"),
        ),
    }
    for half, names in HALVES.items():
        for kind, (methods, fields) in kinds.items():
            if not methods:
                continue
            table = f"{half}; {kind}"
            scores = {
                (name, method): [mean(name, method, field) for field in fields]
                for name in names
                for method in methods
            }
            for name in names:
                cells = {
                    method: "unfinished" if (name, method) in LEFT_OUT else scores[name, method]
                    for method in methods
                }
                classes = mean(name, methods[0], "classes")
                yield {"table": table, "dataset": name, "classes": classes, **cells}
            means = {
                method: np.nanmean([scores[name, method][:2] for name in names], axis=0).tolist()
                for method in methods
            }
            yield {"table": table, "dataset": "mean", "classes": None, **means}


def measure(
    full: bool = False,
    seed: int = 0,
    *,
    data: Path,
    out: Path,
    fresh: bool = False,
    methods: tuple[str, ...] = METHODS,
) -> Iterator[Row]:
    """Measure what is missing in the cache `out`, and yield rows; there is no short version."""
    torch.set_num_threads(1)
    out.parent.mkdir(parents=True, exist_ok=True)
    if fresh:
        out.unlink(missing_ok=True)
    yield from rows_of(run(data, out, seed, methods))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=os.environ.get("ISTHMUS_DATA"))
    parser.add_argument("--cache", type=Path, default=Path("report/quality.jsonl"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=METHODS, default=METHODS, metavar="METHOD")
    parser.add_argument("--fresh", action="store_true", help="measure everything again")
    options = parser.parse_args()
    if options.data is None:
        parser.error("name the directory of the npz files: --data, or ISTHMUS_DATA")
    data = Path(options.data)
    settings = {"out": options.cache, "fresh": options.fresh, "methods": tuple(options.only)}
    print_rows(measure(seed=options.seed, data=data, **settings))


if __name__ == "__main__":
    main()
