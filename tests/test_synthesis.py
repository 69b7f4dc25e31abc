"""Draws of tables: types, ranges and categories are kept, and the check tells good from bad."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import ks_2samp

from isthmus.errors import IsthmusError
from isthmus.synthesis import draw_rows
from isthmus.tables import encode


def people(n: int = 200, seed: int = 0) -> pd.DataFrame:
    """Correlated columns of every kind."""
    rng = np.random.default_rng(seed)
    age = rng.integers(18, 90, n)
    pay = np.where(rng.random(n) < 0.3, 0.0, (30 * age + rng.normal(0, 90, n)).clip(1).round(2))
    return pd.DataFrame(
        {
            "age": age,
            "pay": pay,
            "height": 1.6 + 0.1 * rng.normal(size=n),
            "twice": 0.0,
            "rooms": rng.integers(1, 5, n),
            "city": rng.choice(["Rome", "Oslo", "Lima"], n),
            "owner": rng.random(n) < 0.5,
        }
    ).assign(twice=lambda frame: 2 * frame.height)


def test_columns_keep_their_types_values_and_ranges() -> None:
    table = people()
    draws = draw_rows(table, 1000, check=False)
    rows = draws.rows
    assert rows.dtypes.equals(table.dtypes)
    numbers = ["age", "pay", "height", "rooms"]
    assert (rows[numbers].min() >= table[numbers].min()).all()
    assert (rows[numbers].max() <= table[numbers].max()).all()
    assert set(rows.rooms) == set(table.rooms)
    assert set(rows.city) == set(table.city)
    assert set(rows.owner) == {True, False}
    assert np.isclose(rows.pay, rows.pay.round(2)).all()
    assert (rows.pay == 0).mean() == pytest.approx((table.pay == 0).mean(), abs=0.06)
    # Columns stay as related as they were.
    assert np.corrcoef(rows.height, rows.twice)[0, 1] > 0.999
    assert draws.copies == 0
    assert draws.auc is None


@pytest.mark.parametrize("kind", ["float64", "float32", "int32", "Float32"])
@pytest.mark.parametrize("n", [30, 2000])
def test_copies_are_counted_exactly(kind, n) -> None:
    """Draws round to -0.0, and a table may hold it: both equal 0.0. The oracle compares cells."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(0, 1, (n, 2)).round(1 if n == 30 else 0), columns=["a", "b"])
    if kind == "float64":
        table["a"] = table.a.where(table.a != 0, -0.0)
    table = table.round(0 if kind == "int32" else 9).astype(kind)
    for model in ("auto", "kernel"):
        draws = draw_rows(table, 500, model=model, check=False)
        assert draws.rows.dtypes.equals(table.dtypes)
        equal = draws.rows.to_numpy(float)[:, None] == table.to_numpy(float)[None]
        assert draws.copies == equal.all(2).any(1).sum()


def test_values_leave_the_range_only_if_asked_and_never_their_type() -> None:
    table = pd.DataFrame({"x": np.arange(0, 250, 5).astype("uint8"), "k": ["a", "b"] * 25})
    inside, outside = (
        draw_rows(table, 2000, outside=outside, check=False).rows.x for outside in (False, True)
    )
    assert inside.between(0, 245).all()
    assert outside.dtype == np.uint8
    assert outside.max() > 245


def test_the_check_knows_good_draws_from_bad_and_copies_from_new_rows() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 2)) @ np.array([[1.0, 0.99], [0.0, 0.1]])
    good, wide = draw_rows(X, 10), draw_rows(X, 10, sigma=1.5)
    tiny = draw_rows(X, 10, sigma=1e-5, outside=True)
    assert good.auc < 0.65
    assert wide.auc > 0.8
    assert 0.5 < good.distance_ratio < 2
    assert tiny.distance_ratio < 0.01
    assert wide.distance_ratio > 3
    assert good.summary["auc"] == good.auc


def test_privacy_hides_which_rows_were_learned_and_keeps_moments() -> None:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(150, 6)) @ rng.normal(size=(6, 6)) + 5
    options = {"sigma": 0.1, "seed": 1, "outside": True}
    near, middle, far = (draw_rows(X, 4000, privacy=size, **options) for size in (0, 0.5, 3))
    assert near.membership > 0.8 > middle.membership > far.membership
    assert far.membership < 0.6
    assert near.summary["membership"] == near.membership
    np.testing.assert_allclose(far.rows.mean(), X.mean(0), atol=0.3)
    np.testing.assert_allclose(far.rows.cov(), np.cov(X.T), atol=0.15 * np.cov(X.T).max())


@pytest.mark.parametrize("model", ["tables", "kernel"])
def test_columns_are_distributed_as_in_the_table(model) -> None:
    rng = np.random.default_rng(0)
    size = rng.lognormal(0, 2, 300)
    table = pd.DataFrame({"size": size, "price": size ** rng.normal(1, 0.1, 300), "few": 0.0})
    table["few"] = np.where(size > 1, 1976, rng.choice([1976, 1982, 1987], 300))
    table.loc[::7, "price"] = np.nan
    rows = draw_rows(table, 4000, model=model, check=False).rows
    for name in table:
        assert ks_2samp(rows[name].dropna(), table[name].dropna()).statistic < 0.03
    assert set(rows.few) == {1976, 1982, 1987}
    assert (rows.few[rows["size"] > 1.5] == 1976).mean() > 0.9


@pytest.mark.parametrize("model", ["auto", "kernel"])
@pytest.mark.parametrize("n", [100, 1000])
def test_draws_stay_in_one_of_groups_that_are_far_apart(model, n) -> None:
    rng = np.random.default_rng(0)
    far = rng.random(400) < 0.5
    table = pd.DataFrame(rng.normal(size=(400, 3)) + 50 * far[:, None])
    table["group"] = np.where(far, "far", "near")
    for drawn in (draw_rows(table, n, check=False).rows, table):
        beyond = drawn[[0, 1, 2]] > 25
        assert (beyond.all(axis=1) == (drawn.group == "far")).all()
        assert (beyond.all(axis=1) | ~beyond.any(axis=1)).all()
    drawn = draw_rows(table[[0, 1, 2]], n, model=model, check=False).rows
    assert (drawn > 25).mean(axis=1).isin([0, 1]).all()
    assert not ((drawn > 10) & (drawn < 40)).any(axis=None)


@pytest.mark.parametrize("others", [(), ("flag",), ("flag", "x")])
def test_zeros_that_columns_share_stay_together(others) -> None:
    rng = np.random.default_rng(0)
    spent = np.where(rng.random(400) < 0.6, 0, rng.lognormal(3, 1, 400)).round(2)
    table = pd.DataFrame({"spent": spent, "tax": (spent * rng.uniform(0.2, 0.8, 400)).round(2)})
    table["flag"], table["x"] = np.where(spent > 0, "pays", "free"), rng.normal(size=400)
    drawn = draw_rows(table[["spent", "tax", *others]], 1000, check=False).rows
    assert (drawn.spent == 0).mean() == pytest.approx((spent == 0).mean(), abs=0.03)
    assert ((drawn.spent == 0) == (drawn.tax == 0)).all()
    if others:
        assert ((drawn.spent > 0) == (drawn.flag == "pays")).all()


def test_new_values_in_the_place_of_copies_leave_the_shares_of_categories() -> None:
    """Nearly all heights of a man are in the table, so that many draws would be copies."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"sex": rng.choice(["m", "f"], 400)})
    table["births"] = np.where(table.sex == "f", rng.poisson(1.5, 400), 0)
    table["height"] = (np.where(table.sex == "m", 178, 165) + 6 * rng.normal(size=400)).round(1)
    drawn = draw_rows(table, 1000, check=False).rows
    assert (drawn.sex == "m").mean() == pytest.approx((table.sex == "m").mean(), abs=0.03)
    places = pd.DataFrame({"country": rng.choice(["NO", "IT", "PE"], 400, p=[0.6, 0.3, 0.1])})
    places["city"] = places.country.map({"NO": "Oslo", "IT": "Rome", "PE": "Lima"})
    places["shop"], places["shelf"] = rng.choice(list("abcdefghijklm"), (2, 400))
    drawn = draw_rows(places, 1000, check=False).rows
    share = (places.country == "NO").mean()
    assert (drawn.country == "NO").mean() == pytest.approx(share, abs=0.05)
    assert len(drawn.merge(places[["country", "city"]].drop_duplicates())) > 950


def test_frames_of_polars_stay_what_they_are() -> None:
    polars = pytest.importorskip("polars")
    table = people(40).assign(
        flag=[True, None] * 20, rooms=pd.array([3, None, 5, 8] * 10, "Int16"), day="2026-01-01"
    )
    frame = polars.from_pandas(table).with_columns(polars.col("day").str.to_date())
    rows = draw_rows(frame, 30).rows
    assert rows.schema == frame.schema
    assert set(rows["rooms"]) <= {3, None, 4, 5, 6, 7, 8}
    assert set(rows["flag"]) == {True, None}


def test_a_table_of_categories_alone_gives_new_combinations() -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({name: rng.choice(list("xyz"), 60) for name in "abcdef"})
    draws = draw_rows(table, 100)
    assert draws.rows.merge(table[~table.duplicated(keep=False)]).empty
    assert draws.copies <= 15  # of the rows that occur twice


@pytest.mark.parametrize("n", [2, 3, 30])
def test_small_and_degenerate_tables(n) -> None:
    table = pd.DataFrame({"x": np.arange(n) * 1e9, "same": 3, "twin": np.arange(n) // 2})
    draws = draw_rows(table, 20)
    assert len(draws.rows) == 20
    assert set(draws.rows.same) == {3}
    assert draws.rows.x.between(0, table.x.max()).all()


def test_small_tables_of_numbers_are_drawn_from_their_in_context_density() -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.gamma(2, 10, 200).round(1)})
    table["b"] = np.where(rng.random(200) < 0.3, 0.0, 5 * table.a + rng.normal(0, 9, 200))
    table["count"], table["same"] = rng.poisson(40, 200), 7
    drawn = draw_rows(table, 2000, check=False)
    assert drawn.kernel == "tables"
    rows = drawn.rows
    assert ((rows >= table.min()) & (rows <= table.max())).all().all()
    assert (rows.b == 0).mean() == pytest.approx((table.b == 0).mean(), abs=0.06)
    assert np.allclose(rows.a, rows.a.round(1))
    assert set(rows.same) == {7}
    assert drawn.copies == 0
    for name in ("a", "b", "count"):  # the distribution of each column
        assert ks_2samp(rows[name], table[name]).statistic < 0.09
    related = rows[rows.b > 0]
    assert np.corrcoef(related.a, related.b)[0, 1] > 0.9
    assert draw_rows(table, 5, model="kernel", check=False).kernel != "tables"
    assert draw_rows(table, 5, sigma=0.1, check=False).kernel == "given"


def test_repeated_rows_are_counted_where_every_cell_has_few_values() -> None:
    """Half of new rows equal a row there; draws that do are drawn again."""
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.integers(2, size=(120, 4)), columns=list("abcd"))
    table["e"] = rng.integers(2, size=120) * (rng.random(120) < 0.3)
    draws = draw_rows(table, 50)
    order = np.random.default_rng(0).permutation(120)
    rest = set(map(tuple, table.iloc[np.sort(order[36:])].to_numpy()))
    expected = np.mean([tuple(row) in rest for row in table.iloc[order[:36]].to_numpy()])
    assert draws.repeats == expected > 0.5
    assert draws.summary["repeats"] == expected
    assert f"{expected:.0%} equal another row" in str(draws)
    assert draw_rows(table, 5, check=False).repeats is None


def test_rows_that_repeat_keep_their_combinations() -> None:
    steps = np.repeat(np.arange(1, 7), 50)
    table = pd.DataFrame({"a": steps, "b": steps + 1})
    drawn = draw_rows(table, 300, check=False).rows
    assert (drawn.b == drawn.a + 1).all()
    assert set(drawn.a) == set(range(1, 7))
    people = pd.DataFrame({"sex": ["f", "f", "m"] * 40, "pregnant": ["yes", "no", "no"] * 40})
    drawn = draw_rows(people, 200, check=False).rows
    assert not ((drawn.sex == "m") & (drawn.pregnant == "yes")).any()


@pytest.mark.parametrize("count", [8, 12])  # fewer rows have round kernels
def test_few_whole_numbers_keep_their_correlation(count) -> None:
    table = pd.DataFrame({"a": np.arange(count) * 3, "b": np.arange(count) * 3 + 1})
    drawn = draw_rows(table, 200, model="kernel", check=False).rows
    assert np.corrcoef(drawn.a, drawn.b)[0, 1] > 0.5


def test_draws_given_a_range_are_those_that_fall_into_it() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    table = pd.DataFrame({"x": x, "y": 2 * x + rng.normal(size=400), "kind": ["a", "b"] * 200})
    options = {"model": "kernel", "check": False, "outside": True, "privacy": 0}
    every = draw_rows(table, 20_000, seed=1, **options).rows
    inside = every[every.x.between(0.5, 1.0) & (every.kind == "b")]
    given = {"x": (0.5, 1.0), "kind": "b"}
    found = draw_rows(table, 2000, given=given, seed=2, **options).rows
    assert found.x.between(0.5, 1.0).all()
    assert set(found.kind) == {"b"}
    assert ks_2samp(found.x, inside.x).pvalue > 0.01
    assert ks_2samp(found.y, inside.y).pvalue > 0.01
    at = draw_rows(table, 500, given={"x": 9.0}, seed=3, **options).rows  # far from every row
    assert (at.x == 9).all()
    near = every[np.abs(every.x - 0.7) < 0.02]
    at = draw_rows(table, 2000, given={"x": 0.7}, seed=3, **options).rows
    assert ks_2samp(at.y, near.y).pvalue > 0.01


@pytest.mark.parametrize("age", [300, (300, 400), (-9, -2)])
def test_given_values_outside_the_range_of_their_column_are_refused(age) -> None:
    low, high = people().age.agg(["min", "max"])
    with pytest.raises(IsthmusError, match=f"'age'.* outside .* {low} to {high}"):
        draw_rows(people(), 3, given={"age": age}, check=False)
    rows = draw_rows(people(), 3, given={"age": (high - 9, 400)}, check=False).rows
    assert rows.age.between(high - 9, high).all()
    rows = draw_rows(people(), 3, given={"age": age}, check=False, outside=True).rows
    assert rows.age.between(*(age if isinstance(age, tuple) else (age, age))).all()


@pytest.mark.parametrize("columns", [["age", "height"], ["age", "height", "city"]])
def test_gaps_are_drawn_or_filled(columns) -> None:
    table = people(300)[columns]
    table.loc[table.index % 4 == 0, "height"] = np.nan
    found = draw_rows(table, 400, seed=1)
    assert found.auc is not None
    assert abs(found.rows.height.isna().mean() - 0.25) < 0.08
    filled = draw_rows(table, 400, gaps="fill", check=False, seed=1).rows
    assert not filled.height.isna().any()
    assert ks_2samp(filled.height, table.height.dropna()).pvalue > 0.001


@pytest.mark.parametrize("gaps", ["keep", "fill"])
def test_rows_with_gaps_are_counted_as_copies_of_rows_with_the_same_gaps(gaps) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"a": rng.normal(size=60).round(1), "b": rng.integers(0, 3, 60)})
    table.loc[::3, "a"] = np.nan
    draws = draw_rows(table, 300, gaps=gaps, check=False)
    known = set(map(tuple, table.fillna(-99).to_numpy()))
    assert draws.copies == sum(tuple(row) in known for row in draws.rows.fillna(-99).to_numpy())
    assert (draws.copies > 80) == (gaps == "keep")  # a gap beside any b is known
    assert abs(draws.rows.a.isna().mean() - (gaps == "keep") / 3) < 0.08


def test_given_values_have_no_gaps_and_are_held_by_their_column() -> None:
    table = people(90).astype({"age": "uint8"})
    table.loc[::3, "height"] = np.nan
    rows = draw_rows(table, 90, given={"height": (1.5, 1.7)}, check=False).rows
    assert rows.height.between(1.5, 1.7).all()
    rows = draw_rows(table, 90, given={"age": (30.5, 33.2)}, check=False).rows
    assert set(rows.age) <= {31, 32, 33}
    rows = draw_rows(table, 90, given={"age": (-10, 1000)}, check=False).rows
    assert rows.age.dtype == "uint8"
    for age in (30.5, 300, (30.2, 30.8), (256, 400)):
        with pytest.raises(IsthmusError, match="age"):
            draw_rows(table, 3, given={"age": age}, check=False)


@pytest.mark.parametrize(
    "given",
    ["age", {"z": 1}, {"city": "Paris"}, {"age": (50, 40)}, {"age": (1, 2, 3)}, {"age": 2**53 + 5}],
)
def test_what_no_row_can_be_is_refused(given) -> None:
    with pytest.raises(IsthmusError):
        draw_rows(people(), 3, given=given, check=False)


@pytest.mark.parametrize(
    "frame",
    [pd.DataFrame({"a": [[1], [2]]}), pd.DataFrame(index=range(3)), pd.Series([1.0, 2.0])],
)
def test_what_is_no_table_of_cells_is_not_encoded(frame) -> None:
    with pytest.raises(IsthmusError):
        encode(frame)


@pytest.mark.parametrize("x", [[np.inf] * 9, np.arange(9) + 1j])
def test_infinite_and_complex_numbers_are_not_drawn(x) -> None:
    with pytest.raises(IsthmusError):
        draw_rows(pd.DataFrame({"x": x, "y": range(9)}), 2, check=False)
