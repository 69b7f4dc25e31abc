"""The dynamics and the loss of ClAM against the dynamics written out."""

import numpy as np
import pytest
import torch

from isthmus.cluster.clam import _Learned, loss_gradient, summed_loss
from isthmus.cluster.data import Rows
from isthmus.scaling import Scaling

N, D, K = 23, 4, 5


def naive_states(x, means, beta, log_weights, moving, steps, rate):
    """The dynamics as the original wrote them: differences of everything with everything."""
    for _ in range(steps):
        away = means[None] - x[:, None]
        shares = torch.softmax(log_weights - beta * away.square().sum(2), 1)
        x = x + rate * moving * (shares[..., None] * away).sum(1)
    return x


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
    expected = torch.cat([each.flatten() for each in torch.autograd.grad(loss, leaves)])
    found = summed_loss(rows, hidden, LEARNED.parameters(), steps, rate)
    assert found.item() == pytest.approx(loss.item(), rel=1e-12)
    torch.testing.assert_close(loss_gradient(rows, hidden, LEARNED, steps, rate), expected)
