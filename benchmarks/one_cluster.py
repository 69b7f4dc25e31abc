"""Error rates of BasinFlow: one cluster where there is one, two where there are two.

    python benchmarks/one_cluster.py                  # the table in docs/clustering.md
    python benchmarks/one_cluster.py --draws 20 --rows 100 300

Each draw is a new sample from the named density, fitted with default settings. The first table
counts the draws in which one cluster was found, the second those in which the two clusters were
found with an ARI above 0.9. Small samples come first. Each draw is appended to a cache, so that an
interrupted run resumes where it stopped, and `--shown` prints what is known so far.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Row, print_rows, timed
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from isthmus.cluster import BasinFlow

Points = NDArray[np.float64]
Draw = Callable[[int, np.random.Generator], Points]
Pair = Callable[[int, np.random.Generator, NDArray[np.bool_]], Points]

ROWS = (100, 300, 1000, 3000, 10_000)
# Larger samples cost more, and get this share of the draws.
SHARES = {100: 1.0, 300: 1.0, 1000: 0.5, 3000: 0.2, 10_000: 0.1}
SEPARATION = 6.0


def gaussian(dim: int) -> Draw:
    return lambda n, rng: rng.normal(size=(n, dim))


def cube(dim: int) -> Draw:
    return lambda n, rng: rng.uniform(size=(n, dim))


def student(dim: int) -> Draw:
    return lambda n, rng: rng.standard_t(4, size=(n, dim))


def ball(dim: int) -> Draw:
    def draw(n: int, rng: np.random.Generator) -> Points:
        points = rng.normal(size=(n, dim))
        radii = rng.uniform(size=(n, 1)) ** (1 / dim)
        return points * radii / np.linalg.norm(points, axis=1, keepdims=True)

    return draw


def banana(n: int, rng: np.random.Generator) -> Points:
    """Draw a half circle of radius 1 with noise of deviation 0.15."""
    angle = rng.uniform(0, np.pi, n)
    return np.c_[np.cos(angle), np.sin(angle)] + rng.normal(scale=0.15, size=(n, 2))


def correlated(n: int, rng: np.random.Generator) -> Points:
    """Draw a Gaussian of ten columns with a random covariance."""
    return rng.normal(size=(n, 10)) @ rng.normal(size=(10, 10))


ONE: dict[str, Draw] = {
    "Gaussian, D = 2": gaussian(2),
    "Gaussian, D = 10": gaussian(10),
    "Gaussian, D = 50": gaussian(50),
    "Gaussian, D = 10, correlated": correlated,
    "uniform square": cube(2),
    "uniform cube, D = 3": cube(3),
    "uniform cube, D = 10": cube(10),
    "uniform disc": ball(2),
    "uniform ball, D = 10": ball(10),
    "Student-t(4), D = 2": student(2),
    "Student-t(4), D = 10": student(10),
    "banana": banana,
}


def gaussian_pair(dim: int, scale: float = 1.0) -> Pair:
    """Return two Gaussians whose means lie six deviations apart, in a random direction."""

    def draw(n: int, rng: np.random.Generator, second: NDArray[np.bool_]) -> Points:
        direction = rng.normal(size=dim)
        points = rng.normal(size=(n, dim))
        points[second] *= scale
        gap = SEPARATION * (1 + scale) / 2
        return points + np.outer(second, gap * direction / np.linalg.norm(direction))

    return draw


def moons(n: int, rng: np.random.Generator, second: NDArray[np.bool_]) -> Points:
    angle = rng.uniform(0, np.pi, n)
    points = np.c_[np.cos(angle), np.sin(angle)]
    points[second] = [1, 0.5] - points[second]
    return points + rng.normal(scale=0.06, size=(n, 2))


def rings(n: int, rng: np.random.Generator, second: NDArray[np.bool_]) -> Points:
    angle = rng.uniform(0, 2 * np.pi, n)
    radius = np.where(second, 0.4, 1.0)[:, None]
    return radius * np.c_[np.cos(angle), np.sin(angle)] + rng.normal(scale=0.05, size=(n, 2))


# The pair, and the share of its second cluster.
TWO: dict[str, tuple[Pair, float]] = {
    "Gaussians, D = 2": (gaussian_pair(2), 0.5),
    "Gaussians, D = 10": (gaussian_pair(10), 0.5),
    "Gaussians, D = 50": (gaussian_pair(50), 0.5),
    "Gaussians, D = 2, sizes 4 to 1": (gaussian_pair(2), 0.2),
    "Gaussians, D = 10, sizes 4 to 1": (gaussian_pair(10), 0.2),
    "Gaussians, D = 2, widths 1 to 2": (gaussian_pair(2, 2.0), 0.5),
    "half-moons": (moons, 0.5),
    "rings": (rings, 0.5),
}


def fitted(kind: str, name: str, n: int, draw: int) -> dict[str, Any]:
    """Return what one fit found."""
    rng = np.random.default_rng([draw, n])
    if kind == "one":
        points, second = ONE[name](n, rng), np.zeros(n, dtype=bool)
    else:
        pair, share = TWO[name]
        second = np.arange(n) < share * n
        points = pair(n, rng, second)
    seconds, model = timed(lambda: BasinFlow(random_state=draw).fit(points))
    found = model.n_clusters_
    right = found == 1
    if kind == "two":
        right = found == 2 and adjusted_rand_score(second, model.labels_) > 0.9
    return {"found": found, "right": bool(right), "gap": model.gap_, "seconds": seconds}


def jobs(draws: int, rows: tuple[int, ...]) -> Iterator[tuple[str, str, int, int]]:
    """Yield (kind, name, rows, draw), small samples first."""
    for n in rows:
        for kind, names in (("one", ONE), ("two", TWO)):
            for name in names:
                for draw in range(max(round(draws * SHARES.get(n, 0.1)), 1)):
                    yield kind, name, n, draw


def run(cache: Path, draws: int, rows: tuple[int, ...], measuring: bool) -> dict[Any, Any]:
    """Return every result, from the cache or measured now."""
    results = {}
    if cache.exists():
        for line in cache.read_text().splitlines():
            entry = json.loads(line)
            results[tuple(entry["job"])] = entry
    for job in jobs(draws, rows) if measuring else ():
        if job not in results:
            results[job] = {"job": job, **fitted(*job)}
            with cache.open("a") as file:
                file.write(json.dumps(results[job]) + "\n")
    return results


def rows_of(results: dict[Any, Any], rows: tuple[int, ...]) -> Iterator[Row]:
    """Yield the share of right answers by density and number of rows, with the draws."""
    titles = {"one": "Data with one cluster: one found", "two": "Two clusters: both found"}
    for kind, names in (("one", ONE), ("two", TWO)):
        for name in names:
            cells = {}
            for n in rows:
                right = [e["right"] for job, e in results.items() if job[:3] == (kind, name, n)]
                cells[f"N = {n:,}"] = f"{sum(right)} of {len(right)}" if right else ""
            yield {"table": titles[kind], "density": name, **cells}


def measure(
    full: bool = False,
    seed: int = 0,
    *,
    out: Path,
    draws: int = 100,
    rows: tuple[int, ...] = ROWS,
    measuring: bool = True,
) -> Iterator[Row]:
    """Measure what is missing in the cache `out`, and yield rows."""
    out.parent.mkdir(parents=True, exist_ok=True)
    yield from rows_of(run(out, draws, rows, measuring), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=100, help="draws of up to 300 rows")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--cache", type=Path, default=Path("report/one_cluster.jsonl"))
    parser.add_argument("--shown", action="store_true", help="print the cache, measure nothing")
    options = parser.parse_args()
    rows = tuple(options.rows)
    table = measure(out=options.cache, draws=options.draws, rows=rows, measuring=not options.shown)
    print_rows(table)


if __name__ == "__main__":
    main()
