"""The global random streams of torch, numpy and the standard library are the user's alone."""

import random

import numpy as np
import pandas as pd
import pytest
import torch

import isthmus as ist
from isthmus.capacity import certify
from isthmus.cluster import ClAM, ClAMCRP, TableModel
from isthmus.impute import MemoryImputer, fill_gaps
from isthmus.incontext import (
    ICLEBMConfig,
    TableConfig,
    TableDensity,
    TableTraining,
    TrainingSettings,
    evaluate,
    pretrained,
    score_rows,
    train,
    train_tables,
)
from isthmus.incontext.priors import prior
from isthmus.synthesis import draw_rows

X = np.random.default_rng(0).normal(size=(40, 3))
GAPS = np.where(np.random.default_rng(1).random(X.shape) < 0.1, np.nan, X)
KDE = ist.GaussianKDE(X, 0.5)
FRAME = pd.DataFrame(X, columns=[*"abc"]).assign(kind=["x", "y"] * 20)
TINY = TrainingSettings(
    model=ICLEBMConfig(layers=1, heads=1, width=4, box=5.5), updates=1, batch=2, length=4
)
SMALL = TableTraining(
    model=TableConfig(width=8, cell_width=4, layers=1, heads=2), updates=1, context_rows=16,
    tables=2, rows=4, size_high=8,
)  # fmt: skip

CALLS = {
    "pretrained": lambda: pretrained("tables") and pretrained(),
    "TableDensity": lambda: TableDensity().fit(X).sample(3, random_state=0),
    "fill_gaps tables": lambda: fill_gaps(GAPS, energy="tables"),
    "fill_gaps crp": lambda: fill_gaps(GAPS, energy="crp"),
    "fill_gaps": lambda: fill_gaps(GAPS),
    "score_rows": lambda: score_rows(X),
    "draw_rows tables": lambda: draw_rows(X, 5, model="tables"),
    "draw_rows kernel": lambda: draw_rows(FRAME, 5),
    "MemoryImputer": lambda: MemoryImputer().fit(GAPS).draw(GAPS, 2),
    "train": lambda: train(TINY),
    "train_tables": lambda: train_tables(SMALL),
    "evaluate": lambda: evaluate(
        pretrained(), prior("compact"), contexts=(2,), tasks=2, points=4, probes=0, references=()
    ),
    "TableModel": lambda: TableModel.fit(X),
    "ClAM": lambda: ClAM(2, random_state=0).fit(X),
    "ClAMCRP": lambda: ClAMCRP(random_state=0).fit(X),
    "sample": lambda: ist.sample(KDE, 4, burn_in=2),
    "retrieve": lambda: ist.retrieve(KDE, X[:2]),
    "certify": lambda: certify(X, 0.5),
    "GaussianKDE": lambda: ist.GaussianKDE(X, "auto"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CALLS)
def test_calls_leave_the_global_streams_alone(name: str) -> None:
    state = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    CALLS[name]()
    assert torch.equal(torch.get_rng_state(), state[0])
    assert np.array_equal(np.random.get_state()[1], state[1])  # noqa: NPY002
    assert random.getstate() == state[2]
