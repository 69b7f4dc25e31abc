"""Reference predictors, from the Bayes predictive to common estimators.

Each returns log-densities (B, M) of points (B, M, D) given contexts (B, n, D).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor

from isthmus.errors import InvalidInputError
from isthmus.incontext.bayes import BayesPredictive, Prediction, Reference, as_sequences
from isthmus.incontext.priors import GaussianMixtures, Prior
from isthmus.validation import as_choice, as_count, as_number, as_seed

__all__ = [
    "REFERENCES",
    "BayesPredictive",
    "FittedMixture",
    "KernelDensity",
    "Prediction",
    "Reference",
    "known_references",
    "reference",
]

# Bandwidths tried for the best one: bounds, as shares of the spread of the points, and number.
SHARES = (0.01, 3.0, 25)


@final
class KernelDensity(Reference):
    r"""The mean of Gaussians around the points of the context; NaN if there are none.

    Parameters
    ----------
    bandwidth : float, "best" or "silverman"
        "best" is the one bandwidth with the lowest mean negative log-likelihood *on the points
        asked for*, over all tasks of the batch, which no estimate could know. "silverman" is
        Silverman's rule for each coordinate of each context, which needs two points.

    >>> context = torch.tensor([[[0.0], [2.0]]])
    >>> KernelDensity(1.0).log_prob(context, torch.tensor([[[1.0]]]))
    tensor([[-1.4189]], dtype=torch.float64)
    """

    def __init__(self, bandwidth: float | Literal["best", "silverman"]) -> None:
        if isinstance(bandwidth, str):
            as_choice(bandwidth, "bandwidth, unless it is a number,", ("best", "silverman"))
        else:
            as_number(bandwidth, "bandwidth", above=0)
        self.bandwidth = bandwidth
        self.name = f"kde-{bandwidth}" if isinstance(bandwidth, str) else f"kde-{bandwidth:g}"

    def nested(self, sequence: Tensor, sizes: Sequence[int], points: Tensor) -> list[Tensor]:
        """Return log-densities of the same points given growing parts of a sequence."""
        sequence, points = as_sequences(sequence, sizes, points)
        return [self._one(sequence[:, :size], points) for size in sizes]

    def _one(self, context: Tensor, points: Tensor) -> Tensor:
        size, dim = context.shape[1:]
        if size == 0 or (size == 1 and self.bandwidth == "silverman"):
            return torch.full_like(points[..., 0], torch.nan)
        widths = torch.ones((), dtype=context.dtype)
        if self.bandwidth == "silverman":
            rule = (4 / ((dim + 2) * size)) ** (1 / (dim + 4))
            widths = rule * context.std(1, keepdim=True)  # (B, 1, D)
        direct = "donot_use_mm_for_euclid_dist"
        squares = torch.cdist(points / widths, context / widths, compute_mode=direct).square()
        if self.bandwidth == "best":
            return _best(squares, dim)
        bandwidth = 1.0 if self.bandwidth == "silverman" else float(self.bandwidth)
        return _log_mean_kernel(squares, bandwidth, dim) - widths.log().sum(-1)


def _log_mean_kernel(squares: Tensor, bandwidth: float, dim: int) -> Tensor:
    """Return the log-density from squared distances. (B, M, n) -> (B, M)."""
    constant = dim / 2 * math.log(2 * math.pi * bandwidth**2) + math.log(squares.shape[-1])
    return torch.logsumexp(-squares / (2 * bandwidth**2), dim=-1) - constant


def _best(squares: Tensor, dim: int) -> Tensor:
    """Return the log-densities at the bandwidth that is best for these points."""
    from scipy.optimize import brute

    def densities(log_share: Any) -> Tensor:
        return _log_mean_kernel(squares, spread * math.exp(log_share.item()), dim)

    spread = float(squares.mean().sqrt())
    low, high, count = SHARES
    ends = (math.log(low), math.log(high))
    best = brute(lambda share: -float(densities(share).mean()), (ends,), Ns=int(count))
    return densities(best)


@final
class FittedMixture(Reference):
    """scikit-learn's spherical mixture, fitted to each context; NaN if n < K.

    Parameters
    ----------
    components : int
        K
    regularizer : float
        Added to the variances (``reg_covar``).
    starts, seed : int
        Number of starts, of which the most likely fit is kept, and their seed.
    """

    def __init__(
        self, components: int, *, regularizer: float = 1e-3, starts: int = 3, seed: int = 0
    ) -> None:
        self.components = as_count(components, "components")
        self.starts, self.seed = as_count(starts, "starts"), as_seed(seed)
        self.regularizer = as_number(regularizer, "regularizer", above=0)
        self.name = f"em-{regularizer:g}"

    def nested(self, sequence: Tensor, sizes: Sequence[int], points: Tensor) -> list[Tensor]:
        """Return log-densities of the same points given growing parts of a sequence."""
        both = [each.detach().numpy() for each in as_sequences(sequence, sizes, points)]
        return [
            torch.from_numpy(np.stack([self._fit(x[:n], y) for x, y in zip(*both, strict=True)]))
            for n in sizes
        ]

    def _fit(self, context: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Return the log-density of points (M, D) under the mixture fitted to (n, D)."""
        # Imported here: it takes a second, and few runs need it.
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.mixture import GaussianMixture

        if len(context) < max(self.components, 2):
            return np.full(len(points), np.nan)
        options = {"reg_covar": self.regularizer, "n_init": self.starts, "random_state": self.seed}
        fit = GaussianMixture(self.components, covariance_type="spherical", **options)
        with warnings.catch_warnings():
            # Few points, or equal ones, make some fits stop early; they count as they are.
            warnings.simplefilter("ignore", ConvergenceWarning)
            return fit.fit(context).score_samples(points)


REFERENCES: dict[str, Callable[[Any], Reference]] = {
    "bayes": BayesPredictive,
    "kde-best": lambda prior: KernelDensity("best"),
    "kde-silverman": lambda prior: KernelDensity("silverman"),
    "em-0.001": lambda prior: FittedMixture(prior.components, regularizer=1e-3),
    "em-0.1": lambda prior: FittedMixture(prior.components, regularizer=0.1),
}
"""The references that :func:`reference` returns by name, each as a function of a prior."""


def reference(name: str, prior: Prior) -> Reference:
    """Return the reference of that name in :data:`REFERENCES`, for tasks of a prior."""
    make = REFERENCES[as_choice(name, "reference", REFERENCES)]
    if name not in known_references(prior):
        raise InvalidInputError(
            f"The reference {name} is known for GaussianMixtures only, not for "
            f"{type(prior).__name__}. Leave it out, or pass a FittedMixture."
        )
    return make(prior)


def known_references(prior: Prior) -> tuple[str, ...]:
    """Return the names of all references that exist for a prior."""
    if isinstance(prior, GaussianMixtures):
        return tuple(REFERENCES)
    return ("kde-best", "kde-silverman")
