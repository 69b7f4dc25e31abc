"""Tables of users as arrays, standard units for their columns, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus.errors import DtypeError, InvalidInputError, ShapeError
from isthmus.validation import as_names, as_numbers

FloatArray = NDArray[np.float64]
# Numbers with more decimals are not rounded.
MOST_DECIMALS = 6


def as_table(X: Any, columns: Sequence[str] | None = None) -> tuple[FloatArray, tuple[str, ...]]:
    """Return rows (n, D) in float64, and names: `columns`, those of a data frame, or x1, x2, ..."""
    try:
        rows = np.ascontiguousarray(as_numbers(X, "X"))
    except DtypeError as error:
        advice = "isthmus.tables.encode turns columns of a data frame into numbers."
        raise DtypeError(f"{error} {advice}") from None
    if np.ndim(X) != 2 or 0 in rows.shape:
        raise ShapeError(f"X must be a table (n, D) with rows and columns, not {np.shape(X)}.")
    if np.isinf(rows).any():
        raise InvalidInputError("X has infinite values; replace them, or mark them missing as NaN.")
    default = [f"x{place + 1}" for place in range(rows.shape[1])]
    names = as_names(getattr(X, "columns", default) if columns is None else columns, "columns")
    if len(names) != rows.shape[1]:
        raise ShapeError(f"columns has {len(names)} names for {rows.shape[1]} columns.")
    if len(set(names)) < len(names):
        raise InvalidInputError("Columns of X have the same name; rename them first.")
    return rows, names


def count_decimals(column: FloatArray) -> int | None:
    """Return the number of decimals that all values have at most, or None if there are many.

    >>> import numpy as np
    >>> count_decimals(np.array([1.5, 2.25])), count_decimals(np.array([1 / 3]))
    (2, None)
    """
    for decimals in range(MOST_DECIMALS + 1):
        if np.allclose(column, np.round(column, decimals), rtol=1e-12, atol=0):
            return decimals
    return None


@dataclass(frozen=True)
class Scaling:
    """Affine map between the units of a table and others, x = centre + scale * z.

    The scale is that of each column (D,), or a number for all.

    >>> X = np.array([[1.0, 10.0], [3.0, 30.0]])
    >>> Scaling.of(X).into(X)
    array([[-1., -1.],
           [ 1.,  1.]])
    """

    centre: FloatArray
    scale: Any

    @classmethod
    def of(cls, X: FloatArray, standardise: bool = True) -> Scaling:
        """Return the map to mean 0 and variance 1 of the known values, or the identity."""
        if not standardise:
            return cls(np.zeros(X.shape[1]), np.ones(X.shape[1]))
        from sklearn.preprocessing import StandardScaler

        scaler = StandardScaler().fit(X)  # a constant column is centred only
        return cls(scaler.mean_, scaler.scale_)

    @property
    def standardises(self) -> bool:
        """False for the identity."""
        return bool(np.any(self.scale != 1) or (self.centre != 0).any())

    def into(self, X: NDArray[Any]) -> NDArray[Any]:
        """Convert from the units of the table, in the precision of X. (n, D) -> (n, D)"""
        inside = np.subtract(X, self.centre.astype(X.dtype))
        inside /= np.asarray(self.scale, X.dtype)
        return inside

    def back(self, Z: NDArray[Any]) -> FloatArray:
        """Convert to the units of the table, in float64. (n, D) -> (n, D)"""
        return Z.astype(np.float64) * self.scale + self.centre

    def log_volume(self, X: FloatArray) -> FloatArray:
        """Return the log-scales of each row's known values, summed. (n, D) -> (n,)

        A log-density in the units of the table is lower than in standard units by this much.
        """
        return (~np.isnan(X)) @ np.log(np.broadcast_to(self.scale, self.centre.shape))
