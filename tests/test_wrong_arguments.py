"""Arguments of another kind, at every place where they enter: an error that names the argument."""

import numpy as np
import pandas as pd
import pytest
import torch

import isthmus as ist
from isthmus import attention, capacity, datasets, distributed, incontext, nn, normalizer, tables
from isthmus.bandwidth import choose, left_out_log_density
from isthmus.checks import check_energy
from isthmus.cluster import ClAM, TableModel, elbo_energy, elbo_flow, refit_agreement
from isthmus.errors import InvalidInputError, IsthmusError
from isthmus.impute import fill_gaps
from isthmus.study import critical_difference, friedman, holm, pairwise
from isthmus.synthesis import draw_rows

X = np.random.default_rng(0).normal(size=(12, 2))
KDE = ist.GaussianKDE(X, 1.0)
WRONG = {
    "columns must be a sequence": lambda: fill_gaps(X, columns=3),
    "columns has 3 names": lambda: TableModel.fit(X, columns=["a", "b", "c"]),
    "model must be of TableModel": lambda: fill_gaps(X, model=KDE),
    "words must be of DataFrame": lambda: fill_gaps(X, words=X),
    "words has 3 rows": lambda: fill_gaps(X, words=pd.DataFrame({"w": ["a", "b", "c"]})),
    "standardise must be": lambda: fill_gaps(X, standardise=X),
    "seed must be": lambda: fill_gaps(X, seed="0"),
    "leave_out_constants must": lambda: TableModel.fit(X, leave_out_constants=X),
    r"ids must be \(12,\)": lambda: TableModel.fit(X, method="crp").describe(X, ids=[1, 2]),
    "step_size, burn_in": lambda: TableModel.fit(X, method="kde").sample(2, chains=X),
    "table must be a data frame": lambda: draw_rows(3.0),
    "sigma must be a finite": lambda: draw_rows(X, sigma=X),
    "seed must be a whole": lambda: draw_rows(X, seed=0.5),
    "neither numbers nor categories": lambda: draw_rows(
        pd.DataFrame({"a": X[:, 0], "b": [[1]] * 12}), check=False
    ),
    "model must be of ICLTables": lambda: incontext.score_rows(X, model="mixtures-2d"),
    "model must be of": lambda: incontext.fill_rows(X, model=3),
    "name must be a path": lambda: incontext.pretrained(3),
    "path must be a path": lambda: tables.read_table(3),
    "path must be": lambda: ist.load(b"x"),
    "path must": lambda: ist.save(KDE, 3),
    "id must be of str": lambda: tables.read_table("x.csv", id=1),
    "drop must be a sequence": lambda: tables.read_table("x.csv", drop="a"),
    "missing must be": lambda: tables.read_table("x.csv", missing=X),
    "data must be a table": lambda: tables.write_table(3, "x.csv"),
    "like must be of FileFormat": lambda: tables.write_table({"a": [1]}, "x.csv", like=3),
    "data_home must be": lambda: datasets.load("iris", 3, download_if_missing=False),
    "logits .* must end alike": lambda: elbo_energy(torch.zeros(2, 3), torch.zeros(4)),
    "log_joint holds": lambda: elbo_flow("x"),
    "start must be": lambda: elbo_flow(torch.zeros(2, 3), "mirror", start=torch.zeros(3)),
    "estimator must be a clusterer": lambda: refit_agreement(3, X),
    "X must be a table": lambda: refit_agreement(ClAM(2), X[0]),
    "batch_first must be": lambda: attention.SALNAttention(4, 2, batch_first=X),
    "mixture must be of VMFMixture": lambda: attention.entanglement(X),
    "association_mask must be": lambda: nn.HopfieldLayer(4)(torch.zeros(2, 4), None, [True]),
    "need_weights must be": lambda: nn.HopfieldLayer(4)(torch.zeros(2, 4), need_weights=X),
    "x must be of Tensor": lambda: nn.HopfieldLayer(4)(X),
    "beta must be a number, or": lambda: nn.Hopfield(4, beta=10**400),
    "shard takes one of": lambda: distributed.shard(X, X),
    "client is not connected": lambda: distributed.shard(ist.GaussianKDE, X, client=3),
    "scores must hold numbers": lambda: friedman([["a", "b"]]),
    "p_values must be a list": lambda: holm(0.5),
    "margin must be": lambda: pairwise(X, ["a", "b"], margin="x"),
    "methods must be": lambda: critical_difference("x", 5),
    "trace must be": lambda: ist.retrieve(KDE, X, trace=X),
    "levels must be": lambda: ist.noise_schedule(3.0, 1.0, levels=10**15),
    "energy must be of Energy": lambda: ist.widen(X, 1.0),
    "energy must be of": lambda: normalizer.log_normalizer(X, half_width=1.0),
    "energy must be": lambda: check_energy(X),
    "dim must be": lambda: normalizer.Grid(X, 1.0, 9),
    "metric must be one of": lambda: ist.attend(X, X, metric=X),
    "memories is empty": lambda: ist.attend.Index(np.zeros((4, 0))),
    "sigma must be": lambda: left_out_log_density(X, "x"),
    "X has values of": lambda: left_out_log_density(X * 1e300, 1.0),
    "seed must": lambda: choose(X, seed=X),
    "tol must be a finite number above 0": lambda: capacity.merge_tree(X, tol=-1),
    "tol must be": lambda: capacity.basins(X, tol="x"),
    r"starts must be points \(n, 2\)": lambda: capacity.basins(X, starts=X[None]),
    "iterate must be": lambda: capacity.choose_sigma(X, iterate=3),
    "noise must be": lambda: capacity.certify(X, noise=X),
    "stored must be": lambda: capacity.choose_sigma(X, "x"),
    "dims must be a list": lambda: capacity.sweep(3, [3]),
    "counts must be": lambda: capacity.sweep([3], ["x"]),
    "lambert must be": lambda: capacity.random_pattern_capacity(20, lambert=X),
}


@pytest.mark.parametrize("words", WRONG)
def test_the_argument_is_named(words: str) -> None:
    with pytest.raises(IsthmusError, match=words):
        WRONG[words]()


def test_directions_of_any_concentration_are_drawn() -> None:
    drawn = ist.VonMisesFisherMixture(torch.tensor([[0.6, 0.8]]).double(), 1e308).sample(5)
    torch.testing.assert_close(drawn, torch.tensor([[0.6, 0.8]]).double().expand(5, 2))


def test_sparse_weights_that_overflow_are_an_error() -> None:
    with pytest.raises(InvalidInputError, match="beyond the range of float64"):
        ist.SparseHopfield(X, beta=1e308).responsibilities(9 * X)
