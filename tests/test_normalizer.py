"""Normalisers by quadrature and annealing, against closed forms and scipy."""

import math

import numpy as np
import pytest
import torch
from helpers import draw
from scipy import integrate
from torch import Tensor

import isthmus as ist
from isthmus.checks import check_energy
from isthmus.normalizer import (
    LogIntegral,
    annealed_log_normalizer,
)

DOUBLE = torch.float64


KNOWN = {
    "a Gaussian": lambda dim: ist.GaussianKDE(3 + draw(1, dim), sigma=0.4),
    "a mixture": lambda dim: ist.Mixture(draw(4, dim), beta=1.5, log_weights=draw(4)),
    "a Hopfield network": lambda dim: ist.ModernHopfield(draw(5, dim), beta=2.5),
    "in other units": lambda dim: ist.Affine(
        ist.GaussianKDE(draw(4, dim), 0.7), scale=10.0 ** torch.linspace(-1, 1, dim), shift=5.0
    ),
}


@pytest.mark.parametrize("make", KNOWN.values(), ids=KNOWN)
@pytest.mark.parametrize("dim", [1, 2])
def test_quadrature_finds_known_normalizers(make, dim):
    energy = make(dim)
    found = ist.with_normalizer(energy, method="grid").normalizer
    assert float(found.error) < 4e-6
    assert abs(float(found.value - energy.log_normalizer())) <= float(found.error) + 1e-9
    assert found.effective_samples is None


CASES = [*((name, 5) for name in KNOWN), ("a Gaussian", 20), ("a mixture", 20)]


@pytest.mark.parametrize(("name", "dim"), CASES)
def test_annealing_finds_known_normalizers(name, dim):
    energy = KNOWN[name](dim)
    found = ist.with_normalizer(energy, method="annealing", seed=1).normalizer
    assert float(found.error) < 0.1
    assert abs(float(found.value - energy.log_normalizer())) < 4 * float(found.error)
    assert float(found.effective_samples) > 51


def test_the_place_is_found_by_draws_without_memories():
    class Far(ist.Energy):
        dim = 3

        def energy(self, x) -> Tensor:
            return 0.5 * ((self.as_input(x) - 7) * torch.tensor([1.0, 2.0, 3.0])).square().sum(-1)

    found = ist.with_normalizer(Far()).normalizer
    exact = 1.5 * np.log(2 * np.pi) - np.log(6)
    assert abs(float(found.value) - exact) < 4 * float(found.error)


def test_heavy_tails_and_kinks_have_larger_stated_errors():
    cauchy = ist.StudentKDE(draw(3, 1), 0.5, dof=1.0)
    place = {"method": "grid", "centre": 0.0, "scale": 1.0}
    found = ist.with_normalizer(cauchy, **place).normalizer
    exact = float(cauchy.log_normalizer())
    assert 1e-6 < float(found.error) < 1e-3
    assert abs(float(found.value) - exact) <= float(found.error)
    laplace = ist.LaplaceKDE(draw(3, 2), 0.5)
    found = ist.with_normalizer(laplace, **place).normalizer
    assert abs(float(found.value - laplace.log_normalizer())) <= float(found.error)


def test_log_prob_of_any_energy():
    """A quartic well against adaptive quadrature by scipy."""

    class Well(ist.Energy):
        dim = 1

        def energy(self, x) -> Tensor:
            return (self.as_input(x).square() - 1).square().sum(-1)

    total = integrate.quad(lambda x: np.exp(-((x**2 - 1) ** 2)), -10, 10)[0]
    density = ist.with_normalizer(Well())
    at = torch.tensor([[0.5], [1.0]], dtype=DOUBLE)
    expected = -Well().energy(at) - np.log(total)
    torch.testing.assert_close(density.log_prob(at), expected, rtol=1e-6, atol=1e-6)
    assert not density.has_step
    check_energy(density, at)


def test_sums_sparse_networks_and_multiples_get_a_density():
    kde = ist.GaussianKDE(draw(4, 2), 0.8)
    for energy in (2 * kde, kde + ist.StudentKDE(draw(3, 2), 0.5), ist.SparseHopfield(draw(5, 2))):
        density = ist.with_normalizer(energy)
        assert density.has_step == energy.has_step
        check_energy(density)
        axis = torch.linspace(-9, 9, 121, dtype=DOUBLE)
        total = density.log_prob(torch.cartesian_prod(axis, axis)).exp().sum() * 0.15**2
        assert float(total) == pytest.approx(1, abs=5e-3)
        assert "log Z" in repr(density)


def test_tiny_scale_of_the_reference_stays_finite():
    tiny = ist.GaussianKDE(torch.zeros(1, 2, dtype=DOUBLE), 1e-30)
    found = annealed_log_normalizer(tiny, scale=1e-30, temperatures=5)
    assert float(found.value) == pytest.approx(math.log(2 * math.pi * 1e-60))


def test_a_poor_estimate_is_warned_of():
    narrow = ist.GaussianKDE(torch.full((1, 10), 4.0, dtype=DOUBLE), 0.01)
    with pytest.warns(UserWarning, match="effective sample size"):
        found = ist.with_normalizer(
            narrow, method="annealing", centre=0.0, scale=1.0, temperatures=5
        )
    assert isinstance(found.normalizer, LogIntegral)
