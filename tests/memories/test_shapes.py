"""Gaussian kernels with shape: scipy's mixtures, their marginals and their conditionals."""

import numpy as np
import pytest
import torch
from helpers import draw
from scipy.special import logsumexp
from scipy.stats import multivariate_normal
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
