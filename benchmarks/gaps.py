"""Errors of filled gaps, beside scikit-learn's imputers on the same hidden cells.

    python benchmarks/gaps.py
    python benchmarks/gaps.py --sizes small
    python benchmarks/gaps.py --half reported
    python benchmarks/gaps.py --figure docs/img/gaps.png
    python benchmarks/gaps.py --coverage
    python benchmarks/gaps.py --speed
    python benchmarks/gaps.py --tables

Cells of complete tables are hidden, at random or in blocks of columns, and filled. The error is
the root mean square over hidden cells, in standard deviations of their columns. Settings were
chosen on the development sets, and on the cells that seed 0 hides there; ``--seed`` hides others.
No setting was chosen on the reported sets. Methods get standardised columns. ``--coverage`` draws
fillings and counts the cells inside of 90 % intervals; ``--speed`` measures CPU seconds as rows
grow; ``--tables`` compares with the exact conditional means of the in-context density, on tables
of up to 16 columns.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import product
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from measuring import Row, cpu_seconds, print_rows, timed
from numpy.typing import NDArray
from sklearn.datasets import load_diabetes, load_digits, load_linnerud
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer
from sklearn.preprocessing import StandardScaler

from isthmus.datasets import load
from isthmus.impute import MemoryImputer
from isthmus.incontext import TableDensity

DEVELOPMENT = (
    "iris",
    "wine",
    "ecoli",
    "zoo",
    "boston_housing",
    "wisconsin_breast_cancer",
    "image_segmentation",
    "forest_covertype",
    "kdd_cup",
    "libras_movement",
    "microarray_gcm",
    "yale_faces",
    "usps_digits",
    "digits",
    "diabetes",
    "linnerud",
)
REPORTED = ("fashion_mnist", "olivetti_faces")
SMALL = ("iris", "wine", "zoo", "diabetes")
# The imputer that regresses on all other columns is slow on wider tables.
MOST_REGRESSED, MOST_TREES = 100, 60
# Columns that the in-context density reads.
MOST_READ = 16
OTHERS = ("knn 5", "knn 15", "iterative", "trees")
Table = NDArray[np.float64]


def table(name: str, rows: int) -> Table:
    """Return the rows of a set, at most so many."""
    if name == "linnerud":
        both = load_linnerud()
        X = np.column_stack([both.data, both.target])
    elif name in ("digits", "diabetes"):
        X = load_digits().data if name == "digits" else load_diabetes(scaled=False).data
    else:
        X = np.asarray(load(name).X, dtype=np.float64)
    if len(X) > rows:
        X = X[np.random.default_rng(0).choice(len(X), rows, replace=False)]
    return X


def hide(shape: tuple[int, int], share: float, blocks: bool, seed: int) -> NDArray[np.bool_]:
    """Choose cells at random, or runs of columns in random rows; each row keeps a cell."""
    generator = np.random.default_rng(seed)
    count, dim = shape
    hidden = generator.random(shape) < share
    if blocks:
        width = max(1, round(dim * max(1 / 3, share)))
        hidden[:] = False
        for row in np.flatnonzero(generator.random(count) < share * dim / width):
            hidden[row, (generator.integers(dim) + np.arange(width)) % dim] = True
    for row in np.flatnonzero(hidden.all(1)):
        hidden[row, generator.integers(dim)] = False
    return hidden


def methods(dim: int, trees: bool) -> dict[str, Any]:
    """Return the imputers that can cope with so many columns."""
    found: dict[str, Any] = {
        "memory": MemoryImputer(),
        "knn 5": KNNImputer(n_neighbors=5, keep_empty_features=True),
        "knn 15": KNNImputer(n_neighbors=15, keep_empty_features=True),
    }
    if dim <= MOST_REGRESSED:
        found["iterative"] = IterativeImputer(random_state=0, keep_empty_features=True)
    if trees and dim <= MOST_TREES:
        forest = ExtraTreesRegressor(30, min_samples_leaf=2, random_state=0)
        found["trees"] = IterativeImputer(
            forest, max_iter=3, random_state=0, keep_empty_features=True
        )
    return found


def error(X: Table, filled: Table, hidden: NDArray[np.bool_]) -> float:
    """Return the error at hidden cells of columns that vary, in standard deviations."""
    scale = X.std(0)
    differences = ((filled - X) / np.where(scale > 0, scale, 1))[hidden & (scale > 0)]
    return float(np.sqrt(np.mean(np.square(differences))))


def measure(
    full: bool = True, rows: int = 500, seed: int = 0, half: str | None = None
) -> Iterator[Row]:
    """Yield the errors of each set and way of hiding cells."""
    halves = {"development": DEVELOPMENT, "reported": REPORTED}
    sets = halves[half] if half else DEVELOPMENT + REPORTED
    ways = [(share, blocks) for blocks in (False, True) for share in (0.05, 0.2, 0.4)]
    for name in sets if full else SMALL:
        X = table(name, rows)
        for share, blocks in ways if full else ways[1:2]:
            hidden = hide(X.shape, share, blocks, seed)
            scaler = StandardScaler().fit(np.where(hidden, np.nan, X))
            given = scaler.transform(np.where(hidden, np.nan, X))
            errors: dict[str, float] = {}
            for method, imputer in methods(X.shape[1], share == 0.2).items():
                filled = _quietly(partial(imputer.fit_transform, given))
                errors[method] = error(X, scaler.inverse_transform(filled), hidden)
            others = [value for method, value in errors.items() if method != "memory"]
            yield {
                "set": name,
                "half": "reported" if name in REPORTED else "development",
                "hidden": f"{share:.0%} {'blocks' if blocks else 'random'}",
                **{
                    method: errors.get(method, float("nan"))
                    for method in ("memory", "knn 5", "knn 15", "iterative", "trees")
                },
                "ratio to best": errors["memory"] / min(others),
            }


def draw(rows: Iterable[Row], path: str) -> Iterator[Row]:
    """Pass rows on, and draw the errors of the others over ours, as means over ways of hiding."""
    ratios: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        yield row
        for method in OTHERS:
            if row[method] == row[method]:
                ratios.setdefault((row["set"], method), []).append(row[method] / row["memory"])
    sets = list(dict.fromkeys(name for name, _ in ratios))[::-1]
    figure, axes = plt.subplots(figsize=(6.4, 0.28 * len(sets) + 1), layout="constrained")
    for method, marker in zip(OTHERS, "os^D", strict=True):
        found = {name: ratios[name, method] for name in sets if (name, method) in ratios}
        means = [float(np.exp(np.mean(np.log(values)))) for values in found.values()]
        axes.plot(means, [sets.index(name) for name in found], marker, ms=5, label=method)
    axes.axvline(1, color="0.4", lw=1)
    axes.set(xscale="log", xlabel="error over that of MemoryImputer")
    axes.set_xticks([1, 1.5, 2, 3, 5, 7], ["1", "1.5", "2", "3", "5", "7"])
    axes.minorticks_off()
    axes.set_yticks(range(len(sets)), sets)
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    axes.legend(frameon=False, loc="lower right")
    figure.savefig(path, dpi=150)


def _by_density(X: np.ndarray) -> np.ndarray:
    """Fill a table by the conditional means of its in-context density."""
    filled: np.ndarray = TableDensity().fit(X).fill(X).to_numpy()
    return filled


def _quietly(function: Callable[[], Any]) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return function()


def measure_coverage(rows: int = 500, seed: int = 0, draws: int = 40) -> Iterator[Row]:
    """Yield the share of hidden cells inside of 90 % intervals of drawn fillings."""
    for name in DEVELOPMENT:
        X = table(name, rows)
        row: Row = {"set": name}
        for blocks in (False, True):
            hidden = hide(X.shape, 0.2, blocks, seed)
            given = np.where(hidden, np.nan, X)
            fillings = MemoryImputer().fit(given).draw(given, draws)
            low, high = np.quantile(fillings, (0.05, 0.95), axis=0)
            inside = (low - 1e-9 <= X) & (high + 1e-9 >= X)
            row["blocks" if blocks else "random"] = float(inside[hidden & (X.std(0) > 0)].mean())
        yield row


def measure_speed(seed: int = 0) -> Iterator[Row]:
    """Yield CPU seconds to fill tables of more and more rows."""
    generator = np.random.default_rng(seed)
    for count in (1000, 3000, 10_000, 30_000):
        factors = generator.standard_normal((count, 4))
        X = np.tanh(factors @ generator.standard_normal((4, 18)))
        X += 0.3 * generator.standard_normal(X.shape)
        X[generator.random(X.shape) < 0.2] = np.nan
        seconds = {
            name: cpu_seconds(partial(_quietly, partial(imputer.fit_transform, X)))
            for name, imputer in (
                ("memory", MemoryImputer()),
                ("iterative", IterativeImputer(random_state=0)),
            )
        }
        yield {
            "rows": count,
            "columns": 18,
            **seconds,
            "ratio": seconds["memory"] / seconds["iterative"],
        }


def measure_tables(seeds: int = 2) -> Iterator[Row]:
    """Yield errors of MemoryImputer and of the in-context density on small tables."""
    for name, rows, blocks in product(DEVELOPMENT, (50, 500), (False, True)):
        X = table(name, rows)
        if X.shape[1] > MOST_READ or len(X) < min(rows, 100):
            continue
        found = []
        for seed in range(seeds):
            hidden = hide(X.shape, 0.2, blocks, seed)
            given = np.where(hidden, np.nan, X)
            spent, filled = timed(partial(_quietly, partial(_by_density, given)))
            own, memory = timed(partial(_quietly, partial(MemoryImputer().fit_transform, given)))
            found.append([error(X, memory, hidden), error(X, filled, hidden), own, spent])
        means = dict(zip(("memory", "tables", "memory, CPU s", "tables, CPU s"),
                         np.mean(found, 0), strict=True))  # fmt: skip
        yield {
            "set": name,
            "rows": len(X),
            "columns": X.shape[1],
            "hidden": f"20% {'blocks' if blocks else 'random'}",
            **means,
            "tables / memory": means["tables"] / means["memory"],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", choices=["small", "all"], default="all")
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--half", choices=["development", "reported"])
    parser.add_argument("--figure", help="where to draw the errors")
    parser.add_argument("--coverage", action="store_true")
    parser.add_argument("--speed", action="store_true")
    parser.add_argument("--tables", action="store_true")
    options = parser.parse_args()
    if options.coverage:
        print_rows(measure_coverage(options.rows, options.seed))
    elif options.tables:
        print_rows(measure_tables())
    elif options.speed:
        print_rows(measure_speed(options.seed))
    else:
        full = options.sizes == "all"
        rows = measure(full, options.rows, options.seed, options.half)
        print_rows(draw(rows, options.figure) if options.figure else rows)


if __name__ == "__main__":
    main()
