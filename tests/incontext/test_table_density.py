"""What users do with the density of a table: an estimator, filled cells, and scores of rows."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import logsumexp
from scipy.stats import kstest, multivariate_normal
from sklearn.datasets import load_iris

from isthmus.incontext import TableDensity, pretrained, score_rows

IRIS = load_iris().data
RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)) @ np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 0.5]])
ROWS = np.array([[0.5, np.nan, 0.3], [1.0, 2.0, 3.0]])
PAIRS = RNG.normal(size=(60, 2)) @ [[2.0, 1.0], [0.0, 0.5]]


def test_it_is_the_pretrained_model():
    density = TableDensity().fit(IRIS)
    expected = pretrained("tables").condition(IRIS).log_prob(IRIS)
    np.testing.assert_allclose(density.score_samples(IRIS), expected)
    assert density.score(IRIS) == pytest.approx(expected.sum())
    drawn = density.sample(5, random_state=1)
    assert drawn.shape == (5, 4)
    np.testing.assert_array_equal(drawn, density.sample(5, random_state=1))
    assert not np.array_equal(drawn, density.sample(5, random_state=2))


def test_gaps_and_frames_with_categories_are_taken():
    density = TableDensity().fit(IRIS)
    rows = np.where(np.eye(3, 4), np.nan, IRIS[:3])
    part = density.energy_.marginal([1, 2, 3])
    assert density.score_samples(rows)[0] == pytest.approx(float(part.log_prob(rows[0, 1:])))
    kind = np.repeat(["cat", "emu"], 30)
    frame = pd.DataFrame({"kind": kind, "legs": np.where(kind == "emu", 2, 4), "x": RNG.random(60)})
    frame.loc[3, "kind"] = None
    density = TableDensity().fit(frame)
    assert np.isfinite(density.score_samples(frame)).all()
    assert density.predict("kind", {"legs": 2}).idxmax(axis=1).iloc[0] == "emu"
    assert (density.sample(4, 0, given={"kind": "emu"}).kind == "emu").all()
    assert TableDensity().fit(frame[["legs", "x"]]).predict("x", {"legs": 2}).shape == (1,)


def test_means_and_draws_are_those_of_the_conditional():
    density = TableDensity().fit(X)
    given = pretrained("tables").condition(X).conditional(ROWS[0])
    np.testing.assert_allclose(
        density.fill(ROWS), [[0.5, given.as_distribution().mean[0], 0.3], ROWS[1]]
    )
    drawn = density.sample(2000, 1, given={0: 0.5, 2: 0.3})
    assert (drawn[[0, 2]] == [0.5, 0.3]).all(axis=None)
    assert kstest(drawn[1], given.cdf).pvalue > 0.01


def test_scores_are_those_of_the_density():
    rows = RNG.normal(size=(5, 2))
    rows[4, 0] = np.nan
    found = score_rows(PAIRS, rows, draws=500, seed=3)
    density = pretrained("tables").condition(PAIRS)
    own = density.sample(500, seed=3)
    expected = density.log_prob(rows[:4])
    np.testing.assert_allclose(found.log_density[:4], expected)
    below = density.log_prob(own) < expected[:, None]
    np.testing.assert_allclose(found.percentile[:4], 100 * below.mean(1))
    alone = density.marginal([1])
    last = float(alone.log_prob(torch.tensor(rows[4, 1:])))
    assert found.log_density[4] == pytest.approx(last)
    below = alone.log_prob(own[:, 1:]) < last
    assert found.percentile[4] == pytest.approx(100 * below.mean())


def by_hand(table: np.ndarray, row: int) -> float:
    """The log-density of a row under kernels on the others, by scipy."""
    Z = (table - table.mean(0)) / table.std(0)
    count, dim = Z.shape
    apart = np.sort(np.linalg.norm(Z[:, None] - Z, axis=2), 1)[:, int(np.ceil(np.sqrt(count)))]
    others = [
        multivariate_normal.logpdf(Z[row], Z[j], apart[j] ** 2 / dim)
        for j in range(count)
        if j != row
    ]
    return logsumexp(others) - np.log(count - 1) - np.log(table.std(0)).sum()


def test_a_row_does_not_explain_itself():
    far = np.concatenate([PAIRS, [[30.0, -30.0]]])
    found = score_rows(far)
    assert found.outlier[-1]
    assert found.outlier[:-1].sum() <= 3
    for row in (0, 7, 60):
        assert found.log_density[row] == pytest.approx(by_hand(far, row))


def test_outliers_in_a_tight_group_do_not_hide_each_other():
    rng = np.random.default_rng(2)
    bulk, group = rng.normal(size=(400, 5)), 6 + 0.01 * rng.normal(size=(8, 5))
    found = score_rows(np.concatenate([bulk, group]))
    assert found.outlier[400:].all()
    assert found.outlier[:400].mean() <= 0.02


@pytest.mark.parametrize("count", [100, 400])
def test_the_share_of_flagged_rows_is_the_level(count):
    rng = np.random.default_rng(1)
    laws = {
        "normal": lambda n: rng.normal(size=(n, 3)) @ rng.normal(size=(3, 3)),
        "lognormal": lambda n: np.exp(rng.normal(size=(n, 2))),
        "student": lambda n: rng.standard_t(3, size=(n, 20)),
        "uniform": lambda n: rng.random((n, 4)),
    }
    for law, draw in laws.items():
        shares = [score_rows(draw(count)).outlier.mean() for _ in range(4000 // count)]
        assert abs(np.mean(shares) - 0.01) < 0.01, law
    tables = [rng.normal(size=(2, count, 20)) for _ in range(4000 // count)]
    shares = [score_rows(table, rows).outlier.mean() for table, rows in tables]
    assert abs(np.mean(shares) - 0.01) < 0.01


def test_a_choice_of_kernels_scores_large_tables(monkeypatch):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(3000, 3))
    table[::600] = 6.0 + rng.normal(size=(5, 3))
    whole = score_rows(table)
    monkeypatch.setattr("isthmus.incontext.tables.outliers.MOST_KERNELS", 800)
    found = score_rows(table)
    assert found.outlier[::600].all()
    assert abs(found.outlier.mean() - 0.01) < 0.01
    assert np.corrcoef(found.log_density, whole.log_density)[0, 1] > 0.97
    assert np.abs(found.log_density - whole.log_density).mean() < 0.3


def test_frames_of_numbers_categories_and_gaps_are_scored():
    rng = np.random.default_rng(3)
    kind = rng.choice(["red", "blue"], 300)
    frame = pd.DataFrame({"kind": kind, "flag": kind == "red", "size": (kind == "red") * 8.0})
    frame["size"] += rng.normal(size=300)
    frame["time"] = pd.Timestamp("2024-01-01") + pd.to_timedelta(rng.random(300), "D")
    frame.loc[::20, "size"] = np.nan
    frame.loc[1::30, "kind"] = None
    frame.loc[7, ["kind", "flag", "size"]] = "blue", True, 30.0
    found = score_rows(frame, level=2)
    assert found.outlier[7]
    assert np.isfinite(found.log_density).all()
    assert "size" in found.odd_columns[7]
    assert "size" in str(found)
    again = score_rows(frame, frame[["time", "size", "flag", "kind"]].iloc[:9], level=2)
    assert again.outlier[7]
    assert again.outlier.sum() <= 2
    polars = pytest.importorskip("polars")
    assert score_rows(polars.from_pandas(frame)).outlier.shape == (300,)


def test_nothing_is_said_of_a_row_without_a_known_cell() -> None:
    table = np.concatenate([PAIRS, [[50.0, 50.0], [np.nan, np.nan]]])
    found = score_rows(table)
    np.testing.assert_array_equal(found.outlier[:-1], score_rows(table[:-1]).outlier)
    assert np.flatnonzero(np.isnan(found.log_density)) == [61]
    scores = score_rows(PAIRS, [[0.0, 0.0], [np.nan, np.nan], [20.0, np.nan]])
    assert np.isnan([scores.log_density[1], scores.percentile[1]]).all()
    assert scores.outlier.tolist() == [False, False, True]
    assert scores.summary["mean_log_density"] == pytest.approx(scores.log_density[[0, 2]].mean())
