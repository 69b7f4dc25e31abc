"""ClAM's hand-written gradient against autograd through the unrolled dynamics."""

import numpy as np
import pytest
import torch

import isthmus as ist
from isthmus.cluster.clam import Reconstruction, reconstruct, reconstruction_gradient
from isthmus.cluster.data import MixtureParameters, Rows, Units

N, D = 23, 4
RATE, STEPS = 0.1, 10


def naive_states(x, means, beta, log_weights, moving, steps, rate):
    """The dynamics as the original wrote them: differences of everything with everything."""
    for _ in range(steps):
        away = means[None] - x[:, None]
        shares = torch.softmax(log_weights - beta * away.square().sum(2), 1)
        x = x + rate * moving * (shares[..., None] * away).sum(1)
    return x


def draw(*shape, seed):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


@pytest.fixture(params=[5, 11], ids=["few-memories", "many-memories"])
def parameters(request):
    """The steps run in the logits where memories are few, in the coordinates where not."""
    log_weights = torch.log_softmax(draw(request.param, seed=1), 0)
    return MixtureParameters(draw(request.param, D, seed=0), 0.8, log_weights)


def make_rows(missing, weighted):
    values = draw(N, D, seed=2).numpy()
    if missing:
        values[np.random.default_rng(3).random((N, D)) < 0.25] = np.nan
    weights = np.random.default_rng(4).uniform(0, 3, N) if weighted else np.ones(N)
    return Rows.of(values, weights, Units(np.zeros(D), 1.0))


@pytest.mark.parametrize("weighted", [False, True], ids=["unweighted", "weighted"])
@pytest.mark.parametrize("missing", [False, True], ids=["complete", "missing"])
@pytest.mark.parametrize("masked", [False, True], ids=["reconstruction", "masked"])
def test_the_gradient_is_that_of_autograd(parameters, masked, missing, weighted):
    rows = make_rows(missing, weighted)
    known = torch.ones(N, D) if rows.observed is None else rows.observed
    if masked:
        hidden = (torch.from_numpy(np.random.default_rng(5).random((N, D))) < 0.4).double()
        task, start = Reconstruction.of(rows, hidden), rows.values * (1 - hidden)
        moving, judged = ((hidden == 1) | (known == 0)).double(), hidden * known
    else:
        task, start = Reconstruction.of(rows, None), rows.values
        moving, judged = torch.ones(N, D, dtype=torch.float64), known

    means = parameters.means.clone().requires_grad_()
    beta = torch.tensor(parameters.beta, dtype=torch.float64, requires_grad=True)
    log_weights = parameters.log_weights.clone().requires_grad_()
    end = naive_states(start, means, beta, log_weights, moving, STEPS, RATE)
    loss = (rows.weights * (judged * (end - rows.values).square()).sum(1)).sum()
    expected = torch.autograd.grad(loss, (means, beta, log_weights))

    found = reconstruction_gradient(task, parameters, STEPS, RATE)
    ours_end = reconstruct(task, parameters, STEPS, RATE)
    np.testing.assert_allclose(ours_end, end.detach(), atol=1e-12)
    assert task.loss(ours_end) == pytest.approx(loss.item(), rel=1e-12)
    for ours, theirs in zip((found.means, found.beta, found.log_weights), expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("steps", "rate"), [(1, 1.0), (3, 0.5), (25, 0.3)])
def test_any_number_and_size_of_steps(parameters, steps, rate):
    rows = make_rows(missing=False, weighted=False)
    means = parameters.means.clone().requires_grad_()
    end = naive_states(rows.values, means, 0.8, parameters.log_weights, 1.0, steps, rate)
    (expected,) = torch.autograd.grad((end - rows.values).square().sum(), means)
    found = reconstruction_gradient(Reconstruction.of(rows, None), parameters, steps, rate)
    np.testing.assert_allclose(found.means, expected, rtol=1e-10, atol=1e-10)


def test_full_steps_are_those_of_the_energy(parameters):
    # ClAM trains on the very dynamics by which the learned energy retrieves.
    rows = make_rows(missing=False, weighted=False)
    mixture = ist.Mixture(parameters.means, parameters.beta, parameters.log_weights)
    expected = mixture.step(mixture.step(rows.values))
    found = reconstruct(Reconstruction.of(rows, None), parameters, 2, 1.0)
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_masked_dynamics_hold_what_is_known(parameters):
    # Erratum E27: hidden coordinates start at their mean; only they move and only they count.
    rows = make_rows(missing=False, weighted=False)
    hidden = torch.zeros(N, D, dtype=torch.float64)
    hidden[:, 1] = 1
    task = Reconstruction.of(rows, hidden)
    end = reconstruct(task, parameters, STEPS, RATE)
    kept = [0, 2, 3]
    np.testing.assert_array_equal(end[:, kept], rows.values[:, kept])
    assert float(task.start[:, 1].abs().max()) == 0
    expected = float((end[:, 1] - rows.values[:, 1]).square().sum())
    assert task.loss(end) == pytest.approx(expected)
