"""Questions to tables of numbers and categories: exact, equivariant, and kind to bad input."""

import itertools

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from isthmus.errors import DtypeError, InvalidInputError
from isthmus.incontext import ConditionedTable, pretrained, score_rows
from isthmus.incontext.tables.network import TableConfig, TableNetwork, write_memory
from isthmus.incontext.tables.questions import _quantiles
from isthmus.memories.table_mixture import LineAt


def frame(rows: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    kind = rng.choice(["cat", "dog", "emu"], rows, p=[0.5, 0.3, 0.2])
    weight = np.where(kind == "cat", 4.0, 20.0) + rng.normal(size=rows)
    table = pd.DataFrame({"kind": kind, "weight": weight, "old": rng.random(rows) < 0.4})
    table["legs"] = np.where(kind == "emu", 2, 4)
    table.loc[3, "weight"], table.loc[5, "kind"] = np.nan, None
    return table


@pytest.fixture(scope="module")
def model():
    return pretrained("tables")


@pytest.fixture(scope="module")
def table(model) -> ConditionedTable:
    return model.condition(frame())


def test_all_cells_add_up_to_one(model) -> None:
    """Brute force: every combination of values, and one value that no row has."""
    rng = np.random.default_rng(2)
    data = pd.DataFrame({"a": rng.choice(list("xyz"), 40), "b": rng.random(40) < 0.3})
    data["c"] = np.where(data.a == "x", "p", rng.choice(list("pq"), 40))
    density = model.condition(data)
    cells = list(itertools.product("xyz?", [True, False, "?"], "pq?"))
    rows = pd.DataFrame(cells, columns=["a", "b", "c"])
    chances = np.exp(density.log_prob(rows))
    assert abs(chances.sum() - 1) < 1e-10
    for name in rows:
        alone = np.exp(density.log_prob(rows[[name]].drop_duplicates()))
        assert abs(alone.sum() - 1) < 1e-10
    given = density.predict("a", {"c": "q"}).iloc[0]
    shares = [chances[(rows.a == a) & (rows.c == "q")].sum() for a in "xyz"]
    np.testing.assert_allclose(given[list("xyz")], shares / np.sum(shares), rtol=1e-9)


@pytest.mark.parametrize("count", [64, 65, 150])
def test_all_cells_of_many_values_add_up_to_one(model, count) -> None:
    rng = np.random.default_rng(0)
    town = (np.arange(3 * count) % count).astype(str)
    density = model.condition(
        pd.DataFrame({"town": town, "kind": rng.choice(["p", "q"], len(town))})
    )
    values = [*density.categories["town"], "another"]
    assert len(values) == 65
    rows = pd.DataFrame(itertools.product(values, "pq?"), columns=["town", "kind"])
    assert abs(np.exp(density.log_prob(rows)).sum() - 1) < 1e-10


def test_answers_agree_with_each_other(table) -> None:
    rows = frame().drop(columns="weight").head(7)
    levels = np.array([0.05, 0.5, 0.95])
    found = table.quantile("weight", levels, rows)
    assert found.shape == (7, 3)
    for place, level in enumerate(levels):
        below = table.cdf("weight", found[:, place], rows)
        np.testing.assert_allclose(below, level, atol=1e-5)
    low, high = table.interval("weight", 0.9, rows)
    np.testing.assert_allclose([low, high], found[:, [0, 2]].T)
    mean = table.predict("weight", rows)
    assert list(mean.index) == list(rows.index)
    filled = table.fill(rows.assign(weight=np.nan))
    np.testing.assert_allclose(filled.weight, mean, rtol=1e-9)
    one = table.conditional(rows.iloc[0].to_dict())
    assert one.columns == ("weight",)
    assert one.predict("weight").iloc[0] == pytest.approx(mean.iloc[0], rel=1e-9)
    shares = table.predict("kind", frame().head(9))
    np.testing.assert_allclose(shares.sum(axis=1), 1)
    assert set(shares.columns) == {"cat", "dog", "emu"}
    filled = table.fill(frame())
    assert not filled.isna().any().any()
    assert filled.loc[5, "kind"] == table.predict("kind", frame().loc[[5]]).idxmax(axis=1).iloc[0]


def test_quantiles_are_those_of_scipy() -> None:
    levels, sizes = np.array([0.0, 0.01, 0.3, 0.5, 0.95, 1.0]), torch.tensor([[1e-3, 2.0, 30.0]])
    centres, dof = torch.tensor([[0.0, 5.0, 5.1]]), torch.tensor([1.3, 4.0, 90.0])
    for shares in ([1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.2, 0.3, 0.5]):
        weights = torch.tensor([shares])
        found = _quantiles(LineAt(weights.log(), centres, sizes, dof), levels)[0]
        below = stats.t(dof).cdf((found[:, None] - centres.numpy()) / sizes.numpy()) @ shares
        np.testing.assert_allclose(below, levels, atol=1e-6)


def test_draws_have_the_types_of_the_table_and_what_is_given(table) -> None:
    drawn = table.sample(500, seed=1)
    assert list(drawn.columns) == list(frame().columns)
    assert drawn.legs.dtype == frame().legs.dtype
    assert set(drawn.kind) <= {"cat", "dog", "emu"}
    usual = table.predict("kind").iloc[0]
    assert abs((drawn.kind == "cat").mean() - usual["cat"]) < 0.1
    cats = table.sample(300, given={"kind": "cat"}, seed=1)
    assert (cats.kind == "cat").all()
    assert abs(cats.weight.mean() - table.predict("weight", {"kind": "cat"}).iloc[0]) < 1


def test_odd_rows_are_found_with_the_column_that_makes_them_odd(table) -> None:
    rows = frame().head(2).assign(weight=[4.0, 400.0], kind=["cat", "dog"])
    found = table.outliers(rows)
    assert found.p_value[0] > 0.02 > found.p_value[1] > 0
    assert found.outlier.tolist() == [False, True]
    assert found.odd_columns[1][0] == "weight"
    new = table.outliers(frame().head(1).assign(kind="unicorn"))
    assert np.isfinite(new.log_density).all()
    scored = score_rows(frame(), rows)
    assert scored.outlier.tolist() == [False, True]


def test_the_density_moves_with_the_table(model) -> None:
    data, rows = frame().dropna(), frame(90).dropna().tail(20)
    expected = model.condition(data).log_prob(rows)
    order, names = ["old", "legs", "kind", "weight"], {"cat": "z", "dog": "a", "emu": "m"}
    for change, shift in (
        (lambda each: each[order], 0),
        (lambda each: each.replace({"kind": names}), 0),
        (lambda each: each.assign(weight=5 - 3 * each.weight), np.log(3)),
    ):
        found = model.condition(change(data)).log_prob(change(rows))
        np.testing.assert_allclose(found + shift, expected, atol=1e-8)
    shuffled = model.condition(data.sample(frac=1, random_state=0)).log_prob(rows)
    np.testing.assert_allclose(shuffled, expected, atol=1e-8)


@pytest.mark.parametrize("target", [None, 1, 3])
def test_a_network_with_random_weights_is_equivariant(target) -> None:
    torch.manual_seed(0)
    network = TableNetwork(TableConfig(width=16, cell_width=8, layers=2, heads=2)).double()
    for value in network.parameters():
        torch.nn.init.normal_(value, std=0.2)
    x, codes = torch.randn(1, 20, 2).double(), torch.randint(-1, 3, (1, 20, 2))
    counts = torch.tensor([[3, 3]])
    expected = write_memory(network, x, codes, counts, target).log_probs(x, codes)[0]
    rows = torch.randperm(20)
    moved = write_memory(network, x[:, rows], codes[:, rows], counts, target)
    torch.testing.assert_close(moved.log_probs(x, codes)[0], expected)
    names = torch.tensor([2, 0, 1, -1])  # the last for -1
    other = names[codes]
    renamed = write_memory(network, -x, other, counts, target)
    torch.testing.assert_close(renamed.log_probs(-x, other)[0], expected)


def test_a_target_that_is_told_leaves_a_density(model) -> None:
    density = model.condition(frame(), target="kind")
    assert density.predict("kind", {"weight": 4.0}).iloc[0]["cat"] > 0.8
    with pytest.raises(InvalidInputError):
        model.condition(frame(), target="colour")


def test_bad_input(model, table) -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(InvalidInputError, match="columns"):
        model.condition(pd.DataFrame(rng.normal(size=(9, 65))))
    with pytest.raises(InvalidInputError, match="values"):
        model.condition(frame().assign(empty=np.nan))
    with pytest.raises(InvalidInputError, match="repeat"):
        model.condition(pd.DataFrame({"id": [f"row {k}" for k in range(99)], "x": range(99)}))
    with pytest.raises(InvalidInputError):
        model.condition(frame().head(4))
    with pytest.raises(InvalidInputError, match="Infinite"):
        model.condition(frame().assign(weight=np.inf))
    with pytest.raises(InvalidInputError):
        table.predict("colour")
    with pytest.raises(InvalidInputError):
        table.quantile("kind", 0.5)
    with pytest.raises(InvalidInputError):
        table.conditional({"colour": 1})
    with pytest.raises(InvalidInputError):
        table.log_prob(pd.DataFrame({"colour": [1]}))
    with pytest.raises(DtypeError):
        table.log_prob({"weight": "heavy"})
    with pytest.raises(DtypeError):
        model.condition(frame().assign(weight=1j))
    # One value of each column, which is in the table and not asked for, and within reach.
    for given in ({"weight": (1, 5)}, {"weight": 3.0, "colour": 1}, {"kind": "cat"}):
        with pytest.raises(InvalidInputError):
            table.ask("kind", given)
    with pytest.raises(InvalidInputError, match="large"):
        table.predict("kind", {"weight": 1e300})
    for value in ("heavy", [1.0, 2.0]):
        with pytest.raises(InvalidInputError, match="value"):
            table.cdf("weight", value)


def test_many_values_constant_columns_and_gaps(model) -> None:
    rng = np.random.default_rng(0)
    data = pd.DataFrame({"town": rng.integers(0, 90, 300).astype(str), "x": rng.normal(size=300)})
    data["same"], data["one"] = "always", 7
    data.loc[::3, "x"] = np.nan
    data.loc[300] = [None] * 4
    density = model.condition(data)
    assert np.isfinite(density.log_prob(data)).all()
    assert len(density.categories["town"]) == 64
    assert density.predict("same").iloc[0]["always"] == pytest.approx(1)
    assert not density.sample(9).isna().any().any()


def test_draws_and_what_is_given_keep_the_types_of_the_table(model) -> None:
    rng = np.random.default_rng(0)
    data = pd.DataFrame({"x": rng.normal(size=50), "n": np.arange(0, 250, 5).astype("uint8")})
    data["k"] = pd.Categorical(rng.choice(["a", "b"], 50))
    density = model.condition(data)
    given = density.sample(3, given={"k": "a", "n": 4.0})
    assert (given.dtypes == data.dtypes).all()
    drawn = density.sample(500).n
    assert drawn.dtype == np.uint8
    assert (drawn.min(), drawn.max()) == (0, 255)
    assert density.log_prob(data.iloc[0]) == density.log_prob(data.head(1))
    with pytest.raises(InvalidInputError, match="no columns"):
        model.condition(data[[]])


def test_no_rows_and_rows_of_gaps(table) -> None:
    none = frame().head(0)
    assert table.predict("kind", none).shape == (0, len(table.categories["kind"]))
    assert table.fill(none).shape == none.shape
    gaps = pd.DataFrame({"weight": [np.nan, np.nan]})
    for rows in (none, gaps):
        assert "nan" in str(table.outliers(rows, draws=10))
    assert table.sample(3, {"weight": None}).weight.notna().all()
    empty = dict.fromkeys(frame())
    assert table.log_prob(empty) == pytest.approx(0, abs=1e-12)
    assert np.isnan(table.outliers(empty).percentile).all()


def test_times_are_answered_in_their_zone(model) -> None:
    days = pd.date_range("2024-01-01", periods=30, tz="Asia/Tokyo")
    density = model.condition(pd.DataFrame({"day": days, "x": np.arange(30.0)}))
    assert density.sample(3).day.dtype == density.predict("day").dtype == days.dtype
    assert density.cdf("day", days[9]) == pytest.approx(density.cdf("day", "2024-01-09T15:00"))
    middle = density.quantile("day", [[0.3, 0.5]], {"x": 10.0})
    assert middle.shape == (1, 1, 2)
    assert all(each.tz == days.tz for each in middle.flat)
    assert abs(middle[0, 0, 1] - days[10]) < pd.Timedelta(days=3)
    assert density.cdf("day", middle[0, 0, 0], {"x": 10.0}) == pytest.approx(0.3, abs=1e-4)
    assert pd.isna(density.interval("day", 1.0)[1]).all()
    for column in ("day", "x"):  # no infinite number is JSON
        assert density.ask(column, level=1.0).summary["interval"] == [None, None]


@pytest.mark.parametrize("own", ["datetime64[ns]", "datetime64[ns, UTC]"])
@pytest.mark.parametrize("rows", ["datetime64[s]", "datetime64[us, Asia/Tokyo]"])
def test_filled_times_have_the_type_of_the_rows(model, own, rows) -> None:
    days = pd.Series(pd.date_range("2024-01-01", periods=30, tz="UTC"))
    naive = days.dt.tz_localize(None)
    known, days = ((days if "," in kind else naive).astype(kind) for kind in (own, rows))
    table = model.condition(pd.DataFrame({"day": known, "x": np.arange(30.0)}))
    filled = table.fill(pd.DataFrame({"day": days[:3].mask([True, False, False]), "x": 10.0})).day
    assert filled.dtype == days.dtype
    assert abs(filled[0] - days[10]) < pd.Timedelta(days=3)
    assert (filled[1:] == days[1:3]).all()


def test_times_keep_their_type_and_range(model) -> None:
    seconds = np.random.default_rng(0).integers(-8_500_000_000, 8_500_000_000, 60)
    data = pd.DataFrame({"t": seconds.astype("datetime64[s]").astype("datetime64[ns]")})
    data["x"], data["same"] = np.arange(60.0), pd.Timestamp("2020-01-01")
    density = model.condition(data)
    drawn = density.sample(5000)  # heavy tails, beyond what nanoseconds hold
    assert (drawn.dtypes == data.dtypes).all()
    assert (density.sample(2, {"t": "2024-01-31"}).t == pd.Timestamp("2024-01-31")).all()
    low, high = density.interval("same", 0.9)  # nothing depends on the distance from 1970
    assert high[0] - low[0] < np.timedelta64(1, "s")
    assert (density.fill({"x": [0.5]}).dtypes == data.dtypes).all()


NUMBERS, NAN = np.random.default_rng(0).normal(size=40), np.nan


@pytest.mark.parametrize(
    ("other", "given", "dtype"),
    [
        (NUMBERS[::-1].astype("float32"), np.array([NAN, 0.2], "float32"), "float32"),
        (NUMBERS[::-1], pd.array([None, 1], dtype="Int64"), "float64"),
        (["x", "y"] * 20, [NAN, 1.0], "object"),
        (["x", "y"] * 20, pd.Categorical([None, "z"]), "category"),
    ],
)
def test_filled_columns_keep_the_type_of_the_rows_if_it_holds_them(
    model, other, given, dtype
) -> None:
    table = model.condition(pd.DataFrame({"a": NUMBERS, "b": other}))
    filled = table.fill(pd.DataFrame({"a": [0.1, 0.2], "b": given})).b
    assert filled.notna().all()
    assert filled[1] == given[1]
    assert filled.dtype == dtype


@pytest.mark.parametrize(("usual", "other", "nats"), [(7.0, 9.0, 5), ("red", "blue", 3)])
def test_another_value_of_a_constant_column_says_nothing(model, usual, other, nats) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"a": rng.normal(size=50), "b": rng.normal(size=50), "c": usual})
    table = model.condition(frame)
    usual, odd = {"b": 0.5, "c": usual}, {"b": 0.5, "c": other}
    assert table.interval("a", 0.9, odd) == table.interval("a", 0.9, usual)
    assert table.fill([odd])["a"].tolist() == table.fill([usual])["a"].tolist()
    assert table.conditional(odd).predict("a")[0] == table.conditional(usual).predict("a")[0]
    assert table.log_prob([odd | {"a": 0.0}]) < table.log_prob([usual | {"a": 0.0}]) - nats
