"""What the network reads of a context, whatever the order of rows and columns, signs and names.

Of categories, it reads equality and frequencies, never names or their order.
"""

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
# Features of a categorical cell, of a numeric cell, of a row and of a pair of rows.
CATEGORY_CELL, NUMBER_CELL, MIXED_ROW, MIXED_PAIR = 11, 4, 11, 8
# Categorical columns whose values each get a component of their own.
GROUPED = 3


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
    """Return ranks, spacings, ties and resolution of each cell in its column. (B, n, D, CELL)."""
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
    """Return logs of densities by kernels at other rows, and their means. (B, n, 2 LEFT_OUT)."""
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
    """Return the smallest gap beside a repeated value, or 0. (..., n, D) -> (..., D)."""
    values = torch.where(table.isnan(), torch.inf, table)
    gaps = values.transpose(-1, -2).sort(-1).values.diff()
    ties = torch.nn.functional.pad(gaps == 0, (1, 1))
    beside = (gaps > 0) & gaps.isfinite() & (ties[..., :-2] | ties[..., 2:])
    smallest = torch.where(beside, gaps, torch.inf).amin(-1)
    return torch.where(smallest.isfinite(), smallest, 0.0)


def width_floor(resolution: Tensor) -> Tensor:
    """Return the standard deviation of a Gaussian whose density is at most 1 / resolution."""
    return resolution / math.sqrt(2 * math.pi)


class Categories(NamedTuple):
    """What the network reads of categories of contexts, and of the target column."""

    one_hot: Tensor  # (B, n, C, V): indicators; for a missing cell, the frequencies of its column
    known: Tensor  # (B, n, C) of 0 and 1
    valid: Tensor  # (B, C, V) of 0 and 1: values that each column has
    frequency: Tensor  # (B, C, V)
    cell: Tensor  # (B, n, C, CATEGORY_CELL)
    number_cell: Tensor  # (B, n, D, NUMBER_CELL)
    row: Tensor  # (B, n, MIXED_ROW)
    pair: Tensor  # (B, n, n, MIXED_PAIR)
    grouped: Tensor  # (B, G): columns whose values get components, the target first


@torch.no_grad()
def read_categories(
    found: Features, codes: Tensor, counts: Tensor, target: int | None
) -> Categories:
    """Return the features of codes (B, n, C), -1 if missing, of `counts` (B, C) values."""
    x, (_, size, columns) = found.x, codes.shape
    dtype, numbers = x.dtype, x.shape[2]
    most = int(counts.max()) if counts.numel() else 1
    index = torch.arange(most, device=codes.device)
    flags = (codes[..., None] == index).to(dtype)  # (B, n, C, V)
    known = (codes >= 0).to(dtype)
    valid = (index < counts[..., None]).to(dtype)
    held = known.sum(1).clamp(min=1)
    frequency = flags.sum(1) / held[..., None]
    one_hot = flags + (1 - known)[..., None] * frequency[:, None]
    association = associations(x, one_hot, frequency, counts)
    relevance, is_target, same = _about_target(found, one_hot, association, target)
    surprise = -(frequency + 1 / (size + 1)).log()
    pair, disagreement = _pairs(x, one_hot, surprise, relevance, same)
    near = max(1, min(size - 1, round(math.sqrt(size))))
    of_category = target is not None and target >= numbers
    others = disagreement - of_category * (1 - same[..., 0]) / max(1, columns)
    gain = _gains(found.pair[..., 5], others, one_hot, frequency, near) * known
    apart = association - torch.diag_embed(association.diagonal(dim1=1, dim2=2))
    strongest = apart.amax(-1) if apart.shape[-1] else apart.sum(-1)
    mean = apart.sum(-1) / max(1, columns + numbers - 1)
    told = torch.stack([strongest, mean, relevance, is_target], -1)
    own = [
        (flags * surprise[:, None]).sum(-1) - 1,
        (flags * (frequency * held[..., None] + 1e-9).log()[:, None]).sum(-1) / 4,
        gain,
    ]
    entropy = (frequency * surprise).sum(-1)
    whole = [counts.to(dtype).log() / 2 - 0.5, entropy - 1]
    each = torch.cat([torch.stack(whole, -1), told[:, numbers:]], -1)[:, None]
    mean_gain = (gain.sum(1, keepdim=True) * (1 / held)[:, None]).expand_as(gain)
    here, same_column = known[..., None], each.expand(-1, size, -1, -1)
    told_here = torch.stack(own, -1) * here
    cell = torch.cat([told_here, same_column, mean_gain[..., None], 1 - here], -1)
    ordered, aim = disagreement.sort(-1).values, is_target[:, None, numbers:]
    some = float(columns > 0)
    means = cell.mean(2) if columns else cell.new_zeros(len(cell), size, cell.shape[-1])
    parts = [
        *(means[..., feature] for feature in (0, 2, -1)),
        *(some * ordered[..., rank] for rank in (1, near)),
        *((each * aim).sum(-1) for each in (mean_gain, cell[..., 2])),
    ]
    shares = [min(columns, 24) / 8, columns / (columns + numbers)]
    for value in (*shares, float(target is not None), float(of_category)):
        parts.append(torch.full_like(parts[0], value))
    score = (apart.sum(-1) + 100 * relevance + 1e6 * is_target)[:, numbers:]
    return Categories(
        one_hot=one_hot,
        known=known,
        valid=valid,
        frequency=frequency,
        cell=cell,
        number_cell=told[:, None, :numbers].expand(-1, size, -1, -1),
        row=torch.stack(parts, -1),
        pair=pair,
        grouped=score.topk(min(GROUPED, columns), -1).indices,
    )


def associations(x: Tensor, one_hot: Tensor, frequency: Tensor, counts: Tensor) -> Tensor:
    """Return r^2, correlation ratios and V^2 of all columns, less chance. (B, D + C, D + C)."""
    size, numbers = x.shape[1:]
    columns, most = one_hot.shape[2:]
    scaled = (one_hot - frequency[:, None]) / (frequency[:, None] + 1e-9).sqrt()
    deviation = x.square().mean(1, keepdim=True).sqrt() + 1e-6
    joint = torch.cat([x / deviation, scaled.flatten(2)], -1)
    squares = (joint.transpose(1, 2) @ joint / size).square()
    if columns:
        parts = squares[..., numbers:].unflatten(-1, (columns, most)).sum(-1)
        squares = torch.cat([squares[..., :numbers], parts], -1)
        parts = squares[:, numbers:].unflatten(1, (columns, most)).sum(2)
        squares = torch.cat([squares[:, :numbers], parts], 1)
    freedom = torch.cat([torch.ones_like(x[:, 0]), (counts - 1).to(x.dtype)], -1)
    chance = freedom[:, :, None] * freedom[:, None, :] / size
    least = torch.minimum(freedom[:, :, None], freedom[:, None, :]).clamp(min=1)
    return ((squares - chance) / (least - chance).clamp(min=0.5)).clamp(0, 1)


def _about_target(
    found: Features, one_hot: Tensor, association: Tensor, target: int | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return relevances of columns (B, D + C), which is the target, and agreement in it."""
    x, numbers = found.x, found.x.shape[2]
    is_target = torch.zeros_like(association[:, 0])
    same = x.new_zeros(len(x), x.shape[1], x.shape[1], 2)
    if target is None:
        return torch.zeros_like(is_target), is_target, same
    is_target[:, target] = 1
    if target < numbers:
        away = (x[:, :, None, target] - x[:, None, :, target]).abs()
        same = torch.stack([(-2 * away.square()).exp(), 0.3 * (away + 0.02).log()], -1)
    else:
        one = one_hot[:, :, target - numbers]
        same = torch.stack([one @ one.transpose(1, 2), torch.zeros_like(same[..., 0])], -1)
    return association[:, target] * (1 - is_target), is_target, same


def _pairs(
    x: Tensor, one_hot: Tensor, surprise: Tensor, relevance: Tensor, same: Tensor
) -> tuple[Tensor, Tensor]:
    """Return features of pairs of rows (B, n, n, MIXED_PAIR), and shares of unequal categories."""
    columns, numbers = one_hot.shape[2], x.shape[2]
    flat = one_hot.flatten(2)
    agreement = flat @ flat.transpose(1, 2)
    weights = surprise / (surprise.mean((1, 2), keepdim=True) + 1e-6)
    rare = (one_hot * weights[:, None]).flatten(2) @ flat.transpose(1, 2)
    disagreement = 1 - agreement / max(1, columns)
    weighted = torch.zeros_like(agreement)
    if bool(relevance.any()):
        root = ((relevance + 0.01) / (relevance + 0.01).sum(-1, keepdim=True)).sqrt()[:, None]
        scaled = torch.cat(
            [0.7 * x * root[..., :numbers], (one_hot * root[..., numbers:, None]).flatten(2)], -1
        )
        weighted = torch.cdist(scaled, scaled, compute_mode="donot_use_mm_for_euclid_dist")
    some = float(columns > 0)
    pair = [
        some * (1 - disagreement),
        some * rare / max(1, columns) / 2,
        some * torch.log1p((columns * disagreement).clamp(min=0)),
        some * (-columns * disagreement).exp(),
        0.5 * (weighted + 0.02).log() * bool(relevance.any()),
        weighted,
    ]
    return torch.cat([torch.stack(pair, -1), same], -1), disagreement


def _gains(
    squares: Tensor, disagreement: Tensor, one_hot: Tensor, frequency: Tensor, near: int
) -> Tensor:
    """Return how much better neighbours predict each category than its frequency, in nats."""
    size, columns = one_hot.shape[1:3]
    unit = squares.kthvalue(near + 1, -1, keepdim=True).values + 1e-2
    logits = -2 * squares / unit - 2 * min(columns, 8) * disagreement
    logits = logits + torch.diag_embed(logits.new_full((size,), -torch.inf))
    near_share = (logits.softmax(-1) @ one_hot.flatten(2)).view_as(one_hot)
    told = (near_share * one_hot).sum(-1) + 0.02
    plain = (frequency[:, None] * one_hot).sum(-1) + 0.02
    return (told / plain).log().clamp(-4, 4)
