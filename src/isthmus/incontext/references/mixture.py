"""Mixtures fitted by expectation-maximisation with the true number of components."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor

from isthmus.incontext.references.base import Reference, as_sequences
from isthmus.validation import as_count, as_number

__all__ = ["FittedMixture"]


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
