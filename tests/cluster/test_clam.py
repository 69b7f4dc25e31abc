"""ClAM: memories that descend the loss of their own dynamics, from k-means on."""

import numpy as np
import pytest
import torch
from scipy import special
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from isthmus.cluster import ClAM, clam
from isthmus.cluster.clam import _Learned, summed_loss
from isthmus.cluster.data import Rows
from isthmus.memories.vmf import VonMisesFisherMixture
from isthmus.scaling import Scaling


def naive_states(x, means, beta, log_weights, moving, steps, rate):
    """The dynamics as the original wrote them: differences of everything with everything."""
    for _ in range(steps):
        away = means[None] - x[:, None]
        shares = torch.softmax(log_weights - beta * away.square().sum(2), 1)
        x = x + rate * moving * (shares[..., None] * away).sum(1)
    return x


def naive_loss(x, means, beta, weights, steps=10, rate=0.1):
    """Mean squared distance between where rows began and where the dynamics left them.

    NaN begins at its column's mean and is not judged.
    """
    start, means, log_weights = map(
        torch.as_tensor, (np.where(np.isnan(x), np.nanmean(x, 0), x), means, np.log(weights))
    )
    end = naive_states(start, means, beta, log_weights, 1.0, steps, rate).numpy()
    return np.nansum((end - x) ** 2, 1).mean()


def test_training_lowers_the_objective_below_that_of_k_means(overlapping):
    model = ClAM(3, random_state=0).fit(overlapping)
    seeds = KMeans(3, n_init=10, random_state=0).fit(overlapping)
    at_k_means = naive_loss(overlapping, seeds.cluster_centers_, model.beta_, model.weights_)
    assert model.objective_trace_[0] == pytest.approx(at_k_means, rel=1e-3)
    assert model.objective_ < 0.99 * at_k_means
    inner_variance = seeds.inertia_ / overlapping.size
    assert model.beta_ == pytest.approx(0.5 / inner_variance, rel=1e-3)


@pytest.mark.parametrize("schedule", ["fixed", "annealed", "learned"])
@pytest.mark.parametrize("objective", ["reconstruction", "masked"])
def test_the_objective_is_never_worse_than_that_of_the_start(overlapping, objective, schedule):
    # A learning rate this high spoils every update; the candidate that k-means gave remains.
    wild = ClAM(3, objective=objective, schedule=schedule, learning_rate=30.0, max_iter=30)
    wild.set_params(random_state=0).fit(overlapping)
    assert wild.objective_ <= wild.objective_trace_[0]
    assert wild.objective_trace_[1] > wild.objective_trace_[0]
    seeds = KMeans(3, n_init=10, random_state=0).fit(overlapping)
    assert adjusted_rand_score(wild.labels_, seeds.labels_) > 0.95


@pytest.fixture
def gradients(monkeypatch):
    """The number of rows and the beta of every gradient that a fit asks for."""
    asked = []

    def spy(rows, hidden, parameters, steps, rate):
        if torch.is_grad_enabled():
            asked.append((len(rows), float(parameters.beta.detach())))
        return original(rows, hidden, parameters, steps, rate)

    original = clam.summed_loss
    monkeypatch.setattr(clam, "summed_loss", spy)
    return asked


def betas_used(gradients, model, x):
    model.fit(x)
    return np.array([beta for _, beta in gradients]) / model._units.scale**2


def test_an_annealed_beta_rises_from_a_tenth(gradients, overlapping):
    model = ClAM(3, beta=0.6, schedule="annealed", random_state=0)
    used = betas_used(gradients, model, overlapping)
    assert used[0] == pytest.approx(0.06)
    assert used[100] == pytest.approx(0.6 * 0.1**0.5)
    assert used[-1] == pytest.approx(0.6)
    assert (np.diff(used) >= -1e-12).all()
    assert model.beta_ == pytest.approx(0.6)


def test_a_learned_beta_moves_to_a_lower_objective(gradients, overlapping):
    model = ClAM(3, schedule="learned", tol=0.02, random_state=0)
    used = betas_used(gradients, model, overlapping)
    fixed = ClAM(3, random_state=0).fit(overlapping)
    assert used[0] == pytest.approx(fixed.beta_)
    assert abs(np.log(model.beta_ / fixed.beta_)) > 0.01
    assert model.objective_ < fixed.objective_


def test_mini_batches_learn_too(gradients, overlapping):
    model = ClAM(3, batch_size=40, random_state=0).fit(overlapping)
    assert {size for size, _ in gradients} == {30, 40}
    whole = ClAM(3, random_state=0).fit(overlapping)
    assert model.objective_ < model.objective_trace_[0]
    np.testing.assert_allclose(model.objective_, whole.objective_, rtol=0.02)


@pytest.fixture
def directions():
    """Unit vectors about three axes, and what they are about. (120, 5), (120,)."""
    labels = np.arange(120) % 3
    rows = 6 * np.eye(5)[labels] + np.random.default_rng(0).normal(size=(120, 5))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True), labels


def test_vmf_learns_a_mixture_on_the_sphere(directions):
    x, _ = directions
    model = ClAM(3, likelihood="vmf", beta=4.0, random_state=0).fit(x)
    assert isinstance(model.energy_, VonMisesFisherMixture)
    loss = naive_loss(x, model.memories_, 4.0, model.weights_)
    assert model.objective_ == pytest.approx(loss, rel=1e-9)
    assert float(model.energy_.beta) == pytest.approx(8.0)  # on the sphere 2 beta mu.x
    cosines = x @ model.memories_.T
    expected = special.softmax(8.0 * cosines + np.log(model.weights_), 1)
    np.testing.assert_allclose(model.predict_proba(x), expected, atol=1e-9)
    drawn, labels = model.sample(50)
    np.testing.assert_allclose(np.linalg.norm(drawn, axis=1), 1)
    np.testing.assert_array_equal(labels, model.predict(drawn))


N, D, K = 23, 4, 5


def draw(*shape, seed):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


LEARNED = _Learned(
    draw(K, D, seed=0), torch.tensor(-0.2).double(), torch.log_softmax(draw(K, seed=1), 0)
)


def make_rows(missing):
    values = draw(N, D, seed=2).numpy()
    if missing:
        values[np.random.default_rng(3).random((N, D)) < 0.25] = np.nan
    return Rows.of(values, np.random.default_rng(4).uniform(0, 3, N), Scaling(np.zeros(D), 1.0))


@pytest.mark.parametrize(("steps", "rate"), [(1, 1.0), (10, 0.1), (25, 0.3)])
@pytest.mark.parametrize("missing", [False, True], ids=["complete", "missing"])
@pytest.mark.parametrize("masked", [False, True], ids=["reconstruction", "masked"])
def test_loss_and_gradient_are_those_of_the_dynamics(masked, missing, steps, rate):
    # Erratum E27: hidden coordinates start at their mean; only they move and only they count.
    rows, hidden = make_rows(missing), None
    known = torch.ones(N, D).double() if rows.observed is None else rows.observed
    start, moving, scored = rows.values, torch.ones(N, D).double(), known
    if masked:
        hidden = (torch.from_numpy(np.random.default_rng(5).random((N, D))) < 0.4).double()
        start, scored = rows.values * (1 - hidden), hidden * known
        moving = ((hidden == 1) | (known == 0)).double()
    leaves = [each.clone().requires_grad_() for each in LEARNED]
    end = naive_states(start, leaves[0], leaves[1].exp(), leaves[2], moving, steps, rate)
    loss = (rows.weights * (scored * (end - rows.values).square()).sum(1)).sum()
    expected = torch.autograd.grad(loss, leaves)
    learned = _Learned(*(each.clone().requires_grad_() for each in LEARNED))
    found = summed_loss(rows, hidden, learned.parameters(), steps, rate)
    assert found.item() == pytest.approx(loss.item(), rel=1e-12)
    torch.testing.assert_close(torch.autograd.grad(found, learned), expected)
