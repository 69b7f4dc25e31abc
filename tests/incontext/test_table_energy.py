"""The energy head: a smooth bounded correction whose draws are exact and normaliser known."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from isthmus import retrieve
from isthmus.checks import check_energy
from isthmus.cli.main import main
from isthmus.errors import InvalidInputError
from isthmus.incontext import (
    HeadTraining,
    ICLTables,
    TableConfig,
    TableEnergy,
    TableTraining,
    pretrained,
    train_tables,
)
from isthmus.incontext.tables.head import HIGHEST, LOWEST, bounded, read_tables
from isthmus.incontext.tables.head_training import contrast
from isthmus.incontext.tables.prior import draw_batch
from isthmus.memories import StudentMixture

CONFIG = TableConfig(width=8, cell_width=8, layers=1, heads=2, max_columns=3, max_rows=64)
TINY_TABLES = TableTraining()
TINY = HeadTraining(
    model=TableConfig(head_layers=1),
    updates=6,
    context_rows=64,
    tables=4,
    rows=8,
    noise=12,
    size_high=32,
    warmup=2,
)


def table(n: int, columns: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, columns)) @ rng.normal(size=(columns, columns))
    x[:, ::2] = np.exp(0.5 * x[:, ::2] / x[:, ::2].std(0))
    return x


@pytest.fixture(scope="module")
def model():
    """A model whose head corrects a lot, at random."""
    torch.manual_seed(0)
    made = ICLTables(TableConfig(width=16, heads=2, layers=1, head_layers=2)).double()
    with torch.no_grad():
        for parameter in made.head.parameters():
            parameter += 0.4 * torch.randn_like(parameter)
    return made.requires_grad_(False)


@pytest.mark.parametrize("kind", ["smooth", "gaps", "counts", "one column", "a constant column"])
def test_the_corrected_density_moves_with_the_table(model, kind):
    X = table(30, 1 if kind == "one column" else 3)
    if kind == "counts":
        X = np.round(3 * X)
    if kind == "a constant column":
        X[:, 1] = 5.0
    x, rng = X[:9] + 0.1 * X.std(0), np.random.default_rng(3)
    if kind == "gaps":
        X[rng.random(X.shape) < 0.2] = np.nan
    expected = model.condition(X, energy_head=True)
    columns = X.shape[1]
    order, signs = rng.permutation(columns), -np.ones(columns)
    # Powers of two, so that ties stay ties.
    scale, shift = signs * 2.0 ** rng.integers(-8, 9, columns), rng.integers(1, 9, columns)
    if kind == "a constant column":
        shift, scale = 0 * shift, signs
    moved = model.condition(
        (X * scale + shift)[rng.permutation(len(X))][:, order], energy_head=True
    )
    found = moved.correction((x * scale + shift)[:, order])
    np.testing.assert_allclose(found, expected.correction(x), atol=1e-8)
    found = moved.energy((x * scale + shift)[:, order]) - np.log(np.abs(scale)).sum()
    np.testing.assert_allclose(found, expected.energy(x), atol=1e-6)
    assert np.ptp(expected.correction(x)) > 0.01


def test_it_is_a_smooth_energy(model):
    X = table(30, 3)
    energy = model.condition(X, energy_head=True)
    assert isinstance(energy, TableEnergy)
    assert "density matches energy" in check_energy(energy, X[:8] + 0.1).passed
    points = 5 * np.random.default_rng(0).normal(size=(200, 3))
    points = np.concatenate([points, [[1e9, 0, 0], [-1e9, 1e9, 1e9]]])
    found = energy.correction(points)
    assert ((found > LOWEST) & (found < HIGHEST)).all()
    np.testing.assert_allclose(energy.energy(points), energy.base.energy(points) - found)
    state = retrieve(energy, X[:2]).state
    assert (energy.energy(state) <= energy.energy(X[:2])).all()
    assert "TableEnergy(StudentMixture(" in repr(energy)
    tensors = model.condition(torch.from_numpy(X), energy_head=True)
    assert isinstance(tensors.sample(2), torch.Tensor)


def test_bounds_have_no_effect_near_zero():
    raw = torch.tensor([-1e4, -1e-4, 0.0, 1e-4, 1e4], dtype=torch.float64)
    expected = [LOWEST, -1e-4, 0.0, 1e-4, HIGHEST]
    np.testing.assert_allclose(bounded(raw), expected, atol=1e-8)


def on_a_line(energy: TableEnergy) -> tuple[np.ndarray, np.ndarray]:
    """Return points and unnormalised densities on a fine grid."""
    line = np.concatenate([-np.geomspace(1e6, 1e-4, 20_000), np.geomspace(1e-4, 1e6, 20_000)])
    line = energy.base.means.numpy().mean() + line
    return line, np.exp(-np.asarray(energy.energy(line[:, None])))


def test_the_normaliser_and_draws_against_quadrature(model):
    # Rounded, so that no kernel is narrower than the cells of the grid.
    energy = model.condition(np.round(4 * table(40, 1)), energy_head=True)
    line, density = on_a_line(energy)
    total = np.trapezoid(density, line)
    found = energy.normalizer
    assert 0 < found.error < 0.03
    assert abs(float(found.value) - math.log(total)) < 4 * float(found.error)
    assert float(energy.log_normalizer()) == float(found.value)
    weights = np.exp(energy.correction(np.asarray(energy.base.sample(4096, seed=0))))
    assert float(found.effective_samples) == pytest.approx(
        weights.sum() ** 2 / (weights**2).sum(), rel=1e-6
    )
    assert np.trapezoid(np.exp(energy.log_prob(line[:, None])), line) == pytest.approx(
        1, abs=4 * float(found.error)
    )
    steps = (density[1:] + density[:-1]) / 2 * np.diff(line)
    share = np.concatenate([[0], np.cumsum(steps)]) / steps.sum()
    draws = energy.sample(3000, seed=1)[:, 0]
    assert stats.kstest(draws, lambda x: np.interp(x, line, share)).pvalue > 1e-3
    # The memory alone has other draws, so that the test can tell.
    base = np.asarray(energy.base.sample(3000, seed=1))[:, 0]
    assert stats.kstest(base, lambda x: np.interp(x, line, share)).pvalue < 1e-3
    np.testing.assert_array_equal(energy.sample(50, seed=1), energy.sample(50, seed=1))
    assert energy.sample(0).shape == (0, 1)


def test_components_draw_as_the_memory_does():
    torch.manual_seed(0)
    network = ICLTables(CONFIG).double().network
    batch = draw_batch(np.random.default_rng(1), 2, 30, 4, 2)
    with torch.no_grad():
        written = read_tables(network, torch.from_numpy(batch.context).double()).components
    drawn = written.sample(3000, torch.Generator().manual_seed(0))
    for index in range(2):
        memory = StudentMixture(*(part[index] for part in written))
        for column in range(2):
            both = drawn[index, :, column], memory.sample(3000, seed=1)[:, column]
            assert stats.ks_2samp(*both).pvalue > 1e-3


def test_the_contrast_is_a_cross_entropy():
    generator = torch.Generator().manual_seed(0)
    rows, noise = torch.randn(3, 5, generator=generator), torch.randn(3, 7, generator=generator)
    losses = [
        torch.nn.functional.cross_entropy(torch.cat([row[None], noise[i]])[None], torch.tensor([0]))
        for i in range(3)
        for row in rows[i]
    ]
    expected = torch.stack(losses).mean() - math.log(8)
    torch.testing.assert_close(contrast(rows, noise), expected)


def test_only_the_head_is_trained_and_a_stopped_run_continues(tmp_path):
    torch.manual_seed(1)
    base = ICLTables(CONFIG)
    whole, rows = train_tables(TINY, init=base, log_every=2, evaluate_every=6)
    assert math.isfinite(rows[-1]["held_out_nll"])
    for name, value in base.network.state_dict().items():
        assert torch.equal(whole.network.state_dict()[name], value)
    assert any(bool(parameter.any()) for parameter in whole.head.out[2].parameters())

    class StopError(Exception):
        pass

    def stop(row):
        if row["update"] == 4:
            raise StopError

    with pytest.raises(StopError):
        train_tables(TINY, tmp_path, init=base, log_every=2, checkpoint_every=1, report=stop)
    with pytest.warns(UserWarning, match="has made 3 of its 6 updates"):
        halfway = pretrained(tmp_path)
    X = table(20, 2)
    assert isinstance(halfway.condition(X, energy_head=True), TableEnergy)
    model, _ = train_tables(TINY, tmp_path, init=base, log_every=2, checkpoint_every=1)
    for name, value in whole.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)
    stored, plain = pretrained(tmp_path), base.double()
    energy = stored.condition(X, energy_head=True)
    np.testing.assert_allclose(energy.base.log_prob(X), plain.condition(X).log_prob(X))
    torch.manual_seed(2)
    with pytest.raises(InvalidInputError, match="other settings: init"):
        train_tables(TINY, tmp_path, init=ICLTables(CONFIG))


def test_what_a_head_cannot_do_is_said(model):
    torch.manual_seed(0)
    with pytest.raises(InvalidInputError, match="no energy head"):
        ICLTables(CONFIG).condition(table(20, 2), energy_head=True)
    with pytest.raises(InvalidInputError, match="at most 1024 rows"):
        model.condition(table(1100, 2), energy_head=True)
    with pytest.raises(InvalidInputError, match="HeadTraining"):
        TINY_TABLES.recipe(model)
    with pytest.raises(InvalidInputError, match="model of tables"):
        TINY.recipe(pretrained("mixtures-2d"))


def test_training_from_the_command_line(tmp_path, capsys):
    torch.manual_seed(1)
    ICLTables(CONFIG).save_pretrained(tmp_path / "base")
    command = ["icl", "train", "--preset", "tables-energy", "--init", str(tmp_path / "base")]
    more = ["--updates", "2", "--batch", "2", "--out", str(tmp_path / "run"), "--quiet"]
    assert main([*command, *more]) == 0
    model = pretrained(capsys.readouterr().out.strip())
    assert model.condition(table(20, 2), energy_head=True).sample(3).shape == (3, 2)
    assert main(["icl", "train", "--preset", "tables-energy", "--prior", "compact", *more]) == 2
    assert "--prior does not apply" in capsys.readouterr().err
