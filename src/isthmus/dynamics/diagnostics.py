"""Chains of draws, and their diagnostics: split R-hat and effective sample size.

Both follow Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), without the rank-normalisation:
each chain is cut in two, so that a drift within it counts like a difference between chains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from isthmus.energy import as_given
from isthmus.errors import ShapeError
from isthmus.validation import as_tensor, require_finite

# A variance needs two draws, and a chain is cut in two.
FEWEST_DRAWS = 4


@dataclass(frozen=True, eq=False, repr=False)
class Chains:
    """The draws of several chains, with diagnostics: all arrays if the draws are, else tensors."""

    draws: Tensor
    """The draws (draws, chains, D)."""
    acceptance: Tensor
    """Mean acceptance probability of each chain after burn-in; 1 for Langevin. (chains,)"""
    sampler: Any = None
    """The sampler that made the draws, with its step size if that was tuned."""

    @cached_property
    def r_hat(self) -> Tensor:
        """Split R-hat of each coordinate: (D,). Above 1.01, chains have not mixed."""
        return split_r_hat(self.draws)

    @cached_property
    def ess(self) -> Tensor:
        """Effective sample size of the mean of each coordinate: (D,)."""
        return effective_sample_size(self.draws)

    def flatten(self) -> Tensor:
        """Return all draws, the first of every chain first: (draws * chains, D)."""
        return self.draws.reshape(-1, self.draws.shape[-1])

    def __repr__(self) -> str:
        draws, chains, dim = self.draws.shape
        acceptance = float(self.acceptance.mean())
        line = f"Chains({draws=}, {chains=}, D={dim}, {acceptance=:.3f})"
        if draws < FEWEST_DRAWS:
            return line
        return (
            f"{line}\n  R-hat at most {float(self.r_hat.max()):.3f}, effective sample size "
            f"at least {float(self.ess.min()):.0f} of {draws * chains}"
        )


def split_r_hat(draws: Any) -> Tensor:
    r"""Return the potential scale reduction of each coordinate, near 1 if the chains agree.

    With W the mean variance within the half-chains of length n and B/n the variance between
    their means,

    .. math:: \hat R = \sqrt{\frac{\frac{n-1}{n} W + B/n}{W}} .

    for at least four `draws` (draws, chains, D) -> (D,). Infinite where every half-chain is
    constant at a value of its own, NaN where all chains are constant at one value.
    """
    within, total = _variances(_halves(draws))
    return _in_kind(torch.sqrt(total / within), draws)


def effective_sample_size(draws: Any) -> Tensor:
    r"""Return the number of independent draws that give the mean with the same precision.

    For M half-chains of length n with autocorrelations :math:`\rho_t`,

    .. math:: \mathrm{ESS} = M n \,/\, \Bigl(-1 + 2 \sum_k (\rho_{2k} + \rho_{2k+1})\Bigr) ,

    where the sum over pairs ends before the first that is not positive, and no pair counts more
    than the one before it (Geyer's initial monotone sequence). Never more than
    :math:`M n \log_{10}(M n)`; NaN where all chains are constant at one value. Takes at least four
    `draws` (draws, chains, D) and returns (D,).
    """
    halves = _halves(draws)
    length, count = halves.shape[:2]
    within, total = _variances(halves)
    # Twice the length of zeros, so that the circular convolution does not wrap around.
    spectrum = torch.fft.rfft(halves - halves.mean(0), n=2 * length, dim=0)
    products = torch.fft.irfft(spectrum.abs().square(), n=2 * length, dim=0)
    autocovariance = products[:length].mean(1) / length  # (n, D), biased
    correlation = 1 - (within - autocovariance) / total
    correlation[0] = 1.0
    even = length - length % 2
    pairs = correlation[0:even:2] + correlation[1:even:2]  # (n // 2, D)
    positive = (pairs > 0).cumprod(0)
    size = length * count
    correlation_time = -1 + 2 * (positive * pairs.cummin(0).values).sum(0)
    ess = size / correlation_time.clamp(min=1 / math.log10(size))
    return _in_kind(torch.where(total > 0, ess, torch.nan), draws)


def _variances(halves: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean variance within half-chains and the pooled variance. (D,) each."""
    length = halves.shape[0]
    within = halves.var(0).mean(0)
    # Rounding of the mean leaves a small variance on constant chains.
    within = torch.where((halves == halves[:1]).all(0).all(0), 0.0, within)
    between = halves.mean(0).var(0)
    between = torch.where((halves == halves[:1, :1]).all(0).all(0), 0.0, between)
    return within, within * (length - 1) / length + between


def _halves(draws: Any) -> Tensor:
    """Return each chain cut in two, in double precision: (draws // 2, 2 * chains, D)."""
    draws = as_tensor(draws, "draws")
    if draws.ndim != 3 or 0 in draws.shape or draws.shape[0] < FEWEST_DRAWS:
        raise ShapeError(
            f"draws must have shape (draws, chains, D), with at least {FEWEST_DRAWS} draws, not "
            f"{tuple(draws.shape)}. For a single chain of one coordinate, use draws[:, None, None]."
        )
    require_finite(draws, "draws", "Chains that diverged have no diagnostics.")
    half = draws.shape[0] // 2
    return torch.cat([draws[:half], draws[-half:]], dim=1).detach().double()


def _in_kind(values: Tensor, draws: Any) -> Tensor:
    """Return values in the dtype of draws if they are a tensor, else as a float64 array."""
    return as_given(values.to(draws.dtype) if isinstance(draws, Tensor) else values, draws)
