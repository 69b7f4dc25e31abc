"""widen: an energy whose density is that of another, blurred by Gaussian noise."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.energy import Energy
from isthmus.errors import UnsupportedOperationError
from isthmus.memories.gaussian import GaussianKDE
from isthmus.memories.mixture import CovarianceType, Mixture
from isthmus.memories.modern import ModernHopfield
from isthmus.validation import as_number, require_kind


def widen(energy: Energy, sigma: float) -> Energy:
    r"""Return the energy of points of `energy` with noise added: its density times a Gaussian.

    .. math:: p_\sigma = p * \mathcal N(0, \sigma^2 I)

    A mixture of Gaussians stays one, and each covariance grows by :math:`\sigma^2 I`.

    Parameters
    ----------
    energy : GaussianKDE, Mixture or ModernHopfield
    sigma : float
        Standard deviation of the noise, above zero.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> ist.widen(ist.GaussianKDE(torch.zeros(1, 2), sigma=3.0), 4.0)
    GaussianKDE(N=1, D=2, sigma=5, float32)
    """
    require_kind(energy, "energy", Energy)
    return energy._alike(_widened(energy, as_number(sigma, "sigma", above=0) ** 2))


def _widened(energy: Energy, noise: float) -> Energy:
    if isinstance(energy, GaussianKDE):
        return _widened_kde(energy, noise)
    if isinstance(energy, Mixture):
        if energy.covariance is None:
            return Mixture(energy.means, 0.5 / (energy.variance + noise), energy.log_weights)
        grown = _grown(energy.covariance, noise, energy.dim, _has_matrices(energy))
        kind = energy.covariance_type
        return Mixture(
            energy.means, energy.beta, energy.log_weights, covariance=grown, covariance_type=kind
        )
    if isinstance(energy, ModernHopfield):
        weights = energy.log_mixing_weights.to(energy.memories)
        return Mixture(energy.memories, 0.5 / (energy.variance + noise), weights)
    raise UnsupportedOperationError(
        f"{type(energy).__name__} has no closed form with noise added; GaussianKDE, Mixture and "
        "ModernHopfield have. Pass a function from sigma to an energy instead."
    )


def _has_matrices(energy: Mixture) -> bool:
    full = energy.covariance_type == "full"
    return full or (
        energy.covariance is not None
        and energy.covariance_type == "tied"
        and energy.covariance.ndim == 2
    )


def _widened_kde(energy: GaussianKDE, noise: float) -> Energy:
    if energy.is_round:
        sigma = (energy.variance + noise).sqrt()
        return GaussianKDE(energy.memories, sigma, log_weights=energy.log_weights)
    spread = energy.variance if energy.covariance is None else energy.variance * energy.covariance
    matrices = energy.covariance is not None
    kind: CovarianceType = "tied"
    if energy.factors is not None:
        squares = energy.factors.square()
        spread = squares.reshape(-1, *[1] * spread.ndim) * spread
        kind = "full" if matrices else ("diag" if spread.ndim == 2 else "spherical")
    grown = _grown(spread, noise, energy.dim, matrices)
    return Mixture(energy.memories, 1.0, energy.log_weights, covariance=grown, covariance_type=kind)


def _grown(covariance: Tensor, noise: float, dim: int, matrices: bool) -> Tensor:
    """Return variances or matrices plus `noise` in every direction."""
    return covariance + (noise * torch.eye(dim).to(covariance) if matrices else noise)
