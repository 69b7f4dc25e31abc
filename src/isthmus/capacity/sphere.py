r"""Two random points on a sphere: how far apart they are, and how much a Gaussian sees of that.

Lengths are in units of the bandwidth, :math:`\sigma = 1`. All values are logarithms, so that
nothing underflows in ten thousand dimensions.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaln, log_expit, logsumexp

from isthmus.bessel import log_bessel_i

__all__ = ["SphereQuadrature", "log_cap_fraction", "log_kernel_mean"]

# The angle is pi / (1 + exp(-t)). Outside this range of t nothing matters in float64, even for
# kernels that see only angles of 1e-15; steps within it only have to find where the integrand is.
WIDEST = 45.0
COARSE_POINTS = 901
# Parts of the integrand below exp(-this) of its top are left out.
NEGLIGIBLE = 50.0
# The trapezoid rule converges exponentially for integrands that are analytic and vanish at both
# ends; this many points leave an error at the level of rounding.
FINE_POINTS = 1025
# Beyond this, kappa and log I(kappa) cancel too many digits, and quadrature is better.
LARGEST_KAPPA = 1e5
# Below this, the incomplete beta function is summed on a log scale.
SMALLEST_FRACTION = 1e-250


def log_cap_fraction(dim: int, angle: float) -> float:
    r"""Log of the share of a sphere in D dimensions within an angle of a given point.

    .. math:: \Omega_D(\alpha) = \tfrac12 I_{\sin^2\alpha}\!\left(\tfrac{D-1}2, \tfrac12\right)
              \quad (\alpha \le \pi/2), \qquad
              \Omega_D(\alpha) = 1 - \Omega_D(\pi - \alpha)

    Parameters
    ----------
    dim : int
        D, at least 2.
    angle : float
        From 0 to pi.

    Examples
    --------
    >>> import math
    >>> from isthmus.capacity.sphere import log_cap_fraction
    >>> round(math.exp(log_cap_fraction(3, math.pi / 3)), 6)  # (1 - cos) / 2
    0.25
    """
    if angle > math.pi / 2:
        return math.log1p(-math.exp(log_cap_fraction(dim, math.pi - angle)))
    if angle <= 0:
        return -math.inf
    order, x = 0.5 * (dim - 1), math.sin(angle) ** 2
    share = float(betainc(order, 0.5, x))
    if share > SMALLEST_FRACTION:
        return math.log(share) - math.log(2)
    # I_x(a, 1/2) = x^a (1-x)^(1/2) / (a B(a, 1/2)) * F(a + 1/2, 1; a + 1; x), terms all positive.
    count = math.ceil(40 / -math.log(x))
    k = np.arange(count)
    ratios = x * (order + 0.5 + k) / (order + 1 + k)
    series = 1 + float(np.cumprod(ratios).sum())
    log_front = 2 * order * math.log(math.sin(angle)) + math.log(math.cos(angle))
    return log_front - math.log(2 * order) - float(betaln(order, 0.5)) + math.log(series)


def log_kernel_mean(dim: int, radius: float) -> float:
    r"""Log of the mean of :math:`\exp(-\|x-y\|^2/2)` over two uniform points on a sphere.

    .. math:: A_0 = \Gamma(\tfrac D2) \left(\tfrac 2\kappa\right)^{D/2-1} e^{-\kappa}
              I_{D/2-1}(\kappa), \qquad \kappa = M^2

    Parameters
    ----------
    dim : int
        D, at least 2.
    radius : float
        M, the radius of the sphere in units of the bandwidth.

    Examples
    --------
    >>> import math
    >>> from isthmus.capacity.sphere import log_kernel_mean
    >>> round(math.exp(log_kernel_mean(3, 1.0)), 6)  # (1 - exp(-2)) / 2
    0.432332
    """
    order, kappa = 0.5 * dim - 1, radius * radius
    if kappa > LARGEST_KAPPA:
        return float(SphereQuadrature(dim, radius).log_moments(0.0)[0])
    log_bessel = float(log_bessel_i(order, kappa))
    log_mean = math.lgamma(order + 1) + order * math.log(2 / kappa) - kappa + log_bessel
    return min(log_mean, 0.0)


class SphereQuadrature:
    r"""Means over the distance d of two uniform points on a sphere, by quadrature.

    .. math:: A_p(R) = \mathbb E[d^p \exp(-(d^2 - 2 R d)/2)]
              = \int_0^\pi d^p \exp(-(d^2 - 2 R d)/2) \,
              \frac{\sin^{D-2}\theta}{B(\frac{D-1}2, \frac12)} \, d\theta,
              \qquad d = 2 M \sin(\theta/2)

    with :math:`\theta = \pi / (1 + e^{-t})`, in t, over the range where the integrand counts.

    Parameters
    ----------
    dim : int
        D, at least 2.
    radius : float
        M, the radius of the sphere in units of the bandwidth.

    Examples
    --------
    >>> from isthmus.capacity.sphere import SphereQuadrature
    >>> SphereQuadrature(50, 14.0).log_moments(0.1).round(4)
    array([-59.6056, -57.6888, -55.7619])
    """

    def __init__(self, dim: int, radius: float) -> None:
        self.dim = dim
        self.radius = radius
        self._coarse = np.linspace(-WIDEST, WIDEST, COARSE_POINTS)
        self._coarse_density = self._log_density(self._coarse)

    def log_moments(self, tilt: float) -> NDArray[np.float64]:
        r"""Logs of :math:`A_0(R), A_1(R), A_2(R)` at R = `tilt`, in units of the bandwidth."""
        window = self._window(tilt)
        t = np.linspace(*window, FINE_POINTS)
        terms = self._tilted(self._log_density(t), tilt)
        log_integrals = logsumexp(terms, axis=1) + math.log(t[1] - t[0])
        result: NDArray[np.float64] = log_integrals + 0.5 * tilt * tilt
        return result

    def log_near(self, distance: float) -> float:
        """Log of the probability that the two points are at most this far apart."""
        return log_cap_fraction(self.dim, 2 * math.asin(min(0.5 * distance / self.radius, 1.0)))

    def _window(self, tilt: float) -> tuple[float, float]:
        terms = self._tilted(self._coarse_density, tilt)
        counts = np.flatnonzero((terms > terms.max(1, keepdims=True) - NEGLIGIBLE).any(0))
        first, last = max(counts[0] - 1, 0), min(counts[-1] + 1, COARSE_POINTS - 1)
        return float(self._coarse[first]), float(self._coarse[last])

    def _log_density(self, t: NDArray[np.float64]) -> NDArray[np.float64]:
        """Log distance at t, and log density of t, as rows, (2, n)."""
        log_share, log_rest = log_expit(t), log_expit(-t)
        log_distance = np.log(2 * self.radius * np.sin(0.5 * math.pi * np.exp(log_share)))
        log_sine = np.log(np.sin(math.pi * np.exp(np.minimum(log_share, log_rest))))
        log_by_angle = (self.dim - 2) * log_sine - betaln(0.5 * (self.dim - 1), 0.5)
        return np.stack([log_distance, log_by_angle + math.log(math.pi) + log_share + log_rest])

    @staticmethod
    def _tilted(values: NDArray[np.float64], tilt: float) -> NDArray[np.float64]:
        """Log integrands for p = 0, 1 and 2, without their factor exp(R^2 / 2), (3, n)."""
        log_distance, log_density = values
        # As a square, because d^2 - 2 R d would cancel for large R.
        kernel = -0.5 * (np.exp(log_distance) - tilt) ** 2
        terms: NDArray[np.float64] = log_density + kernel + np.arange(3)[:, None] * log_distance
        return terms
