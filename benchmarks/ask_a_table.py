"""Questions to tables of numbers and categories: pretrained("tables") against default rivals.

    ISTHMUS_ARENA=path/to/parquet/files python benchmarks/ask_a_table.py  # tables of RESULTS.md

`--write` puts the tables into RESULTS.md; what stands in the `--cache` is not measured again. A
task is a table, n rows of it in context and up to 300 others. Columns of numbers with at most ten
values, truth values and text are categories; those with more than 64 values are left out. The
column to predict is drawn among those that fit. Rivals have scikit-learn's default settings, on
numbers in standard units with gaps at the mean and indicators of categories; where they are called
tuned, the settings with the best log loss or squared error on five folds of the context. Ranks are
means over tasks, 1 being the best. Rows whose class the context does not have are left out. The
expected calibration error (ECE) is that of up to 300 rows in ten bins, which is not 0 of
probabilities that are right either: "by chance" is that of classes drawn from them.

Densities: gaps are filled by medians or modes, and numbers that repeat get uniform noise as wide as
their resolution. The rivals are a kernel density estimate with a Gaussian and an
Aitchison-Aitken kernel (both bandwidths by leave-one-out), a Gaussian mixture chosen by BIC whose
components have frequencies of categories, and independent columns.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from measuring import Row, cpu_seconds, print_rows, write_rows
from numpy.typing import NDArray
from pandas.api.types import is_object_dtype
from scipy.spatial.distance import cdist
from scipy.special import logsumexp
from sklearn.compose import make_column_transformer
from sklearn.ensemble import (
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    RandomForestClassifier,
    RandomForestRegressor,
)
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, SimpleImputer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, KFold, cross_val_predict
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from isthmus.impute import MemoryImputer
from isthmus.incontext import TableClassifier, TableRegressor, pretrained
from isthmus.incontext.tables.features import column_resolution
from isthmus.memories import GaussianKDE, StudentMixture

Array = NDArray[np.float64]
LEVELS = np.arange(1, 10) / 10
FEW, MOST, TEST_ROWS = 10, 64, 300
GRIDS = {
    "logistic": {"C": [0.01, 0.1, 1.0, 10.0, 100.0]},
    "forest": {"min_samples_leaf": [1, 3, 10], "max_features": ["sqrt", 0.5]},
    "kNN": {"n_neighbors": [3, 10, 30], "weights": ["uniform", "distance"]},
    "boosting": {"learning_rate": [0.03, 0.1], "max_leaf_nodes": [4, 31]},
}


def prepared(frame: pd.DataFrame) -> pd.DataFrame:
    """Return columns of numbers as float64 and all others as text, without those of many values."""
    found = {}
    for name, column in frame.items():
        numeric = pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
        if numeric and column.nunique() > FEW:
            found[name] = column.astype(np.float64)
        elif 2 <= column.nunique() <= MOST:
            found[name] = column.astype(object).where(column.isna(), column.astype(str))
    return pd.DataFrame(found)


def draw(kind: str, n: int, most: int, seed: int) -> list[tuple[str, str, pd.DataFrame, int]]:
    """Return tasks: the table, the column to predict, shuffled rows, and rows in context."""
    tasks, folder = [], Path(os.environ.get("ISTHMUS_ARENA", "../shared/arena"))
    for number, path in enumerate(sorted(folder.glob("*.parquet"))):
        rng = np.random.default_rng([seed, n, number])
        frame = prepared(pd.read_parquet(path))
        frame = frame.iloc[rng.permutation(len(frame))[: n + TEST_ROWS]]
        if len(frame) < n + 50 or frame.shape[1] < 2:
            continue
        context = frame.iloc[:n]
        is_text = {name: is_object_dtype(frame[name]) for name in frame}
        fits = [
            name
            for name in frame
            if is_text[name] == (kind == "class") and context[name].notna().all()
            and (2 <= context[name].nunique() <= 8 if kind == "class"
                 else context[name].nunique() > 15)
            and context[name].value_counts(normalize=True).iloc[0] < 0.9
        ]  # fmt: skip
        if kind == "density":
            tasks.append((path.stem, "", frame, n))
        elif fits:
            tasks.append((path.stem, str(rng.choice(fits)), frame, n))
    return tasks[:: max(1, len(tasks) // most)][:most]


def as_numbers(context: pd.DataFrame, rows: pd.DataFrame) -> tuple[Array, Array]:
    """Return what the rivals read."""
    text = context.dtypes.map(is_object_dtype)
    steps = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), list(text.index[~text])),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), list(text.index[text])),
    )
    filled = [x.assign(**{c: x[c].fillna("?") for c in text.index[text]}) for x in (context, rows)]
    return steps.fit_transform(filled[0]), steps.transform(filled[1])


def calibration_error(shares: Array, right: Array) -> float:
    """Return the expected calibration error of the most probable class, in ten bins."""
    top, hit = shares.max(1), right[np.arange(len(right)), shares.argmax(1)]
    bins = np.minimum((10 * top).astype(int), 9)
    return sum(abs(hit[bins == b].mean() - top[bins == b].mean()) * (bins == b).mean()
               for b in set(bins))  # fmt: skip


def tuned(rivals: dict[str, Any], x: Array, y: Array, score: Any) -> dict[str, Any]:
    """Return rivals with the best settings on five folds, fitted. Those without a grid stay."""
    folds = KFold(5, shuffle=True, random_state=0)
    return {
        name: GridSearchCV(each, GRIDS[name], scoring=score, cv=folds).fit(x, y)
        for name, each in rivals.items()
        if name in GRIDS
    }


def log_likelihood(model: Any, x: Array, y: Array) -> float:
    """Return the mean log-probability of classes, which may be missing in the fold of a model."""
    shares = np.clip(model.predict_proba(x), 1e-4, None)
    place = np.searchsorted(model.classes_, y).clip(max=len(model.classes_) - 1)
    known = model.classes_[place] == y
    return float(np.log(np.where(known, shares[np.arange(len(y)), place], 1e-4)).mean())


def classification(model: str, n: int, most: int, seed: int) -> list[Row]:
    rivals = {
        "logistic": LogisticRegression(max_iter=500),
        "forest": RandomForestClassifier(random_state=0),
        "kNN": KNeighborsClassifier(),
        "boosting": HistGradientBoostingClassifier(random_state=0),
    }
    losses, better, areas, errors, plain = [], [], [], [], []
    chance = np.random.default_rng(seed)
    for _, target, frame, size in draw("class", n, most, seed):
        rest, y = frame.drop(columns=target), frame[target].to_numpy()
        classes, labels = np.unique(y[:size].astype(str), return_inverse=True)
        asked = np.flatnonzero(np.isin(y[size:].astype(str), classes)) + size
        truth = np.searchsorted(classes, y[asked].astype(str))
        seen = as_numbers(rest.iloc[:size], rest.iloc[asked])
        shares = {name: each.fit(seen[0], labels).predict_proba(seen[1])
                  for name, each in rivals.items()}  # fmt: skip
        settled = tuned(rivals, seen[0], labels, log_likelihood)
        shares |= {f"{name}, tuned": each.predict_proba(seen[1]) for name, each in settled.items()}
        ours = TableClassifier(model).fit(rest.iloc[:size], labels)
        shares["tables"] = ours.predict_proba(rest.iloc[asked])
        right = np.eye(len(classes))[truth]
        safe = {name: np.clip(each, 1e-4, None) for name, each in shares.items()}
        found = {name: -np.log((each / each.sum(1, keepdims=True))[right > 0]).mean()
                 for name, each in safe.items()}  # fmt: skip
        losses.append({name: each for name, each in found.items() if "tuned" not in name})
        better.append({name: found[name] for name in found if name not in rivals})
        present = right.any(0)
        if present.sum() > 1:
            areas.append({name: roc_auc_score(right[:, present], each[:, present])
                          for name, each in shares.items()})  # fmt: skip
        own = shares["tables"]
        drawn = np.eye(len(classes))[[chance.choice(len(classes), p=each) for each in own]]
        errors.append((calibration_error(own, right), calibration_error(own, drawn)))
        joint = pretrained(model).condition(rest.iloc[:size].assign(asked=classes[labels]))
        unasked = joint.predict("asked", rest.iloc[asked])[list(classes)].to_numpy()
        plain.append(-np.log(np.clip(unasked, 1e-4, None)[right > 0]).mean())
    return [
        _ranked(f"classification, {len(losses)} tables, n = {n}: log loss", losses)
        | {"tables, not told the target": f"{np.mean(plain):.3f}"}
        | {"ECE of tables": "{:.3f}, {:.3f} by chance".format(*np.mean(errors, 0))},
        _ranked(f"classification, n = {n}: log loss, tuned", better),
        {"table": f"classification, n = {n}: AUC", "measure": "mean"}
        | {name: f"{value:.3f}" for name, value in pd.DataFrame(areas).mean().items()},
    ]


def _ranked(title: str, losses: list[Row]) -> Row:
    frame = pd.DataFrame(losses)
    ranks, means = frame.rank(axis=1).mean(), frame.mean()
    shown = {name: f"{means[name]:.3f} ({ranks[name]:.2f})" for name in frame}
    return {"table": title, "measure": "mean (rank)"} | shown


def regression(model: str, n: int, most: int, seed: int) -> list[Row]:
    rivals = {
        "ridge": RidgeCV(np.geomspace(0.01, 1000, 16)),
        "forest": RandomForestRegressor(random_state=0),
        "kNN": KNeighborsRegressor(),
    }
    losses, squares, better, inside = [], [], [], []
    for _, target, frame, size in draw("number", n, most, seed):
        frame = frame[frame[target].notna()]
        rest, y = frame.drop(columns=target), frame[target].to_numpy()
        y = (y - y[:size].mean()) / y[:size].std()
        seen = as_numbers(rest.iloc[:size], rest.iloc[size:])
        quantiles, means = {}, {}
        for name, each in rivals.items():
            # Quantiles of the residuals of five folds about the prediction.
            apart = y[:size] - cross_val_predict(each, seen[0], y[:size], cv=5)
            means[name] = each.fit(seen[0], y[:size]).predict(seen[1])
            quantiles[name] = means[name][:, None] + np.quantile(apart, LEVELS)
        boost = HistGradientBoostingRegressor
        means["boosting"] = boost(random_state=0).fit(seen[0], y[:size]).predict(seen[1])
        quantiles["boosting"] = np.stack(
            [boost(loss="quantile", quantile=q, random_state=0).fit(seen[0], y[:size])
             .predict(seen[1]) for q in LEVELS], 1)  # fmt: skip
        ours = TableRegressor(model).fit(rest.iloc[:size], y[:size])
        both = ours.predict_quantile(rest.iloc[size:], [*LEVELS, 0.05, 0.95])
        quantiles["tables"], means["tables"] = both[:, :9], ours.predict(rest.iloc[size:])
        away = {name: y[size:, None] - each for name, each in quantiles.items()}
        losses.append({name: np.maximum(LEVELS * each, (LEVELS - 1) * each).mean()
                       for name, each in away.items()})  # fmt: skip
        squares.append({name: np.sqrt(np.mean((y[size:] - each) ** 2))
                        for name, each in means.items()})  # fmt: skip
        settled = tuned({**rivals, "boosting": boost(random_state=0)}, seen[0], y[:size],
                        "neg_mean_squared_error")  # fmt: skip
        better.append({"ridge": squares[-1]["ridge"], "tables": squares[-1]["tables"]} |
                      {f"{name}, tuned": np.sqrt(np.mean((y[size:] - each.predict(seen[1])) ** 2))
                       for name, each in settled.items()})  # fmt: skip
        joint = pretrained(model).condition(frame.iloc[:size].assign(**{target: y[:size]}))
        ends = both[:, 9:].T, joint.interval(target, 0.9, rest.iloc[size:])
        inside.append([np.mean((y[size:] >= low) & (y[size:] <= high)) for low, high in ends])
    title, (held, alone) = f"regression, {len(losses)} tables, n = {n}", 100 * np.mean(inside, 0)
    return [
        _ranked(f"{title}: pinball loss", losses)
        | {"in 90 % interval of tables": f"{held:.1f} %", "not told the target": f"{alone:.1f} %"},
        _ranked(f"{title}: RMSE, standard deviations", squares),
        _ranked(f"{title}: RMSE, tuned", better),
    ]


def filled(frame: pd.DataFrame, rng: np.random.Generator) -> pd.DataFrame:
    """Return a table without gaps, and with uniform noise where numbers repeat."""
    found = {}
    for name, column in frame.items():
        if column.dtype == object:
            found[name] = column.fillna(column.mode().iloc[0])
        else:
            values = column.fillna(column.median()).to_numpy()
            step = float(column_resolution(torch.from_numpy(values[:, None]))[0])
            found[name] = values + step * rng.uniform(-0.5, 0.5, len(values))
    return pd.DataFrame(found)


def mixed_kernels(x: Array, codes: Array, at: Array, at_codes: Array) -> Array:
    """Return log-densities of a product kernel, whose bandwidths maximise those left out."""
    counts = np.log(codes.max(0, initial=0) + 1)

    def apart(a: Array, a_codes: Array) -> tuple[Array, Array, Array]:
        """Return squared distances, numbers of other values, and logarithms of their counts."""
        other = [a_codes[:, None, column] != codes[:, column] for column in range(len(counts))]
        number = sum(other, np.zeros((len(a), len(x))))
        choices = sum((each * log for each, log in zip(other, counts, strict=True)), 0 * number)
        return cdist(a, x, "sqeuclidean"), number, choices

    def logs(parts: tuple[Array, Array, Array], h: float, share: float) -> Array:
        squares, other, choices = parts
        found = -0.5 * squares / h**2 - x.shape[1] * np.log(h * np.sqrt(2 * np.pi))
        return found + (len(counts) - other) * np.log(1 - share) + other * np.log(share) - choices

    own, best = apart(x, codes), (-np.inf, 0.3, 0.1)
    np.fill_diagonal(own[0], np.inf)
    for h in np.geomspace(0.05, 2, 10):
        for share in (0.01, 0.03, 0.1, 0.2, 0.4, 0.7):
            best = max(best, (logsumexp(logs(own, h, share), axis=1).mean(), h, share))
    return logsumexp(logs(apart(at, at_codes), *best[1:]), axis=1) - np.log(len(x))


def mixed_mixture(x: Array, codes: Array, at: Array, at_codes: Array) -> Array:
    """Return log-densities of a Gaussian mixture by BIC, with categories of each component."""
    fits = [
        GaussianMixture(parts, covariance_type=kind, random_state=0, reg_covar=1e-3).fit(x)
        for kind in ("full", "diag")
        for parts in range(1, min(6, len(x) // 8) + 1)
    ]
    fit = min(fits, key=lambda each: each.bic(x))
    shares = fit.predict_proba(x)
    logs = fit._estimate_weighted_log_prob(at)
    for column in range(codes.shape[1]):
        values = codes[:, column].max() + 1
        table = shares.T @ np.eye(values + 1)[codes[:, column]] + 1 / (values + 1)
        table /= table.sum(1, keepdims=True)
        logs = logs + np.log(table[:, np.minimum(at_codes[:, column], values)]).T
    return logsumexp(logs, axis=1)


def density(model: str, n: int, most: int, seed: int) -> list[Row]:
    reader, losses = pretrained(model), []
    for name, _, frame, size in draw("density", n, most, seed):
        rng = np.random.default_rng([seed, n, len(name)])
        frame = filled(frame, rng)
        numbers = [c for c in frame if frame[c].dtype != object and frame[c][:size].std() > 0]
        frame = frame[numbers + [c for c in frame if frame[c].dtype == object]]
        x = frame[numbers].to_numpy()
        x = np.clip((x - x[:size].mean(0)) / x[:size].std(0), -30, 30)
        frame = frame.assign(**{c: x[:, k] for k, c in enumerate(numbers)})
        if not numbers or frame.shape[1] > 64:
            continue
        codes = np.zeros((len(frame), 0), int)
        for column in frame.columns[len(numbers) :]:
            values = {v: k for k, v in enumerate(frame[column].iloc[:size].unique())}
            code = frame[column].map(values).fillna(len(values)).astype(int).to_numpy()
            codes = np.column_stack([codes, code])
        given = x[:size], codes[:size], x[size:], codes[size:]
        found = {"kernels": -mixed_kernels(*given).mean(), "mixture": -mixed_mixture(*given).mean()}
        found["tables"] = -reader.condition(frame.iloc[:size]).log_prob(frame.iloc[size:]).mean()
        losses.append({name: value / frame.shape[1] for name, value in found.items()})
    first = np.mean([min(each, key=each.get) == "tables" for each in losses])
    title = f"density of mixed tables, {len(losses)} tables, n = {n}: nats a cell"
    return [_ranked(title, losses) | {"tables is best on": f"{100 * first:.0f} %"}]


def chained(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table filled by ridge regressions in turn, on indicators of categories."""
    text = [name for name in frame if is_object_dtype(frame[name])]
    wide = pd.get_dummies(frame, columns=text, prefix_sep="\0", dtype=float)
    for name in text:
        wide.loc[frame[name].isna(), [c for c in wide if str(c).startswith(f"{name}\0")]] = np.nan
    full = IterativeImputer(random_state=0).set_output(transform="pandas").fit_transform(wide)
    found = full[[name for name in frame if name not in text]].copy()
    for name in text:
        flags = full[[c for c in wide if str(c).startswith(f"{name}\0")]]
        found[name] = flags.idxmax(axis=1).str.split("\0").str[1]
    return found


def gaps(model: str, n: int, most: int, seed: int) -> list[Row]:
    """Return errors at a tenth of the cells, hidden at random, beside those of other methods."""
    found = []
    for name, _, frame, size in draw("density", n, most, seed):
        frame = frame.iloc[:size].reset_index(drop=True)
        rng = np.random.default_rng([seed, n, len(name)])
        known = frame.mask(rng.random(frame.shape) < 0.1)
        known = known[[c for c in known if known[c].nunique() > 1]]
        row: Row = {}
        ours = pretrained(model).condition(known).fill(known)
        theirs = pd.DataFrame(MemoryImputer().fit_transform(known), columns=known.columns)
        methods = {"tables": ours, "MemoryImputer": theirs, "chains": chained(known)}
        for method, full in methods.items():
            numbers, wrong = [], []
            for c in known:
                hidden = known[c].isna() & frame[c].notna()
                if not hidden.any():
                    continue
                value, truth = full.loc[hidden, c], frame.loc[hidden, c]
                if is_object_dtype(frame[c]):
                    wrong += list(value.astype(str) != truth)
                else:
                    numbers.append(np.sqrt(np.mean((value - truth) ** 2)) / frame[c].std())
            row |= {f"{method}: RMSE": np.mean(numbers)}
            row |= {f"{method}: wrong categories": np.mean(wrong)} if wrong else {}
        found.append(row)
    means = pd.DataFrame(found).mean()
    title = f"gaps, {len(found)} tables, n = {n}"
    return [{"table": title} | {name: f"{value:.3f}" for name, value in means.items()}]


def dimensions(model: str, repeats: int = 3) -> list[Row]:
    """Return errors of log-densities and scores on mixtures of four round Gaussians."""
    reader, rows = pretrained(model), []
    for D in (8, 16, 32):
        errors = []
        for repeat in range(repeats):
            rng = np.random.default_rng([D, repeat])
            means, widths = 2 * rng.normal(size=(4, D)), rng.uniform(0.5, 1.5, 4)
            weights = rng.dirichlet(np.full(4, 5.0))
            label = rng.choice(4, 1200, p=weights)
            x = means[label] + widths[label, None] * rng.normal(size=(1200, D))
            truth = StudentMixture(means, widths, log_weights=np.log(weights))
            context, rest = x[:1000], x[1000:]
            squares = cdist(context, context, "sqeuclidean") + np.diag(np.full(1000, np.inf))
            grid = np.geomspace(0.1, 3, 30)
            left_out = [logsumexp(-squares / (2 * h * h), axis=1).mean() - D * np.log(h)
                        for h in grid]  # fmt: skip
            kernels = GaussianKDE(context, grid[np.argmax(left_out)])
            for energy in (kernels, reader.condition(context)):
                away = np.abs(energy.log_prob(rest) - truth.log_prob(rest)).mean() / D
                force = energy.score(rest) * float(energy.inverse_temperature)
                errors.append((away, np.square(force - truth.score(rest)).mean()))
        (a, b), (c, d) = (np.mean(errors[first::2], 0) for first in (0, 1))
        shown = {"log-density: kernels": a, "tables": c, "ratio": a / c}
        shown |= {"score: kernels": b, "tables ": d, "ratio ": b / d}
        rows.append({"table": "mixtures of four Gaussians, 1,000 rows", "D": D}
                    | {name: f"{value:.3f}" for name, value in shown.items()})  # fmt: skip
    return rows


def speed(model: str) -> list[Row]:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(500, 8))).add_prefix("x")
    for column in range(4):
        frame[f"c{column}"] = rng.choice(list("abcde"), 500)
    reader = pretrained(model)
    table, rows = reader.condition(frame), frame.sample(10_000, replace=True, random_state=0)
    return [{
        "table": "CPU seconds on one thread, 500 rows of 8 numbers and 4 categories",
        "condition": f"{cpu_seconds(lambda: reader.condition(frame), 3):.2f}",
        "10,000 log_prob": f"{cpu_seconds(lambda: table.log_prob(rows), 3):.2f}",
        "300 rows, 9 quantiles":
            f"{cpu_seconds(lambda: table.quantile('x0', LEVELS, rows[:300]), 1):.2f}",
    }]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tables", help="a name, or the folder of a model")
    parser.add_argument("--sizes", default="32,64,256,1024")
    parser.add_argument("--tables", type=int, default=24, help="the most of each kind")
    parser.add_argument("--jobs", default="classification,density,regression,gaps,dimensions,speed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path, default=Path("report/ask_a_table.json"))
    parser.add_argument("--write", action="store_true", help="write the tables into RESULTS.md")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    jobs = {
        "classification": classification, "density": density, "regression": regression, "gaps": gaps
    }  # fmt: skip
    start = time.process_time()
    arguments.cache.parent.mkdir(parents=True, exist_ok=True)
    done = json.loads(arguments.cache.read_text()) if arguments.cache.exists() else {}
    for n in map(int, arguments.sizes.split(",")):
        for job in (jobs.keys() & arguments.jobs.split(",")) - done.get(str(n), {}).keys():
            found = jobs[job](arguments.model, n, arguments.tables, arguments.seed)
            done.setdefault(str(n), {})[job] = found
            arguments.cache.write_text(json.dumps(done))
            print(f"{job}, n = {n}: {time.process_time() - start:.0f} CPU seconds", flush=True)
    rows = [row for job in jobs for each in done.values() for row in each.get(job, ())]
    rows += dimensions(arguments.model) if "dimensions" in arguments.jobs else []
    rows += speed(arguments.model) if "speed" in arguments.jobs else []
    print_rows(rows)
    if arguments.write:
        write_rows("ask_a_table", rows)


if __name__ == "__main__":
    main()
