"""The arena: isthmus beside its rivals on real tables.

    python benchmarks/arena.py gaps --tables 10
    python benchmarks/arena.py density --seeds 1
    python benchmarks/arena.py draws --seeds 1
    python benchmarks/arena.py outliers
    python benchmarks/arena.py clusters --seeds 1

``gaps`` hides 20 % of the known cells of columns of numbers (``--share``; ``--pattern`` hides runs
of columns, or large values), and measures the root mean squared error of fills in standard
deviations, beside the coverage of 90 % intervals of draws. ``density`` reads up to 400 rows of up
to 10 columns with many values, and measures the mean log-density of other rows, in nats.
``draws`` learns from half of the rows. The forest AUC tells draws from the other half (0.5: it
cannot), and the membership AUC tells rows that were learned from those that were not, by their
distance to the nearest draw (0.5: it cannot). ``outliers`` scores rare classes, inside the table
("contaminated") and as new rows beside half of the others ("clean"). ``clusters`` compares labels
of methods that choose the number of clusters with classes of real sets and of made-up families;
rows that a method calls noise are a cluster of their own.

Each measurement is appended to ``.arena/JOB.jsonl``, so that an interrupted run resumes. Rivals
that are not installed are left out; ``benchmarks/arena-requirements.txt`` lists them.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from measuring import Row, timed
from one_cluster import FAMILIES
from scipy.stats import norm
from sklearn.cluster import HDBSCAN, KMeans
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.ensemble import ExtraTreesRegressor, IsolationForest, RandomForestClassifier
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer
from sklearn.metrics import (
    adjusted_rand_score,
    average_precision_score,
    roc_auc_score,
    silhouette_score,
)
from sklearn.mixture import BayesianGaussianMixture, GaussianMixture
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.neighbors import KernelDensity, LocalOutlierFactor, NearestNeighbors

from isthmus.cluster import BasinFlow
from isthmus.impute import MemoryImputer
from isthmus.incontext import TableDensity, score_rows
from isthmus.memories.gaussian import GaussianKDE
from isthmus.synthesis import draw_rows

SHARED = Path(__file__).resolve().parents[2] / "shared"
ARENA = Path(os.environ.get("ISTHMUS_ARENA", SHARED / "arena"))
DATA = Path(os.environ.get("ISTHMUS_DATA", SHARED / "data"))
# Rows of a table that take part: a budget of computation.
MOST_ROWS = 1000
# Sizes of tables whose density is measured: those of the notes on the arena.
MOST_DENSITY_ROWS, MOST_DENSITY_COLUMNS = 400, 10
# Principal components that Gaussian mixtures cluster of wider sets, which they cannot fit.
MOST_MIXTURE_COLUMNS = 50
OURS = "isthmus"
KEYS = ("table", "method", "seed", "share", "pattern")


def arena_tables() -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield the names and frames of the arena, at most `MOST_ROWS` rows each."""
    for path in sorted(ARENA.glob("*.parquet")):
        frame = pd.read_parquet(path)
        if len(frame) > MOST_ROWS:
            frame = frame.sample(MOST_ROWS, random_state=0)
        yield path.stem, frame.reset_index(drop=True)


def gap_rivals() -> dict[str, Callable[[], Any]]:
    """Return the imputers by name."""
    chain = {"random_state": 0, "keep_empty_features": True}
    trees = {"n_estimators": 30, "min_samples_leaf": 2, "random_state": 0}
    rivals: dict[str, Callable[[], Any]] = {
        OURS: MemoryImputer,
        "kNN (5)": lambda: KNNImputer(n_neighbors=5, keep_empty_features=True),
        "ridge chain": lambda: IterativeImputer(**chain),
        "trees chain": lambda: IterativeImputer(ExtraTreesRegressor(**trees), max_iter=3, **chain),
    }
    if find_spec("missforest"):
        rivals["MissForest"] = _MissForest
    return rivals


class _MissForest:
    """The package missforest, for arrays."""

    def fit_transform(self, X: Any) -> Any:
        from missforest import MissForest

        frame = pd.DataFrame(X).add_prefix("column ")
        return MissForest(verbose=0).fit_transform(frame).to_numpy()


def _hidden(X: Any, seed: int, share: float, pattern: str) -> Any:
    """Return True for known cells to hide: any, runs of columns, or mostly large values."""
    generator = np.random.default_rng(seed)
    if pattern == "blocks":
        width = max(X.shape[1] // 3, 1)
        start = generator.integers(X.shape[1], size=(len(X), 1))
        run = (np.arange(X.shape[1]) - start) % X.shape[1] < width
        hidden = run & (generator.random((len(X), 1)) < share * X.shape[1] / width)
    elif pattern == "values":
        ranks = pd.DataFrame(X).rank(pct=True).to_numpy()
        hidden = generator.random(X.shape) < 2 * share * ranks
    else:
        hidden = generator.random(X.shape) < share
    hidden &= ~np.isnan(X)
    hidden[:, (~np.isnan(X) & ~hidden).sum(0) < 3] = False
    return hidden


def gaps(seed: int, options: argparse.Namespace) -> Iterator[Row]:
    """Yield the errors of imputers at hidden cells of each table."""
    for name, frame in arena_tables():
        numbers = frame.select_dtypes("number").astype(float)
        X = numbers.loc[:, numbers.std() > 0].to_numpy()
        hidden = _hidden(X, seed, options.share, options.pattern)
        given = np.where(hidden, np.nan, X)
        centre, scale = np.nanmean(given, 0), np.nanstd(given, 0)
        scale = np.where(scale > 0, scale, 1.0)
        given, truth = (given - centre) / scale, (X - centre) / scale
        for method, make in gap_rivals().items():
            measure = partial(_gap_error, make, given, truth, hidden)
            yield {"table": name, "method": method, "measure": measure}


def _gap_error(make: Callable[[], Any], given: Any, truth: Any, hidden: Any) -> Row:
    """Measure the fills of hidden cells."""
    imputer = make()
    seconds, filled = timed(lambda: imputer.fit_transform(given))
    errors = (filled - truth) / np.nanstd(truth, 0)
    row = {"error": float(np.sqrt(np.square(errors[hidden]).mean())), "seconds": seconds}
    if isinstance(imputer, MemoryImputer):
        low, high = np.quantile(imputer.draw(given, 40), (0.05, 0.95), axis=0)
        inside = (low - 1e-9 <= truth) & (truth <= high + 1e-9)
        row["coverage"] = float(inside[hidden].mean())
    return row


def _mixture(X: Any, seed: int) -> GaussianMixture:
    """Return the Gaussian mixture of the best BIC."""
    fits = [
        GaussianMixture(k, covariance_type=kind, random_state=seed, reg_covar=1e-4).fit(X)
        for k in range(1, 9)
        for kind in ("full", "diag")
        if k < len(X)
    ]
    return min(fits, key=lambda fit: fit.bic(X))


def _kernels(X: Any) -> GridSearchCV:
    """Return the round kernel density of the best bandwidth of a cross-validation."""
    widths = {"bandwidth": np.geomspace(0.05, 2, 20)}
    return GridSearchCV(KernelDensity(), widths, cv=5).fit(X)


def density(seed: int, options: argparse.Namespace) -> Iterator[Row]:
    """Yield the mean log-density of rows of each table that were not learned from."""
    for name, frame in arena_tables():
        numbers = frame.select_dtypes("number").dropna(axis=1, thresh=len(frame) // 2).dropna()
        many = numbers.columns[numbers.nunique() > len(numbers) / 5][:MOST_DENSITY_COLUMNS]
        X = numbers[many].sample(frac=1, random_state=seed).to_numpy(np.float64)
        half = min(len(X) // 2, MOST_DENSITY_ROWS)
        if not len(many) or half < 2:
            continue
        X = (X - X[:half].mean(0)) / X[:half].std(0)
        learned, apart = X[:half], X[half:]
        fits: dict[str, Callable[[Any], Any]] = {
            OURS: lambda X: TableDensity().fit(X).score_samples,
            "GaussianKDE": lambda X: GaussianKDE(X, "auto").log_prob,
            "GMM": lambda X: _mixture(X, seed).score_samples,
            "KDE": lambda X: _kernels(X).best_estimator_.score_samples,
        }
        if find_spec("zuko"):
            fits["spline flow"] = partial(_flow, seed=seed)
        for method, fit in fits.items():
            measure = partial(_nats, fit, learned, apart)
            yield {"table": name, "method": method, "measure": measure}


def _flow(X: Any, seed: int, updates: int = 1000) -> Callable[[Any], Any]:
    """Return the log-density of a neural spline flow, stopped where held-out rows are best."""
    import torch
    import zuko

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        flow = zuko.flows.NSF(X.shape[1], transforms=3, hidden_features=(64, 64))
    rows = torch.as_tensor(X, dtype=torch.float32)
    learned, apart = rows[len(rows) // 5 :], rows[: len(rows) // 5]
    optimizer = torch.optim.AdamW(flow.parameters(), lr=2e-3, weight_decay=1e-3)
    best, kept = -np.inf, flow.state_dict()
    for update in range(updates):
        optimizer.zero_grad()
        (-flow().log_prob(learned).mean()).backward()
        optimizer.step()
        if update % 20 == 19:
            with torch.no_grad():
                score = float(flow().log_prob(apart).mean())
            if score > best:
                best = score
                kept = {name: value.clone() for name, value in flow.state_dict().items()}
    flow.load_state_dict(kept)
    return lambda rows: flow().log_prob(torch.as_tensor(rows, dtype=torch.float32)).detach()


def _nats(fit: Callable[[Any], Any], learned: Any, apart: Any) -> Row:
    """Measure the log-density of rows apart."""
    seconds, log_density = timed(lambda: np.asarray(fit(learned)(apart)))
    return {"nats": float(log_density.mean()), "seconds": seconds}


def _numbers(frames: list[pd.DataFrame]) -> list[Any]:
    """Return frames of the same columns as numbers, with codes for categories."""
    joined = pd.concat(frames, ignore_index=True)
    for name in joined.columns:
        if not pd.api.types.is_numeric_dtype(joined[name]):
            joined[name] = joined[name].astype(str).factorize(sort=True)[0]
    table = joined.to_numpy(np.float64, na_value=np.nan)
    table = np.where(np.isnan(table), np.nanmedian(table, 0), table)
    ends = np.cumsum([len(frame) for frame in frames])[:-1]
    return np.split(table, ends)


def _mixture_draws(table: pd.DataFrame, n: int, seed: int, rounded: bool) -> pd.DataFrame:
    """Draw from a Gaussian mixture; `rounded` to the values of the table."""
    X = _numbers([table])[0]
    scale = np.where(X.std(0) > 0, X.std(0), 1.0)
    drawn = _mixture(X / scale, seed).sample(n)[0] * scale
    if rounded:
        for place in range(X.shape[1]):
            values = np.unique(X[:, place])
            if len(values) < len(X) / 5 or (values % 1 == 0).all():
                nearest = np.abs(drawn[:, [place]] - values[None]).argmin(1)
                drawn[:, place] = values[nearest]
    return pd.DataFrame(drawn, columns=table.columns)


def draw_rivals() -> dict[str, Callable[[pd.DataFrame, int, int], pd.DataFrame]]:
    """Return what draws n rows like those of a table of numbers, by name."""
    rivals: dict[str, Callable[[pd.DataFrame, int, int], pd.DataFrame]] = {
        OURS: lambda table, n, seed: draw_rows(table, n, check=False, seed=seed).rows,
        "GMM, rounded": lambda table, n, seed: _mixture_draws(table, n, seed, True),
        "GMM": lambda table, n, seed: _mixture_draws(table, n, seed, False),
        "copula": _copula_draws,
    }
    if find_spec("ForestDiffusion"):
        rivals["ForestDiffusion"] = _diffused
    return rivals


def _named(rows: Any, table: pd.DataFrame) -> pd.DataFrame:
    """Return rows with the names of the columns of a table."""
    return pd.DataFrame(np.asarray(rows, dtype=np.float64), columns=table.columns)


def _copula_draws(table: pd.DataFrame, n: int, seed: int) -> pd.DataFrame:
    """Draw from a Gaussian copula whose margins are the values of the table."""
    X = table.to_numpy(np.float64)
    scores = norm.ppf((table.rank().to_numpy() - 0.5) / len(table))
    correlation = np.nan_to_num(np.corrcoef(scores.T)) * 0.999 + 1e-3 * np.eye(X.shape[1])
    zeros = np.zeros(X.shape[1])
    drawn = np.random.default_rng(seed).multivariate_normal(zeros, correlation, n)
    columns = [
        np.quantile(x, norm.cdf(z), method="nearest") for x, z in zip(X.T, drawn.T, strict=True)
    ]
    return _named(np.stack(columns, 1), table)


def _diffused(table: pd.DataFrame, n: int, seed: int) -> pd.DataFrame:
    """Draw from ForestDiffusion, with 10 copies of each row instead of 100: a budget."""
    from ForestDiffusion import ForestDiffusionModel

    X = table.to_numpy(np.float64)
    whole = np.flatnonzero((X % 1 == 0).all(0)).tolist()
    model = ForestDiffusionModel(X, n_t=20, duplicate_K=10, int_indexes=whole, n_jobs=1, seed=seed)
    return _named(model.generate(n), table)


def draws(seed: int, options: argparse.Namespace) -> Iterator[Row]:
    """Yield the forest and the membership AUC of draws from half of the rows of each table."""
    for name, frame in arena_tables():
        numbers = frame.select_dtypes("number").dropna(axis=1, thresh=len(frame) // 2).dropna()
        numbers = numbers.loc[:, numbers.nunique() > 1].sample(frac=1, random_state=seed)
        half = len(numbers) // 2
        learned = numbers[:half].reset_index(drop=True)
        apart = numbers[half : 2 * half].reset_index(drop=True)
        for method, draw in draw_rivals().items():
            measure = partial(_likeness, draw, learned, apart, seed)
            yield {"table": name, "method": method, "measure": measure}


def _likeness(draw: Any, learned: pd.DataFrame, apart: pd.DataFrame, seed: int) -> Row:
    """Measure how well draws can be told from rows apart, and rows that were learned from them."""
    seconds, drawn = timed(lambda: draw(learned, len(learned), seed))
    members, others, made = _numbers([learned, apart, drawn[learned.columns]])
    both, truth = np.concatenate([others, made]), np.arange(2 * len(made)) >= len(made)
    order = np.random.default_rng(seed).permutation(len(both))
    forest = RandomForestClassifier(200, random_state=seed, min_samples_leaf=2)
    told = cross_val_predict(forest, both[order], truth[order], method="predict_proba")
    spread = np.where(members.std(0) > 0, members.std(0), 1.0)
    tree = NearestNeighbors(n_neighbors=1).fit(made / spread)
    near = [tree.kneighbors(rows / spread)[0][:, 0] for rows in (members, others)]
    member = np.arange(len(members) + len(others)) < len(members)
    return {
        "forest AUC": float(roc_auc_score(truth[order], told[:, 1])),
        "membership AUC": float(roc_auc_score(member, -np.concatenate(near))),
        "distance": float(np.median(near[0]) / max(np.median(near[1]), 1e-12)),
        "seconds": seconds,
    }


NEIGHBORS = 5
# Name, file, usual classes, rare classes, and most rows of each.
RARE: list[tuple[str, str, list[int], list[int], int, int]] = [
    ("ecoli", "ecoli", [0, 1, 4, 5, 7], [2, 3, 6], 400, 20),
    ("iris", "iris", [0, 1], [2], 100, 6),
    ("wine", "wine", [1, 2], [0], 130, 10),
    ("zoo", "zoo", [0, 1, 3, 5, 6], [2, 4], 100, 9),
    ("cover", "forest_covertype", [1], [3], 1000, 20),
    ("libras", "libras_movement", list(range(14)), [14], 336, 10),
    ("faces", "olivetti_faces", list(range(36)), [36, 37], 360, 12),
    ("kdd probes", "kdd_cup", [11], [5, 10, 15, 17], 1000, 30),
    ("kdd r2l", "kdd_cup", [11], [1, 2, 3, 4, 16, 21, 22], 1000, 20),
    ("usps 0", "usps_digits", [1, 4, 7], [0], 800, 30),
    ("usps 8", "usps_digits", [0, 1, 2, 3, 4, 5, 6, 7, 9], [8], 800, 30),
    *(
        (f"segment {k}", "image_segmentation", [j for j in range(7) if j != k], [k], 800, 30)
        for k in range(7)
    ),
]


def labelled(seed: int) -> Iterator[tuple[str, Any, Any]]:
    """Yield names, tables and truths of the sets: real ones, then made-up ones."""
    rng = np.random.default_rng(seed)
    digits = load_digits()

    def rare(X: Any, y: Any, usual: list[int], few: list[int], most: int, fewest: int) -> Any:
        kept = [rng.permutation(np.flatnonzero(np.isin(y, some))) for some in (usual, few)]
        places = rng.permutation(np.concatenate([kept[0][:most], kept[1][:fewest]]))
        return X[places].astype(float), np.isin(y[places], few)

    for name, file, *parts in RARE:
        if (DATA / f"{file}.npz").exists():
            with np.load(DATA / f"{file}.npz") as stored:
                X = stored["X"][:, :10] if name == "cover" else stored["X"]
                yield name, *rare(X, stored["y"], *parts)
    others = [0, 2, 3, 4, 5, 6, 7, 8, 9]
    yield "digits 1", *rare(digits.data, digits.target, others, [1], 800, 20)
    bulk = rng.normal(size=(600, 6))
    made = {
        "tight group": (bulk, [4, 0, 0, 0, 0, 0] + 0.1 * rng.normal(size=(12, 6))),
        "scattered": (bulk, rng.uniform(-5, 5, (20, 6))),
    }
    flat = bulk[:, :4] @ rng.normal(size=(4, 12)) + 0.1 * rng.normal(size=(600, 12))
    made["off a plane"] = flat, rng.normal(size=(20, 12)) * flat.std(0)
    for name, (usual, few) in made.items():
        yield name, np.concatenate([usual, few]), np.arange(len(usual) + len(few)) >= len(usual)


def _oddness(method: str, table: Any, rows: Any) -> Any:
    """Return how odd rows are, given a table; `rows` None are those of the table."""
    if method == OURS:
        return -score_rows(table, rows).log_density
    scale = np.where(table.std(0) > 0, table.std(0), 1.0)
    Z = (table - table.mean(0)) / scale
    new = Z if rows is None else (rows - table.mean(0)) / scale
    if method.startswith("kNN"):
        count = NEIGHBORS if method == "kNN (5)" else round(len(Z) ** 0.5)
        distances = NearestNeighbors(n_neighbors=count + (rows is None)).fit(Z).kneighbors(new)[0]
        return distances[:, -1]
    if method == "IsolationForest":
        return -IsolationForest(random_state=0).fit(Z).score_samples(new)
    if method == "LOF":
        found = LocalOutlierFactor(20, novelty=rows is not None).fit(Z)
        return -found.negative_outlier_factor_ if rows is None else -found.score_samples(new)
    from pyod.models.ecod import ECOD

    found = ECOD().fit(Z)
    return found.decision_scores_ if rows is None else found.decision_function(new)


def outliers(seed: int, options: argparse.Namespace) -> Iterator[Row]:
    """Yield the AUC and the average precision of rare rows of each set."""
    methods = [OURS, "kNN (5)", "kNN (root n)", "IsolationForest", "LOF"]
    if find_spec("pyod"):
        methods.append("ECOD")
    for name, X, truth in labelled(seed):
        usual = np.random.default_rng(seed).permutation(np.flatnonzero(~truth))
        test = np.concatenate([usual[1::2], np.flatnonzero(truth)])
        ways = {
            "contaminated": (X, None, truth),
            "clean": (X[usual[::2]], X[test], truth[test]),
        }
        for method in methods:
            measure = partial(_detection, method, ways)
            yield {"table": name, "method": method, "measure": measure}


def _detection(method: str, ways: dict[str, Any]) -> Row:
    """Measure how well rare rows are told from the others, each way."""
    row: Row = {"seconds": 0.0}
    for way, (table, rows, is_odd) in ways.items():
        seconds, odd = timed(partial(_oddness, method, table, rows))
        row[f"{way} AUC"] = float(roc_auc_score(is_odd, odd))
        row[f"{way} AP"] = float(average_precision_score(is_odd, odd))
        row["seconds"] += seconds
    return row


# Made-up families of benchmarks/one_cluster.py that take part, with 500 rows each.
MADE_UP = {
    "one": ("Gaussian, D = 10", "lognormal, D = 5", "uniform cube, D = 4", "banana"),
    "far": ("D = 2, distance 6", "D = 20, distance 6", "D = 5, distance 140"),
    "unequal": ("D = 5, sizes 10:1",),
    "many": ("5 clusters, D = 5", "10 clusters, D = 20"),
    "shapes": ("half-moons", "rings"),
}


def classes(seed: int) -> Iterator[tuple[str, Any, Any]]:
    """Yield names, standardised rows and classes of the real sets, then of made-up families."""
    rng = np.random.default_rng(seed)
    for path in sorted(DATA.glob("*.npz")):
        with np.load(path) as stored:
            X, y = stored["X"].reshape(len(stored["X"]), -1).astype(float), stored["y"]
        kept = rng.permutation(len(X))[:MOST_ROWS]
        X = np.delete(X, 13, 1) if path.stem == "boston_housing" else X
        X, y = X[kept][:, X[kept].std(0) > 0], y[kept]
        yield path.stem, (X - X.mean(0)) / X.std(0), y
    for kind, names in MADE_UP.items():
        for name in names:
            yield f"{kind}: {name}", *FAMILIES[kind][name](500, rng)


def cluster_rivals(seed: int) -> dict[str, Callable[[Any], Any]]:
    """Return what labels rows without the number of clusters, by name."""
    counts = range(2, 21)

    def silhouette(X: Any) -> Any:
        fits = [KMeans(k, n_init=3, random_state=seed).fit_predict(X) for k in counts if k < len(X)]
        return max(fits, key=lambda labels: silhouette_score(X, labels))

    def narrow(X: Any) -> Any:
        components = PCA(MOST_MIXTURE_COLUMNS, random_state=seed)
        return components.fit_transform(X) if X.shape[1] > MOST_MIXTURE_COLUMNS else X

    def mixture(X: Any) -> Any:
        X = narrow(X)
        fits = [GaussianMixture(k, random_state=seed, reg_covar=1e-3) for k in (1, *counts)]
        fits = [fit.fit(X) for fit in fits if fit.n_components < len(X)]
        return min(fits, key=lambda fit: fit.bic(X)).predict(X)

    rivals = {
        OURS: lambda X: BasinFlow(random_state=seed).fit_predict(X),
        "KMeans, silhouette": silhouette,
        "GMM, BIC": mixture,
        "Bayesian GMM": lambda X: BayesianGaussianMixture(
            n_components=20, random_state=seed, reg_covar=1e-3
        ).fit_predict(narrow(X)),
        "HDBSCAN": lambda X: HDBSCAN(copy=True).fit_predict(X),
    }
    for module, name in (("fast_hdbscan", "HDBSCAN"), ("fast_plscan", "PLSCAN"), ("evoc", "EVoC")):
        if find_spec(module):
            rivals[module] = partial(_labels_of, module, name)
    return rivals


def _labels_of(module: str, name: str, X: Any) -> Any:
    return getattr(import_module(module), name)().fit_predict(np.ascontiguousarray(X, np.float32))


def clusters(seed: int, options: argparse.Namespace) -> Iterator[Row]:
    """Yield the agreement of clusters with classes, of each set."""
    for name, X, y in classes(seed):
        for method, label in cluster_rivals(seed).items():
            measure = partial(_agreement, label, X, y)
            yield {"table": name, "method": method, "measure": measure}


def _agreement(label: Callable[[Any], Any], X: Any, y: Any) -> Row:
    """Measure the adjusted Rand index and the number of clusters."""
    seconds, labels = timed(lambda: label(X))
    found = len(np.unique(labels[labels >= 0]))
    return {"ARI": float(adjusted_rand_score(y, labels)), "clusters": found, "seconds": seconds}


# Each job with what it measures: the first is ranked, and lower is better if the flag is True.
JOBS: dict[str, tuple[Callable[[int, argparse.Namespace], Iterator[Row]], dict[str, bool]]] = {
    "gaps": (gaps, {"error": True}),
    "density": (density, {"nats": False}),
    "clusters": (clusters, {"ARI": False}),
    "draws": (draws, {"forest AUC": True, "membership AUC": True}),
    "outliers": (
        outliers,
        {
            "contaminated AUC": False,
            "contaminated AP": False,
            "clean AUC": False,
            "clean AP": False,
        },
    ),
}


def run(job: str, options: argparse.Namespace) -> pd.DataFrame:
    """Measure what is not in the records of a job yet, and return all of them."""
    path = options.out / f"{job}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    records = [json.loads(line) for line in path.read_text().splitlines()]
    done = {tuple(record[name] for name in KEYS) for record in records}
    variant, wanted = (options.share, options.pattern), []
    for seed in range(options.seeds):
        tables: list[str] = []
        for one in JOBS[job][0](seed, options):
            if one["table"] not in tables:
                tables.append(one["table"])
            if options.tables and len(tables) > options.tables:
                break
            if options.only not in one["table"]:
                continue
            if options.methods and one["method"] not in options.methods:
                continue
            key = one["table"], one["method"], seed, *variant
            wanted.append(key)
            if key in done:
                continue
            print(f"\r{job}: seed {seed}, {one['table']:40.40}", end="", file=sys.stderr)
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    measured = one["measure"]()
            except Exception as error:  # a rival that fails on a table is listed, not fatal
                measured = {"failure": f"{type(error).__name__}: {error}"[:200]}
            record = dict(zip(KEYS, key, strict=True)) | measured
            records.append(record)
            with path.open("a") as file:
                file.write(json.dumps(record) + "\n")
    print(file=sys.stderr)
    if not wanted:
        sys.exit(f"No tables. Set ISTHMUS_ARENA (now {ARENA}) and ISTHMUS_DATA (now {DATA}).")
    frame = pd.DataFrame(records)
    keys = pd.MultiIndex.from_frame(frame[list(KEYS)])
    return frame[keys.isin(wanted)]


def report(job: str, frame: pd.DataFrame) -> None:
    """Print means, mean ranks, paired differences, and every table on which a rival is ahead."""
    metrics = JOBS[job][1]
    shown = [*metrics, *(name for name in ("coverage", "distance", "seconds") if name in frame)]
    means = frame.groupby(["table", "method"])[shown].mean()
    summary = pd.DataFrame({name: means[name].groupby("method").mean() for name in shown})
    for metric, lower in metrics.items():
        wide = means[metric].unstack()
        summary[f"rank {metric}"] = wide.rank(axis=1, ascending=lower).mean()
        ahead = wide.sub(wide[OURS], axis=0) * (1 if lower else -1)
        ahead = ahead.drop(columns=OURS)
        margin = 1.96 * ahead.std() / np.sqrt(ahead.notna().sum())
        for method, gain in ahead.mean().items():
            print(f"{metric}, ahead of {method}: {gain:.4f} ± {margin[method]:.4f}")
    print(f"\n{len(wide)} tables\n{summary.sort_values(summary.columns[-1]).round(3).to_string()}")
    metric, lower = next(iter(metrics.items()))
    wide = means[metric].unstack()
    rivals = wide.drop(columns=OURS)
    best = rivals.min(axis=1) if lower else rivals.max(axis=1)
    lost = (wide[OURS] > best) if lower else (wide[OURS] < best)
    order = (wide[OURS] / best).sort_values(ascending=not lower).index
    print(f"\nLosses in {metric}: {lost.sum()} of {len(wide)}")
    print(wide.loc[order][lost[order]].round(3).to_string())
    if "failure" in frame:
        print(frame.loc[frame.failure.notna(), ["table", "method", "failure"]].to_string())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("job", choices=JOBS)
    parser.add_argument("--tables", type=int, help="number of tables (default: all)")
    parser.add_argument("--only", default="", help="tables whose name contains this")
    parser.add_argument("--methods", nargs="*", help="methods to run (default: all)")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds (default: 3)")
    parser.add_argument("--share", type=float, default=0.2, help="share of cells to hide")
    parser.add_argument(
        "--pattern", choices=["random", "blocks", "values"], default="random", help="cells to hide"
    )
    parser.add_argument("--out", type=Path, default=Path(".arena"), help="folder of the records")
    options = parser.parse_args()
    report(options.job, run(options.job, options))


if __name__ == "__main__":
    main()
