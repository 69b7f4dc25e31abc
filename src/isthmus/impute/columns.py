"""Standard units of the columns of a table, and the way back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isthmus.cluster.data import Moments
from isthmus.distributed.blocks import TableBlock
from isthmus.scaling import Scaling

FloatArray = NDArray[np.float64]

# A cell farther off than so many ranges between the 5th and the 95th percentile is an error.
GROSS = 1000.0
# A column that varies by less than this share of its size is constant.
CONSTANT = 1e-10


@dataclass(frozen=True)
class ColumnUnits:
    """Standard units of columns, their bounds, and which hold whole numbers. All are (D,).

    A bound is a value that several rows have and none exceeds, or else 0 in columns of one sign.
    Cells farther from the `middle` than `reach` count as unknown.
    """

    scaling: Scaling
    least: FloatArray
    most: FloatArray
    reach: FloatArray
    middle: FloatArray
    whole: NDArray[np.bool_]
    empty: NDArray[np.bool_]

    @classmethod
    def of(cls, X: FloatArray, weights: FloatArray, groups: list[slice]) -> ColumnUnits:
        """Measure rows (n, D); the columns of a group share a scale."""
        empty = np.isnan(X).all(0)
        values = np.where(empty, 0.0, X)
        low, middle, high = np.nanpercentile(values, (5, 50, 95), axis=0)
        least, most = np.nanmin(values, 0), np.nanmax(values, 0)
        size = np.maximum(np.maximum(most, -least), np.finfo(np.float64).tiny)
        reach = np.where(high > low, GROSS * (high / 2 - low / 2) * 2, np.inf)
        learned = np.where(np.abs(values - middle) <= reach, values, np.nan)
        moments = Moments.of(TableBlock("X", 0, learned / size, weights))
        assert moments is not None
        variance = moments.squares / moments.weight * moments.size**2
        for group in groups:
            variance[group] = (variance[group] * np.square(size[group])).sum() / size[group] ** 2
        scale = np.where(np.sqrt(variance) > CONSTANT, np.sqrt(variance), 1.0)
        whole = (np.isnan(X) | (X % 1 == 0)).all(0) & ~empty
        scaling = Scaling(moments.mean * moments.size * size, scale * size)
        low_end, high_end = np.where(least >= 0, 0.0, -np.inf), np.where(most <= 0, 0.0, np.inf)
        least = np.where((values == least).sum(0) > 1, least, low_end)
        most = np.where((values == most).sum(0) > 1, most, high_end)
        return cls(scaling, least, most, reach, middle, np.asarray(whole), np.asarray(empty))

    def into(self, X: FloatArray) -> FloatArray:
        """Return rows in standard units, NaN where unknown or grossly far off."""
        Z = self.scaling.into(X)
        Z[~(np.abs(X - self.middle) <= self.reach)] = np.nan
        Z[:, self.empty] = 0.0
        return Z

    def back(self, Z: FloatArray, rounded: NDArray[np.bool_]) -> FloatArray:
        """Return rows in the units of the table, within its bounds, whole where `rounded`."""
        X = np.clip(self.scaling.back(Z), self.least, self.most)
        return np.where(rounded, np.rint(X), X)
