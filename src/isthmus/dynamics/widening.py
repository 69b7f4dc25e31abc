"""widen: an energy whose density is that of another, blurred by Gaussian noise."""

from __future__ import annotations

from typing import Any

import torch

from isthmus.energy import Energy
from isthmus.errors import UnsupportedOperationError
from isthmus.memories.gaussian import GaussianKDE
from isthmus.memories.mixture import Mixture
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
    sigma = as_number(sigma, "sigma", above=0)
    return energy._alike(_widened(energy, sigma**2))


def _widened(energy: Energy, noise: float) -> Energy:
    if isinstance(energy, ModernHopfield):
        weights = energy.log_mixing_weights.to(energy.memories)
        return Mixture(energy.memories, 0.5 / (energy.variance + noise), weights)
    if isinstance(energy, Mixture):
        spread, kind = energy.covariance, energy.covariance_type
        if spread is None:
            return Mixture(energy.means, 0.5 / (energy.variance + noise), energy.log_weights)
        matrices = kind == "full" or (kind == "tied" and spread.ndim == 2)
        beta: Any = energy.beta
    elif isinstance(energy, GaussianKDE):
        if energy.is_round:
            sigma = (energy.variance + noise).sqrt()
            return GaussianKDE(energy.memories, sigma, log_weights=energy.log_weights)
        shape, kind, beta = energy.covariance, "tied", 1.0
        spread, matrices = energy.variance * (1.0 if shape is None else shape), shape is not None
        if energy.factors is not None:
            squares = energy.factors.square()
            spread = squares.reshape(-1, *[1] * spread.ndim) * spread
            kind = "full" if matrices else ("diag" if spread.ndim == 2 else "spherical")
    else:
        raise UnsupportedOperationError(
            f"{type(energy).__name__} has no closed form with noise added; GaussianKDE, Mixture "
            "and ModernHopfield have. Pass a function from sigma to an energy instead."
        )
    grown = spread + (noise * torch.eye(energy.dim).to(spread) if matrices else noise)
    options: Any = {"covariance": grown, "covariance_type": kind}
    return Mixture(energy.memories, beta, energy.log_weights, **options)
