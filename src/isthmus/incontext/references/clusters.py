"""The marginal likelihood of one cluster of a random Gaussian mixture, mean integrated out."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from isthmus.incontext.priors import GaussianMixtures

__all__ = ["ClusterLaw", "SufficientStatistics"]

ROOT_TWO = math.sqrt(2)


class SufficientStatistics(NamedTuple):
    """Number, sum and squared norms of a cluster's points, which determine its likelihood."""

    counts: Tensor
    """(...)"""
    sums: Tensor
    """(..., D)"""
    squares: Tensor
    """Sum of squared norms. (...)"""

    def plus(self, x: Tensor) -> SufficientStatistics:
        """Return the statistics with one more point each. x: (..., D), broadcast."""
        return SufficientStatistics(
            self.counts + 1, self.sums + x, self.squares + x.square().sum(-1)
        )

    def unsqueeze(self) -> SufficientStatistics:
        """Return the same with one more axis, the last one of (...)."""
        return SufficientStatistics(
            self.counts.unsqueeze(-1), self.sums.unsqueeze(-2), self.squares.unsqueeze(-1)
        )


class ClusterLaw:
    r"""Marginal distribution of the points of one component of unknown mean and width.

    The integral over the mean is analytic. That over the standard deviation is Gauss-Legendre
    quadrature, so that the width is one of a few nodes with prior weights.

    Parameters
    ----------
    prior : GaussianMixtures
    nodes : int
        Quadrature nodes. One is used if the prior fixes the width.

    Attributes
    ----------
    stds, log_weights : Tensor (J,)
        Nodes, and the logarithms of their prior weights, which sum to one.
    """

    def __init__(self, prior: GaussianMixtures, nodes: int) -> None:
        self.prior = prior
        if prior.std_low == prior.std_high:
            nodes = 1
        unit, weights = np.polynomial.legendre.leggauss(nodes)
        middle, half = (prior.std_low + prior.std_high) / 2, (prior.std_high - prior.std_low) / 2
        self.stds = torch.from_numpy(middle + half * unit)
        self.log_weights = torch.from_numpy(np.log(weights / 2))

    def log_likelihood(self, cluster: SufficientStatistics, stds: Tensor) -> Tensor:
        r"""Return log :math:`\int p(\mu) \prod_i N(x_i; \mu, s^2 I)\, d\mu`, for stds (...)."""
        # An empty cluster gets the count 1 in denominators, and the result 0.
        safe = cluster.counts.clamp(min=1)
        mean = cluster.sums / safe[..., None]
        scatter = cluster.squares - cluster.sums.square().sum(-1) / safe
        variance = stds.square()
        log_noise = -scatter / (2 * variance) - self.prior.dim / 2 * (
            safe * (2 * math.pi * variance).log() - (2 * math.pi * variance / safe).log()
        )
        error = (variance / safe).sqrt()
        # A loop over few coordinates is several times faster than a sum over a short axis.
        log_mean = sum(self._log_mean(each, error) for each in mean.unbind(-1))
        return torch.where(cluster.counts > 0, log_noise + log_mean, 0.0)

    def over_nodes(self, cluster: SufficientStatistics) -> Tensor:
        """Return the log-likelihood plus the log-weight of each node. (...) -> (..., J)."""
        return self.log_likelihood(cluster.unsqueeze(), self.stds) + self.log_weights

    def _log_mean(self, mean: Tensor, error: Tensor) -> Tensor:
        """Return the log-density of one coordinate of a mean observed with an `error`."""
        scale = self.prior.mean_scale
        if self.prior.mean_law == "normal":
            variance = scale**2 + error.square()
            return -mean.square() / (2 * variance) - (2 * math.pi * variance).log() / 2
        # Mirrored to the positive side, where both bounds lie in the accurate tail of erfc.
        upper, lower = (scale - mean.abs()) / error, (-scale - mean.abs()) / error
        return _log_mass(lower, upper) - math.log(2 * scale)

    def draw_means(
        self, cluster: SufficientStatistics, stds: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Draw each cluster's mean given its points and its width. (...) -> (..., D)."""
        scale = self.prior.mean_scale
        safe = cluster.counts.clamp(min=1)[..., None]
        mean, error = cluster.sums / safe, stds[..., None] / safe.sqrt()
        empty = cluster.counts[..., None] == 0
        if self.prior.mean_law == "normal":
            precision = torch.where(empty, 0.0, error**-2)
            variance = 1 / (scale**-2 + precision)
            noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
            return variance * precision * mean + variance.sqrt() * noise
        unit = torch.rand(mean.shape, generator=generator, dtype=mean.dtype)
        side = torch.where(mean < 0, -1.0, 1.0)
        upper, lower = (scale - mean.abs()) / error, (-scale - mean.abs()) / error
        low, high = torch.special.ndtr(lower), torch.special.ndtr(upper)
        # Beyond 37 standard deviations only the nearer bound survives rounding.
        normal = torch.special.ndtri(low + unit * (high - low)).clamp(lower, upper)
        return torch.where(empty, (2 * unit - 1) * scale, side * (mean.abs() + error * normal))


def _log_mass(lower: Tensor, upper: Tensor) -> Tensor:
    """Return the log of the standard normal mass between two bounds, the lower negative."""
    mass = (torch.erfc(-upper / ROOT_TWO) - torch.erfc(-lower / ROOT_TWO)) / 2
    if mass.numel() == 0 or float(mass.min()) > 0:
        return mass.log()
    log_upper = torch.special.log_ndtr(upper)
    return log_upper + torch.log1p(-(torch.special.log_ndtr(lower) - log_upper).exp())
