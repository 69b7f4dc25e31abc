"""Every energy of the package, once, for the tests that hold for all of them."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import settings
from torch import Tensor

import isthmus as ist
from isthmus.memories import Memory

# The same examples on every run and every machine; `make test-all` draws others from a seed.
settings.register_profile("isthmus", derandomize=True, deadline=None, database=None)
settings.register_profile("fresh", derandomize=False, deadline=None, database=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "isthmus"))

MakeMemory = Callable[[Tensor], Memory]


def signs(points: Tensor) -> Tensor:
    return torch.where(points < 0, -1.0, 1.0).to(points.dtype)


def log_weights(points: Tensor) -> Tensor:
    return torch.linspace(-1.0, 0.5, len(points)).to(points)


def log_weights_without_first(points: Tensor) -> Tensor:
    weights = log_weights(points)
    if len(points) > 1:
        weights[0] = -torch.inf
    return weights


def counts(points: Tensor) -> Tensor:
    return torch.linspace(0.7, 3.0, len(points)).to(points)


def trils(points: Tensor) -> Tensor:
    count, dim = points.shape
    lower = torch.arange(count * dim * dim, dtype=points.dtype).reshape(count, dim, dim).sin()
    return (0.4 * lower.tril(-1) + torch.diag_embed(0.6 + 0.3 * lower.diagonal(0, 1, 2))).to(points)


def degrees(points: Tensor) -> Tensor:
    found = torch.linspace(0.8, 9.0, len(points)).to(points)
    found[len(points) // 2 :][:1] = torch.inf
    return found


HOPFIELDS: dict[str, MakeMemory] = {
    "hopfield": lambda m: ist.Hopfield(signs(m)),
    "hopfield-zero-diagonal": lambda m: ist.Hopfield(signs(m), zero_diagonal=True),
    "hopfield-asynchronous": lambda m: ist.Hopfield(signs(m), update="asynchronous"),
    "hopfield-asynchronous-zero-diagonal": lambda m: ist.Hopfield(
        signs(m), update="asynchronous", zero_diagonal=True
    ),
    "hopfield-continuous": lambda m: ist.Hopfield(m, states="continuous"),
    "hopfield-continuous-zero-diagonal": lambda m: ist.Hopfield(
        m, states="continuous", zero_diagonal=True
    ),
}
SPARSE: dict[str, MakeMemory] = {
    "sparse-hopfield": lambda m: ist.SparseHopfield(m, beta=1.5),
    "sparsemax-hopfield": lambda m: ist.SparseHopfield(m, beta=1.5, alpha=2.0),
    "normmax-hopfield": lambda m: ist.SparseHopfield(m, 1.5, 3.0, separation="normmax"),
}
DENSE: dict[str, MakeMemory] = {
    "dense": lambda m: ist.DenseAssociativeMemory(signs(m), degree=3),
    "dense-asynchronous": lambda m: ist.DenseAssociativeMemory(signs(m), 3, update="asynchronous"),
    "dense-continuous": lambda m: ist.DenseAssociativeMemory(m, 4, "continuous", rectified=False),
}
GAUSSIANS: dict[str, MakeMemory] = {
    "modern-hopfield": lambda m: ist.ModernHopfield(m, beta=1.5),
    "gaussian-kde": lambda m: ist.GaussianKDE(m, sigma=0.7),
    "mixture": lambda m: ist.Mixture(m, beta=0.8),
    "mixture-weighted": lambda m: ist.Mixture(m, beta=0.8, log_weights=log_weights(m)),
    "mixture-one-left-out": lambda m: ist.Mixture(m, 0.8, log_weights_without_first(m)),
    "crp": lambda m: ist.CRPMixture(m, counts(m), beta=0.9, rho=0.4, alpha=1.3),
    "crp-discount": lambda m: ist.CRPMixture(m, counts(m), 0.9, 0.4, alpha=0.2, discount=0.5),
    "crp-as-printed": lambda m: ist.CRPMixture(m, counts(m), 0.9, 0.4, normalized=False),
}
DENSITIES: dict[str, MakeMemory] = {
    **GAUSSIANS,
    "epanechnikov-kde": lambda m: ist.EpanechnikovKDE(m, bandwidth=2.5),
    "uniform-kde": lambda m: ist.UniformKDE(m, bandwidth=2.5),
    "laplace-kde": lambda m: ist.LaplaceKDE(m, bandwidth=0.8),
    "student-kde": lambda m: ist.StudentKDE(m, bandwidth=0.7, dof=2.5),
    "cauchy-kde": lambda m: ist.StudentKDE(m, bandwidth=0.7, dof=1.0),
    "student-mixture": lambda m: ist.StudentMixture(m, trils(m), degrees(m), log_weights(m)),
    "student-mixture-along-axes": lambda m: ist.StudentMixture(m, counts(m)[:, None] + 0 * m, 3.0),
    "student-mixture-gaussian": lambda m: ist.StudentMixture(m, 0.8),
    "von-mises-fisher": lambda m: ist.VonMisesFisherMixture(m, beta=2.0),
    "von-mises-fisher-weighted": lambda m: ist.VonMisesFisherMixture(m, 2.0, log_weights(m)),
}
ENERGIES: dict[str, MakeMemory] = {**HOPFIELDS, **DENSE, **SPARSE, **DENSITIES}


# One of each kind; the other settings are marked slow.
REPRESENTATIVES = {
    *("hopfield-asynchronous", "dense-continuous", "sparse-hopfield", "modern-hopfield"),
    *("gaussian-kde", "mixture-one-left-out", "crp", "epanechnikov-kde", "student-mixture"),
    "von-mises-fisher",
}


def each(energies: dict[str, MakeMemory]) -> list[Any]:
    return [
        pytest.param(name, marks=() if name in REPRESENTATIVES else pytest.mark.slow)
        for name in energies
    ]


@pytest.fixture(params=each(ENERGIES))
def make_energy(request: pytest.FixtureRequest) -> MakeMemory:
    """Each energy in each of its settings, as a function of its memories (N, D)."""
    return ENERGIES[request.param]


@pytest.fixture(params=each(DENSITIES))
def make_density(request: pytest.FixtureRequest) -> MakeMemory:
    """Those of them whose density is known."""
    return DENSITIES[request.param]


@pytest.fixture(params=each(GAUSSIANS))
def make_gaussian(request: pytest.FixtureRequest) -> MakeMemory:
    """Those of them whose density is a mixture of Gaussians."""
    return GAUSSIANS[request.param]


@pytest.fixture
def on_sphere() -> Callable[[Memory, Tensor], Tensor]:
    """Put points (..., D) where the energy lives: at unit length for a memory of directions."""

    def put(energy: Memory, x: Tensor) -> Tensor:
        directions = isinstance(energy, ist.VonMisesFisherMixture)
        return torch.nn.functional.normalize(x, dim=-1) if directions else x

    return put


@pytest.fixture
def memories() -> Tensor:
    """Seven memories in three dimensions, in float64."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(7, 3, generator=generator, dtype=torch.float64)


@pytest.fixture
def points() -> Tensor:
    """Five points among those memories, in float64."""
    generator = torch.Generator().manual_seed(1)
    return 0.8 * torch.randn(5, 3, generator=generator, dtype=torch.float64)
