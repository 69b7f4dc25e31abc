"""References: rules that turn a dataset into a density, to compare a model with."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Literal, final

import numpy as np
import torch
from torch import Tensor

from isthmus.errors import InvalidInputError, ShapeError
from isthmus.memories.bandwidth import silverman
from isthmus.validation import as_count, as_number

# Bandwidths tried for the best one: bounds, as shares of the spread of the points, and number.
SHARES = (0.01, 3.0, 25)


class Reference(ABC):
    """A predictor of the next point from the points before it.

    Attributes
    ----------
    name : str
        Its name in tables.
    """

    name: str

    @abstractmethod
    def nested(self, sequence: Tensor, sizes: Sequence[int], points: Tensor) -> list[Tensor]:
        """Return log-densities of the same points given growing parts of a sequence.

        Parameters
        ----------
        sequence : (B, N, D)
        sizes : sequence of int, ascending
            Context sizes: each context is that many leading points of the sequence.
        points : (B, M, D)

        Returns
        -------
        list of Tensor (B, M)
            One for each size, in float64; NaN where the predictor is not defined.
        """

    def log_prob(self, context: Tensor, points: Tensor) -> Tensor:
        """Return the log-density of points (B, M, D) given contexts (B, n, D): (B, M)."""
        return self.nested(context, (context.shape[1],), points)[0]


def as_sequences(
    sequence: Tensor, sizes: Sequence[int], points: Tensor, dim: int | None = None
) -> tuple[Tensor, Tensor]:
    """Check that the shapes match, and return sequence and points in float64."""
    if sequence.ndim != 3 or points.ndim != 3 or sequence.shape[::2] != points.shape[::2]:
        raise ShapeError(
            f"Contexts must be (B, n, D) and points (B, M, D), with the same B and D; they are "
            f"{tuple(sequence.shape)} and {tuple(points.shape)}."
        )
    if dim is not None and points.shape[-1] != dim:
        raise ShapeError(f"The prior has {dim} coordinates, the points {points.shape[-1]}.")
    if list(sizes) != sorted(sizes) or (sizes and not 0 <= sizes[0] <= sizes[-1]):
        raise InvalidInputError(f"sizes must be ascending and not negative, not {list(sizes)}.")
    if sizes and sizes[-1] > sequence.shape[1]:
        raise InvalidInputError(
            f"sizes asks for a context of {sizes[-1]} points, but the sequences have "
            f"{sequence.shape[1]}."
        )
    return sequence.double(), points.double()


@final
class KernelDensity(Reference):
    r"""The mean of Gaussians around the points of the context; NaN if there are none.

    Parameters
    ----------
    bandwidth : float, "best" or "silverman"
        "best" is the one bandwidth with the lowest mean negative log-likelihood *on the points
        asked for*, over all tasks of the batch, which favours this reference: no estimate from
        the context could know it. "silverman" is :func:`isthmus.memories.bandwidth.silverman` for
        each context, which needs two points.

    Examples
    --------
    >>> import torch
    >>> from isthmus.incontext.references import KernelDensity
    >>> context = torch.tensor([[[0.0], [2.0]]])
    >>> KernelDensity(1.0).log_prob(context, torch.tensor([[[1.0]]]))
    tensor([[-1.4189]], dtype=torch.float64)
    """

    def __init__(self, bandwidth: float | Literal["best", "silverman"]) -> None:
        if isinstance(bandwidth, str):
            known = bandwidth in ("best", "silverman")
        else:
            known = 0 < bandwidth < math.inf
        if not known:
            raise InvalidInputError(
                f'bandwidth must be above zero, or "best" or "silverman", not {bandwidth!r}.'
            )
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
        if self.bandwidth == "silverman":
            widths = silverman(context)[:, None]  # (B, 1, D)
            scaled = _log_mean_kernel(_squares(context / widths, points / widths), 1.0, dim)
            return scaled - widths.log().sum(-1)
        squares = _squares(context, points)
        if self.bandwidth == "best":
            return _best(squares, dim)
        return _log_mean_kernel(squares, float(self.bandwidth), dim)


def _squares(context: Tensor, points: Tensor) -> Tensor:
    """Return squared distances. (B, n, D), (B, M, D) -> (B, M, n)."""
    return torch.cdist(points, context, compute_mode="donot_use_mm_for_euclid_dist").square()


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
        Added to the variances (``reg_covar``), which keeps a component from shrinking onto a
        single point.
    starts : int
        Number of starts, of which the fit with the highest likelihood is kept.
    seed : int

    Examples
    --------
    >>> import torch
    >>> from isthmus.incontext.references import FittedMixture
    >>> context = torch.tensor([[[0.0], [0.1], [5.0], [5.2]]])
    >>> FittedMixture(2, regularizer=0.1).log_prob(context, torch.tensor([[[0.0], [2.5]]])).exp()
    tensor([[6.1...e-01, 1.4...e-13]], dtype=torch.float64)
    """

    def __init__(
        self, components: int, *, regularizer: float = 1e-3, starts: int = 3, seed: int = 0
    ) -> None:
        self.components = as_count(components, "components")
        self.starts, self.seed = as_count(starts, "starts"), as_count(seed, "seed", at_least=0)
        self.regularizer = as_number(regularizer, "regularizer", above=0)
        self.name = f"em-{regularizer:g}"

    def nested(self, sequence: Tensor, sizes: Sequence[int], points: Tensor) -> list[Tensor]:
        """Return log-densities of the same points given growing parts of a sequence."""
        sequence, points = as_sequences(sequence, sizes, points)
        contexts, places = sequence.detach().numpy(), points.detach().numpy()
        return [
            torch.from_numpy(
                np.stack([self._fit(x[:size], y) for x, y in zip(contexts, places, strict=True)])
            )
            for size in sizes
        ]

    def _fit(self, context: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Return the log-density of points (M, D) under the mixture fitted to (n, D)."""
        # Imported here: it takes a second, and few runs need it.
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.mixture import GaussianMixture

        if len(context) < max(self.components, 2):
            return np.full(len(points), np.nan)
        fit = GaussianMixture(
            self.components,
            covariance_type="spherical",
            reg_covar=self.regularizer,
            n_init=self.starts,
            random_state=self.seed,
        )
        with warnings.catch_warnings():
            # Few points, or equal ones, make some fits stop early; they count as they are.
            warnings.simplefilter("ignore", ConvergenceWarning)
            return fit.fit(context).score_samples(points)
