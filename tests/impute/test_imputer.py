"""MemoryImputer against brute force, and on tables that are hard to fill."""

import numpy as np
import pandas as pd
import pytest
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer
from sklearn.utils.estimator_checks import parametrize_with_checks

from isthmus.errors import InvalidInputError
from isthmus.impute import MemoryImputer
from isthmus.impute.learning import BANDWIDTH, FilledMemories
from isthmus.impute.shape import Covariance

pytestmark = pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
RNG = np.random.default_rng(0)
NAN = np.nan


def curved(count: int, seed: int = 0) -> np.ndarray:
    """Rows near a curved surface in six dimensions."""
    rng = np.random.default_rng(seed)
    a, b = rng.uniform(-2, 2, size=(2, count))
    columns = [a, b, a * b, np.sin(2 * a), a**2 - b, a + b]
    return np.column_stack(columns) + 0.1 * rng.normal(size=(count, 6))


def with_gaps(X: np.ndarray, share: float, seed: int = 1) -> np.ndarray:
    """Hide cells at random."""
    return np.where(np.random.default_rng(seed).random(X.shape) < share, NAN, X)


def error(found: np.ndarray, X: np.ndarray, gaps: np.ndarray) -> float:
    """Return the root mean squared error at gaps, in standard deviations."""
    return float(np.sqrt(np.mean(((found - X) / X.std(0))[gaps] ** 2)))


TRUTH = curved(600)
GAPS = with_gaps(TRUTH, 0.2)
FITTED = MemoryImputer().fit(GAPS)


def brute_force(memories: FilledMemories, query: np.ndarray, ridge: float) -> np.ndarray:
    """Return the retrieved estimate of one row, in plain loops."""
    known = ~np.isnan(query)
    rows = [
        filled
        for row, filled in zip(memories.rows, memories.filled, strict=True)
        if not np.array_equal(row, query, equal_nan=True)
    ]
    squares = np.array([((row - query)[known] ** 2).sum() for row in rows])
    tenth = np.sort(squares)[10]
    weights = np.exp(-squares / (2 * BANDWIDTH**2 * tenth))
    mean = weights @ np.array(rows) / weights.sum()
    covariance = memories.shape.covariance
    system = covariance[np.ix_(known, known)]
    system = system + ridge * np.diag(np.diag(covariance)[known])
    return mean + covariance[:, known] @ np.linalg.solve(system, (query - mean)[known])


def test_retrieval_is_a_weighted_mean_and_a_regression_on_the_rest() -> None:
    rows = RNG.normal(size=(40, 4))
    rows[:15, 1] = NAN
    shape = Covariance(RNG.normal(size=4), np.eye(4) + 0.3)
    filled = np.where(np.isnan(rows), 0.7, rows)
    memories = FilledMemories(rows, filled, shape, np.ones(40))
    found = memories.estimates(rows[:15], 0.2)[0]
    expected = [brute_force(memories, row, 0.2) for row in rows[:15]]
    np.testing.assert_allclose(found + shape.mean, expected, rtol=1e-4, atol=1e-4)
    # A row is not its own memory: what it was filled with before does not matter.
    spoilt = np.where(np.isnan(rows) & (np.arange(40) == 3)[:, None], 50.0, filled)
    other = FilledMemories(rows, spoilt, shape, np.ones(40))
    np.testing.assert_allclose(other.estimates(rows[3:4], 0.2)[0], found[3:4], rtol=1e-6)


def test_curved_tables_are_filled_better_than_by_scikit_learn() -> None:
    gaps = np.isnan(GAPS)
    ours = error(FITTED.transform(GAPS), TRUTH, gaps)
    for other in (KNNImputer(n_neighbors=5), IterativeImputer(random_state=0)):
        assert ours < 0.95 * error(other.fit_transform(GAPS), TRUTH, gaps)
    # Hidden cells lie in rows that have gaps already, so that they are a little harder.
    expected = np.sqrt(np.mean((FITTED.errors_ / TRUTH.std(0)) ** 2))
    assert 0.9 * ours < expected < 2 * ours
    assert (FITTED.errors_ < 0.8 * FITTED.mean_errors_).all()


def test_linear_tables_are_filled_as_well_as_by_regression() -> None:
    rng = np.random.default_rng(2)
    X = rng.normal(size=(400, 3)) @ rng.normal(size=(3, 8)) + 0.3 * rng.normal(size=(400, 8))
    given = with_gaps(X, 0.2)
    best = error(IterativeImputer(random_state=0).fit_transform(given), X, np.isnan(given))
    assert error(MemoryImputer().fit_transform(given), X, np.isnan(given)) < 1.05 * best


def test_only_gaps_change_and_rows_do_not_depend_on_each_other() -> None:
    filled = FITTED.transform(GAPS)
    known = ~np.isnan(GAPS)
    np.testing.assert_array_equal(filled[known], GAPS[known])
    assert np.isfinite(filled).all()
    np.testing.assert_allclose(MemoryImputer().fit_transform(GAPS), filled)
    some = RNG.permutation(600)[:50]
    np.testing.assert_allclose(FITTED.transform(GAPS[some]), filled[some], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(FITTED.indicator_, ~known)
    new, hidden = curved(200, seed=5), np.isnan(with_gaps(curved(200), 0.2, seed=6))
    assert error(FITTED.transform(np.where(hidden, NAN, new)), new, hidden) < 0.6


def test_mode_is_a_minimum_of_the_energy() -> None:
    centres = np.array([[0.0, 0, 0], [9, 0, 9], [9, 0, -9]])
    X = centres[np.arange(300) % 3] + 0.3 * RNG.normal(size=(300, 3))
    imputer = MemoryImputer().fit(X)
    given = np.array([[9.0, 0.0, NAN]])
    assert abs(imputer.transform(given)[0, 2]) < 6
    assert abs(imputer.transform(given, how="mode")[0, 2]) == pytest.approx(9, abs=1)


def test_draws_have_the_spread_of_the_errors() -> None:
    hidden = np.isnan(GAPS)
    drawn = FITTED.draw(GAPS, 40)
    assert drawn.shape == (40, *GAPS.shape)
    np.testing.assert_array_equal(drawn, FITTED.draw(GAPS, 40))
    assert (drawn[:, ~hidden] == GAPS[~hidden]).all()
    low, high = np.quantile(drawn, (0.05, 0.95), axis=0)
    inside = ((low <= TRUTH) & (high >= TRUTH))[hidden].mean()
    assert 0.85 <= inside <= 0.95
    middle = error(drawn.mean(0), TRUTH, hidden)
    assert middle < 1.1 * error(FITTED.transform(GAPS), TRUTH, hidden)


@pytest.fixture(scope="module")
def mixed() -> pd.DataFrame:
    """A frame of numbers, words, truth values and times, which depend on a group."""
    rng = np.random.default_rng(0)
    group = rng.integers(3, size=300)
    frame = pd.DataFrame(
        {
            "size": 5 * group + rng.normal(size=300),
            "count": rng.poisson(3 + 8 * group).astype(float),
            "city": np.array(["Rome", "Oslo", "Bern"], dtype=object)[group],
            "large": (group == 2).astype(object),
            "when": pd.to_datetime("2020-01-01") + pd.to_timedelta(30 * group, unit="D"),
        }
    )
    frame["large"] = frame["large"].astype(bool).astype(object)
    return frame


def test_text_truth_values_and_times_are_filled(mixed) -> None:
    hidden = np.random.default_rng(1).random(mixed.shape) < 0.15
    given = mixed.mask(hidden)
    imputer = MemoryImputer().fit(given)
    # As in scikit-learn, frames come back only if asked for, here with the types of the columns.
    plain, some = imputer.transform(given), imputer.draw(given, 2)
    assert (plain.dtype, plain.shape, some.shape) == (object, mixed.shape, (2, *mixed.shape))
    imputer.set_output(transform="pandas")
    filled = imputer.transform(given)
    assert filled.dtypes.equals(given.dtypes)
    assert (filled.to_numpy(dtype=object) == plain).all()
    assert filled.notna().all().all()
    assert filled.where(~hidden).equals(given)
    for place, name in ((2, "city"), (3, "large")):
        wrong = (filled[name] != mixed[name]).to_numpy()[hidden[:, place]].mean()
        assert wrong < 0.2
        assert imputer.errors_[place] == pytest.approx(wrong, abs=0.12)
        assert imputer.errors_[place] < imputer.mean_errors_[place]
    off = (filled["when"] - mixed["when"]).abs()[hidden[:, 4]]
    assert off.median() < pd.Timedelta(days=8)
    drawn = imputer.draw(given, 3)
    assert len(drawn) == 3
    assert drawn[0].notna().all().all()
    assert set(drawn[0]["city"]) == {"Rome", "Oslo", "Bern"}


def test_probabilities_of_categories(mixed) -> None:
    given = mixed.mask(np.random.default_rng(1).random(mixed.shape) < 0.15)
    imputer = MemoryImputer().set_output(transform="pandas")
    filled = imputer.fit_transform(given)
    shares = imputer.probabilities(given)
    assert set(shares) == {"city", "large"} == set(imputer.categories_)
    np.testing.assert_allclose(shares["city"].sum(1), 1)
    most = np.array(imputer.categories_["city"])[shares["city"].argmax(1)]
    assert (most == filled["city"]).all()
    unseen = imputer.probabilities(given.assign(city="Paris", large=True))
    assert (unseen["city"] == 0).all()
    known = np.array([value is True for value in imputer.categories_["large"]], dtype=float)
    np.testing.assert_allclose(unseen["large"], np.tile(known, (300, 1)), atol=1e-8)


def test_whole_numbers_and_bounds_are_kept() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 10, 300)
    X = np.column_stack([x, rng.poisson(3 * x), x > 5]).astype(float)
    given = with_gaps(X, 0.2)
    plain, rounded, automatic = (
        MemoryImputer(integers=how).fit_transform(given) for how in ("keep", "round", "auto")
    )
    gaps = np.isnan(given)
    assert (rounded[:, 1:] % 1 == 0).all()
    assert (automatic[:, 1] % 1 == 0).all()
    assert (plain[:, 1][gaps[:, 1]] % 1 != 0).any()
    # The mean of 0 and 1 is a probability.
    assert (automatic[:, 2][gaps[:, 2]] % 1 != 0).any()
    for found in (plain, rounded, automatic):
        assert (found >= 0).all()
        assert (found[:, 2] <= 1).all()
    assert (MemoryImputer().fit(given).draw(given, 2)[:, :, 1:] % 1 == 0).all()


def test_weights_of_zero_leave_rows_out_and_others_count() -> None:
    low, high = np.zeros((30, 2)), np.full((30, 2), 10.0)
    X = np.concatenate([low, high]) + RNG.normal(size=(60, 2))
    weights = np.repeat([1.0, 0.0], 30)
    given = np.array([[NAN, NAN]])
    alone = MemoryImputer().fit(X[:30]).transform(given)
    np.testing.assert_array_equal(MemoryImputer().fit(X, None, weights).transform(given), alone)
    heavy = MemoryImputer().fit(X, sample_weight=np.repeat([1.0, 9.0], 30)).transform(given)
    assert heavy[0] == pytest.approx([9, 9], abs=1)
    with pytest.raises(ValueError, match="at least one non-zero"):
        MemoryImputer().fit(X, sample_weight=np.zeros(60))


@pytest.mark.parametrize("far", [1e4, 1e12])
def test_gross_errors_do_not_spoil_a_column(far: float) -> None:
    X = TRUTH.copy()
    X[::50, 0] = far * X[:, 0].std()
    given = with_gaps(X, 0.2)
    clean = np.isnan(given)
    clean[::50] = False
    found = error(MemoryImputer().fit_transform(given), TRUTH, clean)
    assert found < 1.3 * error(FITTED.transform(GAPS), TRUTH, np.isnan(GAPS))


def test_a_row_far_from_all_others_is_filled_by_regression() -> None:
    """Its columns follow the others as in all rows, far beyond the values that they have there."""
    rng = np.random.default_rng(0)
    X = np.exp(rng.normal(size=(200, 1))) @ np.ones((1, 6)) + 0.02 * rng.normal(size=(200, 6))
    X[7] = 300.0
    given = with_gaps(X, 0.2)
    given[7] = [300, NAN, 300, NAN, 300, 300]
    filled = MemoryImputer().fit_transform(given)
    assert filled[7] == pytest.approx(300, rel=0.1)


def test_tables_with_more_columns_than_rows() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 4)) @ rng.normal(size=(4, 300)) + 0.3 * rng.normal(size=(60, 300))
    given = with_gaps(X, 0.2)
    imputer = MemoryImputer().fit(given)
    assert error(imputer.transform(given), X, np.isnan(given)) < 0.3
    assert imputer.draw(given, 2).shape == (2, 60, 300)


@pytest.mark.parametrize(
    "X",
    [
        [[1.0]],
        [[1.0, 3.0], [NAN, NAN]],
        [[NAN, NAN, NAN], [1, 2, 5], [3, 4, 5], [2, NAN, 5], [2, 3, 5]],
        np.where(np.eye(8) > 0, NAN, 3.0),
        np.repeat(with_gaps(RNG.normal(size=(30, 1)), 0.2), 4, axis=1),
        np.where(RNG.random((40, 3)) < 0.2, NAN, RNG.normal(size=(40, 3)) * [1e-200, 1, 1e200]),
        with_gaps(RNG.standard_cauchy(size=(50, 4)) ** 3, 0.2),
        with_gaps(RNG.normal(size=(12, 70)), 0.3),
    ],
)
def test_odd_tables_are_filled(X) -> None:
    X = np.asarray(X, dtype=float)
    filled = MemoryImputer().fit_transform(X)
    assert np.isfinite(filled).all()
    np.testing.assert_array_equal(filled[~np.isnan(X)], X[~np.isnan(X)])
    assert np.isfinite(MemoryImputer().fit(X).draw(X, 2)).all()


def test_empty_columns_are_filled_with_zero_and_named() -> None:
    X = np.column_stack([RNG.normal(size=20), np.full(20, NAN)])
    with pytest.warns(UserWarning, match=r"without a known value .* 0: 1"):
        filled = MemoryImputer().fit_transform(X)
    assert (filled[:, 1] == 0).all()


def test_a_column_of_very_many_categories() -> None:
    words = [f"w{number}" for number in range(100_000)]
    frame = pd.DataFrame({"a": np.arange(100_000.0), "b": words})
    frame.loc[::1000, "a"], frame.loc[5, "b"] = NAN, None
    imputer = MemoryImputer(max_memories=300).set_output(transform="pandas")
    with pytest.warns(UserWarning, match="'b' holds text that hardly repeats"):
        assert imputer.fit_transform(frame).notna().all().all()
    assert len(imputer.categories_["b"]) == 20


def test_columns_of_one_name_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="same name"):
        MemoryImputer().fit(pd.DataFrame([[1.0, 2.0], [3.0, 4.0]], columns=["a", "a"]))


@parametrize_with_checks([MemoryImputer()])
def test_scikit_learn_checks(estimator, check) -> None:
    check(estimator)
