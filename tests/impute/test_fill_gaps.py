"""fill_gaps: only gaps change, and the reported error is the error that is made."""

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax
from sklearn.datasets import load_iris
from sklearn.preprocessing import StandardScaler

from isthmus.cluster import ClAMCRP, TableModel
from isthmus.errors import InvalidInputError
from isthmus.impute import MemoryImputer, fill_gaps
from isthmus.impute.filled import hide_and_fill
from isthmus.incontext import TableDensity

IRIS = load_iris().data
X = np.where(np.random.default_rng(0).random(IRIS.shape) < 0.1, np.nan, IRIS)
SCALER = StandardScaler().fit(X)
Z = SCALER.transform(X)
WHOLE = Z[~np.isnan(Z).any(1)]


def by_hand(Z: np.ndarray, memories: np.ndarray, sigma: float) -> np.ndarray:
    """Return means of memories, weighted by their likelihood given the known cells: a loop."""
    filled = Z.copy()
    for row in filled:
        known = ~np.isnan(row)
        squares = ((memories[:, known] - row[known]) ** 2).sum(1)
        row[~known] = softmax(-squares / (2 * sigma**2)) @ memories[:, ~known]
    return filled


def test_the_mean_of_complete_rows_is_weighted_by_likeness() -> None:
    found = fill_gaps(X, sigma=0.4)
    expected = SCALER.inverse_transform(by_hand(Z, WHOLE, 0.4))
    np.testing.assert_allclose(found.X, expected, rtol=1e-10)
    np.testing.assert_array_equal(found.X[~np.isnan(X)], X[~np.isnan(X)])
    assert (found.energy, found.sigma) == ("kde", 0.4)


@pytest.mark.parametrize("how", ["mean", "mode"])
def test_learned_memories_complete_as_their_estimator_does(how) -> None:
    model = ClAMCRP(random_state=0).fit(Z)
    filled = model.complete(Z, how=how)
    found = fill_gaps(X, energy="crp", how=how).X
    np.testing.assert_allclose(found, SCALER.inverse_transform(filled), rtol=1e-8)


def test_the_density_of_the_table_gives_its_conditional_means() -> None:
    found = fill_gaps(X, energy="tables")
    np.testing.assert_allclose(found.X, TableDensity().fit(X).fill(X), rtol=1e-5)
    assert (found.energy, found.sigma) == ("tables", None)
    check = found.summary["check"]
    assert check["error"] < 0.6 * check["error_of_column_means"]


def test_rows_of_another_table_are_memories() -> None:
    scaler = StandardScaler().fit(IRIS)
    expected = scaler.inverse_transform(by_hand(scaler.transform(X), scaler.transform(IRIS), 0.2))
    np.testing.assert_allclose(fill_gaps(X, memory=IRIS, sigma=0.2).X, expected, rtol=1e-9)


def test_a_model_fills_the_columns_that_it_knows() -> None:
    model = TableModel.fit(X[:, :3], columns=[*"abc"])
    found = fill_gaps(X[:, ::-1], columns=[*"dcba"], model=model)
    energy = model.energy
    known = model.scaling.into(X[:, :3])
    expected = model.scaling.back(energy.conditional_mean(known, ~np.isnan(known)))
    np.testing.assert_allclose(found.X[:, :0:-1], expected, rtol=1e-9)
    np.testing.assert_array_equal(found.X[:, 0], X[:, 3])
    assert f"{np.isnan(X[:, 3]).sum()} cells in columns that the model" in found.notes[0]


def test_the_reported_error_is_about_the_error_that_is_made() -> None:
    rng = np.random.default_rng(0)
    truth = 3 * rng.normal(size=(6, 4))[rng.integers(6, size=1500)] + rng.normal(size=(1500, 4))
    hidden = rng.random(truth.shape) < 0.1
    rows = np.where(hidden, np.nan, truth)
    found = fill_gaps(rows, energy="kde")
    check = found.summary["check"]
    for place, column in enumerate(["x1", "x2", "x3", "x4"]):
        made = np.sqrt(np.mean((found.X - truth)[hidden[:, place], place] ** 2))
        assert check["columns"][column]["error"] == pytest.approx(made, rel=0.25)
    scaled = ((found.X - truth) / np.nanstd(rows, axis=0))[hidden]
    assert check["error"] == pytest.approx(np.sqrt(np.mean(scaled**2)), rel=0.15)
    assert check["error"] < 0.75 * check["error_of_column_means"]
    assert (found.summary["missing"], found.summary["left_empty"]) == (hidden.sum(), 0)


def test_cells_are_counted_once_however_often_they_were_hidden() -> None:
    rows = np.where(np.random.default_rng(1).random((30, 4)) < 0.2, np.nan, IRIS[::5])
    imputer = MemoryImputer(random_state=0).fit(rows)
    known = (~np.isnan(rows)).sum(0)
    assert len(imputer._blend.truth) > known.sum() >= imputer.checked_.sum()
    assert (imputer.checked_ > 0).all()
    assert (imputer.checked_ <= known).all()
    errors, _ = imputer.hidden_errors()
    assert ((~np.isnan(errors)).sum(0) == imputer.checked_).all()
    assert fill_gaps(rows).summary["check"]["cells"] == imputer.checked_.sum()


def test_optional_text_and_nearly_empty_columns_stay_blank_unless_asked_for() -> None:
    rng = np.random.default_rng(0)
    group = rng.integers(2, size=300)
    frame = pd.DataFrame({"size": 4.0 * group + rng.normal(size=300), "rare": np.nan})
    frame.loc[::30, "rare"] = 1.0
    frame.loc[[3, 40, 90], "size"] = np.nan
    words = pd.DataFrame({"sex": np.array(["f", "m"], dtype=object)[group], "note": None})
    words.loc[:42, "note"], words.loc[::27, "sex"] = "ok", None
    found = fill_gaps(frame, words=words)
    assert found.words.note.equals(words.note)
    assert np.isnan(found.X[:, 1]).sum() == 290
    assert found.words.sex.notna().all()
    assert str(found).startswith("15 cells filled in 15 of 300 rows")
    assert any("note" in note for note in found.notes)
    summary = found.summary
    assert (summary["missing"], summary["left_empty"]) == (3 + 12 + 257 + 290, 257 + 290)
    # The share of wrong values at hidden cells, as for fills of the gaps.
    check = summary["check"]["columns"]
    assert set(check) == {"size", "sex"}
    wrong = (found.words.sex != np.array(["f", "m"])[group])[words.sex.isna()].mean()
    assert check["sex"]["error"] == pytest.approx(wrong, abs=0.1)
    assert check["sex"]["error_of_column_mean"] == pytest.approx(0.5, abs=0.15)
    asked = fill_gaps(frame, words=words, fill=["note", "rare"])
    assert asked.summary["left_empty"] == 0
    with pytest.raises(InvalidInputError, match="absent"):
        fill_gaps(frame, words=words, fill=["absent"])


def test_hidden_cells_are_filled_from_other_rows_only() -> None:
    """A row that was its own memory would have no error, as rows with duplicates have none."""
    rows = np.random.default_rng(0).normal(size=(60, 3))
    patterns = np.array([[True, False, False]])
    _, errors, _ = hide_and_fill(rows, patterns, [0.002])
    assert np.sqrt(np.nanmean(errors**2)) > 0.7
    assert np.isnan(errors[:, 1:]).all()
    assert np.isfinite(errors[:, 0]).sum() == 30
    _, errors, _ = hide_and_fill(np.repeat(rows, 9, axis=0), patterns, [0.002])
    assert np.sqrt(np.nanmean(errors**2)) < 0.1


def test_small_tables_are_filled() -> None:
    found = fill_gaps([[1], [np.nan], [3], [2], [4]])
    assert 2 <= found.X[1, 0] <= 3
    assert fill_gaps([[1.5], [np.nan], [3], [2], [3.5]]).X[1, 0] == pytest.approx(2.5, abs=0.05)
    assert "too few rows" not in "".join(found.notes)
    rows = [[1, 2, 5], [np.nan] * 3, [3, 4, 5], [2, np.nan, 5], [2, 3, 5], [1, 1, 5]]
    assert np.isfinite(fill_gaps(rows).X).all()


def test_times_and_truth_values_keep_their_types_and_times_have_no_share_of_errors() -> None:
    x = np.arange(60.0)
    frame = pd.DataFrame({"x": x, "flag": pd.array(x > 30, "boolean")})
    frame["day"] = pd.date_range("2024-01-01", periods=60)
    frame.loc[::7, "flag"], frame.loc[3::7, "day"] = pd.NA, pd.NaT
    frame["wait"] = pd.to_timedelta(x // 10, unit="h")  # no number, though pandas counts it as one
    frame.index = [0] * 60
    found = fill_gaps(frame)
    assert found.words.dtypes.equals(frame.dtypes[["flag", "day", "wait"]])
    assert not found.words.isna().any().any()
    assert set(found.summary["check"]["columns"]) == {"flag"}
    assert set(found.word_errors) == {"flag"}
    assert found.summary["check"]["error"] is None  # no number was hidden
    assert not found.notes
    assert "% wrong" in str(found)
    with pytest.raises(InvalidInputError, match="MemoryImputer"):
        fill_gaps(frame[["flag"]])
