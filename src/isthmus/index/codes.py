"""Memories in one or two bytes for each coordinate, with a bound on the error of attention."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.errors import InvalidInputError, ShapeError
from isthmus.io.archive import map_archive
from isthmus.io.files import replacing
from isthmus.kernel.attention import (
    HEAD_WIDTH,
    LOWEST_BIAS,
    Attention,
    ErrorBound,
    flash,
    merged,
)
from isthmus.kernel.logits import Metric
from isthmus.validation import as_choice, as_path, rectangular, require_range

FloatArray = NDArray[np.float64]
Kind = Literal["int8", "float16"]
KINDS: dict[Kind, tuple[Any, float]] = {"int8": (np.int8, 126.9), "float16": (np.float16, 1.0)}
FORMAT = "isthmus-compressed-1"
# Rows that are encoded at once, entries that are decoded at once, which stay in the cache, and
# results of blocks that are merged at once.
BLOCK_ROWS, DECODED_ENTRIES, MERGED = 2**13, 2**19, 32
FLOAT32_UNIT = 2.0**-24
# Squares of larger norms could overflow in float32.
LARGEST = 1e17


class Codes(NamedTuple):
    """Memories about their centre, as numbers times a scale of the row and one of the column."""

    values: Tensor  # (N, D), int8 or float16
    columns: FloatArray  # (D,)
    rows: NDArray[np.float32]  # (N,)
    squares: FloatArray  # (N,): of the memories about the centre
    error: float  # the largest distance of a memory from its code
    length: float  # the largest norm of a row of values times its scale

    @classmethod
    def of(cls, points: NDArray[Any], centre: FloatArray, kind: Kind = "int8") -> Codes:
        """Encode points (N, D) about a centre (D,), block by block."""
        (dtype, most), (count, dim) = KINDS[kind], points.shape
        blocks = [slice(start, start + BLOCK_ROWS) for start in range(0, count, BLOCK_ROWS)]
        moments = sum(np.square(points[block] - centre).sum(0) for block in blocks)
        columns = np.sqrt(moments / count)
        columns[columns == 0] = 1.0
        values, squares = np.empty((count, dim), dtype), np.empty(count)
        rows = np.empty(count, np.float32)
        error = length = 0.0
        for block in blocks:
            apart = points[block] - centre
            scaled = apart / columns
            # A little more than the largest, so that 127 is never exceeded by rounding.
            rows[block] = np.maximum(np.abs(scaled).max(1) / most, np.finfo(np.float32).tiny)
            own = rows[block, None].astype(np.float64)
            rounded = scaled / own
            rounded = np.rint(rounded) if kind == "int8" else rounded.astype(dtype)
            values[block] = rounded
            squares[block] = np.einsum("nd,nd->n", apart, apart)
            decoded = rounded * own
            error = max(error, float(np.square(apart - decoded * columns).sum(1).max()))
            length = max(length, float(np.square(decoded).sum(1).max()))
        error, length = (math.sqrt(each) * (1 + 1e-9) for each in (error, length))
        return cls(torch.from_numpy(values), columns, rows, squares, error, length)


class CompressedKeys:
    r"""Memories in one or two bytes for each coordinate, for :func:`isthmus.attend`.

    Ten million memories of 64 coordinates take .76 GB as int8. With a memory m about the centre
    held as m', at most e away, logits are off by at most :math:`\beta \lVert q \rVert e` for dot
    products, and :math:`2 \beta \lVert q \rVert e` for distances, as :math:`\lVert m \rVert^2` is
    kept. The ``error_bound`` of the result counts this error.

    Parameters
    ----------
    memories : array (N, D)
        Of finite numbers, read in blocks: it may be a ``numpy.memmap``.
    kind : {"int8", "float16"}
        One or two bytes; errors of float16 are about a fortieth of those of int8.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> from isthmus.attend import CompressedKeys
    >>> memories = torch.randn(1000, 8, generator=torch.Generator().manual_seed(0))
    >>> keys = CompressedKeys(memories)
    >>> keys
    CompressedKeys(N=1000, D=8, int8, error 0.029)
    >>> found, exact = (ist.attend(memories[:2], each, beta=0.5) for each in (keys, memories))
    >>> bool(((found.logsumexp - exact.logsumexp).abs() < found.error_bound.logsumexp).all())
    True
    """

    def __init__(self, memories: Any, kind: Kind = "int8") -> None:
        as_choice(kind, "kind", KINDS)
        points = rectangular(memories, "memories")
        if points.ndim != 2 or 0 in points.shape or points.dtype.kind not in "iuf":
            raise ShapeError(f"memories must be numbers (N, D) with N > 0, not {points.shape}.")
        with np.errstate(over="ignore", invalid="ignore"):
            centre = points.mean(0, dtype=np.float64)
            self._set(Codes.of(points, centre, kind), centre)
        if not self.codes.squares.max() < LARGEST**2:
            raise InvalidInputError(
                f"memories holds NaN, or values beyond {LARGEST:g}. Remove such rows, or rescale."
            )

    def _set(self, codes: Codes, centre: FloatArray) -> None:
        self.codes, self.centre = codes, centre
        self.kind = str(codes.values.dtype).removeprefix("torch.")
        # Of the shape of the memories, without their values.
        self.memories = torch.zeros((), dtype=torch.float64).expand(codes.values.shape)

    def __repr__(self) -> str:
        count, dim = self.codes.values.shape
        return f"CompressedKeys(N={count}, D={dim}, {self.kind}, error {self.codes.error:.2g})"

    def save(self, path: str | Path) -> None:
        """Write the codes to a safetensors file, atomically."""
        from safetensors.numpy import save_file

        arrays = {"values": self.codes.values.numpy(), "rows": self.codes.rows}
        arrays |= {"columns": self.codes.columns, "squares": self.codes.squares}
        limits = np.array([self.codes.error, self.codes.length])
        arrays |= {"limits": limits, "centre": self.centre}
        with replacing(path) as partial:
            save_file(arrays, partial, {"format": FORMAT})

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Map a file of :meth:`save`: its codes are read where they are needed."""
        _, arrays = map_archive(as_path(path, "path"), (FORMAT,), "isthmus compressed memory")
        names = "values", "rows", "columns", "squares", "limits", "centre"
        shapes = [getattr(arrays.get(name), "shape", ()) for name in names]
        count, dim = (*shapes[0], 0, 0)[:2]
        if shapes != [(count, dim), (count,), (dim,), (count,), (2,), (dim,)] or not count * dim:
            raise InvalidInputError(f"{path} was altered after it was saved. Save it again.")
        values, rows, columns, squares, limits, centre = (arrays[name] for name in names)
        codes = Codes(torch.from_numpy(values), columns, rows, squares, *limits.tolist())
        keys = cls.__new__(cls)
        keys._set(codes, centre)
        return keys

    @torch.no_grad()
    def _attention(
        self, queries: Tensor, beta: float, bias: Tensor | None, metric: Metric
    ) -> Attention:
        """Return :func:`isthmus.attend` of checked queries (..., D), with bounds on its errors."""
        if not queries.numel():
            nothing = queries[..., 0]
            return Attention(nothing, queries, ErrorBound(nothing, nothing, nothing))
        codes, is_dot = self.codes, metric == "dot"
        (count, dim), centre = codes.values.shape, torch.from_numpy(self.centre)
        columns = torch.from_numpy(codes.columns)
        exact = queries.reshape(-1, dim)
        apart = exact if is_dot else exact - centre
        width = max(dim, HEAD_WIDTH)
        heads = torch.zeros(len(exact), width)
        heads[:, :dim] = (1 if is_dot else 2) * beta * apart * columns
        rows = min(max(DECODED_ENTRIES // width, 256), count)
        buffer, found = torch.zeros(rows, width), []
        for start in range(0, count, rows):
            block = slice(start, start + rows)
            scales, squares = (torch.from_numpy(each[block]) for each in codes[2:4])
            decoded = buffer[: len(scales)]
            decoded[:, :dim].copy_(codes.values[block]).mul_(scales[:, None])
            offset = torch.zeros_like(squares) if is_dot else -beta * squares
            offset = offset if bias is None else offset + bias[block]
            found.append(flash(heads, decoded, offset.float().clamp(min=LOWEST_BIAS)))
            if len(found) == MERGED or start + rows >= count:
                found = [merged(*(torch.stack(each) for each in zip(*found, strict=True)))]
        total, mean = (each.double() for each in found[0])
        mean, largest = mean[:, :dim] * columns, float(np.sqrt(codes.squares.max()))
        # Weights are off by a factor of at most exp(2 slack), and the mean of codes by the error.
        # About their mean, memories have the second moment that they have about the centre, less
        # the square of the mean.
        known = (torch.linalg.vector_norm(mean, dim=1) - codes.error).clamp(min=0)
        spread = (largest**2 - known.square()).clamp(min=0).sqrt()
        row = beta * (exact @ centre) if is_dot else -beta * apart.square().sum(1)
        size = (1 if is_dot else 2) * beta * torch.linalg.vector_norm(apart, dim=1)
        slack = size * codes.error
        terms = size * largest + (0.0 if is_dot else beta * largest**2)
        terms += 0.0 if bias is None else float(bias[bias > -torch.inf].abs().max())
        rounding = FLOAT32_UNIT * ((dim + 8) * terms + 2 * row.abs() + 64)
        off = codes.error + torch.expm1(2 * slack) * (spread + codes.error)
        require_range(mean, "beta times a product or squared distance of queries and memories")
        shape = queries.shape[:-1]
        bounds = ErrorBound(*(each.reshape(shape) for each in (slack, off, rounding)))
        return Attention(
            (total + row).reshape(shape), (mean + centre).reshape(queries.shape), bounds
        )
