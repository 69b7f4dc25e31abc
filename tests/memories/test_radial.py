"""Radial kernels: densities, marginals, draws and updates against scipy and brute force."""

import copy
import math

import numpy as np
import pytest
import torch
from helpers import draw
from scipy import integrate, stats

import isthmus as ist
from isthmus.errors import OutsideSupportError

DOUBLE = torch.float64
KERNELS = {
    "student": lambda m: ist.StudentKDE(m, 0.8, dof=2.5),
    "laplace": lambda m: ist.LaplaceKDE(m, 0.8),
    "uniform": lambda m: ist.UniformKDE(m, 1.7),
    "epanechnikov": lambda m: ist.EpanechnikovKDE(m, 1.7),
}
# As printed, not normalised.
PROFILES = {
    "student": lambda r, dim: (1 + r**2 / (2.5 * 0.64)) ** (-(2.5 + dim) / 2),
    "laplace": lambda r, dim: math.exp(-r / 0.8),
    "uniform": lambda r, dim: float(r < 1.7),
    "epanechnikov": lambda r, dim: max(0.0, 1 - r**2 / 1.7**2),
}


@pytest.fixture(params=KERNELS)
def kernel(request):
    return KERNELS[request.param]


def area(dim: int) -> float:
    """The area of the unit sphere in `dim` dimensions."""
    return 2 * math.pi ** (dim / 2) / math.gamma(dim / 2)


@pytest.mark.parametrize("dim", [1, 2, 3, 5])
@pytest.mark.parametrize("name", KERNELS)
def test_densities_are_kernels_normalised_by_quadrature(name, dim):
    memories, x = draw(4, dim), draw(6, dim, seed=1)
    end = 1.7 if name in ("uniform", "epanechnikov") else np.inf
    mass, _ = integrate.quad(lambda r: area(dim) * r ** (dim - 1) * PROFILES[name](r, dim), 0, end)
    distances = np.linalg.norm(x.numpy()[:, None] - memories.numpy(), axis=-1)
    heights = np.vectorize(lambda r: PROFILES[name](r, dim), otypes=[float])(distances).sum(1)
    found = KERNELS[name](memories)
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(found.energy(x), -np.log(heights), rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(found.log_prob(x), np.log(heights / mass / 4), rtol=1e-8)


@pytest.mark.parametrize("unseen", [1, 2, 3, 4])
def test_marginals_against_quadrature(kernel, unseen):
    dim = unseen + 1
    found = kernel(torch.zeros(1, dim, dtype=DOUBLE))
    known = torch.full((dim,), torch.nan, dtype=DOUBLE)
    known[0] = 0.6

    def shell(t: float) -> float:
        point = torch.zeros(dim, dtype=DOUBLE)
        point[0], point[1] = 0.6, t
        return area(unseen) * t ** (unseen - 1) * float(found.log_prob(point).exp())

    edge = math.sqrt(1.7**2 - 0.36) if found.bandwidth == 1.7 else np.inf
    expected, _ = integrate.quad(shell, 0, edge, epsabs=1e-11)
    log_prob = found.log_prob(known, ~known.isnan())
    assert float(log_prob.exp()) == pytest.approx(expected, rel=1e-7)
    nothing = found.log_prob(known, torch.zeros(dim, dtype=torch.bool))
    assert float(nothing) == pytest.approx(0, abs=1e-12)


def test_laplace_marginals_of_many_coordinates_are_finite_and_ordered():
    # K of order 400 overflows long before the logarithm of its product with a power does.
    memories = torch.stack([torch.zeros(800), torch.ones(800)]).double()
    known = torch.full((3, 800), torch.nan, dtype=DOUBLE)
    known[:, 0] = torch.tensor([0.0, 0.2, 5.0])
    found = ist.LaplaceKDE(memories, 2.0).log_prob(known, ~known.isnan())
    assert torch.isfinite(found).all()
    # Almost a Gaussian of variance (D + 1) h^2, by the central limit.
    expected = stats.norm(scale=2 * math.sqrt(801)).logpdf(known[:, 0])
    np.testing.assert_allclose(found, expected, atol=5e-3)


@pytest.mark.parametrize("seen", [[0], [0, 2]])
def test_conditional_means_against_integration(kernel, seen):
    found = kernel(0.8 * draw(4, 3))
    x = torch.full((3,), torch.nan, dtype=DOUBLE)
    x[seen] = 0.3
    free = [d for d in range(3) if d not in seen]
    edges = torch.sinh(torch.linspace(-10, 10, 8001 if len(free) == 1 else 401, dtype=DOUBLE)) / 20
    middle, width = (edges[1:] + edges[:-1]) / 2, edges.diff()
    hidden = torch.cartesian_prod(*[middle] * len(free)).reshape(-1, len(free))
    cells = torch.cartesian_prod(*[width] * len(free)).reshape(-1, len(free)).prod(1)
    grid = torch.full((len(hidden), 3), 0.3, dtype=DOUBLE)
    grid[:, free] = hidden
    mass = found.log_prob(grid).exp() * cells
    expected = (mass[:, None] * hidden).sum(0) / mass.sum()
    mean = found.conditional_mean(x, ~x.isnan())
    torch.testing.assert_close(mean[free], expected, atol=5e-3, rtol=0)
    assert (mean[seen] == 0.3).all()
    shares = found.responsibilities(x, ~x.isnan())
    torch.testing.assert_close((shares @ found.memories)[free], mean[free])


@pytest.mark.parametrize("dim", [1, 2, 6])
def test_draws_about_one_memory_have_the_right_distances(dim):
    origin = torch.zeros(1, dim, dtype=DOUBLE)

    def p_value(memory, law) -> float:
        drawn = memory.sample(20_000, seed=1)
        assert drawn.mean(0).abs().max() < 0.2
        return stats.kstest(torch.linalg.vector_norm(drawn, dim=1), law).pvalue

    student = ist.StudentKDE(origin, 2.0, dof=3.0)
    assert p_value(student, lambda r: stats.f(dim, 3).cdf(np.square(r / 2) / dim)) > 0.01
    assert p_value(ist.LaplaceKDE(origin, 2.0), stats.gamma(dim, scale=2).cdf) > 0.01
    squares = stats.beta(dim / 2, 2)
    epanechnikov = ist.EpanechnikovKDE(origin, 2.0)
    assert p_value(epanechnikov, lambda r: squares.cdf(np.square(r) / 4)) > 0.01
    assert p_value(ist.UniformKDE(origin, 2.0), lambda r: (np.asarray(r) / 2) ** dim) > 0.01
    wide = lambda r: stats.f(dim, 3).cdf(np.square(r / 2.2) / dim)  # noqa: E731
    assert p_value(student, wide) < 1e-3


def test_a_step_is_the_weighted_mean():
    memories, x = draw(12, 2), draw(8, 2, seed=1)
    distances = np.linalg.norm(x.numpy()[:, None] - memories.numpy(), axis=-1)
    for memory, weights in (
        (ist.LaplaceKDE(memories, 0.7), np.exp(-distances / 0.7) / distances),
        (ist.EpanechnikovKDE(memories, 1.2), 1.0 * (distances < 1.2)),
        (ist.StudentKDE(memories, 0.7, 3.0), (1 + distances**2 / 1.47) ** -3.5),
    ):
        expected = weights @ memories.numpy() / weights.sum(1, keepdims=True)
        np.testing.assert_allclose(memory.step(x), expected, rtol=1e-10)


def test_a_laplace_memory_is_left_where_the_others_pull_harder():
    # The middle one of three has the share own of its own; the pull of a crowd exceeds it.
    crowd = 2 + 0.05 * draw(30, 1)
    kde = ist.LaplaceKDE(torch.cat([torch.zeros(1, 1, dtype=DOUBLE), crowd]), bandwidth=1.0)
    start = torch.zeros(1, 1, dtype=DOUBLE)
    moved = kde.step(start)
    assert moved[0, 0] > 0.01
    assert kde.energy(moved) < kde.energy(start)
    found = ist.retrieve(kde, start)
    assert abs(float(found.state) - 2) < 0.1
    # On the line between, the slope of the energy says which memories are minima.
    axis = torch.linspace(-1, 3, 40_001, dtype=DOUBLE)[:, None]
    lowest = axis[kde.energy(axis).argmin()]
    torch.testing.assert_close(kde.energy(found.state)[0], kde.energy(lowest), atol=1e-3, rtol=0)
    alone = ist.LaplaceKDE(torch.tensor([[0.0], [9.0]]), bandwidth=1.0)
    assert torch.equal(alone.step(alone.memories), alone.memories)


def test_laplace_distances_keep_their_digits_near_a_memory():
    kde = ist.LaplaceKDE(draw(3, 4) + 1e6, bandwidth=1e-3)
    away = torch.tensor([1e-6, 0, 0, 0], dtype=DOUBLE)
    x = kde.memories[0] + away
    exact = float((x - kde.memories[0])[0])
    assert float(kde.energy(x)) == pytest.approx(exact / 1e-3, rel=1e-6)


def test_uniform_steps_stay_where_the_mean_reaches_fewer():
    # From 0, all of -1.9, 0.9, 1, 1.1 are within 2; their mean 0.275 reaches one fewer.
    kde = ist.UniformKDE(torch.tensor([[-1.9], [0.9], [1.0], [1.1]]), bandwidth=2.0)
    x = torch.tensor([[0.0], [0.3]])
    torch.testing.assert_close(kde.step(x), torch.tensor([[0.0], [1.0]]))
    assert (kde.energy(x).exp() ** -1).tolist() == pytest.approx([4, 3])
    found = ist.retrieve(kde, x)
    assert found.converged.all()
    assert (kde.score(x) == 0).all()


def test_the_second_derivative_at_a_memory_is_that_of_the_formula():
    hessian = torch.autograd.functional.hessian
    memories = draw(1, 3)
    for memory, curvature in (
        (ist.EpanechnikovKDE(memories, 2.0), 2 / 4),
        (ist.StudentKDE(memories, 2.0, 3.0), (3 + 3) / (3 * 4)),
    ):
        found = hessian(memory.energy, memories[0])
        torch.testing.assert_close(found, curvature * torch.eye(3, dtype=DOUBLE))


@pytest.mark.parametrize("dof", [1e-300, 1e-12, 1e8, 1e14, 1e300])
def test_student_kernels_of_any_dof_agree_with_the_mixture(dof):
    memories = torch.tensor([[0.0, 0.0], [3.0, 1.0], [-1.0, 4.0]], dtype=torch.float64)
    x, seen = memories[:2] + 0.5, torch.tensor([True, False])
    kde, mixture = ist.StudentKDE(memories, 0.7, dof), ist.StudentMixture(memories, 0.7, dof)
    torch.testing.assert_close(kde.log_prob(x), mixture.log_prob(x))
    torch.testing.assert_close(kde.log_prob(x, seen), mixture.log_prob(x, seen))
    if dof >= 1e14:
        torch.testing.assert_close(kde.log_prob(x), ist.GaussianKDE(memories, 0.7).log_prob(x))


def test_retrieval_from_outside_stays_and_says_so():
    kde = ist.EpanechnikovKDE(torch.tensor([[0.0], [1.0]]), bandwidth=2.0)
    found = ist.retrieve(kde, torch.tensor([[50.0], [0.3]]))
    assert found.state[0] == 50
    assert found.energy[0] == torch.inf
    assert found.converged.tolist() == [False, True]
    assert "1 outside the support" in repr(found)


def test_completing_out_of_reach_of_every_memory_is_a_named_error():
    kde = ist.EpanechnikovKDE(draw(6, 2), bandwidth=1.0)
    x = torch.tensor([[50.0, torch.nan], [0.1, torch.nan]])
    with pytest.raises(OutsideSupportError, match=r"1 of 2 rows.*Raise the bandwidth"):
        ist.complete(kde, x)


def test_float32_resolves_the_kernel_in_a_wide_cloud():
    memories = torch.cat([draw(200, 3) + 5e3, draw(200, 3, seed=2) - 5e3]).float()
    x = torch.cat([draw(20, 3, seed=3) + 5e3, draw(20, 3, seed=4) - 5e3]).float()
    single = ist.EpanechnikovKDE(memories, bandwidth=2.0)
    double = copy.deepcopy(single).double()
    torch.testing.assert_close(single.energy(x).double(), double.energy(x), atol=1e-3, rtol=0)
    torch.testing.assert_close(single.step(x).double(), double.step(x), atol=2e-3, rtol=0)
    shares = single.responsibilities(x).double()
    torch.testing.assert_close(shares, double.responsibilities(x), atol=1e-3, rtol=0)


def test_kernels_far_from_all_others_lose_no_digits(kernel):
    memories = draw(4, 3)
    memories[2:] += 1e9
    near = kernel(memories[2:] - 1e9)
    expected = near.energy(memories[2:] - 1e9 + 0.1)
    torch.testing.assert_close(
        kernel(memories).energy(memories[2:] + 0.1), expected, atol=1e-6, rtol=0
    )
