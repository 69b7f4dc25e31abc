"""Standard units for the columns of a table, and the way back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isthmus.errors import DtypeError, ShapeError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Scaling", "as_table"]


def as_table(
    X: Any, columns: Sequence[str] | None = None
) -> tuple[NDArray[np.float64], tuple[str, ...]]:
    """Return rows (n, D) in float64 and the names of their columns.

    Parameters
    ----------
    X : array or data frame (n, D)
        NaN marks missing values.
    columns : sequence of str, optional
        Default: the names of a data frame, else x1, x2, ...
    """
    import numpy as np

    try:
        rows = np.ascontiguousarray(X, dtype=np.float64)
    except (TypeError, ValueError):
        raise DtypeError("X must hold numbers only; drop or encode columns of text.") from None
    if np.ndim(X) != 2 or 0 in rows.shape:
        raise ShapeError(f"X must be a table (n, D) with rows and columns, not {np.shape(X)}.")
    if columns is None:
        columns = getattr(X, "columns", None)
    if columns is None:
        columns = [f"x{place + 1}" for place in range(rows.shape[1])]
    if len(columns) != rows.shape[1]:
        raise ShapeError(f"columns has {len(columns)} names for {rows.shape[1]} columns.")
    return rows, tuple(map(str, columns))


@dataclass(frozen=True)
class Scaling:
    """Affine map between the units of a table and standard units, x = centre + scale * z.

    Attributes
    ----------
    centre, scale : ndarray (D,)

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.scaling import Scaling
    >>> X = np.array([[1.0, 10.0], [3.0, 30.0]])
    >>> Scaling.of(X).into(X)
    array([[-1., -1.],
           [ 1.,  1.]])
    """

    centre: NDArray[np.float64]
    scale: NDArray[np.float64]

    @classmethod
    def of(cls, X: NDArray[np.float64], standardise: bool = True) -> Scaling:
        """Return the map to mean 0 and variance 1 of the known values; else the identity.

        A constant column is centred only.
        """
        import numpy as np

        dim = X.shape[1]
        if not standardise:
            return cls(np.zeros(dim), np.ones(dim))
        from sklearn.preprocessing import StandardScaler

        scaler = StandardScaler().fit(X)
        return cls(scaler.mean_, scaler.scale_)

    @property
    def standardises(self) -> bool:
        """False for the identity."""
        return bool((self.scale != 1).any() or (self.centre != 0).any())

    def into(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert from the units of the table. (n, D) -> (n, D)"""
        return (X - self.centre) / self.scale

    def back(self, Z: NDArray[np.float64]) -> NDArray[np.float64]:
        """Convert to the units of the table. (n, D) -> (n, D)"""
        return Z * self.scale + self.centre

    def log_volume(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return the log-scales of each row's known values, summed. (n, D) -> (n,)

        A log-density in the units of the table is lower than in standard units by this much.
        """
        import numpy as np

        known: NDArray[np.float64] = (~np.isnan(X)).astype(np.float64)
        return known @ np.log(self.scale)
