"""Codes: memories rounded to one byte for each coordinate, with the largest error."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

FloatArray = NDArray[np.float64]
# Rows that are encoded at once.
BLOCK_ROWS = 2**13


class Codes(NamedTuple):
    """Memories about their centre, as integers times a scale of the row and one of the column."""

    values: Tensor  # (N, D), int8
    columns: FloatArray  # (D,)
    rows: NDArray[np.float32]  # (N,)
    squares: FloatArray  # (N,): of the memories about the centre
    error: float  # the largest distance of a memory from its code
    length: float  # the largest norm of a row of values times its scale

    @classmethod
    def of(cls, points: NDArray[Any], centre: FloatArray) -> Codes:
        """Encode points (N, D) about a centre (D,), block by block."""
        count, dim = points.shape
        blocks = [slice(start, start + BLOCK_ROWS) for start in range(0, count, BLOCK_ROWS)]
        moments = sum(np.square(points[block] - centre).sum(0) for block in blocks)
        columns = np.sqrt(moments / count)
        columns[columns == 0] = 1.0
        values, squares = np.empty((count, dim), np.int8), np.empty(count)
        rows = np.empty(count, np.float32)
        error = length = 0.0
        for block in blocks:
            apart = points[block] - centre
            scaled = apart / columns
            # A little more than the largest, so that 127 is never exceeded by rounding.
            rows[block] = np.maximum(np.abs(scaled).max(1) / 126.9, np.finfo(np.float32).tiny)
            own = rows[block, None].astype(np.float64)
            rounded = np.rint(scaled / own)
            values[block] = rounded
            squares[block] = np.einsum("nd,nd->n", apart, apart)
            decoded = rounded * own
            error = max(error, float(np.square(apart - decoded * columns).sum(1).max()))
            length = max(length, float(np.square(decoded).sum(1).max()))
        error, length = (math.sqrt(each) * (1 + 1e-9) for each in (error, length))
        return cls(torch.from_numpy(values), columns, rows, squares, error, length)
