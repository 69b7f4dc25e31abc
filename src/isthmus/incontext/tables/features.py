"""Features of a context that do not change with the order of rows or columns, or with signs."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

# Bandwidths of leave-one-out densities of rows, by Mahalanobis distances and by plain ones.
WHITE_BANDWIDTHS, PLAIN_BANDWIDTHS = (0.08, 0.15, 0.3, 0.6, 1.2), (0.1, 0.3, 0.9)
LEFT_OUT = len(WHITE_BANDWIDTHS) + len(PLAIN_BANDWIDTHS)
# Features of a cell (the first ODD of which change sign with its column), of a row, of a pair.
CELL, ODD, ROW, PAIR = 11, 3, 12 + 2 * LEFT_OUT, 6
# Tables with more columns are described to the network as if they had this many.
MOST_COLUMNS = 24


class Features(NamedTuple):
    """What the network reads of numbers in standard units."""

    x: Tensor  # (B, n, D), with Gaussian conditional means in place of missing cells
    seen: Tensor  # (B, n, D) of 0 and 1: observed cells
    correlation: Tensor  # (B, D, D), shrunk towards the identity
    cell: Tensor  # (B, n, D, CELL)
    row: Tensor  # (B, n, ROW)
    pair: Tensor  # (B, n, n, PAIR)


@torch.no_grad()
def features(context: Tensor, resolution: Tensor) -> Features:
    """Return the features of contexts (B, n, D), NaN if missing, and their resolution (B, D)."""
    seen = (~context.isnan()).to(context.dtype)
    x = context.nan_to_num(nan=0.0)
    correlation = shrunk_correlation(x, seen)
    if not bool(seen.all()):
        x = fill_gaps(x, seen, correlation)
    factor = torch.linalg.cholesky(correlation)
    white = torch.linalg.solve_triangular(factor, x.transpose(1, 2), upper=False).transpose(1, 2)
    pair, squares = pair_features(x, white)
    alone = torch.cholesky_inverse(factor).diagonal(dim1=1, dim2=2).log()
    left_out = left_out_densities(x, white, squares, factor)
    return Features(
        x=x,
        seen=seen,
        correlation=correlation,
        cell=cell_features(x, seen, resolution, alone),
        row=torch.cat([row_features(squares, white, seen), left_out], -1),
        pair=pair,
    )


def shrunk_correlation(x: Tensor, seen: Tensor) -> Tensor:
    """Return correlations over pairs of observed cells, shrunk towards the identity. (B, D, D)."""
    size, columns = x.shape[1:]
    shrinkage = 0.7 * (columns + 1) / (size + columns + 1) + 0.01
    together = (seen.transpose(1, 2) @ seen).clamp(min=1)
    moment = x.transpose(1, 2) @ x / together
    identity = torch.eye(columns, dtype=x.dtype, device=x.device)
    scale = moment.diagonal(dim1=1, dim2=2).clamp(min=1e-12).rsqrt()
    moment = moment * scale[:, :, None] * scale[:, None, :]
    shrunk = (1 - shrinkage) * moment + shrinkage * identity
    if bool(seen.all()):
        return shrunk
    # Correlations over different rows need not fit together.
    values, vectors = torch.linalg.eigh(shrunk)
    fixed = (vectors * values.clamp(min=0.5 * shrinkage)[:, None]) @ vectors.transpose(1, 2)
    scale = fixed.diagonal(dim1=1, dim2=2).rsqrt()
    return fixed * scale[:, :, None] * scale[:, None, :]


def fill_gaps(x: Tensor, seen: Tensor, correlation: Tensor) -> Tensor:
    """Put missing cells at their mean under a Gaussian, given the row's observed cells."""
    mask = seen[..., :, None] * seen[..., None, :]
    known = correlation[:, None] * mask + torch.diag_embed(1 - seen)
    weights = torch.linalg.solve(known, (x * seen)[..., None])
    guess = (correlation[:, None] @ weights)[..., 0]
    return torch.where(seen > 0, x, guess)


def cell_features(x: Tensor, seen: Tensor, resolution: Tensor, alone: Tensor) -> Tensor:
    """Return ranks, spacings, ties and resolution of each cell in its column. (B, n, D, CELL).

    `alone` (B, D) is minus the log-variance of a column, given the others.
    """
    values = torch.where(seen > 0, x, torch.inf).transpose(1, 2).contiguous()  # (B, D, n)
    ordered = values.sort(-1).values
    count = seen.sum(1)[..., None].long()  # (B, D, 1)
    first = torch.searchsorted(ordered, values)
    last = torch.searchsorted(ordered, values, right=True) - 1
    present = seen.transpose(1, 2)
    first, last = torch.minimum(first, count - 1), torch.minimum(last, count - 1)
    level = (0.5 * (first + last).to(x.dtype) + 1) / (count + 1)
    score = torch.special.ndtri(level)
    bent = torch.asinh(x.transpose(1, 2))
    widths = []
    for near in (torch.ones_like(count), (count // 16).clamp(min=2), (count // 4).clamp(min=3)):
        low, high = (first - near).clamp(min=0), torch.minimum(last + near, count - 1)
        width = ordered.gather(-1, high) - ordered.gather(-1, low)
        density = (width + 2e-3) * count / (high - low).clamp(min=1) / 4
        widths.append(density.log().clamp(-7, 5))
    ties = (last - first + 1).to(x.dtype).log() / count.to(x.dtype).log1p()
    finest = (resolution[..., None] + 1e-3).log().expand_as(bent) / 3 + 1
    even = [bent.abs(), *widths, ties, finest, alone[..., None].expand_as(bent) / 4]
    known = torch.stack([bent, score, bent - score, *even], -1) * present[..., None]
    gap = (1 - present)[..., None]
    return torch.cat([known, gap], -1).transpose(1, 2)


def pair_features(x: Tensor, white: Tensor) -> tuple[Tensor, Tensor]:
    """Return functions of distances (B, n, n, PAIR), and squared Mahalanobis distances / D."""
    columns = x.shape[2]
    exact = "donot_use_mm_for_euclid_dist"
    squares = torch.cdist(white, white, compute_mode=exact).square() / columns
    along = torch.zeros_like(squares)
    for column in range(columns):
        along += ((x[:, :, None, column] - x[:, None, :, column]).abs() + 0.02).log()
    along /= columns
    logs = 0.5 * (squares + 1e-4).log()
    distance = (squares + 1e-8).sqrt().clamp(max=10)
    stack = [logs, 0.3 * logs.square(), along, 0.3 * along.square()]
    return torch.stack([*stack, distance, (0.3 * squares).clamp(max=10)], -1), squares


def left_out_densities(x: Tensor, white: Tensor, squares: Tensor, factor: Tensor) -> Tensor:
    """Return densities of each row by kernels at the others, and their means. (B, n, 2 LEFT_OUT).

    They are logarithms for each column, less that of a Gaussian: which widths suit the table, and
    whether a Gaussian suits it better.
    """
    size, columns = x.shape[1:]
    plain = torch.cdist(x, x, compute_mode="donot_use_mm_for_euclid_dist").square()
    gaussian = -0.5 * white.square().sum(-1)
    volume = factor.diagonal(dim1=1, dim2=2).log().sum(-1)[:, None]
    found = []
    for distances, widths, shift in (
        (squares * columns, WHITE_BANDWIDTHS, 0.0),
        (plain, PLAIN_BANDWIDTHS, volume),
    ):
        others = distances + torch.diag_embed(distances.new_full((size,), torch.inf))
        for width in widths:
            log_density = torch.logsumexp(-others / (2 * width**2), -1) - columns * math.log(width)
            found.append((log_density - math.log(size - 1) + shift - gaussian) / columns)
    rows = torch.stack(found, -1).clamp(-4, 4)
    return torch.cat([rows, rows.mean(1, keepdim=True).expand_as(rows)], -1)


def row_features(squares: Tensor, white: Tensor, seen: Tensor) -> Tensor:
    """Return distances to near rows, to the centre, and the size of the table. (B, n, 12)."""
    size, columns = seen.shape[1:]
    ordered = squares.sort(-1).values
    ranks = [min(max(1, rank), size - 1) for rank in (1, size // 16, size // 4, size // 2)]
    near = [0.5 * (ordered[..., rank] + 1e-4).log() for rank in ranks]
    norm = 0.5 * (white.square().mean(-1) + 1e-2).log()
    shape = [
        (math.log(size) - 4) / 2,
        (min(columns, MOST_COLUMNS) - 4) / 4,
        (math.log(size / columns) - 3) / 2,
        1 / columns,
        math.log(size) / (columns + 4) - 0.6,
    ]
    gaps = 1 - seen.mean(2)
    everywhere = gaps.mean(1, keepdim=True).expand_as(gaps)
    constants = [torch.full_like(norm, value) for value in shape]
    return torch.stack([*near, norm, *constants, gaps, everywhere], -1)


def column_resolution(table: Tensor) -> Tensor:
    """Return the smallest gap between a repeated value and a neighbour. (..., n, D) -> (..., D).

    On a lattice it is the step. It is 0 where no value is repeated, or only one is present; NaN
    are left out.

    >>> column_resolution(torch.tensor([[3.0], [1.0], [1.5], [3.0], [9.0]]))
    tensor([1.5000])
    """
    values = torch.where(table.isnan(), torch.inf, table)
    gaps = values.transpose(-1, -2).sort(-1).values.diff()
    ties = torch.nn.functional.pad(gaps == 0, (1, 1))
    beside = (gaps > 0) & gaps.isfinite() & (ties[..., :-2] | ties[..., 2:])
    smallest = torch.where(beside, gaps, torch.inf).amin(-1)
    return torch.where(smallest.isfinite(), smallest, 0.0)


def width_floor(resolution: Tensor) -> Tensor:
    """Return the standard deviation of a Gaussian whose density is at most 1 / resolution."""
    return resolution / math.sqrt(2 * math.pi)
