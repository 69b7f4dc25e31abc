"""ICLTables: its density moves with the table, is exact, and survives awkward tables."""

import math

import numpy as np
import pytest
import torch

import isthmus as ist
from isthmus.checks import check_energy
from isthmus.incontext import ICLTables, TableConfig, pretrained


@pytest.fixture(scope="module")
def model():
    return pretrained("tables")


def draw(n: int, columns: int, seed: int = 0) -> np.ndarray:
    """Correlated and skewed columns."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, columns)) @ rng.normal(size=(columns, columns))
    x[:, ::2] = np.exp(0.5 * x[:, ::2] / x[:, ::2].std(0))
    return x


def with_gaps(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[np.random.default_rng(1).random(x.shape) < 0.2] = np.nan
    return x


TABLES = {
    "smooth": draw(40, 4),
    "one column": draw(30, 1),
    "gaps": with_gaps(draw(40, 4)),
    "counts": np.round(3 * draw(40, 3)),
    "five rows": draw(5, 3),
    "wide": draw(30, 16),
    "fewer rows than columns": draw(6, 10),
}


@pytest.fixture(params=TABLES)
def table(request):
    return TABLES[request.param]


def probe(table: np.ndarray, seed: int = 2) -> np.ndarray:
    """Points among the rows."""
    rng = np.random.default_rng(seed)
    filled = np.where(np.isnan(table), np.nanmean(table, 0), table)
    return filled[rng.integers(len(table), size=25)] + 0.3 * filled.std(0) * rng.normal(
        size=(25, table.shape[1])
    )


def test_the_density_moves_with_the_table(model, table):
    rng = np.random.default_rng(3)
    x, columns = probe(table), table.shape[1]
    expected = model.condition(table).log_prob(x)
    assert np.isfinite(expected).all()

    rows = model.condition(table[rng.permutation(len(table))]).log_prob(x)
    np.testing.assert_allclose(rows, expected, atol=1e-6)
    order = rng.permutation(columns)
    found = model.condition(table[:, order]).log_prob(x[:, order])
    np.testing.assert_allclose(found, expected, atol=1e-6)
    signs = rng.choice([-1.0, 1.0], columns)
    signs[0] = -1
    found = model.condition(table * signs).log_prob(x * signs)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    # Powers of two, so that ties stay ties.
    scale, shift = 2.0 ** rng.integers(-8, 9, columns), rng.integers(-9, 9, columns)
    found = model.condition(table * scale + shift).log_prob(x * scale + shift)
    np.testing.assert_allclose(found + np.log(scale).sum(), expected, atol=1e-6)


def test_it_is_an_energy_with_exact_parts(model):
    density = model.condition(TABLES["smooth"])
    assert isinstance(density, ist.StudentMixture)
    assert isinstance(density, ist.Energy)
    check_energy(density, probe(TABLES["smooth"]))
    row = np.array([np.nan, 0.5, 1.0, np.nan])
    filled = ist.complete(density, row)
    assert np.isfinite(filled).all()


def test_densities_of_one_and_two_columns_integrate_to_one(model):
    line = torch.linspace(-60, 60, 200_001, dtype=torch.float64)
    values = draw(50, 1, seed=4)
    mass = torch.trapezoid(model.condition(values).log_prob(line[:, None]).exp(), line)
    assert float(mass) == pytest.approx(1, abs=2e-3)
    edges = torch.sinh(torch.linspace(-8, 8, 801, dtype=torch.float64)) / 30
    middle, width = (edges[1:] + edges[:-1]) / 2, edges.diff()
    grid = torch.cartesian_prod(middle, middle)
    # A rounded table has no kernels narrower than the cells of the grid.
    plane = np.round(draw(60, 2, seed=5))
    mass = model.condition(plane).log_prob(grid).exp() @ torch.outer(width, width).flatten()
    assert float(mass) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize("step", [1.0, 0.25])
def test_repeated_values_have_no_density_above_one_per_step(model, step):
    rng = np.random.default_rng(0)
    counts = step * rng.poisson(3, size=(80, 1))
    density = model.condition(counts)
    at_values = density.log_prob(np.unique(counts)[:, None])
    assert (at_values <= -math.log(step)).all()
    # The density is that of the counts spread over their steps: compare with their shares.
    _, shares = np.unique(counts, return_counts=True)
    mass = np.exp(at_values) * step
    common = shares > 5
    np.testing.assert_allclose(mass[common], shares[common] / 80, atol=0.08)
    pair = np.repeat(rng.normal(size=(20, 2)), 3, axis=0)  # every row three times
    assert np.isfinite(model.condition(pair).log_prob(pair)).all()


def test_a_constant_column_is_a_narrow_one(model):
    table = draw(30, 3)
    expected = model.condition(table[:, [0, 2]])
    table[:, 1] = 7.0
    density = model.condition(table)
    x = probe(table)[:, [0, 2]]
    found = density.marginal([0, 2]).log_prob(x)
    torch.testing.assert_close(found, expected.log_prob(x))
    inside, outside = density.log_prob([[1.0, 7.0, 1.0], [1.0, 8.0, 1.0]])
    assert inside > outside + 5
    zero = model.condition(np.stack([table[:, 0], 0 * table[:, 0]], 1))
    assert np.isfinite(zero.log_prob([1.0, 0.0]))


@pytest.mark.parametrize("unit", [1e-300, 1e-30, 1e30, 1e300])
def test_huge_and_tiny_units(model, unit):
    table, x = draw(30, 2), probe(draw(30, 2))
    expected = model.condition(table).log_prob(x)
    density = model.condition(unit * table)
    found = density.log_prob(unit * x) + 2 * math.log(unit)
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=0)
    assert np.isfinite(density.sample(100)).all()


def test_copies_of_rows_are_read_once(model):
    table, x = draw(30, 3), probe(draw(30, 3))
    table[:, 1] = 7.0
    table[0, 0] = table[1, 0]  # one tie is no reason to read copies
    expected = model.condition(table).log_prob(x)
    copies = np.concatenate([table, table[:20], table[:5]])
    np.testing.assert_allclose(model.condition(copies).log_prob(x), expected, atol=1e-9)
    # Repeated values of a column alone, or of counts, are evidence.
    for other in (copies[:, :1], np.round(3 * draw(30, 3))):
        doubled = np.concatenate([other, other])
        columns = slice(0, other.shape[1])
        once = model.condition(np.unique(other, axis=0)).log_prob(x[:, columns])
        assert abs(model.condition(doubled).log_prob(x[:, columns]) - once).max() > 1e-3


def test_more_rows_than_one_pass_reads(model):
    x = draw(3000, 2)
    small = ICLTables(TableConfig(max_rows=200)).double()
    small.network.load_state_dict(model.network.state_dict())
    density = small.condition(x[:700])
    assert density.n_memories == 3 * 700 + 2 * 4
    found = small.condition(x[:700][::-1]).log_prob(x[:9])
    torch.testing.assert_close(found, density.log_prob(x[:9]))
    assert small.condition(x).n_memories == 8 * (3 * 200 + 2)  # eight parts at most
    held = x[1000:2000]
    one = model.condition(x[:200]).log_prob(held).mean()
    assert small.condition(x[:800]).log_prob(held).mean() > one


def test_densities_are_calibrated(model):
    """Log-densities of fresh rows and of the model's own draws have the same distribution."""
    rng = np.random.default_rng(0)
    levels = []
    for _ in range(30):
        x = rng.normal(size=(264, 2)) @ rng.normal(size=(2, 2))
        x[:, 0] = np.exp(0.4 * x[:, 0])
        density = model.condition(x[:64])
        own = np.sort(density.log_prob(density.sample(2000)))
        levels.append(np.searchsorted(own, density.log_prob(x[64:])) / 2000)
    for level in (0.1, 0.5, 0.9):
        assert np.mean(np.concatenate(levels) < level) == pytest.approx(level, abs=0.05)
