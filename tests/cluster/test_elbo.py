"""ClAM+ELBO: logits flow to the posterior, and memories follow by expectation maximisation."""

import numpy as np
import pytest
import torch
from scipy import special, stats
from sklearn.datasets import make_blobs
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

import isthmus as ist
from isthmus.cluster import ClAM, ClAMELBO, data, elbo_energy, elbo_flow

DYNAMICS = ["exact", "mirror", "euclidean"]


def scipy_log_joint(x, means, beta, weights):
    """log w_k + log N(x; mu_k, I / (2 beta)). (n, K)."""
    covariance = np.eye(means.shape[1]) / (2 * beta)
    parts = [stats.multivariate_normal(mean, covariance).logpdf(x) for mean in means]
    return np.log(weights) + np.stack(parts, -1)


@pytest.fixture
def log_joint():
    """Of twelve points under a mixture of four. (12, 4)."""
    generator = np.random.default_rng(0)
    means, x = generator.normal(size=(4, 3)), generator.normal(size=(12, 3))
    return torch.from_numpy(scipy_log_joint(x, means, 0.4, np.array([0.1, 0.2, 0.3, 0.4])))


@pytest.mark.parametrize("dynamics", DYNAMICS)
def test_the_fixed_point_is_the_exact_posterior(log_joint, dynamics):
    flow = elbo_flow(log_joint, dynamics, tol=1e-10, max_steps=20_000)
    assert bool(flow.converged.all())
    expected = special.softmax(log_joint.numpy(), 1)
    np.testing.assert_allclose(flow.probabilities, expected, atol=1e-9)


def test_the_energy_exceeds_its_minimum_by_the_divergence_from_the_posterior(log_joint):
    # Erratum E2: with +H(q), as printed, this would not hold.
    logits = torch.from_numpy(np.random.default_rng(2).normal(size=(12, 4)))
    q = special.softmax(logits.numpy(), 1)
    divergence = special.rel_entr(q, special.softmax(log_joint.numpy(), 1)).sum(1)
    expected = divergence - special.logsumexp(log_joint.numpy(), 1)
    np.testing.assert_allclose(elbo_energy(logits, log_joint), expected, rtol=1e-12)


def test_the_euclidean_flow_is_minus_the_gradient_of_the_energy(log_joint):
    # Errata E2, E3: the print's energy has another gradient, its extra -1 drops out.
    logits = torch.from_numpy(np.random.default_rng(4).normal(size=(12, 4)))
    logits = (logits - logits.mean(1, keepdim=True)).requires_grad_()
    (gradient,) = torch.autograd.grad(elbo_energy(logits, log_joint).sum(), logits)
    moved = elbo_flow(log_joint, "euclidean", start=logits.detach(), step_size=0.1, max_steps=1)
    np.testing.assert_allclose(moved.logits - logits.detach(), -0.1 * gradient, atol=1e-14)


def test_the_euclidean_flow_stalls_near_a_vertex_and_says_so():
    # Erratum E4: the time grows exponentially with the logits; the mirror flow does not stall.
    log_joint = torch.tensor([0.3, -0.2, -0.1], dtype=torch.float64).expand(4, 3)
    start = torch.tensor([0.0, 4.0, 6.0, 20.0], dtype=torch.float64)
    start = start[:, None] * torch.tensor([-0.5, 1.0, -0.5], dtype=torch.float64)
    euclidean = elbo_flow(log_joint, "euclidean", start=start)
    assert euclidean.converged.tolist() == [True, True, True, False]
    steps = euclidean.steps.tolist()
    assert steps[0] < steps[1] < steps[2]
    assert steps[3] == 3000
    still = torch.softmax(start[3], 0)
    np.testing.assert_allclose(euclidean.probabilities[3], still, atol=1e-6)
    mirror = elbo_flow(log_joint, "mirror", start=start)
    assert bool(mirror.converged.all())
    assert int(mirror.steps.max()) < 50


def brute_force_em(x, means, weights, iterations):
    """Plain EM for round Gaussians of one variance, over known coordinates. NaN is unknown."""
    known = ~np.isnan(x)
    away = np.where(known[:, None], x[:, None] - means, 0.0) ** 2
    variance = away.sum(2).min(1).sum() / known.sum()
    for _ in range(iterations):
        away = np.where(known[:, None], x[:, None] - means, 0.0) ** 2
        logits = np.log(weights) - away.sum(2) / (2 * variance)
        shares = special.softmax(logits, 1)
        mass = np.einsum("nk,nd->kd", shares, known)
        means = np.einsum("nk,nd->kd", shares, np.where(known, x, 0.0)) / mass
        away = np.where(known[:, None], x[:, None] - means, 0.0) ** 2
        variance = (shares[..., None] * away).sum() / known.sum()
        weights = shares.mean(0)
    return means, 0.5 / variance, weights


@pytest.mark.parametrize("data_name", ["overlapping", "with_gaps"])
def test_four_iterations_are_those_of_brute_force_em(request, monkeypatch, data_name):
    monkeypatch.setattr(data, "BLOCK_ENTRIES", 1)  # three blocks of rows
    x = request.getfixturevalue(data_name)
    start = np.array([[5.0, 5.0, 5.0], [6.0, 6.0, 6.0], [4.0, 7.0, 5.0]])
    model = ClAMELBO(3, init=start, weights="learned", max_iter=4, tol=0.0)
    with pytest.warns(ConvergenceWarning, match="max_iter=4"):
        model.fit(x)
    means, beta, weights = brute_force_em(x, start, np.full(3, 1 / 3), 4)
    np.testing.assert_allclose(model.memories_, means, rtol=1e-9)
    np.testing.assert_allclose(model.beta_, beta, rtol=1e-9)
    np.testing.assert_allclose(model.weights_, weights, rtol=1e-9)


@pytest.mark.parametrize("data_name", ["overlapping", "with_gaps"])
def test_a_fit_is_a_stationary_point_of_the_likelihood(request, data_name):
    x = request.getfixturevalue(data_name)
    model = ClAMELBO(3, weights="learned", tol=1e-14, max_iter=20_000, random_state=0).fit(x)
    means = torch.from_numpy(model.memories_).requires_grad_()
    beta = torch.tensor(model.beta_, dtype=torch.float64, requires_grad=True)
    log_weights = torch.from_numpy(np.log(model.weights_)).requires_grad_()
    mixture, rows = ist.Mixture(means, beta, log_weights), torch.from_numpy(x)
    score = mixture.log_prob(rows, ~rows.isnan()).mean()
    for gradient in torch.autograd.grad(score, (means, beta, log_weights)):
        assert float(gradient.abs().max()) < 1e-6


@pytest.mark.parametrize("data_name", ["overlapping", "with_gaps"])
def test_the_objective_is_minus_the_score(request, data_name):
    x = request.getfixturevalue(data_name)
    weights = np.random.default_rng(0).uniform(0, 2, len(x))
    model = ClAMELBO(3, random_state=0).fit(1e3 * x, sample_weight=weights)
    assert model.objective_ == pytest.approx(-model.score(1e3 * x, sample_weight=weights))
    assert model.objective_ == model.objective_trace_[-1]


X = make_blobs(300, 3, centers=4, cluster_std=1.5, random_state=4)[0]


def test_criteria_of_one_round_gaussian_are_those_of_scikit_learn():
    ours = ClAMELBO(1).fit(X)
    theirs = GaussianMixture(1, covariance_type="spherical", reg_covar=0).fit(X)
    assert ours.bic(X) == pytest.approx(theirs.bic(X), rel=1e-9)
    assert ours.aic(X) == pytest.approx(theirs.aic(X), rel=1e-9)


@pytest.mark.parametrize(
    ("model", "free"),
    [
        (ClAMELBO(3, random_state=0), 3 * 3 + 1),
        (ClAMELBO(3, weights="learned", random_state=0), 3 * 3 + 1 + 2),
        (ClAMELBO(3, beta=0.5, random_state=0), 3 * 3),
        (ClAM(3, likelihood="vmf", random_state=0), 3 * 2 + 1),
    ],
)
def test_every_free_parameter_is_counted(model, free):
    model.fit(X)
    fit = -2 * model.score_samples(X).sum()
    assert model.bic(X) == pytest.approx(fit + free * np.log(300))
    assert model.aic(X) == pytest.approx(fit + 2 * free)


def test_two_batches_are_those_of_brute_force_online_em(overlapping):
    one, two = overlapping[:70], overlapping[70:]
    start = np.array([[5.0, 5.0, 5.0], [6.0, 6.0, 6.0], [4.0, 7.0, 5.0]])
    means, weights = start, np.full(3, 1 / 3)
    away = ((one[:, None] - means) ** 2).sum(2)
    variance = away.min(1).mean() / 3
    running = None
    for rows, rate in ((one, 1.0), (two, 0.5)):
        away = ((rows[:, None] - means) ** 2).sum(2)
        shares = special.softmax(np.log(weights) - away / (2 * variance), 1) / len(rows)
        found = np.array([shares.sum(0), *(shares.T @ rows).T, np.full(3, (rows**2).sum())])
        found[-1] /= len(rows)
        running = found if running is None else (1 - rate) * running + rate * found
        weights, means = running[0], (running[1:4] / running[0]).T
        variance = (running[-1, 0] - (weights[:, None] * means**2).sum()) / 3
    model = ClAMELBO(3, init=start, weights="learned").partial_fit(one).partial_fit(two)
    np.testing.assert_allclose(model.memories_, means, rtol=1e-9)
    np.testing.assert_allclose(model.weights_, weights, rtol=1e-9)
    np.testing.assert_allclose(0.5 / model.beta_, variance, rtol=1e-9)
