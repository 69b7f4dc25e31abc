r"""Ramsauer et al.'s condition for patterns that lie far enough apart, and the radius it proves.

It holds for modern Hopfield networks with :math:`\beta = 1/\sigma^2` and patterns no longer than M,
where the separation is :math:`\Delta_n = \min_j x_n \cdot (x_n - x_j)`; and for Gaussian kernel
density estimates, where it is :math:`\tfrac12 \min_j \|x_n - x_j\|^2` and M may be the radius of
any ball that contains all patterns. Proofs are in ``docs/capacity-proofs.md``.
"""

from __future__ import annotations

import math

from isthmus.validation import as_count, as_number


def required_separation(n_patterns: int, max_norm: float, sigma: float = 1.0) -> float:
    r"""Return the separation at which Ramsauer et al. prove N patterns stored.

    .. math:: \Delta_n \ge \frac{2\sigma^2}{N} + \sigma^2 \ln \frac{2 (N-1) N M^2}{\sigma^2}

    Then the update maps the ball of :func:`guaranteed_radius` about pattern n into itself, as a
    contraction (Lemmas A5 to A7). The condition is sufficient, and far from necessary.

    Parameters
    ----------
    n_patterns : int
        N
    max_norm : float
        M, the length of the longest pattern, or the radius of a ball that contains them all.
    sigma : float
        Bandwidth; :math:`\beta = 1/\sigma^2`.

    Returns
    -------
    float
        ``-inf`` for a single pattern, or if M = 0.

    Examples
    --------
    >>> from isthmus.capacity import required_separation
    >>> round(required_separation(100, 6.0), 4)
    13.497
    """
    n_patterns, sigma = as_count(n_patterns, "n_patterns"), as_number(sigma, "sigma", above=0)
    max_norm = as_number(max_norm, "max_norm", at_least=0)
    if n_patterns == 1 or max_norm == 0:
        return -math.inf
    log_product = math.log(2) + math.log(n_patterns - 1) + math.log(n_patterns)
    log_ratio = 2 * (math.log(max_norm) - math.log(sigma))
    return sigma * sigma * (2 / n_patterns + log_product + log_ratio)


def guaranteed_radius(n_patterns: int, max_norm: float, sigma: float = 1.0) -> float:
    r"""Return the radius of the ball from which a well separated pattern is retrieved.

    .. math:: r = \frac{\sigma^2}{N M}

    It needs the separation of :func:`required_separation`, which has the same parameters.

    Examples
    --------
    >>> from isthmus.capacity import guaranteed_radius
    >>> guaranteed_radius(100, 5.0)
    0.002
    """
    n_patterns, sigma = as_count(n_patterns, "n_patterns"), as_number(sigma, "sigma", above=0)
    max_norm = as_number(max_norm, "max_norm", at_least=0)
    if max_norm == 0:
        return math.inf
    return sigma / n_patterns * (sigma / max_norm)
