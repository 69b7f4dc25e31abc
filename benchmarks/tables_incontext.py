"""Held-out likelihood of pretrained("tables") on real tables, against classical densities.

    ISTHMUS_DATA=path/to/npz/files python benchmarks/tables_incontext.py  # tables of RESULTS.md

`--figure docs/img/tables-pairs.png` draws the figure of that page.

A task is some columns of a dataset (those with at least 20 distinct values; of sets with more than
60, every fourth to 60th), n context rows and up to 300 other rows of it. Values are clipped to the
median ± 10 interquartile ranges, and columns with repeated values get uniform noise as wide as
their resolution, so that all have a density. All methods see the same numbers, in units of the
context's standard deviations. A task is smooth if no column has more than 6 % of its rows within
0.01 standard deviations of one value; spikes exaggerate differences, so smooth tasks are what to
quote. The best baseline is chosen for each (D, n) by its mean score on the test rows themselves.
Their average density is shown beside them, and not chosen from. Tasks of one dataset are alike, so
that the standard error over datasets ("mean over sets") is the one to trust.
"""

from __future__ import annotations

import argparse
import json
import math
import time
import warnings
from collections.abc import Callable
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from measuring import Row, cpu_seconds, print_rows
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import multivariate_normal, multivariate_t
from sklearn.covariance import LedoitWolf
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris, load_wine
from sklearn.mixture import GaussianMixture

from isthmus.datasets import load
from isthmus.incontext import pretrained
from isthmus.incontext.tables.features import column_resolution

Array = NDArray[np.float64]

NAMES = ("boston_housing", "ecoli", "forest_covertype", "image_segmentation", "iris", "kdd_cup",
         "libras_movement", "microarray_gcm", "usps_digits", "olivetti_faces", "wine",
         "wisconsin_breast_cancer")  # fmt: skip
BUNDLED = {"diabetes": load_diabetes, "breast_cancer": load_breast_cancer,
           "wine_sklearn": load_wine, "digits": load_digits}  # fmt: skip
COLUMNS, SIZES, TEST_ROWS = (1, 2, 4, 8), (8, 16, 32, 64, 128, 256, 512), 300
LEVELS = (50, 90, 99)
BANDWIDTHS = np.geomspace(0.02, 1.6, 24)


def tables(rng: Generator) -> dict[str, Array]:
    """Return the usable columns of every dataset, without ties."""
    found = {name: np.asarray(load(name).X, dtype=float) for name in NAMES}
    found |= {name: np.asarray(loader().data, dtype=float) for name, loader in BUNDLED.items()}
    return {name: _prepared(rng, X) for name, X in found.items()}


def _prepared(rng: Generator, X: Array) -> Array:
    X = X[rng.permutation(len(X))[:3000]]
    X = X[:, [len(np.unique(column)) >= 20 for column in X.T]]
    X = X[:, :: max(1, X.shape[1] // 60)]
    low, middle, high = np.quantile(X, [0.25, 0.5, 0.75], axis=0)
    width = np.where(high > low, high - low, X.std(0))
    X = np.clip(X, middle - 10 * width, middle + 10 * width)
    step = column_resolution(torch.from_numpy(X)).numpy()
    return X + step * rng.uniform(-0.5, 0.5, X.shape)


def is_smooth(X: Array) -> bool:
    """Return True if no column has many rows close to one value."""
    for column in (X / X.std(0)).T:
        ordered = np.sort(column)
        ahead = np.searchsorted(ordered, ordered + 0.02, side="right")
        if (ahead - np.arange(len(ordered))).max() > 0.06 * len(ordered) + 2:
            return False
    return True


def _kde(context: Array, rows: Array, factor: Array) -> Array:
    """Return log-densities of a KDE whose bandwidth maximises the leave-one-out likelihood."""
    n, D = context.shape
    white, queries = (np.linalg.solve(factor, x.T).T for x in (context, rows))
    squares = ((white[:, None] - white) ** 2).sum(-1)
    np.fill_diagonal(squares, np.inf)
    scores = [
        (logsumexp(-squares / (2 * h * h), axis=1) - D * np.log(h)).mean() for h in BANDWIDTHS
    ]
    h = BANDWIDTHS[int(np.argmax(scores))]
    away = ((queries[:, None] - white) ** 2).sum(-1)
    constant = (
        D * np.log(h) + 0.5 * D * np.log(2 * np.pi) + np.log(n) + np.linalg.slogdet(factor)[1]
    )
    return logsumexp(-away / (2 * h * h), axis=1) - constant


def kde_round(context: Array, rows: Array) -> Array:
    return _kde(context, rows, np.eye(context.shape[1]))


def kde_full(context: Array, rows: Array) -> Array:
    return _kde(context, rows, np.linalg.cholesky(LedoitWolf().fit(context).covariance_))


def kde_columns(context: Array, rows: Array) -> Array:
    """A bandwidth for each column from its own marginal, and one common factor."""
    widths = []
    for column in context.T[:, :, None]:
        squares = (column - column.T) ** 2 + np.diag(np.full(len(column), np.inf))
        scores = [
            (logsumexp(-squares / (2 * h * h), axis=1) - np.log(h)).mean() for h in BANDWIDTHS
        ]
        widths.append(BANDWIDTHS[int(np.argmax(scores))])
    return _kde(context, rows, np.diag(np.array(widths) / np.mean(widths)))


def mixture_by_bic(context: Array, rows: Array) -> Array:
    fits = [
        GaussianMixture(parts, covariance_type=kind, random_state=0, reg_covar=1e-4).fit(context)
        for kind in ("full", "diag", "spherical")
        for parts in range(1, min(6, len(context) // 2) + 1)
    ]
    return min(fits, key=lambda fit: fit.bic(context)).score_samples(rows)


def gaussian(context: Array, rows: Array) -> Array:
    fit = LedoitWolf().fit(context)
    return multivariate_normal(fit.location_, fit.covariance_).logpdf(rows)


def student(context: Array, rows: Array) -> Array:
    """The posterior predictive of a normal-inverse-Wishart prior about the identity."""
    n, D = context.shape
    dof = n + 3.0
    scatter = (context - context.mean(0)).T @ (context - context.mean(0)) + (D + 1) * np.eye(D)
    shape = scatter * (n + 1) / (n * dof)
    return multivariate_t(context.mean(0), shape, df=dof).logpdf(rows)


BASELINES: dict[str, Callable[[Array, Array], Array]] = {
    "KDE, round": kde_round,
    "KDE, full": kde_full,
    "KDE, per column": kde_columns,
    "GMM by BIC": mixture_by_bic,
    "Ledoit-Wolf": gaussian,
    "NIW Student-t": student,
}


def run(model: object, repeats: int, sizes: list[int], columns: list[int], seed: int) -> list[Row]:
    """Return the mean negative log-density of each method on each task, in nats a row."""
    found = []
    for name, X in tables(np.random.default_rng(seed)).items():
        for D in (D for D in columns if X.shape[1] >= D):
            for n in (n for n in sizes if len(X) >= n + 50):
                for repeat in range(repeats):
                    rng = np.random.default_rng([seed, len(name), ord(name[0]), D, n, repeat])
                    chosen = X[:, rng.choice(X.shape[1], D, replace=False)]
                    chosen = chosen[rng.permutation(len(chosen))[: n + TEST_ROWS]]
                    if (chosen[:n].std(0) < 1e-3 * chosen.std(0)).any():
                        continue
                    found.append({"data": name, "D": D, "n": n} | scores(model, chosen, n))
    return found


def scores(model: object, X: Array, n: int) -> Row:
    smooth = is_smooth(X)
    X = (X - X[:n].mean(0)) / X[:n].std(0)
    row: Row = {"smooth": smooth}
    each: dict[str, Array] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, method in BASELINES.items():
            each[name] = method(X[:n], X[n:])
            row[name] = -float(each[name].mean())
    row["their average"] = -float(
        (logsumexp(list(each.values()), axis=0) - math.log(len(each))).mean()
    )
    density = model.condition(X[:n])
    found, own = (np.asarray(density.log_prob(x)) for x in (X[n:], density.sample(1000)))
    row["tables"] = -float(found.mean())
    for level in LEVELS:
        row[f"in {level} %"] = 100 * float(np.mean(found >= np.quantile(own, 1 - level / 100)))
    return row


def summary(found: list[Row], smooth: bool) -> list[Row]:
    """Return a row for each number of columns: the difference to the best baseline."""
    kind, rows = "smooth" if smooth else "spiky", []
    for D in sorted({row["D"] for row in found}):
        chosen = [row for row in found if (row["D"], row["smooth"]) == (D, smooth)]
        if not chosen:
            continue
        best = {}
        for n in {row["n"] for row in chosen}:
            cell = [row for row in chosen if row["n"] == n]
            best[n] = min(BASELINES, key=lambda name: np.mean([row[name] for row in cell]))
        to_best = np.array([row["tables"] - row[best[row["n"]]] for row in chosen])
        names = np.array([row["data"] for row in chosen])
        sets = [to_best[names == name].mean() for name in sorted(set(names))]
        oracle = [row["tables"] - min(row[name] for name in BASELINES) for row in chosen]
        average = [row["tables"] - row["their average"] for row in chosen]
        rows.append({"table": f"{kind} tasks, nats a row", "D": D, "tasks": len(chosen),
                     "difference to the best baseline": _mean(to_best), "median":
                     f"{np.median(to_best):+.3f}", "better on": int((to_best < 0).sum()),
                     "mean over sets": _mean(sets), "to the best of each task": _mean(oracle),
                     "to their average": _mean(average)})  # fmt: skip
    return rows


def _mean(values: object) -> str:
    values = np.asarray(values, dtype=float)
    return f"{values.mean():+.3f} ± {values.std() / math.sqrt(len(values)):.3f}"


def by_size(found: list[Row]) -> list[Row]:
    """Return the mean score for each column of every method, by context size, on smooth tasks."""
    rows = []
    for n in sorted({row["n"] for row in found}):
        cell = [row for row in found if row["n"] == n and row["smooth"]]
        means = {name: f"{np.mean([r[name] / r['D'] for r in cell]):.3f}"
                 for name in (*BASELINES, "their average", "tables")} if cell else {}  # fmt: skip
        rows.append({"table": "smooth tasks, nats a row and column", "n": n, **means})
    return rows


def coverage(found: list[Row]) -> list[Row]:
    """Return the share of held-out rows in regions of highest density, by context size."""
    title = "smooth tasks, % of held-out rows in the region of highest density that should hold"
    rows = []
    for n in sorted({row["n"] for row in found}):
        cell = [row for row in found if row["n"] == n and row["smooth"]]
        means = {f"{level} %": f"{np.mean([r[f'in {level} %'] for r in cell]):.1f}"
                 for level in LEVELS} if cell else {}  # fmt: skip
        rows.append({"table": title, "n": n, **means})
    return rows


def off_prior(model: object, repeats: int = 10) -> list[Row]:
    """Return mean negative log-densities of tables unlike the prior's, beside the truth."""
    normal = multivariate_normal(np.zeros(2), [[1, 0.7], [0.7, 1]])

    def gaussian_with(rng: Generator, far: float) -> tuple[Array, Array]:
        x = normal.rvs(400, random_state=rng)
        chosen = rng.random(400) < far
        x[chosen] = rng.uniform(-20, 20, (int(chosen.sum()), 2))
        logs = np.logaddexp(np.log1p(-far) + normal.logpdf(x), np.log(far + 1e-300) - np.log(1600))
        return x, logs

    def twice(rng: Generator) -> tuple[Array, Array]:
        x, logs = gaussian_with(rng, 0.0)
        x[50:100], logs[50:100] = x[:50], logs[:50]
        return x, logs

    def lattice(rng: Generator) -> tuple[Array, Array]:
        cells = rng.integers(0, 5, (400, 2))
        return cells + rng.uniform(-0.1, 0.1, cells.shape), np.full(400, -np.log(25 * 0.04))

    cases: dict[str, tuple[int, Callable[[Generator], tuple[Array, Array]]]] = {
        "uniform square": (100, lambda rng: (rng.random((400, 2)), np.zeros(400))),
        "lattice of 25 squares": (100, lattice),
        "Gaussian": (100, lambda rng: gaussian_with(rng, 0.0)),
        "Gaussian, 50 rows twice": (100, twice),
        "Gaussian and 5 % far outliers": (100, lambda rng: gaussian_with(rng, 0.05)),
        "6 rows of 10 columns": (6, lambda rng: _independent(rng, 10)),
    }
    rows = []
    for name, (n, draw) in cases.items():
        found = []
        for repeat in range(repeats):
            x, truth = draw(np.random.default_rng(repeat))
            ours = -float(model.condition(x[:n]).log_prob(x[n:]).mean())
            location, scale = x[:n].mean(0), x[:n].std(0)
            white, shift = (x - location) / scale, np.log(scale).sum()
            others = [shift - m(white[:n], white[n:]).mean() for m in (kde_full, student)]
            found.append([-truth[n:].mean(), *others, ours])
        means = [f"{value:.2f}" for value in np.mean(found, 0)]
        names = ("truth", "KDE, full", "NIW Student-t", "tables")
        rows.append({"table": "unlike the prior, nats a row", "data": name, "n": n}
                    | dict(zip(names, means, strict=True)))  # fmt: skip
    return rows


def _independent(rng: Generator, columns: int) -> tuple[Array, Array]:
    x = rng.normal(size=(400, columns))
    return x, multivariate_normal(np.zeros(columns)).logpdf(x)


def speed(model: object) -> list[Row]:
    """Return CPU seconds on one thread."""
    rows = []
    for n, D in ((64, 4), (512, 8), (1024, 16)):
        rng = np.random.default_rng(0)
        context, queries = rng.normal(size=(n, D)), rng.normal(size=(10_000, D))
        density = model.condition(context)
        rows.append({
            "table": "CPU seconds on one thread", "n": n, "D": D,
            "condition": f"{cpu_seconds(lambda c=context: model.condition(c), 5):.4f}",
            "10,000 log_prob": f"{cpu_seconds(lambda d=density, q=queries: d.log_prob(q), 3):.3f}",
            "10,000 samples": f"{cpu_seconds(lambda d=density: d.sample(10_000), 3):.4f}",
        })  # fmt: skip
    return rows


PAIRS = {
    "iris: sepal and petal length": (load_iris, 0, 2),
    "wine: colour and proline": (load_wine, 9, 12),
    "breast cancer: radius and concavity": (load_breast_cancer, 0, 6),
}


def figure(model: object, path: Path, size: int = 80) -> None:
    """Draw densities of real pairs of columns, and the rows that no method has seen."""
    import matplotlib.pyplot as plt

    methods = {"KDE, full": kde_full, "GMM by BIC": mixture_by_bic,
               "tables": lambda c, x: model.condition(c).log_prob(x)}  # fmt: skip
    shown, axes = plt.subplots(3, 4, figsize=(11, 8), layout="constrained")
    for row, (title, (loader, *pair)) in zip(axes, PAIRS.items(), strict=True):
        rng = np.random.default_rng(0)
        X = _prepared(rng, loader().data[:, pair])
        X = X[rng.permutation(len(X))]
        X = (X - X[:size].mean(0)) / X[:size].std(0)
        low, high = X.min(0) - 0.4, X.max(0) + 0.4
        lines = [np.linspace(a, b, 121) for a, b in zip(low, high, strict=True)]
        grid = np.stack(np.meshgrid(*lines), -1).reshape(-1, 2)
        row[0].plot(*X[:size].T, "o", ms=3, color="C0", label=f"{size} rows in context")
        row[0].plot(*X[size:].T, ".", ms=3, color="0.6", label="rows held out", zorder=0)
        row[0].set_title(title, fontsize=9)
        densities = {name: method(X[:size], grid) for name, method in methods.items()}
        top = np.quantile(np.concatenate(list(densities.values())), 0.995)
        for axis, (name, values) in zip(row[1:], densities.items(), strict=True):
            levels = np.linspace(top - 6, top, 13)
            shape = (len(lines[1]), len(lines[0]))
            axis.contourf(*lines, values.reshape(shape), levels, cmap="Blues", extend="both")
            axis.plot(*X[size:].T, ".", ms=1.5, color="C1")
            score = methods[name](X[:size], X[size:]).mean()
            axis.set_title(f"{name}: {score:.2f} nats a row", fontsize=9)
        for axis in row:
            axis.set(xlim=(low[0], high[0]), ylim=(low[1], high[1]), xticks=[], yticks=[])
    axes[0, 0].legend(fontsize=7, loc="best")
    shown.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tables", help="a name, or the folder of a model")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--columns", default=",".join(map(str, COLUMNS)))
    parser.add_argument("--repeats", type=int, default=1, help="tasks for each dataset, D and n")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="write all scores to this JSON file")
    parser.add_argument("--figure", type=Path, help="draw three pairs of columns, and stop")
    parser.add_argument("--speed-only", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = pretrained(arguments.model)
    if arguments.figure:
        figure(model, arguments.figure)
        return
    rows = speed(model)
    if not arguments.speed_only:
        start = time.process_time()
        sizes, columns = ([int(x) for x in given.split(",")]
                          for given in (arguments.sizes, arguments.columns))  # fmt: skip
        found = run(model, arguments.repeats, sizes, columns, arguments.seed)
        tables_of = (summary(found, True), summary(found, False), by_size(found), coverage(found))
        rows = [*chain(*tables_of), *off_prior(model), *rows]
        print(f"{len(found)} tasks, {time.process_time() - start:.0f} CPU seconds\n")
        if arguments.out:
            arguments.out.write_text(json.dumps(found))
    print_rows(rows)


if __name__ == "__main__":
    main()
