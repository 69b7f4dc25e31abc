"""Energies made of others: sums, affine maps, conditions, and estimated normalisers."""

import copy
import math

import numpy as np
import pytest
import torch
from helpers import Bowl, draw
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate, stats
from torch import Tensor

import isthmus as ist
from isthmus.checks import check_energy
from isthmus.errors import UnknownNormalizerError, UnsupportedOperationError
from isthmus.normalizer import (
    LogIntegral,
    annealed_log_normalizer,
)

DOUBLE = torch.float64


def test_sums_differences_multiples_and_quotients(memories, points):
    one, two = ist.GaussianKDE(memories, 0.7), ist.StudentKDE(memories[:4], 0.5)
    expected = {
        one + two: one.energy(points) + two.energy(points),
        one - two: one.energy(points) - two.energy(points),
        3 * one: 3 * one.energy(points),
        one * 3: 3 * one.energy(points),
        one / 4: one.energy(points) / 4,
        -one: -one.energy(points),
        2 * (one - two) / 4 + one: 1.5 * one.energy(points) - 0.5 * two.energy(points),
    }
    for found, value in expected.items():
        torch.testing.assert_close(found.energy(points), value)
        leaf = points.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(found.energy(leaf).sum(), leaf)
        torch.testing.assert_close(found.score(points), -gradient)
        check_energy(found)
    flat = 2 * (one - two) / 4 + one
    assert flat.weights.tolist() == [0.5, -0.5, 1.0]
    assert "0.5 * GaussianKDE" in repr(flat)
    torch.testing.assert_close(sum([one, two]).energy(points), (one + two).energy(points))
    with pytest.raises(TypeError):
        sum([one, two], start=1)


@settings(max_examples=10)
@given(
    weights=st.lists(st.floats(0.1, 3.0), min_size=1, max_size=3),
    seed=st.integers(0, 50),
    dim=st.integers(1, 4),
)
def test_a_sum_of_memories_descends_by_its_step(weights, seed, dim):
    kinds = [
        ist.GaussianKDE(draw(5, dim, seed=seed), 0.6),
        ist.GaussianKDE(draw(3, dim, seed=seed + 1), 1.1),
        2 * ist.GaussianKDE(draw(4, dim, seed=seed + 2), 0.4),
    ]
    total = weights[0] * kinds[0]
    for weight, kind in zip(weights[1:], kinds[1:], strict=False):
        total = total + weight * kind
    assert total.has_step
    check_energy(total, draw(4, dim, seed=seed + 3))
    x = draw(6, dim, seed=seed + 4)
    assert (total.energy(total.step(x)) <= total.energy(x) + 1e-12).all()
    found = ist.retrieve(total, x, tol=1e-9, max_steps=5000)
    assert total.score(found.state).abs().max() < 1e-5


def test_the_product_of_two_mixtures_is_normalised(memories):
    """Against a product of all pairs of components, computed by scipy."""
    one = ist.GaussianKDE(memories[:, :1], 0.7)
    two = ist.ModernHopfield(memories[:4, :1] + 0.5, beta=2.0)
    product = one.in_nats() + two.in_nats()

    def density(x: float) -> float:
        at = torch.tensor([x], dtype=DOUBLE)
        return float((one.log_prob(at) + two.log_prob(at)).exp())

    total = integrate.quad(density, -9, 9, limit=200)[0]
    at = torch.tensor([0.3], dtype=DOUBLE)
    assert float(product.log_prob(at).exp()) == pytest.approx(density(0.3) / total, rel=1e-8)
    three = ist.Mixture(memories, 0.5, draw(7)).in_nats() + ist.GaussianKDE(memories, 0.4)
    grid = stats.qmc.Sobol(3, seed=0).random(2**16)
    nodes = torch.as_tensor(8 * (2 * grid - 1))
    assert float(three.log_prob(nodes).exp().mean()) * 16**3 == pytest.approx(1, rel=0.03)


def test_where_the_density_stays_known(memories, points):
    kde = ist.GaussianKDE(memories, 0.7)
    modern = ist.ModernHopfield(memories, 2.0)
    torch.testing.assert_close(modern.in_nats().log_prob(points), modern.log_prob(points))
    torch.testing.assert_close((1 * kde).log_prob(points), kde.log_prob(points))
    assert modern.in_nats().inverse_temperature == 1
    assert (0.5 * modern).inverse_temperature == 2
    for energy in (2 * kde, kde + kde + kde, kde - kde, kde + ist.StudentKDE(memories)):
        with pytest.raises(UnknownNormalizerError, match="with_normalizer"):
            energy.log_prob(points)


def test_weights_and_terms_can_be_learned(memories, points):
    weight = torch.tensor(2.0, dtype=DOUBLE, requires_grad=True)
    kde = ist.GaussianKDE(memories, 0.7).requires_grad_()
    total = weight * kde + kde
    total.energy(points).sum().backward()
    torch.testing.assert_close(weight.grad, kde.energy(points).sum().detach())
    assert kde.memories.grad is not None
    assert (
        copy.deepcopy(ist.GaussianKDE(memories, 1.0) + ist.GaussianKDE(memories, 1.0)) is not None
    )


MATRIX = np.array([[2.0, 0.5, 0.0], [0.0, 1.5, -0.3], [0.2, 0.0, 0.7]])
MAPS = {
    "scale": {"scale": [2.0, -0.5, 3.0], "shift": [1.0, 2.0, -1.0]},
    "one scale": {"scale": 3.0},
    "shift": {"shift": [1.0, 2.0, -1.0]},
    "matrix": {"matrix": MATRIX, "shift": 0.5},
}


@pytest.mark.parametrize("arguments", MAPS.values(), ids=MAPS)
def test_an_affine_energy_is_the_density_of_mapped_points(arguments, memories):
    inner = ist.GaussianKDE(memories, 0.7)
    mapped = ist.Affine(inner, **arguments)
    matrix = arguments.get("matrix", np.diag(np.broadcast_to(arguments.get("scale", 1.0), 3)))
    shift = np.broadcast_to(arguments.get("shift", 0.0), 3)
    means = memories.numpy() @ matrix.T + shift
    parts = [stats.multivariate_normal(m, 0.49 * matrix @ matrix.T) for m in means]
    at = means[:4] + 0.3
    expected = np.log(np.mean([part.pdf(at) for part in parts], 0))
    np.testing.assert_allclose(mapped.log_prob(torch.as_tensor(at)), expected, rtol=1e-9)
    found = ist.retrieve(mapped, torch.as_tensor(at))
    rest = ist.retrieve(inner, mapped.to_inner(torch.as_tensor(at))).state
    torch.testing.assert_close(found.state, mapped.to_outer(rest), atol=1e-4, rtol=0)
    assert found.converged.all()
    drawn = torch.as_tensor(mapped.sample(20_000, seed=0))
    np.testing.assert_allclose(drawn.mean(0), means.mean(0), atol=0.1)
    check_energy(mapped, at)
    check_energy(2 * mapped, at)


def test_affine_energies_without_a_step_or_a_density(memories):
    mapped = ist.Affine(Bowl(3), scale=2.0, shift=1.0)
    assert not mapped.has_step
    torch.testing.assert_close(mapped.energy(memories), ((memories - 1) / 2).square().sum(-1) / 2)
    with pytest.raises(UnsupportedOperationError, match=r"isthmus\.sample"):
        mapped.sample(3)
    with pytest.raises(UnknownNormalizerError):
        mapped.log_prob(memories)
    for inner in (ist.LaplaceKDE(memories), ist.GaussianKDE(memories, 0.7)):
        sheared = ist.Affine(inner, matrix=MATRIX)
        assert sheared.has_step
        with pytest.raises(UnsupportedOperationError, match="held"):
            sheared.step(memories, torch.tensor([True, False, False]))
        found = ist.retrieve(sheared, memories + 0.1, [True, False, False])
        assert torch.equal(found.state[:, 0], memories[:, 0] + 0.1)
        assert (found.energy < sheared.energy(memories + 0.1)).all()


@pytest.mark.parametrize("unit", [1e-100, 1e-20, 1e20])
def test_retrieval_is_the_same_in_any_unit(unit, memories, points):
    inner = ist.GaussianKDE(memories, 0.3)
    expected = ist.retrieve(inner, points).state
    found = ist.retrieve(ist.Affine(inner, scale=unit), unit * points).state
    torch.testing.assert_close(found / unit, expected, atol=1e-4, rtol=0)


def test_completion_in_other_units(memories):
    inner = ist.GaussianKDE(memories, 0.7)
    mapped = ist.Affine(inner, scale=[2.0, 10.0, 1.0], shift=[0.0, 100.0, 0.0])
    assert mapped.has_conditional_mean
    nan = torch.tensor([0.5, torch.nan, 0.2], dtype=DOUBLE)
    expected = ist.complete(inner, torch.tensor([0.25, torch.nan, 0.2], dtype=DOUBLE))
    torch.testing.assert_close(ist.complete(mapped, nan)[1], 10 * expected[1] + 100)
    with pytest.raises(UnsupportedOperationError, match="init="):
        ist.complete(ist.Affine(inner, matrix=MATRIX), nan)


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
