"""Estimators that remember the table they learned from: its columns and their scaling."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.cli.tables import Table
from isthmus.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Scaling", "TableModel", "load_model", "save_model"]


@dataclass(frozen=True)
class Scaling:
    """Units in which columns compare: x = centre + scale * z. Both are (D,)."""

    centre: NDArray[np.float64]
    scale: NDArray[np.float64]

    @classmethod
    def of(cls, X: NDArray[np.float64], standardise: bool) -> Scaling:
        """Mean 0 and variance 1 over the known values; a constant column is only centred."""
        import numpy as np

        dim = X.shape[1]
        if not standardise:
            return cls(np.zeros(dim), np.ones(dim))
        from sklearn.preprocessing import StandardScaler

        scaler = StandardScaler().fit(X)
        return cls(scaler.mean_, scaler.scale_)

    def into(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """From the units of the table. (n, D) -> (n, D)"""
        return (X - self.centre) / self.scale

    def back(self, Z: NDArray[np.float64]) -> NDArray[np.float64]:
        """To the units of the table. (n, D) -> (n, D)"""
        return Z * self.scale + self.centre

    def log_volume(self, X: NDArray[np.float64]) -> NDArray[np.float64]:
        """What a log-density loses on its way back: log of the scales of known values. (n,)"""
        import numpy as np

        known: NDArray[np.float64] = (~np.isnan(X)).astype(np.float64)
        return known @ np.log(self.scale)


@dataclass(frozen=True)
class TableModel:
    """A fitted estimator, the scaling that it was fitted in, and the names of its columns."""

    estimator: Any
    scaling: Scaling
    columns: tuple[str, ...]

    @property
    def name(self) -> str:
        """The name of the estimator."""
        return type(self.estimator).__name__

    def rows(self, table: Table, path: Path) -> NDArray[np.float64]:
        """The columns that the model knows, in its order and in the table's units. (n, D)"""
        absent = [name for name in self.columns if name not in table.columns]
        if absent:
            taken = table.id_name in absent
            raise InvalidInputError(
                f"{path} has no column of numbers called {', '.join(map(repr, absent[:5]))}, which "
                "the model learned from"
                + (f"; say --id none, to use {table.id_name!r}." if taken else ".")
            )
        return table.X[:, [table.columns.index(name) for name in self.columns]]


def save_model(model: TableModel, target: Path) -> None:
    """Write the estimator to one file, with what it remembers of the table."""
    import numpy as np

    estimator = model.estimator
    estimator.table_centre_ = model.scaling.centre
    estimator.table_scale_ = model.scaling.scale
    estimator.table_columns_ = np.array(model.columns, dtype=object)
    estimator.save(target)


def load_model(path: Path) -> TableModel:
    """Read what :func:`save_model` wrote."""
    from safetensors import SafetensorError, safe_open

    from isthmus import cluster

    try:
        with safe_open(path, framework="numpy") as file:
            name = (file.metadata() or {}).get("estimator", "")
    except (SafetensorError, OSError, ValueError) as error:
        raise InvalidInputError(f"{path} is not a readable isthmus model: {error}") from None
    if name not in ("ClAM", "ClAMELBO", "ClAMCRP", "ClAMCRPELBO"):
        raise InvalidInputError(f"{path} is not an isthmus model that was saved from a table.")
    estimator = getattr(cluster, name).load(path)
    if not hasattr(estimator, "table_columns_"):
        raise InvalidInputError(
            f"{path} holds a {name}, but not the columns it learned from; save one with "
            "`isthmus cluster DATA --save FILE`."
        )
    scaling = Scaling(estimator.table_centre_, estimator.table_scale_)
    return TableModel(estimator, scaling, tuple(map(str, estimator.table_columns_)))
