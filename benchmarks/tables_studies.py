"""Smaller studies of pretrained("tables"): clusters, draws, ablations, a flow.

    ISTHMUS_DATA=path/to/npz/files python benchmarks/tables_studies.py clusters draws ablation flow

clusters: basins of the density of a table, beside BasinFlow and the known classes.
draws: how well a random forest tells draws from rows kept apart (AUC; 0.5: it cannot).
ablation: what each part of the trained model is worth on smooth tasks of tables_incontext.py. Parts
    are taken from the trained model or its densities; nothing is trained again.
flow: a neural spline flow on such tasks; it needs zuko, and is left out without it.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable, Iterator
from itertools import product

import numpy as np
import pandas as pd
import torch
from measuring import Row, print_rows, timed
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_diabetes, load_iris, load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import adjusted_rand_score, roc_auc_score
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import cross_val_predict
from tables_incontext import is_smooth, student, tables

import isthmus as ist
from isthmus.capacity import basins
from isthmus.cluster import BasinFlow
from isthmus.datasets import load
from isthmus.incontext import ICLTables, pretrained
from isthmus.incontext.tables import network
from isthmus.synthesis import draw_rows

Array = NDArray[np.float64]
Density = Callable[[Array, Array], Array]


def clusters(model: ICLTables) -> list[Row]:
    """Return the number of clusters, and their agreement with the classes, on small tables."""
    chosen = {
        "iris, 4 columns": load_iris(),
        "iris, petals": load_iris(),
        "wine, 13 columns": load_wine(),
        "wine, 3 columns": load_wine(),
    }
    columns = {"iris, petals": [2, 3], "wine, 3 columns": [6, 9, 12]}
    blobs = np.random.default_rng(0).normal(size=(150, 2)) + np.repeat(6 * np.eye(3)[:, :2], 50, 0)
    sets = {
        name: (data.data[:, columns.get(name, slice(None))], data.target)
        for name, data in chosen.items()
    }
    sets["three blobs"] = blobs, np.repeat(np.arange(3), 50)
    rows = []
    for name, (X, target) in sets.items():
        found = basins(model.condition(X), starts=X, tol=1e-4)
        flow = BasinFlow(random_state=0).fit(X)
        rows.append({
            "table": "clusters of small tables", "data": name, "classes": len(set(target)),
            "basins": found.n_basins,
            "with 5 rows or more": int((np.bincount(found.labels) >= 5).sum()),
            "ARI": f"{adjusted_rand_score(target, found.labels):.2f}",
            "BasinFlow": flow.n_clusters_,
            "ARI of BasinFlow": f"{adjusted_rand_score(target, flow.labels_):.2f}",
        })  # fmt: skip
    return rows


def auc(rest: Array, drawn: Array) -> float:
    """Return how well a forest tells draws from rows."""
    both, truth = np.concatenate([rest, drawn]), np.arange(2 * len(rest)) >= len(rest)
    order = np.random.default_rng(0).permutation(len(both))
    forest = RandomForestClassifier(100, min_samples_leaf=2, random_state=0)
    shares = cross_val_predict(forest, both[order], truth[order], cv=5, method="predict_proba")
    return float(roc_auc_score(truth[order], shares[:, 1]))


def mixture_by_bic(X: Array) -> GaussianMixture:
    fits = [GaussianMixture(parts, random_state=0).fit(X) for parts in range(1, 6)]
    return min(fits, key=lambda fit: fit.bic(X))


def draws(splits: int = 2) -> list[Row]:
    """Return the AUC of a forest for draws of each method, on tables of up to 13 columns."""
    sets = {
        "iris": load_iris().data,
        "wine": load_wine().data,
        "breast cancer, 10 columns": load_breast_cancer().data[:, :10],
        "diabetes": load_diabetes().data,
        "ecoli": np.asarray(load("ecoli").X, dtype=float),
        "boston_housing": np.asarray(load("boston_housing").X, dtype=float),
    }
    rows, total = [], []
    for name, X in sets.items():
        found = []
        for split in range(splits):
            order = np.random.default_rng(split).permutation(len(X))
            learned, rest = np.split(X[order], [int(0.7 * len(X))])
            n, frame, unit = len(rest), pd.DataFrame(learned), learned.std(0) + 1e-12
            by = {how: draw_rows(frame, n, model=how, check=False) for how in ("tables", "kernel")}
            plain = np.asarray(ist.GaussianKDE(learned / unit, "auto").sample(n, seed=0)) * unit
            fitted = mixture_by_bic(learned / unit)
            drawn = (by["tables"].rows, by["kernel"].rows, plain, fitted.sample(n)[0] * unit)
            found.append([auc(rest, np.asarray(each)) for each in drawn])
        total.append(np.mean(found, 0))
        rows.append(_aucs(name, total[-1]))
    return [*rows, _aucs("mean", np.mean(total, 0))]


def _aucs(name: str, found: Array) -> Row:
    heads = ("draw_rows, tables", "draw_rows, kernel", "KDE", "GMM by BIC")
    title = "AUC of a forest that tells draws from rows kept apart"
    return {"table": title, "data": name} | {
        head: f"{value:.2f}" for head, value in zip(heads, found, strict=True)
    }


def tasks(
    columns: tuple[int, ...], sizes: tuple[int, ...], smooth: bool = True
) -> Iterator[tuple[int, Array, Array]]:
    """Yield the number of columns, context rows and test rows of smooth tasks, or of spiky ones."""
    for name, X in tables(np.random.default_rng(0)).items():
        for D, n in product(columns, sizes):
            if X.shape[1] < D or len(X) < n + 50:
                continue
            rng = np.random.default_rng([0, len(name), ord(name[0]), D, n, 0])
            chosen = X[:, rng.choice(X.shape[1], D, replace=False)]
            chosen = chosen[rng.permutation(len(chosen))[: n + 300]]
            if (chosen[:n].std(0) < 1e-3 * chosen.std(0)).any() or is_smooth(chosen) != smooth:
                continue
            chosen = (chosen - chosen[:n].mean(0)) / chosen[:n].std(0)
            yield D, chosen[:n], chosen[n:]


def ablation(model: ICLTables) -> list[Row]:
    """Return the mean change of the score in nats a row, without or with one thing."""

    def changed(change: Callable[[ist.StudentMixture, int], ist.StudentMixture]) -> Density:
        return lambda X, rows: _log_prob(change(model.condition(X), len(X)), rows)

    def part(density: ist.StudentMixture, keep: object) -> ist.StudentMixture:
        kept = (density.means, density.scale_trils, density.dof, density.log_weights)
        return ist.StudentMixture(*(each[keep] for each in kept))

    def one_sign(X: Array, rows: Array) -> Array:
        odd, network.ODD = network.ODD, 0
        try:
            return _log_prob(model.condition(X), rows)
        finally:
            network.ODD = odd

    def halves(X: Array, rows: Array) -> Array:
        both = [_log_prob(model.condition(half), rows) for half in (X[::2], X[1::2])]
        return np.logaddexp(*both) - np.log(2)

    def principal(X: Array, rows: Array) -> Array:
        axes = np.linalg.eigh(np.corrcoef(X.T))[1]
        bases = (np.eye(len(axes)), axes)
        own, turned = (_log_prob(model.condition(X @ basis), rows @ basis) for basis in bases)
        return np.logaddexp(own, turned) - np.log(2)

    def with_student(X: Array, rows: Array) -> Array:
        own = _log_prob(model.condition(X), rows)
        return np.logaddexp(own + np.log(0.9), student(X, rows) + np.log(0.1))

    def axes_alone(density: ist.StudentMixture, n: int) -> ist.StudentMixture:
        covariance = density.scale_trils @ density.scale_trils.mT
        widths = covariance.diagonal(dim1=1, dim2=2).sqrt()
        return ist.StudentMixture(density.means, widths, density.dof, density.log_weights)

    def gaussian(density: ist.StudentMixture, n: int) -> ist.StudentMixture:
        return ist.StudentMixture(density.means, density.scale_trils, 1e4, density.log_weights)

    kernels = model.config.kernels
    variants: dict[str, Density] = {
        "features of one sign only": one_sign,
        "without the components of the whole table":
            changed(lambda d, n: part(d, slice(0, kernels * n))),
        **{f"kernel {k + 1} of each row alone, and the whole table":
            changed(lambda d, n, k=k: part(d, _of_kernel(k, n, kernels, d.n_memories)))
           for k in range(kernels)},
        "kernels without correlations": changed(axes_alone),
        "Gaussian in place of Student kernels": changed(gaussian),
        "the average over two halves of the context": halves,
        "the average with principal components": principal,
        "a tenth of the NIW Student-t added": with_student,
    }  # fmt: skip
    changes: dict[tuple[str, int], list[float]] = {}
    for D, X, test in tasks((2, 4), (16, 64)):
        base = _log_prob(model.condition(X), test).mean()
        for name, density in variants.items():
            changes.setdefault((name, D), []).append(base - density(X, test).mean())
    title = "change of the negative log-density, nats a row (positive: worse)"
    rows = []
    for name in variants:
        means = {f"D = {D}": _mean(changes[name, D]) for D in (2, 4)}
        rows.append({"table": title, "variant": name, **means})
    return rows


def _of_kernel(k: int, n: int, kernels: int, total: int) -> NDArray[np.int64]:
    """Return the indices of one kernel of each row, and of the components of the whole table."""
    return np.concatenate([np.arange(k * n, (k + 1) * n), np.arange(kernels * n, total)])


def _log_prob(density: ist.StudentMixture, rows: Array) -> Array:
    return np.asarray(density.log_prob(rows))


def _mean(values: list[float]) -> str:
    return f"{np.mean(values):+.3f} ± {np.std(values) / len(values) ** 0.5:.3f}"


def flow(model: ICLTables) -> list[Row]:
    """Return scores of a neural spline flow that stops early on a fifth of the context."""
    try:
        import zuko
    except ImportError:
        print("zuko is not installed: no flow")
        return []

    def fitted(X: Array, rows: Array) -> Array:
        torch.manual_seed(0)
        x, y = torch.from_numpy(X).float(), torch.from_numpy(rows).float()
        held, own = x[: len(x) // 5], x[len(x) // 5 :]
        made = zuko.flows.NSF(x.shape[1], transforms=2, hidden_features=(32, 32))
        optimizer = torch.optim.Adam(made.parameters(), lr=5e-3, weight_decay=1e-4)
        best, kept, patience = np.inf, {}, 0
        for _ in range(200):
            optimizer.zero_grad()
            (-made().log_prob(own).mean()).backward()
            optimizer.step()
            with torch.no_grad():
                score = float(-made().log_prob(held).mean())
            patience = 0 if score < best else patience + 1
            if score < best:
                best, kept = score, {k: v.clone() for k, v in made.state_dict().items()}
            if patience == 25:
                break
        made.load_state_dict(kept)
        with torch.no_grad():
            return made().log_prob(y).double().numpy()

    rows, title = [], "a neural spline flow on smooth tasks, nats a row"
    for D, n in ((2, 128), (4, 128)):
        ours, theirs, seconds = [], [], []
        for _, X, test in tasks((D,), (n,)):
            ours.append(-_log_prob(model.condition(X), test).mean())
            spent, found = timed(lambda X=X, test=test: fitted(X, test))
            theirs.append(-found.mean())
            seconds.append(spent)
        rows.append({"table": title, "D": D, "n": n, "tasks": len(ours), "flow":
                     f"{np.mean(theirs):.3f}", "tables": f"{np.mean(ours):.3f}", "difference":
                     _mean(list(np.subtract(ours, theirs))), "flow, CPU s":
                     f"{np.mean(seconds):.1f}"})  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = ("clusters", "draws", "ablation", "flow")
    parser.add_argument("studies", nargs="+", choices=names)
    parser.add_argument("--model", default="tables", help="a name, or the folder of a model")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    model, rows = pretrained(arguments.model), []
    for name in arguments.studies:
        rows += draws() if name == "draws" else globals()[name](model)
    print_rows(rows)


if __name__ == "__main__":
    main()
