"""Densities and draws of tables: shaped kernels against round ones and a Gaussian mixture.

Each table, of at most 3,000 rows in standard units, is split into 70 % to learn from and 30 % to
score, three times. Printed are the mean log-density of the held-out rows in nats, and the AUC of
a random forest that tells as many draws from held-out rows (0.5: it cannot). Tables with up to 20
columns are drawn. The mixture has the number of full or diagonal components, up to ten, with the
lowest BIC. Choices were made on the development half.

    python benchmarks/density.py [--out TABLE.md]
"""

from __future__ import annotations

import argparse
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata
from sklearn import datasets as shipped
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import roc_auc_score
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import cross_val_predict

import isthmus as ist
from isthmus.bandwidth import choose
from isthmus.datasets import load
from isthmus.synthesis import draw_rows

DEVELOPMENT = (
    "iris",
    "wine",
    "ecoli",
    "image_segmentation",
    "wisconsin_breast_cancer",
    "diabetes",
    "boston_housing",
    "libras_movement",
)
REPORTED = ("forest_covertype", "kdd_cup", "digits")
METHODS = ("round", "auto", "scott", "GMM-BIC")
SEEDS, ROWS, MOST_COMPONENTS, MOST_DRAWN_COLUMNS = 3, 3000, 10, 20
SHIPPED = {"diabetes": shipped.load_diabetes, "digits": shipped.load_digits}


def table(name: str, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return rows to learn from and rows to score, in standard units of the first."""
    X = SHIPPED[name]().data if name in SHIPPED else load(name).X
    order = np.random.default_rng(seed).permutation(len(X))[:ROWS]
    X, cut = np.asarray(X[order], dtype=float), int(0.7 * len(order))
    spread = X[:cut].std(0)
    X = (X[:, spread > 0] - X[:cut].mean(0)[spread > 0]) / spread[spread > 0]
    return X[:cut], X[cut:]


def mixture(X: np.ndarray) -> GaussianMixture:
    """Return the mixture with the lowest BIC."""
    fits = []
    for count in range(1, MOST_COMPONENTS + 1):
        for kind in ("full", "diag"):
            try:
                fits.append(GaussianMixture(count, covariance_type=kind, random_state=0).fit(X))
            except ValueError:
                continue
    return min(fits, key=lambda fit: fit.bic(X))


def densities(X: np.ndarray, rest: np.ndarray) -> dict[str, float]:
    """Return the mean log-density of held-out rows under each method."""
    fits: dict[str, Any] = {
        "round": lambda: ist.GaussianKDE(X, choose(X, "round")).log_prob(rest).mean(),
        "auto": lambda: ist.GaussianKDE(X, "auto").log_prob(rest).mean(),
        "scott": lambda: ist.GaussianKDE(X, "scott").log_prob(rest).mean(),
        "GMM-BIC": lambda: mixture(X).score(rest),
    }
    found = {}
    for name, fit in fits.items():
        try:
            found[name] = float(fit())
        except ist.errors.IsthmusError:  # the covariance is singular
            found[name] = -np.inf
    return found


def auc(rest: np.ndarray, drawn: np.ndarray) -> float:
    """Return how well a forest tells draws from rows."""
    both, truth = np.concatenate([rest, drawn]), np.arange(2 * len(rest)) >= len(rest)
    order = np.random.default_rng(0).permutation(len(both))
    forest = RandomForestClassifier(200, min_samples_leaf=2, random_state=0)
    shares = cross_val_predict(forest, both[order], truth[order], cv=5, method="predict_proba")
    return float(roc_auc_score(truth[order], shares[:, 1]))


def draws(X: np.ndarray, rest: np.ndarray) -> dict[str, float]:
    """Return the AUC of draws of each method, and the ratio of distances of ours."""
    n, plain = len(rest), ist.GaussianKDE(X, choose(X, "round"))
    ours = draw_rows(pd.DataFrame(X), n, check=True)
    return {
        "round": auc(rest, plain.sample(n)),
        "draw_rows": auc(rest, ours.rows.to_numpy()),
        "GMM-BIC": auc(rest, mixture(X).sample(n)[0]),
        "distance ratio": ours.distance_ratio or np.nan,
        "copies": ours.copies,
    }


def main() -> None:
    """Run and print Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sets", nargs="*")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    lines: list[str] = []
    for title, names in (("Development", DEVELOPMENT), ("Reported", REPORTED)):
        chosen = [name for name in names if not arguments.sets or name in arguments.sets]
        lines += _half(title, chosen)
    text = "\n".join(lines)
    print(text)
    if arguments.out:
        arguments.out.write_text(text + "\n", encoding="utf-8")


def _half(title: str, names: list[str]) -> list[str]:
    heads = ("set", "columns", *METHODS, "AUC round", "AUC draw_rows", "AUC GMM-BIC", "distance")
    lines = [f"**{title} half**", "", f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    ranks, aucs = [], []
    for name in names:
        start = time.process_time()
        runs = [densities(*table(name, seed)) for seed in range(SEEDS)]
        ranks += [rankdata([-run[method] for method in METHODS]) for run in runs]
        mean = {method: np.mean([run[method] for run in runs]) for method in METHODS}
        dim = table(name, 0)[0].shape[1]
        cells = [name, str(dim), *(f"{mean[method]:.2f}" for method in METHODS)]
        if dim <= MOST_DRAWN_COLUMNS:
            drawn = draws(*table(name, 0))
            aucs.append([drawn["round"], drawn["draw_rows"], drawn["GMM-BIC"]])
            cells += [*(f"{each:.2f}" for each in aucs[-1]), f"{drawn['distance ratio']:.2f}"]
        else:
            cells += [""] * 4
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], f"{time.process_time() - start:.0f} s", flush=True)
    if ranks:
        cells = ["mean rank, mean AUC", "", *(f"{rank:.2f}" for rank in np.mean(ranks, 0))]
        cells += [f"{each:.2f}" for each in np.mean(aucs, 0)] if aucs else [""] * 3
        lines.append(f"| {' | '.join([*cells, ''])} |")
    return [*lines, ""]


if __name__ == "__main__":
    main()
