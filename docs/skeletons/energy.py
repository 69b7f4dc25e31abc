r"""Skeleton of an energy: a Gaussian with a width of its own for each coordinate.

Copy this file to ``src/isthmus/memories/``, rename the class, and change four things: the
constructor, ``energy``, ``score`` and ``log_normalizer``. Only ``energy`` is required.
Then export the class in ``isthmus/__init__.py``, add it to ``ENERGIES`` in ``tests/conftest.py``
and to ``docs/api/energies.rst``.
"""

from __future__ import annotations

import math
from typing import Any, final

from torch import Tensor

from isthmus.energy import Energy
from isthmus.errors import InvalidInputError, ShapeError
from isthmus.validation import as_points

__all__ = ["DiagonalGaussian"]


@final
class DiagonalGaussian(Energy):
    r"""The energy of a Gaussian with a diagonal covariance.

    .. math:: E(x) = \tfrac12 \sum_d (x_d - \mu_d)^2 / \sigma_d^2

    Parameters
    ----------
    mean : array or Tensor (D,)
    sigma : array or Tensor (D,)
        Standard deviations, above zero.

    Examples
    --------
    >>> gaussian = DiagonalGaussian([0.0, 1.0], [1.0, 2.0])
    >>> gaussian.energy([1.0, 1.0])
    array(0.5)
    """

    mean: Tensor
    sigma: Tensor

    def __init__(self, mean: Any, sigma: Any) -> None:
        super().__init__()
        self.register_buffer("mean", as_points(mean, "mean"))
        self.register_buffer("sigma", as_points(sigma, "sigma", like=self.mean))
        if self.mean.ndim != 1 or self.mean.shape != self.sigma.shape:
            raise ShapeError("mean and sigma must both have shape (D,).")
        if not bool((self.sigma > 0).all()):
            raise InvalidInputError("sigma must be above zero in every coordinate.")

    @property
    def dim(self) -> int:
        """The number of coordinates D."""
        return len(self.mean)

    def energy(self, x: Any) -> Tensor:
        """Return the energy of each point. x: (..., D) -> (...)."""
        x = self.as_input(x)
        return 0.5 * ((x - self.mean) / self.sigma).square().sum(-1)

    def score(self, x: Any) -> Tensor:
        """Return the force -dE/dx. x: (..., D) -> (..., D). Without it, autograd is used."""
        x = self.as_input(x)
        return (self.mean - x) / self.sigma.square()

    def log_normalizer(self) -> Tensor:
        """Return log Z. Without it, ``log_prob`` raises UnknownNormalizerError."""
        return self.sigma.log().sum() + 0.5 * self.dim * math.log(2 * math.pi)
