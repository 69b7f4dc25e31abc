"""Gaussian kernels: mixtures of scipy, marginals, conditionals, recalled values, and grids."""

import mpmath
import numpy as np
import pytest
import torch
from helpers import draw
from scipy.special import logsumexp, softmax
from scipy.stats import multivariate_normal
from sklearn.datasets import load_digits
from sklearn.mixture import GaussianMixture
from torch import Tensor

import isthmus as ist
from isthmus.capacity import certify
from isthmus.checks import check_energy
from isthmus.errors import InvalidInputError, ShapeError, UnsupportedOperationError
from isthmus.memories import GaussianMemory

DOUBLE = torch.float64
N, D = 9, 3
KINDS = [
    *("round", "mixture", "modern", "sigmas", "factors", "stretched", "full", "adaptive"),
    *("tied", "tied-diagonal", "diagonal", "spherical", "own"),
]


def covariance(dim: int, seed: int = 5) -> Tensor:
    root = draw(dim, dim, seed=seed)
    return root @ root.mT + 0.3 * torch.eye(dim, dtype=DOUBLE)


def made(kind: str, memories: Tensor) -> tuple[GaussianMemory, np.ndarray]:
    """Return a memory, and the covariance (n, D, D) of each of its kernels."""
    n, dim = memories.shape
    shared, sigmas = covariance(dim), draw(dim, seed=1).abs() + 0.4
    factors, weights = draw(n, seed=2).abs() + 0.5, draw(n, seed=3)
    diagonals = torch.diag_embed(draw(n, dim, seed=4).square() + 0.2)
    own = torch.stack([covariance(dim, seed=10 + each) for each in range(n)])
    eye, squares = torch.eye(dim, dtype=DOUBLE), factors.square()[:, None, None]
    kde, options = ist.GaussianKDE, {"log_weights": weights}
    mixture = {"beta": 2.0, "log_weights": weights}
    found = {
        "round": lambda: (kde(memories, 0.8), 0.64 * eye),
        # Errata E6 and E13: the two conventions of beta.
        "mixture": lambda: (ist.Mixture(memories, **mixture), eye / 4),
        "modern": lambda: (ist.ModernHopfield(memories, 2.0), eye / 2),
        "sigmas": lambda: (kde(memories, sigmas), sigmas.square().diag()),
        "factors": lambda: (kde(memories, 0.7, factors=factors, **options), 0.49 * squares * eye),
        "stretched": lambda: (
            kde(memories, sigmas, factors=factors, **options),
            squares * sigmas.square().diag(),
        ),
        "full": lambda: (kde(memories, 0.7, covariance=shared), 0.49 * shared),
        "adaptive": lambda: (
            kde(memories, 0.7, covariance=shared, factors=factors, **options),
            0.49 * squares * shared,
        ),
        "tied": lambda: (
            ist.Mixture(memories, covariance=shared, covariance_type="tied", **mixture),
            shared,
        ),
        "tied-diagonal": lambda: (
            ist.Mixture(memories, covariance=sigmas, covariance_type="tied", **mixture),
            sigmas.diag(),
        ),
        "diagonal": lambda: (
            ist.Mixture(
                memories, covariance=diagonals.diagonal(0, 1, 2), covariance_type="diag", **mixture
            ),
            diagonals,
        ),
        "spherical": lambda: (
            ist.Mixture(memories, covariance=factors, covariance_type="spherical", **mixture),
            factors[:, None, None] * eye,
        ),
        "own": lambda: (ist.Mixture(memories, covariance=own, **mixture), own),
    }[kind]()
    return found[0], found[1].expand(n, dim, dim).numpy()


def log_joint(energy: GaussianMemory, kernels: np.ndarray, x: Tensor) -> np.ndarray:
    """Return the log-weight plus scipy's log-density of each kernel. (..., n)"""
    parts = [
        multivariate_normal(mean, kernel).logpdf(x.numpy())
        for mean, kernel in zip(energy.memories.numpy(), kernels, strict=True)
    ]
    return np.stack(parts, -1) + energy.log_mixing_weights.numpy()


def test_marginals_keep_the_order_of_columns():
    """As those of a StudentMixture do; a column twice is refused by both."""
    X = draw(6, 3)
    covariance = torch.tensor([[2.0, 0.5, 0.3], [0.5, 1.0, 0.1], [0.3, 0.1, 0.7]]).double()
    student = ist.StudentMixture(X, torch.linalg.cholesky(covariance).expand(6, 3, 3))
    for energy in (ist.GaussianKDE(X, covariance=covariance), student):
        swapped, mask = energy.marginal([2, 0]), energy.marginal([True, False, True])
        assert torch.equal(swapped.memories, X[:, [2, 0]])
        torch.testing.assert_close(swapped.log_prob(X[:, [2, 0]]), mask.log_prob(X[:, [0, 2]]))
        assert torch.equal(energy.marginal([-1]).memories, X[:, 2:])
        for columns in ([0, 0], [0, -3], [3], [], 1, [0.5], "0"):
            with pytest.raises(InvalidInputError, match="columns"):
                energy.marginal(columns)


@pytest.mark.parametrize("kind", KINDS)
def test_densities_and_responsibilities_are_those_of_scipy(kind):
    energy, kernels = made(kind, draw(N, D))
    x = 2 * draw(7, D, seed=9)
    joint = log_joint(energy, kernels, x)
    np.testing.assert_allclose(energy.log_prob(x), logsumexp(joint, 1), rtol=1e-9, atol=1e-9)
    shares = np.exp(joint - logsumexp(joint, 1, keepdims=True))
    np.testing.assert_allclose(energy.responsibilities(x), shares, atol=1e-10)
    offset = energy.log_prob(x) + energy.inverse_temperature * energy.energy(x)
    torch.testing.assert_close(offset, -energy.log_normalizer().expand(7))


@pytest.mark.parametrize("kind", sorted({*KINDS} - {"modern"}))
def test_a_cluster_far_from_the_others_loses_no_digits(kind):
    """As of rows with a sentinel: squares of their distance from the others fill a float64."""
    memories = draw(N, D)
    memories[6:] += 1e9
    energy, kernels = made(kind, memories)
    x = memories[[0, 1, 6, 7, 8]] + 0.3
    joint = log_joint(energy, kernels, x)
    np.testing.assert_allclose(energy.log_prob(x), logsumexp(joint, 1), rtol=1e-6)
    shares = np.exp(joint - logsumexp(joint, 1, keepdims=True))
    np.testing.assert_allclose(energy.responsibilities(x), shares, atol=1e-6)
    known = torch.tensor([True, False, True])
    part = energy.marginal(known)
    torch.testing.assert_close(energy.log_prob(x, known), part.log_prob(x[:, known]))
    filled = energy.conditional_mean(x, known)
    assert (filled - x).abs().max() < 10
    moved = energy.step(x)
    assert (moved - x).abs().max() < 10
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(energy.energy(leaf).sum(), leaf)
    torch.testing.assert_close(energy.score(x), -gradient, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_every_promise_of_an_energy_is_kept(kind):
    check_energy(made(kind, draw(N, D))[0])


@pytest.mark.parametrize("kind", KINDS)
def test_marginals_of_rows_with_different_gaps_are_those_of_scipy(kind):
    energy, kernels = made(kind, draw(N, D))
    x = 2 * draw(8, D, seed=9)
    seen = torch.tensor([[(row >> d) & 1 for d in range(D)] for row in range(8)], dtype=torch.bool)
    gaps = x.masked_fill(~seen, torch.nan)
    found, shares = energy.log_prob(gaps, seen), energy.responsibilities(gaps, seen)
    assert found[0] == pytest.approx(0, abs=1e-12)  # nothing is known
    for row in range(1, 8):
        known = seen[row].numpy()
        part = energy.memories.numpy()[:, known]
        joint = energy.log_mixing_weights.numpy() + [
            multivariate_normal(mean, kernel[np.ix_(known, known)]).logpdf(x[row].numpy()[known])
            for mean, kernel in zip(part, kernels, strict=True)
        ]
        assert float(found[row]) == pytest.approx(logsumexp(joint), abs=1e-9)
        np.testing.assert_allclose(shares[row], np.exp(joint - logsumexp(joint)), atol=1e-9)
        marginal = energy.marginal(seen[row])
        assert float(marginal.log_prob(x[row, seen[row]])) == pytest.approx(float(found[row]))


@pytest.mark.parametrize("kind", KINDS)
def test_conditionals_are_joint_over_marginal(kind):
    x, energy = draw(D, seed=9), made(kind, draw(N, D))[0]
    for known in ([True, False, False], [False, True, True]):
        seen = torch.tensor(known)
        conditional = energy.conditional(x.masked_fill(~seen, torch.nan))
        expected = energy.log_prob(x) - energy.log_prob(x, seen)
        torch.testing.assert_close(conditional.log_prob(x[~seen]), expected)
        mean = conditional.log_mixing_weights.exp() @ conditional.memories
        torch.testing.assert_close(mean, energy.conditional_mean(x, seen)[~seen])
    nothing = energy.conditional(torch.full((D,), torch.nan, dtype=DOUBLE))
    torch.testing.assert_close(nothing.log_prob(x), energy.log_prob(x))
    with pytest.raises(InvalidInputError, match="nothing to condition"):
        energy.conditional(x)
    with pytest.raises(ShapeError, match="one point"):
        energy.conditional(draw(2, D))


@pytest.mark.parametrize("kind", KINDS)
def test_samples_have_the_moments_of_the_mixture(kind):
    energy, kernels = made(kind, draw(N, D))
    drawn = energy.sample(200_000, seed=1).numpy()
    weights = energy.log_mixing_weights.exp().numpy()
    centred = energy.memories.numpy() - weights @ energy.memories.numpy()
    expected = np.einsum("n,nij->ij", weights, kernels + centred[:, :, None] * centred[:, None])
    np.testing.assert_allclose(np.cov(drawn.T), expected, atol=0.03 * np.abs(expected).max())
    np.testing.assert_allclose(drawn.mean(0), weights @ energy.memories.numpy(), atol=0.03)


@pytest.mark.parametrize("kind", KINDS[3:])
@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_the_fused_kernel_gives_the_same_as_plain_operations(kind, dtype, monkeypatch):
    energy, _ = made(kind, draw(300, D) + 20)
    x = (draw(400, D, seed=9) + 20).to(dtype)
    typed = energy.to(dtype).requires_grad_()

    def results() -> list[Tensor]:
        leaf = x.clone().requires_grad_()
        total = typed.energy(leaf).sum()
        gradients = torch.autograd.grad(total, [leaf, *typed.parameters()])
        seen = torch.tensor([True, False, True])
        with torch.no_grad():
            return [typed.log_prob(x), typed.step(x), typed.conditional_mean(x, seen), *gradients]

    fused = results()
    monkeypatch.setattr("isthmus.kernel.attention.PLAIN_LOGITS", 10**12)
    tolerance = 1e-9 if dtype == DOUBLE else 2e-3
    for found, expected in zip(fused, results(), strict=True):
        scale = 1 + expected.abs().max()
        assert ((found - expected).abs().max() / scale) < tolerance


@pytest.mark.parametrize("kind", ["full", "tied", "diag", "spherical"])
def test_a_fitted_mixture_of_scikit_learn_is_taken_as_it_is(kind):
    X = draw(200, D).numpy()
    fitted = GaussianMixture(D, covariance_type=kind, random_state=0).fit(X)
    mixture = ist.Mixture(
        fitted.means_,
        log_weights=np.log(fitted.weights_),
        covariance=fitted.covariances_,
        covariance_type=kind,
    )
    np.testing.assert_allclose(mixture.log_prob(X), fitted.score_samples(X), rtol=1e-8)
    np.testing.assert_allclose(mixture.responsibilities(X), fitted.predict_proba(X), atol=1e-9)


def test_certificates_are_in_the_metric_of_the_kernel():
    memories, shared = 5 * draw(12, D), covariance(D)
    root = np.linalg.cholesky(shared.numpy())
    mapped = np.linalg.solve(root, memories.numpy().T).T
    shaped, plain = certify(ist.GaussianKDE(memories, 1.0, covariance=shared)), certify(mapped, 1.0)
    np.testing.assert_allclose(shaped.guaranteed_radius, plain.guaranteed_radius, rtol=1e-6)
    np.testing.assert_allclose(shaped.retrieval_error, plain.retrieval_error, atol=1e-6)
    np.testing.assert_allclose(shaped.fixed_point @ np.linalg.inv(root).T, plain.fixed_point)
    assert (shaped.stored == plain.stored).all()
    with pytest.raises(UnsupportedOperationError, match="one covariance"):
        certify(ist.GaussianKDE(memories, 1.0, factors=np.ones(12)))


def test_without_sigma_it_is_chosen_or_asked_for():
    X = draw(60, 2)
    kde = ist.GaussianKDE(X)
    torch.testing.assert_close(kde.log_prob(X), ist.GaussianKDE(X, "auto").log_prob(X))
    assert "'auto'" in repr(kde)
    assert "auto" not in repr(ist.GaussianKDE(X, 1.0))
    assert float(ist.GaussianKDE(X, covariance=covariance(2)).sigma) == 1
    with pytest.raises(InvalidInputError, match="sigma"):
        ist.GaussianKDE(X[:1])
    with pytest.raises(InvalidInputError, match="sigma"):
        torch.func.vmap(lambda rows: ist.GaussianKDE(rows).energy(rows[0]))(X.reshape(2, 30, 2))


@pytest.mark.parametrize("kind", ["factors", "adaptive", "diagonal", "spherical", "own", "full"])
def test_narrow_kernels_keep_their_digits_in_float32(kind):
    """Kernels a thousandth as wide as the cloud of memories, against float64."""
    energy, _ = made(kind, 1000 * draw(N, D))
    rough, x = energy.float(), (energy.memories.double() + draw(N, D, seed=9)).float()
    exact, at = made(kind, 1000 * draw(N, D))[0], x.double()
    with torch.no_grad():
        for name, value in rough.named_parameters():
            exact.get_parameter(name).copy_(value)
    loose, seen = 1e-3 if kind == "full" else 1e-5, torch.tensor([True, False, True])
    found, expected = rough.log_prob(x).double(), exact.log_prob(at)
    torch.testing.assert_close(found, expected, atol=loose, rtol=1e-6)
    found, expected = rough.score(x).double(), exact.score(at)
    torch.testing.assert_close(found, expected, atol=10 * loose, rtol=1e-4)
    found, expected = rough.log_prob(x, seen).double(), exact.log_prob(at, seen)
    torch.testing.assert_close(found, expected, atol=loose, rtol=1e-6)


LOG_WEIGHTS = [None, np.log([0.1, 0.2, 0.3, 0.4]), np.array([5.0, -np.inf, 3.0, 6.0])]


@pytest.mark.parametrize("log_weights", LOG_WEIGHTS, ids=["equal", "normalized", "any"])
def test_energy_as_defined(log_weights):
    means, x, beta = draw(4, 3), draw(7, 3, seed=1), 0.7
    squares = np.square(x.numpy()[:, None] - means.numpy()).sum(-1)
    logits = -beta * squares + (0 if log_weights is None else log_weights)
    mixture = ist.Mixture(means, beta, log_weights)
    np.testing.assert_allclose(mixture.energy(x), -logsumexp(logits, 1) / beta, rtol=1e-10)
    np.testing.assert_allclose(mixture.responsibilities(x), softmax(logits, 1), rtol=1e-9)
    np.testing.assert_allclose(mixture.step(x), softmax(logits, 1) @ means.numpy(), rtol=1e-9)


def test_a_component_left_out_is_not_there():
    means, x = draw(4, 2), draw(7, 2, seed=1)
    weights = torch.tensor([0.3, -torch.inf, 0.1, -0.4], dtype=DOUBLE)
    mixture = ist.Mixture(means, 2.0, weights)
    few = mixture.subset([0, 2, 3])
    torch.testing.assert_close(mixture.log_prob(x), few.log_prob(x))
    torch.testing.assert_close(mixture.step(x), few.step(x))
    assert (mixture.responsibilities(x)[:, 1] == 0).all()
    far = ist.Mixture(torch.tensor([[0.0], [100.0]]), log_weights=[-np.inf, 0.0])
    assert (far.sample(1000) > 50).all()


@pytest.mark.parametrize("beta", [0.3, 1.0, 4.0])
def test_energy_step_and_responsibilities_as_defined(beta):
    memories, x = draw(6, 4), draw(5, 4, seed=1)
    memory = ist.ModernHopfield(memories, beta)
    logits = beta * x.numpy() @ memories.numpy().T
    expected = 0.5 * np.square(x.numpy()).sum(1) - logsumexp(logits, 1) / beta
    np.testing.assert_allclose(memory.energy(x), expected, rtol=1e-11)
    weights = softmax(logits, 1)
    np.testing.assert_allclose(memory.responsibilities(x), weights, rtol=1e-11)
    np.testing.assert_allclose(memory.step(x), weights @ memories.numpy(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(memory.score(x), memory.step(x) - x)
    assert memory.inverse_temperature == pytest.approx(beta)
    mixing = softmax(0.5 * beta * np.square(memories.numpy()).sum(1))
    np.testing.assert_allclose(memory.log_mixing_weights.exp(), mixing, rtol=1e-12)


def test_the_normalizer_in_arbitrary_precision():
    memories = 30 * draw(3, 2)
    memory = ist.ModernHopfield(memories, beta=10.0)
    with mpmath.workdps(50):
        squares = [mpmath.fsum(mpmath.mpf(v) ** 2 for v in row) for row in memories.tolist()]
        exact = mpmath.log(mpmath.fsum(mpmath.exp(5 * s) for s in squares))
        exact += mpmath.log(2 * mpmath.pi / 10)
        assert float(abs(memory.log_normalizer().item() / exact - 1)) < 1e-13


def test_a_step_is_mean_shift_which_is_a_gradient_step_of_sigma_squared():
    # Erratum E13, for memories of any norm.
    memories, x = draw(8, 3), draw(5, 3, seed=1)
    kde = ist.GaussianKDE(memories, sigma=0.6)
    squares = np.square(x.numpy()[:, None] - memories.numpy()).sum(-1)
    weights = np.exp(-squares / 0.72)
    shifted = weights @ memories.numpy() / weights.sum(1, keepdims=True)
    np.testing.assert_allclose(kde.step(x), shifted, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(x + 0.36 * kde.score(x), kde.step(x))


def test_it_is_the_modern_network_on_a_sphere_only():
    # Erratum E13, with beta = 1 / sigma^2.
    x, sigma = draw(5, 3, seed=1), 0.6
    for memories, equal in (
        (torch.nn.functional.normalize(draw(8, 3), dim=1), True),
        (draw(8, 3), False),
    ):
        kde = ist.GaussianKDE(memories, sigma)
        modern = ist.ModernHopfield(memories, beta=1 / sigma**2)
        gap = (kde.step(x) - modern.step(x)).norm(dim=1).max()
        assert bool(gap < 1e-10) is equal
        assert equal or gap > 0.1


def test_float32_energies_are_not_blurred_by_the_normalizer():
    # In many dimensions log Z is large; E must not pass through it and back.
    memories = draw(20, 784)
    x = memories[:5] + 0.1 * draw(5, 784, seed=1)
    for kind, setting in ((ist.GaussianKDE, 30.0), (ist.Mixture, 1e-3)):
        exact = kind(memories.float().double(), setting).energy(x.float().double())
        rough = kind(memories.float(), setting).energy(x.float())
        torch.testing.assert_close(rough.double(), exact, rtol=1e-6, atol=0)


RECALLING = {
    "modern": lambda m: ist.ModernHopfield(m, 2.0),
    "sparse": lambda m: ist.SparseHopfield(m, 2.0),
    "kde": lambda m: ist.GaussianKDE(m, 0.7),
    "crp": lambda m: ist.CRPMixture(m, np.ones(len(m))),
}


@pytest.mark.parametrize("make", RECALLING.values(), ids=RECALLING)
def test_values_are_weighted_by_responsibilities(make):
    memory, x, values = make(draw(6, 3)), draw(2, 4, 3, seed=1), draw(6, 5, seed=2)
    weights = memory.responsibilities(x)[..., :6]
    weights = weights / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(memory.recall(x, values), weights @ values)
    torch.testing.assert_close(memory.recall(x, values[:, 0]), weights @ values[:, 0])
    assert memory.recall(x, values).shape == (2, 4, 5)
    assert memory.recall(x[:0], values).shape == (0, 4, 5)


@pytest.mark.parametrize("name", ["modern", "kde", "sparse"])
def test_batches_of_memories_are_mapped(name):
    kind, batch, x = RECALLING[name], draw(3, 6, 2), draw(3, 4, 2, seed=1)
    with pytest.raises(ShapeError, match=r"torch\.func\.vmap"):
        kind(batch)
    for method in ("step", "energy", "score", *(["log_prob"] if name != "sparse" else [])):
        found = torch.func.vmap(lambda m, q, name=method: getattr(kind(m), name)(q))(batch, x)
        expected = torch.stack([getattr(kind(m), method)(q) for m, q in zip(batch, x, strict=True)])
        torch.testing.assert_close(found, expected)


def test_memories_at_unit_length():
    memories, x = draw(6, 3), draw(4, 3, seed=1)
    memory = ist.ModernHopfield(memories, 2.0, normalize=True)
    unit = torch.nn.functional.normalize(memories, dim=1)
    torch.testing.assert_close(memory.step(x), ist.ModernHopfield(unit, 2.0).step(x))
    torch.testing.assert_close(memory.log_prob(x), ist.ModernHopfield(unit, 2.0).log_prob(x))
    check_energy(memory)
    again = memory.with_memories(5 * memories)
    torch.testing.assert_close(again.memories, memory.memories)
    assert "normalize=True" in repr(memory)
    with pytest.raises(InvalidInputError, match="all zero"):
        ist.ModernHopfield(torch.zeros(2, 2), normalize=True)


def test_long_memories_that_capture_others_are_warned_of():
    """Images of one digit differ in length: raw, most are captured; at unit length, few."""
    X = torch.as_tensor(load_digits().data)
    with pytest.warns(UserWarning, match="normalize=True"):
        raw = ist.retrieve(ist.ModernHopfield(X, beta=1.0), X[:200])
    memory = ist.ModernHopfield(X, beta=4000.0, normalize=True)
    unit = ist.retrieve(memory, memory.memories[:200])
    own = torch.arange(200)
    assert (raw.memory == own).double().mean() < 0.5
    assert (unit.memory == own).double().mean() > 0.95


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_grid_agrees_with_the_sum_within_its_error(dim: int, weighted: bool) -> None:
    rng = np.random.default_rng(dim)
    X = rng.normal(size=(500, dim)) * np.arange(1, dim + 1)
    weights = rng.random(500) if weighted else np.ones(500)
    sigma = 0.3
    kde = ist.GaussianKDE(X, sigma, log_weights=np.log(weights) if weighted else None)
    grid = kde.on_grid()
    points = X[:200] + 0.3 * rng.normal(size=(200, dim))
    expected = np.array(
        [
            np.log((weights / weights.sum()) @ np.exp(-((X - x) ** 2).sum(1) / (2 * sigma**2)))
            for x in points
        ]
    ) - dim * np.log(sigma * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(grid.log_prob(points), expected, atol=4 * grid.error)
    assert grid.error < 1e-4


def test_finer_grids_have_smaller_errors() -> None:
    X = np.random.default_rng(0).normal(size=(300, 2))
    errors = [ist.GaussianKDE(X, 0.4).on_grid(cells).error for cells in (2, 4, 8, 16)]
    assert errors == sorted(errors, reverse=True)
    assert errors[2] < errors[1] / 8  # the fourth power would be 16


def test_widths_of_columns_and_points_out_of_reach() -> None:
    X = torch.tensor([[0.0, 0.0], [1.0, 5.0]], dtype=torch.float64)
    kde = ist.GaussianKDE(X, [0.5, 2.0])
    grid = kde.on_grid(16)
    points = torch.tensor([[0.2, 1.0], [0.9, 4.0]], dtype=torch.float64)
    torch.testing.assert_close(grid.log_prob(points), kde.log_prob(points), atol=1e-4, rtol=0)
    for far in (100.0, -1e77, 1e300):
        assert grid.log_prob(torch.tensor([far, 0.0], dtype=torch.float64)) == -torch.inf
    assert grid.log_prob(points.reshape(2, 1, 2)).shape == (2, 1)
    assert "cells, error" in repr(grid)
