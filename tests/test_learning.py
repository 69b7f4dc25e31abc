"""fit: energies end where closed forms say, resume to the bit, and bad input is named."""

import math

import numpy as np
import pytest
import torch

import isthmus as ist
from isthmus.capacity import basins
from isthmus.deep import Bias, DeepMemory, Dense, Neurons
from isthmus.errors import DivergenceError, InvalidInputError, ShapeError, UnsupportedOperationError
from isthmus.incontext import loop
from isthmus.incontext import objectives as o
from isthmus.learning import OBJECTIVES, FitSettings, RowModel, RowRecipe

NORMAL = ist.StudentMixture(torch.zeros(1, 2, dtype=torch.float64), 1.5)


class Bowl(ist.Energy):
    """N(0, scale^2 I), without or with its normaliser."""

    def __init__(self, scale=1.0, known=False):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.tensor(scale, dtype=torch.float64))
        self.known = known

    dim = 2

    def energy(self, x):
        energy = 0.5 * (x / self.scale).square().sum(-1)
        return energy + x.shape[-1] * self.scale.log() if self.known else energy

    def log_normalizer(self):
        known = 0 if self.known else 2 * self.scale.log()
        return known + math.log(2 * math.pi)


def rows_of(n=600, dim=2, seed=0, scale=1.0):
    return scale * np.random.default_rng(seed).normal(size=(n, dim))


def gradient_and_error(objective, scale, known=False, parts=20):
    """Mean and standard error of dloss/dscale over independent batches of N(0, I) data."""
    found = []
    for part in range(parts):
        generator = torch.Generator().manual_seed(part)
        x = torch.randn(2000, 1, 2, generator=generator, dtype=torch.float64)
        model = RowModel(Bowl(scale, known), x.new_zeros(2), x.new_ones(2))
        loss = objective(model, x, generator)
        if known:
            with torch.no_grad():
                model.offset += math.log(2 * math.pi)
            loss = objective(model, x, generator)
        found.append(torch.autograd.grad(loss, model.energy.scale)[0])
    found = torch.stack(found)
    return float(found.mean()), float(found.std() / math.sqrt(parts))


CONSISTENT = [
    o.MaximumLikelihood(),
    o.RankingNCE(candidates=1, proposal=o.EnergyProposal(NORMAL)),
    o.RankingNCE(candidates=3, proposal=o.Proposal(box=6.0)),
    o.BinaryNCE(candidates=2, proposal=o.EnergyProposal(NORMAL)),
    o.SlicedScoreMatching(),
]


@pytest.mark.parametrize("objective", CONSISTENT)
def test_an_objective_of_rows_is_stationary_at_the_truth(objective):
    known = isinstance(objective, o.BinaryNCE)
    mean, error = gradient_and_error(objective, 1.0, known)
    assert abs(mean) < 4 * error
    for scale, sign in ((0.8, -1), (1.25, 1)):
        mean, error = gradient_and_error(objective, scale, known)
        assert sign * mean > 4 * error


def test_denoising_of_rows_is_stationary_at_the_blurred_truth():
    mean, error = gradient_and_error(o.DenoisingScoreMatching(sigma=0.5), math.sqrt(1.25))
    assert abs(mean) < 4 * error


def test_contrastive_divergence_of_rows_is_stationary_at_the_truth():
    """Chains that start at draws of the model keep its distribution, up to the bias of a step."""
    sampler = o.BranchLangevin(steps=10, noise=0.1, step_size=0.005)
    start = o.EnergyProposal(ist.StudentMixture(torch.zeros(1, 2, dtype=torch.float64)))
    chains = o.ContrastiveDivergence(
        candidates=4, sampler=sampler, proposal=start, regularization=0.0
    )
    for objective in (chains, o.PersistentContrastiveDivergence(chains=chains)):
        mean, error = gradient_and_error(objective, 1.0)
        assert abs(mean) < 4 * error + 0.02


def test_a_plain_energy_is_an_in_context_one_with_an_empty_context():
    """Without sharing of candidates, both losses are the same numbers."""
    x = torch.from_numpy(rows_of(50))[:, None]
    rows = RowModel(Bowl(1.2), x.new_zeros(2), x.new_ones(2))
    objectives = [
        o.BinaryNCE(proposal=o.Proposal(box=6.0)),
        o.DenoisingScoreMatching(),
        o.SlicedScoreMatching(),
        o.ContrastiveDivergence(proposal=o.Proposal(box=6.0)),
    ]
    for objective in objectives:
        rows.unconditional = True
        plain = objective(rows, x, torch.Generator().manual_seed(1))
        rows.unconditional = False
        in_context = objective(rows, x, torch.Generator().manual_seed(1))
        assert torch.equal(plain, in_context)


def test_the_likelihood_of_one_gaussian_ends_at_the_closed_form():
    X = rows_of(400, seed=1, scale=2.0) + np.array([3.0, -1.0])
    start = ist.Mixture(torch.zeros(1, 2, dtype=torch.float64), beta=0.2)
    found = ist.fit(start, X, updates=400, learning_rate=0.05, progress=False)
    assert "MaximumLikelihood" in found.record.objective
    means, beta = found.energy.means[0].numpy(), float(found.energy.beta)
    np.testing.assert_allclose(means, X.mean(0), atol=0.15)
    assert 1 / (2 * beta) == pytest.approx(X.var(0).mean(), rel=0.1)
    assert torch.equal(start.means, torch.zeros(1, 2, dtype=torch.float64))  # not changed
    exact = -found.energy.log_prob(X).mean()
    assert found.record.held_out == pytest.approx(exact, abs=0.2)


@pytest.mark.parametrize("objective", OBJECTIVES[1:-1])
def test_a_linear_energy_is_trained_and_named_as_unbounded(objective):
    with pytest.warns(UserWarning, match="lower bound"):
        found = ist.fit(ist.as_energy(torch.nn.Linear(2, 1)), rows_of(100), objective, updates=20)
    assert not found.record.is_bounded


def test_few_updates_use_the_learning_rate():
    settings = FitSettings(objective="", updates=20, learning_rate=1.0, rows="", seed=0)
    assert max(map(settings.learning_rate_at, range(20))) > 0.8


@pytest.mark.parametrize("objective", [None, *OBJECTIVES[1:-1]])
def test_every_objective_finds_the_width_of_a_gaussian(objective):
    X = rows_of(1500, scale=3.0) + 7.0
    energy = ist.Affine(Bowl(1.5), shift=[7.0, 7.0])
    found = ist.fit(energy, X, objective, updates=400, learning_rate=0.05, progress=False)
    width = float(found.energy.inner.scale)
    blur = 1.1 if objective == "denoising" else 1.0
    assert width == pytest.approx(3.0 * blur, rel=0.12)
    assert found.record.is_bounded
    assert found.record.held_out == pytest.approx(
        2 * math.log(3) + math.log(2 * math.pi) + 1, abs=0.2
    )


def test_a_network_learns_a_density_and_everything_works_on_it(tmp_path):
    X = rows_of(800, scale=0.5) + np.where(rows_of(800, 1, seed=2) > 0, 2.0, -2.0) * [1, 0]
    found = ist.fit(ist.NeuralEnergy(2, width=32), X, updates=400, progress=False)
    energy = found.energy
    density = ist.with_normalizer(energy)
    side = np.where(rows_of(2000, 1, seed=6) > 0, 2.0, -2.0)
    test = rows_of(2000, scale=0.5, seed=5) + side * [1, 0]
    truth = ist.Mixture(np.array([[-2.0, 0], [2, 0]]), beta=2.0).log_prob(test).mean()
    assert density.log_prob(test).mean() > truth - 0.12
    assert found.record.held_out == pytest.approx(-density.log_prob(test).mean(), abs=0.15)
    ends = ist.retrieve(energy, np.array([[1.5, 0.3], [-1.4, 0.2]])).state
    np.testing.assert_allclose(ends, [[2, 0], [-2, 0]], atol=0.4)
    groups = basins(energy, starts=test[:200])
    assert groups.n_basins == 2
    assert (groups.labels[test[:200, 0] > 0.5] == groups.labels[test[:200, 0].argmax()]).all()
    options = {"method": "langevin", "steps": 100, "init": np.zeros((200, 2))}
    annealed = ist.anneal(lambda sigma: energy, [0.5, 0.25], 200, **options)
    assert abs(abs(annealed.draws[:, 0]).mean() - 2) < 0.2
    filled = ist.complete(energy, np.array([[1.9, np.nan]]), init=np.zeros(2))
    assert abs(filled[0, 1]) < 0.4
    drawn = ist.sample(energy, 400, sampler=ist.MALA(0.2), seed=0)
    assert abs(abs(drawn[:, 0]).mean() - 2) < 0.2
    ist.save(energy, tmp_path / "energy.safetensors")
    again = ist.load(tmp_path / "energy.safetensors")
    assert np.array_equal(again.energy(test), energy.energy(test))
    text = repr(found.record)
    assert all(word in text for word in ("objective", "held-out", "nats", "time", "learning rate"))
    assert len(found.record.plot().lines) == 2


def energies_of(unit):
    """Energies of two groups in some unit: memories, networks, and both."""
    points = unit * torch.tensor([[-2.0, 0.0], [2.0, 1.0], [1.0, -1.0]])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        layers = torch.nn.Linear(2, 8), torch.nn.SiLU(), torch.nn.Linear(8, 1)
    network = ist.NeuralEnergy(2, width=8)
    return {
        "kernels": ist.GaussianKDE(points, sigma=unit),
        "mixture": ist.Mixture(points, beta=0.5 / unit**2),
        "shaped": ist.GaussianKDE(points, covariance=unit**2 * torch.eye(2)),
        "scaled": ist.GaussianKDE(points, unit, covariance=torch.eye(2)),
        "own shapes": ist.Mixture(points, covariance=unit**2 * torch.ones(3, 2)),
        "restaurant": ist.CRPMixture(
            points, [1.0, 2.0, 3.0], 0.5 / unit**2, 0.05 / unit**2, prior_mean=points[0]
        ),
        "gaussians": ist.StudentMixture(points, unit),
        "module": ist.as_energy(torch.nn.Sequential(*layers)),
        "affine": ist.Affine(network, scale=[unit, -2 * unit], shift=unit),
        "sum": ist.GaussianKDE(points, sigma=unit) + network,
    }


@pytest.mark.filterwarnings("ignore:.*no lower bound")
@pytest.mark.parametrize("name", energies_of(1.0))
def test_a_fit_is_the_same_in_all_units(name):
    X = (rows_of(100) + np.where(rows_of(100, 1, seed=2) > 0, 2.0, -2.0)).astype(np.float32)
    found = []
    for unit in (1.0, 2.0**40, 2.0**-40):
        rows = ist.fit(energies_of(unit)[name], unit * X, updates=100, progress=False).record.rows
        found.append([row["held_out_nll"] - 2 * math.log(unit) for row in rows])
    assert found[0][-1] < found[0][0]
    np.testing.assert_allclose(found[1:], found[:1] * 2, atol=1e-3)


def test_a_sum_is_trained_and_frozen_parts_stay():
    X = rows_of(300) ** 3
    base = ist.StudentMixture(torch.zeros(1, 2), dof=3.0)
    for each in base.parameters():
        each.requires_grad_(False)
    both = base + ist.NeuralEnergy(2, width=8)
    found = ist.fit(both, X, updates=100, progress=False).energy
    terms = list(found)
    assert torch.equal(terms[0].means, base.means)
    assert float(terms[1].readout.weight.abs().sum()) > 0
    assert terms[1].is_placed


def test_deep_memories_are_trained():
    X = np.eye(4)[np.random.default_rng(0).integers(0, 4, 300)] * 3 + 0.2 * rows_of(300, 4)
    layers = {"pixels": Neurons(4), "hidden": Neurons(6, "softmax", 3.0)}
    start = DeepMemory(layers, [Dense("pixels", "hidden")]).over("pixels")
    found = ist.fit(start, X, updates=300, learning_rate=0.02, progress=False)
    first, best = found.record.rows[0]["held_out_nll"], found.record.held_out
    assert best < first - 0.5
    found = ist.fit(start, X, "completion", updates=200, learning_rate=0.02, progress=False)
    hidden = X.copy()
    hidden[:, 2:] = np.nan
    seen = X[:, :2].max(1) > 1.5  # one of the first two is on, so that the others are off
    filled = ist.complete(found.energy, hidden, init=X.mean(0), max_steps=4)
    error = np.sqrt(np.square(filled - X)[seen, 2:].mean())
    assert error < 0.5 * np.sqrt(np.square(X.mean(0) - X)[seen, 2:].mean())
    many = rows_of(60, 20)
    found = ist.fit(ist.NeuralEnergy(20, width=8), many, updates=50, progress=False)
    assert found.record.score_name == "held_out_denoising"


def dropping():
    layers = torch.nn.Linear(2, 8), torch.nn.Dropout(0.5), torch.nn.SiLU(), torch.nn.Linear(8, 1)
    return ist.as_energy(torch.nn.Sequential(*layers), dim=2) + Bowl()


def test_dropout_follows_the_seed_and_leaves_the_random_stream_alone():
    X, energy, found = rows_of(60), dropping(), []
    for start in (1, 2):
        torch.manual_seed(start)
        state = torch.random.get_rng_state()
        found.append(ist.fit(energy, X, updates=60, progress=False))
        assert torch.equal(state, torch.random.get_rng_state())
    first, second = (list(each.energy.parameters()) for each in found)
    assert all(map(torch.equal, first, second))
    other = ist.fit(energy, X, updates=60, seed=1, progress=False).energy.parameters()
    assert not all(map(torch.equal, first, other))


@pytest.mark.parametrize("objective", ["ranking", "persistent", "dropout"])
def test_a_run_resumes_to_the_bit(objective, tmp_path, monkeypatch):
    X, energy = rows_of(200), ist.NeuralEnergy(2, width=8)
    if objective == "dropout":
        objective, energy = "denoising", dropping()
    whole = ist.fit(energy, X, objective, updates=120, progress=False)
    monkeypatch.setattr(loop, "SECONDS_BETWEEN_CHECKPOINTS", 0.0)
    loss = RowRecipe.loss

    def killed(self, network, update, part):
        if update == 70:
            raise KeyboardInterrupt
        return loss(self, network, update, part)

    monkeypatch.setattr(RowRecipe, "loss", killed)
    with pytest.raises(KeyboardInterrupt):
        ist.fit(energy, X, objective, updates=120, out=tmp_path, progress=False)
    monkeypatch.setattr(RowRecipe, "loss", loss)
    again = ist.fit(energy, X, objective, updates=120, out=tmp_path, progress=False)
    for one, other in zip(whole.energy.parameters(), again.energy.parameters(), strict=True):
        assert torch.equal(one, other)
    scores = [[row.get("held_out_nll") for row in each.record.rows] for each in (whole, again)]
    assert scores[0] == scores[1]
    if isinstance(energy, ist.NeuralEnergy):
        loaded = ist.load(tmp_path / "energy.safetensors")
        assert np.array_equal(loaded.energy(X), again.energy.energy(X))
    with pytest.raises(InvalidInputError, match="other settings"):
        ist.fit(energy, X + 1, objective, updates=120, out=tmp_path, progress=False)


def test_training_ends_early_with_the_best_weights(tmp_path, monkeypatch):
    X = rows_of(40)
    monkeypatch.setattr(RowRecipe, "patience", 2)
    options = {"updates": 3000, "learning_rate": 0.01, "out": tmp_path, "progress": False}
    found = ist.fit(ist.NeuralEnergy(2, width=64), X, **options)
    scores = [row["held_out_nll"] for row in found.record.rows]
    assert len(scores) < 60
    assert found.record.held_out == min(scores) < scores[-1]
    again = ist.fit(ist.NeuralEnergy(2, width=64), X, **options)
    assert np.array_equal(again.energy.energy(X), found.energy.energy(X))


def test_bad_input_is_named():
    X, together = rows_of(100), (torch.nn.Linear(2, 1), torch.nn.Softmax(0))
    cases = [
        (InvalidInputError, "parameters", ist.as_energy(torch.nn.Identity()), X),
        (ShapeError, "module", ist.as_energy(torch.nn.Linear(2, 2)), X),
        (InvalidInputError, "held out", ist.NeuralEnergy(2), X[:10]),
        (InvalidInputError, "other points", ist.as_energy(torch.nn.Sequential(*together)), X),
        (InvalidInputError, "atch", ist.as_energy(torch.nn.BatchNorm1d(2)), X),
        (InvalidInputError, "inner", ist.with_normalizer(ist.GaussianKDE(X)), X),
        (InvalidInputError, "NaN|finite", ist.NeuralEnergy(2), X * np.nan),
        (ShapeError, "3", ist.NeuralEnergy(3), X),
        (InvalidInputError, "Affine", DeepMemory({"a": Neurons(2)}, [Bias("a")]), 1e9 * X),
    ]
    for kind, word, energy, rows in cases:
        with pytest.raises(kind, match=word):
            ist.fit(energy, rows, progress=False)
    with pytest.raises(InvalidInputError, match="objective"):
        ist.fit(ist.NeuralEnergy(2), X, "guess", progress=False)
    with pytest.raises(UnsupportedOperationError, match="step"):
        ist.fit(ist.NeuralEnergy(2), X, "completion", updates=1, progress=False)


class Falling(ist.Energy):
    def __init__(self, power):
        super().__init__()
        self.slope = torch.nn.Parameter(torch.ones(()))
        self.power = power

    def energy(self, x):
        return -(1 + self.slope.square()) * x.abs().pow(self.power).sum(-1)


def test_unbounded_energies_and_losses_that_are_not_numbers_are_named():
    X = rows_of(100)
    with pytest.raises(DivergenceError, match="no lower bound|overflowed"):
        ist.fit(Falling(4), X, o.ContrastiveDivergence(sampler=o.BranchLangevin()), progress=False)
    with pytest.raises(DivergenceError, match="update 1"):
        ist.fit(Falling(2), X, lambda model, x, generator: model.offset * math.nan, progress=False)
