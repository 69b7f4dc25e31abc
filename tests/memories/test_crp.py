"""The Chinese-restaurant mixture: counts, and a new cluster with its normaliser."""

import numpy as np
import pytest
import torch
from helpers import draw
from scipy import stats
from scipy.special import logsumexp
from torch import Tensor

import isthmus as ist

DOUBLE = torch.float64
BETA, RHO, ALPHA = 1.3, 0.4, 0.7
KAPPA = BETA * RHO / (BETA + RHO)
COUNTS = np.array([3.0, 1.0, 5.5])


def make(means: Tensor, discount: float = 0.0, normalized: bool = True) -> ist.CRPMixture:
    return ist.CRPMixture(means, COUNTS, BETA, RHO, ALPHA, discount, normalized)


def terms(x: Tensor, means: Tensor, discount: float, normalized: bool) -> np.ndarray:
    """Logs of the summands as MATHS.md writes them, the new cluster last."""
    dim = means.shape[1]
    known = np.log(COUNTS - discount) - BETA * np.square(x.numpy()[:, None] - means.numpy()).sum(-1)
    new = np.log(ALPHA + len(COUNTS) * discount) - KAPPA * np.square(x.numpy()).sum(-1)
    if normalized:
        new = new + 0.5 * dim * np.log(KAPPA / BETA)
    return np.concatenate([known, new[:, None]], 1)


SETTINGS = pytest.mark.parametrize(
    ("discount", "normalized"), [(0.0, True), (0.6, True), (0.0, False), (0.6, False)]
)


@SETTINGS
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_energy_and_responsibilities_as_defined(dim, discount, normalized):
    means, x = draw(3, dim), draw(8, dim, seed=1)
    crp = make(means, discount, normalized)
    logs = terms(x, means, discount, normalized)
    np.testing.assert_allclose(crp.energy(x), -logsumexp(logs, 1) / BETA, rtol=1e-10)
    shares = crp.responsibilities(x)
    assert shares.shape == (8, 4)
    expected = np.exp(logs - logsumexp(logs, 1, keepdims=True))
    np.testing.assert_allclose(shares, expected, rtol=1e-9)
    # The density is a mixture with one wider component.
    new_mass = ALPHA + 3 * discount
    if not normalized:
        new_mass *= ((BETA + RHO) / RHO) ** (dim / 2)
    masses = np.append(COUNTS - discount, new_mass)
    parts = [
        stats.multivariate_normal(centre, np.eye(dim) / (2 * concentration)).logpdf(x.numpy())
        for centre, concentration in zip(
            [*means.numpy(), np.zeros(dim)], [BETA] * 3 + [KAPPA], strict=True
        )
    ]
    density = logsumexp(np.array(parts), axis=0, b=(masses / masses.sum())[:, None])
    np.testing.assert_allclose(crp.log_prob(x), density, rtol=1e-9)
    assert float(crp.kappa) == pytest.approx(KAPPA)
    assert crp.inverse_temperature == pytest.approx(BETA)


def test_a_step_solves_for_the_weighted_mean_of_unequal_components():
    means, x = draw(3, 2), draw(8, 2, seed=1)
    crp = make(means)
    shares = crp.responsibilities(x)
    precision = BETA * shares[:, :3].sum(1) + KAPPA * shares[:, 3]
    expected = BETA * shares[:, :3] @ means / precision[:, None]
    torch.testing.assert_close(crp.step(x), expected)


def test_samples_follow_the_density_new_cluster_included():
    crp = ist.CRPMixture([[2.0], [-1.0]], [6.0, 2.0], beta=2.0, rho=0.1, alpha=4.0, discount=0.25)
    masses = np.array([5.75, 1.75, 4.5])
    scale = np.sqrt([0.25, 0.25, 0.25 + 1 / 0.2])

    def cumulative(x: np.ndarray) -> np.ndarray:
        return stats.norm([2.0, -1.0, 0.0], scale).cdf(x[:, None]) @ (masses / masses.sum())

    drawn = crp.sample(20_000, seed=1)[:, 0]
    assert stats.kstest(drawn, cumulative).pvalue > 0.01
    assert stats.kstest(drawn + 0.05, cumulative).pvalue < 1e-3


def test_moving_everything_with_the_prior_mean_changes_nothing():
    means, x, shift = draw(3, 2), draw(8, 2, seed=1), torch.tensor([4.0, -3.0], dtype=DOUBLE)
    here = ist.CRPMixture(means, COUNTS, BETA, RHO, ALPHA)
    there = ist.CRPMixture(means + shift, COUNTS, BETA, RHO, ALPHA, prior_mean=shift)
    for method in ("energy", "log_prob", "score", "responsibilities"):
        torch.testing.assert_close(getattr(there, method)(x + shift), getattr(here, method)(x))
    seen = torch.tensor([True, False])
    torch.testing.assert_close(there.step(x + shift), here.step(x) + shift)
    moved = there.conditional_mean(x + shift, seen)
    torch.testing.assert_close(moved, here.conditional_mean(x, seen) + shift)
    torch.testing.assert_close(there.sample(5), here.sample(5) + shift)
    assert torch.equal(there.with_memories(means).prior_mean, shift)


def test_second_derivatives_are_finite_where_one_term_is_much_larger_than_the_other():
    far = torch.tensor([[30.0, 0.0], [0.0, 40.0]], dtype=torch.float64)
    crp = ist.CRPMixture(far, counts=[1.0, 2.0], beta=2.0, rho=0.5)
    # At a distance whose square overflows, the wide new cluster has all the weight.
    assert crp.float().responsibilities(torch.tensor([3e38, -3e38])).tolist() == [0, 0, 1]
    crp = crp.double()
    for x in (far[0], far[1] + 0.1, torch.zeros(2, dtype=torch.float64)):
        hessian = torch.autograd.functional.hessian(crp.energy, x)
        expected = -torch.autograd.functional.jacobian(crp.score, x)
        torch.testing.assert_close(hessian, expected)
        assert torch.isfinite(hessian).all()
