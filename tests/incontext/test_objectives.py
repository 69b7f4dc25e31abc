"""Each objective is at its minimum, or its gradient at zero, where theory says."""

import math
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from isthmus.incontext import ICLEBM, ICLEBMConfig
from isthmus.incontext.objectives import (
    BinaryNCE,
    BranchLangevin,
    ContrastiveDivergence,
    DenoisingScoreMatching,
    PersistentContrastiveDivergence,
    Proposal,
    RankingNCE,
    SlicedScoreMatching,
)

SMALL = ICLEBMConfig(layers=1, heads=2, width=8, box=5.5)
WIDE = Proposal(box=8.0, uniform=0.5, bandwidth=1.5)
OBJECTIVES = [
    RankingNCE(),
    ContrastiveDivergence.paper(),
    ContrastiveDivergence.calibrated(),
    PersistentContrastiveDivergence(pool=3),
    DenoisingScoreMatching(),
    BinaryNCE(),
    SlicedScoreMatching(),
]


class Gaussian:
    """Every point is N(0, scale^2 I), whatever came before: a model with one parameter."""

    unconditional = False

    def __init__(self, scale=1.0):
        self.scale = torch.tensor(scale, dtype=torch.float64, requires_grad=True)

    def energy(self, x):
        return 0.5 * (x / self.scale).square().sum(-1)

    def real_and_branch_energy(self, x, candidates):
        return self.energy(x), self.energy(candidates)


def normal_sequences(seed=0, batch=4000, length=5):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, length, 2, generator=generator, dtype=torch.float64)
    return x, generator


def gradient_and_error(objective, scale, parts=20):
    """Mean and standard error of dloss/dscale over independent batches of N(0, I) data."""
    found = []
    for part in range(parts):
        x, generator = normal_sequences(part, batch=400)
        model = Gaussian(scale)
        found.append(torch.autograd.grad(objective(model, x, generator), model.scale)[0])
    found = torch.stack(found)
    return float(found.mean()), float(found.std() / math.sqrt(parts))


@pytest.mark.parametrize("candidates", [1, 4])
def test_ranking_in_context_is_stationary_at_the_truth(candidates):
    """The other objectives are the same for rows, where tests/test_learning.py looks at them."""
    objective = RankingNCE(candidates=candidates, proposal=WIDE)
    mean, error = gradient_and_error(objective, 1.0)
    assert abs(mean) < 4 * error
    for scale, sign in ((0.8, -1), (1.25, 1)):
        mean, error = gradient_and_error(objective, scale)
        assert sign * mean > 4 * error


def test_contrastive_divergence_is_the_difference_of_mean_energies_plus_the_penalty():
    model = ICLEBM(SMALL)
    x = torch.randn(3, 4, 2, generator=torch.Generator().manual_seed(0))
    objective = ContrastiveDivergence(
        sampler=BranchLangevin(steps=2, step_size=0.01, noise=0.1), regularization=0.3
    )
    loss = objective(model, x, torch.Generator().manual_seed(7))
    generator = torch.Generator().manual_seed(7)
    start = objective.proposal.sample(x, 3, generator)
    negative = objective.sampler.run(model, x, start, generator)
    real, fake = model(x), model.branch_energy(x, negative)
    expected = real.mean() - fake.mean() + 0.3 * ((real**2).mean() + (fake**2).mean())
    torch.testing.assert_close(loss, expected)


def test_chains_of_calibrated_divergence_reach_temperature_one():
    """On a bowl, x' = (1 - a)(x + s w): variance (1 - a)^2 s^2 / (1 - (1 - a)^2)."""
    bowl = Mock(unconditional=False)
    bowl.branch_gradient = lambda x, count: torch.clone
    sampler = BranchLangevin(steps=300, step_size=0.045, noise=0.3)
    start = torch.zeros(50, 20, 10, 2, dtype=torch.float64)
    end = sampler.run(bowl, start[:, :, 0], start, torch.Generator())
    keep = (1 - 0.045) ** 2
    assert float(end.var()) == pytest.approx(keep * 0.09 / (1 - keep), rel=0.03)


@pytest.mark.parametrize("objective", OBJECTIVES, ids=lambda o: type(o).__name__)
def test_every_objective_reaches_every_parameter_and_follows_its_generator(objective):
    x = torch.randn(3, 6, 2, generator=torch.Generator().manual_seed(0))

    def run(seed):
        torch.manual_seed(0)
        model = ICLEBM(replace(SMALL, box=None))  # in a wall, the paper's step would diverge
        if isinstance(objective, PersistentContrastiveDivergence):
            objective.load_state_dict({})
        loss = objective(model, x, torch.Generator().manual_seed(seed))
        loss.backward()
        return loss.detach(), [p.grad for p in model.parameters()]

    loss, gradients = run(1)
    assert torch.isfinite(loss)
    assert all(gradient is not None for gradient in gradients)
    again, same = run(1)
    assert torch.equal(loss, again)
    assert all(torch.equal(a, b) for a, b in zip(gradients, same, strict=True))
    assert not torch.equal(loss, run(2)[0])


@pytest.mark.parametrize("uniform", [0.3, 1.0])
def test_a_proposal_integrates_to_one_and_draws_from_itself(uniform):
    proposal = Proposal(box=2.0, uniform=uniform, bandwidth=0.4)
    x = torch.tensor([[[0.5], [-1.0], [1.5], [0.0]]], dtype=torch.float64)
    axis = torch.linspace(-5, 5, 20001, dtype=torch.float64)
    density = proposal.log_prob(x, axis.view(1, 1, -1, 1).expand(1, 4, -1, 1)).exp()
    area = density.sum(-1) * (axis[1] - axis[0])
    torch.testing.assert_close(area, torch.ones_like(area), rtol=1e-3, atol=0)
    draws = proposal.sample(x, 20_000, torch.Generator().manual_seed(0)).squeeze(-1)
    for index in range(4):
        cumulative = (density[0, index].cumsum(0) * (axis[1] - axis[0])).numpy()
        placed = torch.searchsorted(axis, draws[0, index].contiguous()).clamp(max=20_000)
        levels = torch.from_numpy(cumulative)[placed].sort().values
        uniform_levels = (torch.arange(20_000) + 0.5) / 20_000
        assert float((levels - uniform_levels).abs().max()) < 1.63 / math.sqrt(20_000)  # KS, 1%
