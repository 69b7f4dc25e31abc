"""Reference: a rule that turns a dataset into a density, to compare a model with."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor

from isthmus.errors import InvalidInputError, ShapeError

__all__ = ["Reference", "as_sequences"]


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
