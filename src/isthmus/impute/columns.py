"""Columns of a table as numbers in standard units, and the way back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# The most frequent categories of a column become indicators; all others are alike.
MOST_CATEGORIES = 20
# A cell farther off than so many ranges between the 5th and the 95th percentile is not learned.
GROSS = 100.0
# A column that varies by less than this share of its size is constant.
CONSTANT = 1e-10


def is_mixed(X: Any) -> bool:
    """Return True for a data frame with columns that do not hold numbers."""
    if not hasattr(X, "columns") or not hasattr(X, "dtypes"):
        return False
    return not all(_is_number(X[name]) for name in X.columns)


def as_frame(X: Any) -> Any:
    """Return a data frame of pandas or polars as one of pandas."""
    return X.to_pandas() if hasattr(X, "to_pandas") else X


def _is_number(column: Any) -> bool:
    import pandas as pd

    if isinstance(column, pd.Series):
        return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
    return bool(column.dtype.is_numeric())


@dataclass(frozen=True)
class Coding:
    """How the columns of a data frame become numbers: as they are, as seconds, as indicators.

    `kinds` has a word for each column; `categories` and `labels` those that have indicators, and
    `places` the columns of numbers of each.
    """

    kinds: tuple[str, ...]
    categories: dict[int, list[Any]] = field(default_factory=dict)

    @classmethod
    def of(cls, frame: Any) -> Coding:
        """Find the kind of each column, and its most frequent categories."""
        import pandas as pd

        kinds, categories = [], {}
        for place in range(frame.shape[1]):
            column = frame.iloc[:, place]
            if _is_number(column):
                kinds.append("number")
            elif pd.api.types.is_datetime64_any_dtype(column):
                kinds.append("time")
            else:
                kinds.append("category")
                counts = column.astype(object).value_counts(sort=False)
                order = np.argsort(-counts.to_numpy(), kind="stable")[:MOST_CATEGORIES]
                categories[place] = [counts.index[number] for number in order]
        return cls(tuple(kinds), categories)

    @property
    def places(self) -> list[slice]:
        """The numbers of each column."""
        widths = [max(len(self.categories.get(place, "x")), 1) for place in range(len(self.kinds))]
        ends = np.cumsum(widths).tolist()
        return [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]

    def into(self, frame: Any) -> FloatArray:
        """Return a data frame as numbers (n, D), NaN where missing."""
        parts = []
        for place, kind in enumerate(self.kinds):
            column = frame.iloc[:, place]
            missing = column.isna().to_numpy()
            if kind == "number":
                parts.append(column.to_numpy(dtype=np.float64, na_value=np.nan)[:, None])
            elif kind == "time":
                seconds = column.to_numpy().astype("datetime64[us]").astype(np.int64) / 1e6
                parts.append(np.where(missing, np.nan, seconds)[:, None])
            else:
                known = {value: number for number, value in enumerate(self.categories[place])}
                codes = column.astype(object).map(known).to_numpy(dtype=np.float64, na_value=-1)
                flags = (codes[:, None] == np.arange(max(len(known), 1))).astype(np.float64)
                parts.append(np.where(missing[:, None], np.nan, flags))
        return np.concatenate(parts, 1)

    def probabilities(self, filled: FloatArray, place: int) -> FloatArray:
        """Return the probabilities of the categories of a column. (n, k)

        They are 0 where a cell is known and none of them.
        """
        found = np.maximum(filled[:, self.places[place]], 0)
        other = (filled[:, self.places[place]] == 0).all(1, keepdims=True)
        found = np.where(other, 0.0, found + 1e-9)
        return found / np.maximum(found.sum(1, keepdims=True), 1e-9)

    def back(self, frame: Any, filled: FloatArray, uniform: FloatArray | None = None) -> Any:
        """Return a data frame whose gaps are filled from numbers (n, D).

        A category is the most probable one, or drawn by `uniform` (n, columns) random numbers.
        """
        import pandas as pd

        result = frame.copy()
        for place, kind in enumerate(self.kinds):
            column = frame.iloc[:, place]
            missing = column.isna().to_numpy()
            if not missing.any():
                continue
            if kind == "category":
                if not self.categories[place]:
                    continue
                found = self.probabilities(filled, place)[missing]
                chosen = found.argmax(1)
                if uniform is not None:
                    below = found.cumsum(1) < uniform[missing, place][:, None]
                    chosen = np.minimum(below.sum(1), found.shape[1] - 1)
                values: Any = np.array(self.categories[place], dtype=object)[chosen]
            else:
                values = filled[missing, self.places[place].start]
                if kind == "time":
                    stamps = (values * 1e6).astype(np.int64).astype("datetime64[us]")
                    values = pd.Series(stamps).astype(column.dtype).to_numpy()
            new = column.copy()
            new[missing] = values
            result.isetitem(place, new)
        return result


@dataclass(frozen=True)
class ColumnUnits:
    """Standard units of columns, their bounds, and which hold whole numbers. All are (D,).

    Cells farther off than `reach` are as good as unknown.
    """

    centre: FloatArray
    scale: FloatArray
    least: FloatArray
    most: FloatArray
    reach: FloatArray
    middle: FloatArray
    whole: NDArray[np.bool_]
    empty: NDArray[np.bool_]

    @classmethod
    def of(cls, X: FloatArray, weights: FloatArray, groups: list[slice]) -> ColumnUnits:
        """Measure rows (n, D); the columns of a group share a scale."""
        known = ~np.isnan(X)
        empty = np.isnan(X).all(0)
        values = np.where(empty, 0.0, X)
        low, middle, high = np.nanpercentile(values, (5, 50, 95), axis=0)
        size = np.maximum(np.nanmax(np.abs(values), 0), np.finfo(np.float64).tiny)
        reach = np.where(high > low, GROSS * (high / 2 - low / 2) * 2, np.inf)
        learned = known & (np.abs(values - middle) <= reach) | empty
        shares = np.where(learned, weights[:, None], 0.0)
        shares = shares / np.maximum(shares.sum(0), np.finfo(np.float64).tiny)
        unit = np.where(learned, np.nan_to_num(values) / size, 0.0)
        centre = (shares * unit).sum(0)
        variance = (shares * np.square(unit - centre)).sum(0)
        for group in groups:
            variance[group] = (variance[group] * np.square(size[group])).sum() / size[group] ** 2
        scale = np.sqrt(variance)
        scale = np.where(scale > CONSTANT, scale, 1.0)
        whole = (np.isnan(X) | (X % 1 == 0)).all(0) & ~empty
        least, most = np.nanmin(values, 0), np.nanmax(values, 0)
        return cls(
            centre * size,
            scale * size,
            least,
            most,
            reach,
            middle,
            np.asarray(whole),
            np.asarray(empty),
        )

    def into(self, X: FloatArray) -> FloatArray:
        """Return rows in standard units, NaN where unknown or grossly far off."""
        Z = (X - self.centre) / self.scale
        Z[~(np.abs(X - self.middle) <= self.reach)] = np.nan
        Z[:, self.empty] = 0.0
        return Z

    def back(self, Z: FloatArray, rounded: NDArray[np.bool_]) -> FloatArray:
        """Return rows in the units of the table, within its bounds, whole where `rounded`."""
        X = np.clip(Z * self.scale + self.centre, self.least, self.most)
        return np.where(rounded, np.rint(X), X)
