"""Ablations of the table model: trained without one part of it, or of its training.

    ISTHMUS_DATA=path/to/npz/files python benchmarks/tables_trained.py --out runs/ablations

Every variant is trained for the same number of updates (`--updates`) with a third of the tables of
each, far less than the shipped model, and judged on the smooth tasks of tables_incontext.py and on
synthetic tables. Runs are kept in the folder `--out`, and continue there.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from measuring import Row, print_rows
from tables_studies import tasks

from isthmus.incontext.tables import features, network, prior
from isthmus.incontext.tables.training import TableTraining, train_tables

Variant = tuple[dict[str, Any], Callable[[], AbstractContextManager[Any]]]
COLUMNS, SIZES = (1, 2, 4, 8), (16, 64, 256)


def _without(module: Any, name: str) -> Callable[[], AbstractContextManager[Any]]:
    """Let a function return zeros."""
    kept = getattr(module, name)

    def zeros(*arguments: Any) -> Any:
        found = kept(*arguments)
        return tuple(map(torch.zeros_like, found)) if isinstance(found, tuple) else 0 * found

    return lambda: patch.object(module, name, zeros)


MIXTURES = {name: float(name == "mixture") for name in prior.FAMILIES}
VARIANTS: dict[str, Variant] = {
    "all parts": ({}, nullcontext),
    "all parts, another seed": ({"seed": 1}, nullcontext),
    "one transformer block": ({"model": {"layers": 1}}, nullcontext),
    "one kernel a row": ({"model": {"kernels": 1}}, nullcontext),
    "four kernels a row": ({"model": {"kernels": 4}}, nullcontext),
    "without leave-one-out densities": ({}, _without(features, "left_out_densities")),
    "without statistics of neighbours": ({}, _without(network, "neighbourhood")),
    "features of one sign only": ({}, lambda: patch.object(network, "ODD", 0)),
    "contexts of at most 256 rows": ({"size_high": 256}, nullcontext),
    "mixtures as the only prior": ({}, lambda: patch.object(prior, "SHARES", MIXTURES)),
    "columns that are never warped": ({}, lambda: patch.object(prior, "WARPED", (1.0, 0, 0, 0))),
}


def study(updates: int, out: Path, chosen: list[str]) -> list[Row]:
    """Return a row for each variant: the change of its scores, and of those by columns."""
    scores: dict[str, tuple[float, dict[int, list[float]]]] = {}
    for name in ["all parts", *(name for name in chosen if name != "all parts")]:
        changes, patched = VARIANTS[name]
        changes = {**changes, "updates": updates, "average": 0.99}
        model = replace(TableTraining().model, **changes.pop("model", {}))
        settings = replace(TableTraining().with_batch(13), model=model, **changes)
        with patched():
            trained, metrics = train_tables(settings, out / name.replace(" ", "-"))
            each: dict[int, list[float]] = {D: [] for D in COLUMNS}
            for D, X, test in tasks(COLUMNS, SIZES):
                each[D].append(-float(np.mean(trained.condition(X).log_prob(test))))
        scores[name] = float(metrics[-1]["held_out_nll"]), each
    held_out, whole = scores["all parts"]
    title = f"change of the negative log-density after {updates} updates (positive: worse)"
    return [
        {"table": title, "variant": name}
        | {f"D = {D}": _mean(np.subtract(each[D], whole[D])) for D in COLUMNS}
        | {"synthetic, a column": f"{synthetic - held_out:+.3f}"}
        for name, (synthetic, each) in scores.items()
    ]


def _mean(values: Any) -> str:
    return f"{np.mean(values):+.3f} ± {np.std(values) / np.sqrt(len(values)):.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--updates", type=int, default=500)
    parser.add_argument("--out", type=Path, required=True, help="the folder of the runs")
    parser.add_argument("--only", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print_rows(study(arguments.updates, arguments.out, arguments.only))


if __name__ == "__main__":
    main()
