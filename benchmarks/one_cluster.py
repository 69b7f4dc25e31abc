"""Error rates of BasinFlow on data whose number of clusters is known.

    python benchmarks/one_cluster.py                  # the tables of RESULTS.md
    python benchmarks/one_cluster.py --draws 20 --rows 100 300 --only one far
    python benchmarks/one_cluster.py --calibration --draws 3  # expected calibration errors

Each draw is a new sample from the named density, fitted with default settings. An answer is right
if the number of clusters is, and their ARI is above 0.9; among blobs in noise, if the ARI of the
blobs is above 0.6. Draws of `--seed 0` were used to choose the rule, and those of seed 1, the
default, were not. Small samples come first. Each draw is appended to a cache, so that an
interrupted run resumes where it stopped, and `--shown` prints what is known so far. `--write` puts
the tables into RESULTS.md.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from measuring import Row, print_rows, timed, write_rows
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics.cluster import contingency_matrix

from isthmus.cluster import BasinFlow

Points = NDArray[np.float64]
Labels = NDArray[np.int64]
Draw = Callable[[int, np.random.Generator], tuple[Points, Labels]]

ROWS = (40, 60, 100, 300, 1000, 3000, 10_000)
# Larger samples cost more, and get this share of the draws.
SHARES = {1000: 0.5, 3000: 0.2, 10_000: 0.1}
TITLES = {
    "one": "One cluster kept",
    "far": "Two Gaussians, by their distance in deviations",
    "unequal": "Two Gaussians of unequal size, six deviations apart",
    "many": "Clusters of unequal size (to 1:10), width (to 1:3) and shape, six deviations apart",
    "shapes": "Other shapes",
}


def unimodal(draw: Callable[[int, np.random.Generator], Points]) -> Draw:
    return lambda n, rng: (draw(n, rng), np.zeros(n, dtype=np.int64))


def ball(dim: int) -> Draw:
    def draw(n: int, rng: np.random.Generator) -> Points:
        points = rng.normal(size=(n, dim))
        radii = rng.uniform(size=(n, 1)) ** (1 / dim)
        return points * radii / np.linalg.norm(points, axis=1, keepdims=True)

    return unimodal(draw)


def arc(n: int, rng: np.random.Generator, angle: float, noise: float) -> Points:
    """Draw a part of a circle of radius 1 with noise."""
    turn = rng.uniform(0, angle, n)
    return np.c_[np.cos(turn), np.sin(turn)] + rng.normal(scale=noise, size=(n, 2))


def cigar(n: int, rng: np.random.Generator, dim: int) -> Points:
    lengths = np.r_[10.0, np.ones(dim - 1)]
    return rng.normal(size=(n, dim)) * lengths @ np.linalg.qr(rng.normal(size=(dim, dim)))[0]


def pair(dim: int, distance: float, share: float = 0.5) -> Draw:
    """Return two round Gaussians; the second has a share of the rows."""

    def draw(n: int, rng: np.random.Generator) -> tuple[Points, Labels]:
        labels = (np.arange(n) < share * n).astype(np.int64)
        way = rng.normal(size=dim)
        points = rng.normal(size=(n, dim))
        return points + np.outer(labels, distance * way / np.linalg.norm(way)), labels

    return draw


def many(count: int, dim: int) -> Draw:
    """Return Gaussians at random places, each six deviations of the wider one from the next."""

    def draw(n: int, rng: np.random.Generator) -> tuple[Points, Labels]:
        shares = np.exp(rng.uniform(0, np.log(10), count))
        labels = np.sort(rng.choice(count, n, p=shares / shares.sum()))
        widths = np.exp(rng.uniform(0, np.log(3), count))
        centres, reach = np.empty((0, dim)), 18 * count ** (1 / dim)
        while len(centres) < count:
            place, width = rng.uniform(0, reach, dim), widths[len(centres)]
            least = 6 * np.maximum(widths[: len(centres)], width)
            if (np.linalg.norm(centres - place, axis=1) >= least).all():
                centres = np.r_[centres, [place]]
            else:
                reach *= 1.01
        shapes = [
            np.linalg.qr(rng.normal(size=(dim, dim)))[0] * rng.uniform(0.4, 1, dim) * width
            for width in widths
        ]
        points = rng.normal(size=(n, dim))
        for number, shape in enumerate(shapes):
            points[labels == number] = points[labels == number] @ shape.T
        return points + centres[labels], labels

    return draw


def moons(n: int, rng: np.random.Generator) -> tuple[Points, Labels]:
    labels = np.arange(n) % 2
    points = arc(n, rng, np.pi, 0.0)
    points[labels == 1] = [1, 0.5] - points[labels == 1]
    return points + rng.normal(scale=0.06, size=(n, 2)), labels


def rings(n: int, rng: np.random.Generator) -> tuple[Points, Labels]:
    labels = np.arange(n) % 2
    radius = np.where(labels == 1, 0.4, 1.0)[:, None]
    return radius * arc(n, rng, 2 * np.pi, 0.0) + rng.normal(scale=0.05, size=(n, 2)), labels


def core(n: int, rng: np.random.Generator) -> tuple[Points, Labels]:
    """Draw a dense core in a halo of ten times its width: one mode, so one cluster."""
    labels = np.arange(n) % 2
    return rng.normal(size=(n, 2)) * np.where(labels == 1, 0.1, 1.0)[:, None], np.zeros(n, int)


def noisy(n: int, rng: np.random.Generator) -> tuple[Points, Labels]:
    """Draw three blobs, and 40 % of the rows anywhere; label 3 is noise, which is not judged."""
    labels = rng.choice(4, n, p=[0.2, 0.2, 0.2, 0.4])
    centres = np.array([[2.0, 2.0], [8.0, 3.0], [5.0, 8.0], [0.0, 0.0]])
    points = centres[labels] + rng.normal(scale=0.5, size=(n, 2))
    points[labels == 3] = rng.uniform(0, 10, ((labels == 3).sum(), 2))
    return points, labels


FAMILIES: dict[str, dict[str, Draw]] = {
    "one": {
        **{
            f"Gaussian, D = {d}": unimodal(lambda n, r, d=d: r.normal(size=(n, d)))
            for d in (1, 2, 10, 50)
        },
        **{f"cigar 10:1, D = {d}": unimodal(lambda n, r, d=d: cigar(n, r, d)) for d in (2, 10)},
        **{
            f"uniform cube, D = {d}": unimodal(lambda n, r, d=d: r.uniform(size=(n, d)))
            for d in (1, 2, 4, 8, 20)
        },
        **{f"uniform ball, D = {d}": ball(d) for d in (2, 5, 20)},
        **{
            f"Student-t(3), D = {d}": unimodal(lambda n, r, d=d: r.standard_t(3, size=(n, d)))
            for d in (1, 2, 10)
        },
        **{
            f"lognormal, D = {d}": unimodal(lambda n, r, d=d: np.exp(r.normal(size=(n, d))))
            for d in (1, 2, 5, 20, 50)
        },
        **{
            f"exponential, D = {d}": unimodal(lambda n, r, d=d: r.exponential(size=(n, d)))
            for d in (1, 2, 5, 20)
        },
        "banana": unimodal(lambda n, r: arc(n, r, np.pi, 0.15)),
        "ring segment": unimodal(lambda n, r: arc(n, r, 2.1, 0.1)),
    },
    "far": {
        f"D = {d}, distance {far:g}": pair(d, far)
        for d in (1, 2, 5, 20, 50)
        for far in (3.0, 4.0, 6.0, 9.0, 30.0, 140.0, 1000.0)
    },
    "unequal": {
        f"D = {d}, sizes {ratio}:1": pair(d, 6.0, 1 / (ratio + 1))
        for d in (2, 5, 20)
        for ratio in (10, 50)
    },
    "many": {f"{k} clusters, D = {d}": many(k, d) for k in (2, 5, 10, 20) for d in (2, 5, 20)},
    "shapes": {
        "half-moons": moons,
        "rings": rings,
        "dense core in a halo": core,
        "3 blobs in 40 % noise": noisy,
    },
}


def fitted(kind: str, name: str, n: int, draw: int, seed: int) -> dict[str, Any]:
    """Return what one fit found."""
    points, labels = FAMILIES[kind][name](n, np.random.default_rng([draw, n, seed]))
    seconds, model = timed(lambda: BasinFlow(random_state=draw).fit(points))
    judged = labels < 3 if name.startswith("3 blobs") else labels >= 0
    ari = adjusted_rand_score(labels[judged], model.labels_[judged])
    right = ari > 0.6 if not judged.all() else ari > 0.9 and model.n_clusters_ == labels.max() + 1
    return {"found": model.n_clusters_, "ari": ari, "right": bool(right), "seconds": seconds}


Job = tuple[str, str, int, int, int]


def jobs(draws: int, rows: tuple[int, ...], kinds: tuple[str, ...], seed: int) -> Iterator[Job]:
    """Yield (kind, name, rows, draw, seed), small samples first."""
    for n in rows:
        for kind in kinds:
            for name in FAMILIES[kind]:
                for draw in range(max(round(draws * SHARES.get(n, 1.0)), 1)):
                    yield kind, name, n, draw, seed


def run(cache: Path, wanted: list[Job], measuring: bool) -> dict[Job, Any]:
    """Return every result, from the cache or measured now."""
    results = {}
    if cache.exists():
        for line in cache.read_text().splitlines():
            entry = json.loads(line)
            results[tuple(entry["job"])] = entry
    for job in wanted if measuring else ():
        if job not in results:
            results[job] = {"job": job, **fitted(*job)}
            with cache.open("a") as file:
                file.write(json.dumps(results[job]) + "\n")
    return {job: results[job] for job in wanted if job in results}


def rows_of(results: dict[Job, Any], rows: tuple[int, ...]) -> Iterator[Row]:
    """Yield the share of right answers by density and number of rows, with the draws."""
    cells: dict[tuple[str, str], dict[int, list[bool]]] = {}
    for (kind, name, n, _, _), entry in results.items():
        cells.setdefault((kind, name), {}).setdefault(n, []).append(entry["right"])
    for (kind, name), found in cells.items():
        shown = {
            f"N = {n:,}": f"{sum(found[n])} of {len(found[n])}" if n in found else "" for n in rows
        }
        yield {"table": TITLES[kind], "density": name, **shown}


def measure(
    full: bool = False,
    seed: int = 1,
    *,
    out: Path,
    draws: int = 100,
    rows: tuple[int, ...] = ROWS,
    kinds: tuple[str, ...] = tuple(FAMILIES),
    measuring: bool = True,
) -> Iterator[Row]:
    """Measure what is missing in the cache `out`, and yield rows."""
    out.parent.mkdir(parents=True, exist_ok=True)
    yield from rows_of(run(out, list(jobs(draws, rows, kinds, seed)), measuring), rows)


def triangle(
    n: int, dim: int, far: float, sizes: tuple[int, ...], rng: np.random.Generator
) -> tuple[Points, Labels]:
    """Draw three round Gaussians, each `far` deviations from the others."""
    labels = rng.choice(3, n, p=np.array(sizes) / sum(sizes))
    points = rng.normal(size=(n, dim))
    points[:, :2] += far * np.array([[0, 0], [1, 0], [0.5, np.sqrt(0.75)]])[labels]
    return points, labels


def calibration_error(posteriors: Points, labels: Labels) -> tuple[float, float, float]:
    """Return the expected calibration error in ten bins, the mean confidence, and the accuracy."""
    found, sure = posteriors.argmax(1), posteriors.max(1)
    shared = contingency_matrix(labels, found)
    matched = np.empty(shared.shape[1], dtype=np.int64)
    classes, clusters = linear_sum_assignment(shared, maximize=True)
    matched[clusters] = classes
    right = matched[found] == labels
    errors = np.bincount((sure * 10).astype(int).clip(0, 9), sure - right)
    return float(np.abs(errors).sum() / len(labels)), float(sure.mean()), float(right.mean())


def calibration(draws: int, n: int, seed: int) -> Iterator[Row]:
    """Yield errors of posteriors of 20,000 new rows, K known, and of the probability of K."""
    for dim, sizes, far in product((2, 5), ((1, 1, 1), (8, 1, 1)), (2.0, 2.5, 3.0, 4.0)):
        scores = []
        for draw in range(draws):
            rng = np.random.default_rng([draw, n, seed])
            model = BasinFlow(3, random_state=draw).fit(triangle(n, dim, far, sizes, rng)[0])
            new, labels = triangle(20_000, dim, far, sizes, rng)
            scores.append(calibration_error(model.predict_proba(new), labels))
        names = ("ECE", "confidence", "accuracy")
        means = {name: f"{mean:.3f}" for name, mean in zip(names, np.mean(scores, 0), strict=True)}
        cell = {"D": dim, "sizes": ":".join(map(str, sizes)), "distance": far, "N": n}
        yield {"table": "Calibration of posteriors", **cell, **means}


def any_case(rng: np.random.Generator) -> tuple[Points, Labels]:
    """Draw one cluster in half of the cases, a pair in three of ten, and several in two."""
    n, dim = int(rng.choice([60, 150, 400, 1000])), int(rng.choice([1, 2, 5, 20]))
    kind = rng.random()
    if kind < 0.5:
        return list(FAMILIES["one"].values())[rng.integers(len(FAMILIES["one"]))](n, rng)
    if kind < 0.8:
        return pair(dim, rng.uniform(3, 9), rng.choice([0.5, 0.25, 0.1]))(n, rng)
    return many(int(rng.integers(3, 7)), max(dim, 2))(max(n, 150), rng)


def certainty_of_number(draws: int, seed: int) -> Iterator[Row]:
    """Yield how often the number of clusters is right, by its probability."""
    sure, right = [], []
    for draw in range(draws):
        points, labels = any_case(np.random.default_rng([draw, seed]))
        model = BasinFlow(random_state=draw).fit(points)
        sure.append(model.k_probabilities_[model.n_clusters_ - 1])
        right.append(model.n_clusters_ == labels.max() + 1)
    bins = np.digitize(sure, [0.65, 0.75, 0.85, 0.95])
    for place in np.unique(bins):
        own = bins == place
        yield {
            "table": "Probability of the number of clusters",
            "stated": f"{np.array(sure)[own].mean():.2f}",
            "right": f"{np.array(right)[own].mean():.2f}",
            "draws": int(own.sum()),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--draws", type=int, default=100, help="draws of up to 300 rows")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--only", nargs="+", choices=FAMILIES, default=tuple(FAMILIES))
    parser.add_argument("--seed", type=int, default=1, help="0 draws what the rule was chosen on")
    parser.add_argument("--cache", type=Path, default=Path("report/one_cluster.jsonl"))
    parser.add_argument("--shown", action="store_true", help="print the cache, measure nothing")
    parser.add_argument("--write", action="store_true", help="write the tables into RESULTS.md")
    parser.add_argument("--calibration", action="store_true", help="measure probabilities only")
    options = parser.parse_args()
    if options.calibration:
        n = 1000 if options.rows == ROWS else options.rows[0]
        print_rows(list(calibration(options.draws, n, options.seed)))
        print_rows(list(certainty_of_number(100 * options.draws, options.seed)))
        return
    settings = {"rows": tuple(options.rows), "kinds": tuple(options.only), "draws": options.draws}
    measuring = not options.shown
    rows = list(measure(seed=options.seed, out=options.cache, measuring=measuring, **settings))
    print_rows(rows)
    if options.write:
        write_rows("one_cluster", rows)


if __name__ == "__main__":
    main()
