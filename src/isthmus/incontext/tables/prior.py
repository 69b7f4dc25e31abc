"""Synthetic tables of numbers and categories, with a column that may be asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import ndtr

from isthmus.incontext.tables.features import column_resolution

Array = NDArray[np.float64]
Codes = NDArray[np.int64]
Drawn = tuple[Array, Array, Codes, Codes]  # context and fresh numbers, context and fresh codes

# Shares of tables in which no column is warped, few are, most are, and all are.
WARPED = (0.3, 0.25, 0.25, 0.2)
# Share of tables whose context keeps exact ties, and of tables with outliers.
TIED, OUTLIERS = 0.2, 0.1
# The most standard deviations of the context that a row may lie away from its mean.
FARTHEST = 1e3
# Share of tables in which categories move numbers.
MOVED = 0.5
# Share of tables whose last column is a response to the others, and of gaps that depend on values.
RESPONSES, GAPS_BY_VALUE = 0.4, 0.4
# The most values of a category.
MOST_VALUES = 64


class Batch(NamedTuple):
    """Tables of one shape: context rows and fresh rows, in units of the context's columns.

    Tables without numbers have a column of zeros. Missing numbers are NaN, and categories -1; the
    largest of `counts` stands for a value that the context does not have.
    """

    context: NDArray[np.float32]  # (B, n, D)
    rows: NDArray[np.float32]  # (B, m, D)
    codes: Codes  # (B, n, C)
    row_codes: Codes  # (B, m, C)
    counts: Codes  # values of each column of the context (B, C)


def draw_batch(
    rng: Generator, tables: int, size: int, rows: int, numbers: int, missing: float = 0.0
) -> Batch:
    """Draw tables of `size` context rows of numbers, with gaps, and `rows` fresh rows of each."""

    def draw() -> Drawn:
        family = _chosen(rng, FAMILIES)
        x = _finished(rng, family(rng, size + rows, numbers), size)
        if missing:
            x[:size][rng.random((size, numbers)) < missing] = np.nan
        none = np.empty((size + rows, 0), np.int64)
        return x[:size], x[size:], none[:size], none[size:]

    return _batch(draw, tables)


def draw_mixed(
    rng: Generator,
    tables: int,
    size: int,
    rows: int,
    numbers: int,
    categories: int,
    missing: float = 0.0,
    responses: float = RESPONSES,
) -> Batch:
    """Draw tables with columns of numbers and of categories, and fresh rows of each."""

    def draw() -> Drawn:
        x, codes = _draw_table(rng, size, rows, numbers, categories, responses)
        if missing:
            x[:size][_gaps(rng, x[:size], missing)] = np.nan
            codes[:size][_gaps(rng, codes[:size].astype(float), missing)] = -1
        return x[:size], x[size:], codes[:size], codes[size:]

    return _batch(draw, tables)


def _batch(draw: Callable[[], Drawn], tables: int) -> Batch:
    """Return a batch of the tables drawn whose columns have units and values."""
    done: list[tuple[Array, Array, Codes, Codes, Codes]] = []
    while len(done) < tables:
        context, fresh, labels, others = draw()
        found = _in_units(context, fresh)
        if found is not None and (labels >= 0).any(0).all():
            done.append((*found, *_recoded(labels, others)))
    x, fresh, codes, others, counts = (np.stack(each) for each in zip(*done, strict=True))
    others = np.where(others < 0, counts.max(initial=0), others)
    return Batch(x.astype(np.float32), fresh.astype(np.float32), codes, others, counts)


def _in_units(context: Array, fresh: Array) -> tuple[Array, Array] | None:
    """Return both in units of the context's columns, or None if one of these is constant."""
    if not context.shape[1]:
        return np.zeros((len(context), 1)), np.zeros((len(fresh), 1))
    if (np.isfinite(context).sum(0) < 3).any():
        return None
    mean, deviation, spread = np.nanmean(context, 0), np.nanstd(context, 0), fresh.std(0)
    if not (np.isfinite(spread).all() and (deviation > 1e-3 * spread + 1e-9).all()):
        return None
    away = np.clip((fresh - mean) / deviation, -FARTHEST, FARTHEST)
    return (context - mean) / deviation, away


def _recoded(labels: Codes, fresh: Codes) -> tuple[Codes, Codes, Codes]:
    """Return codes of the values that the context has, -1 for others; and their numbers."""
    found, others = np.full_like(labels, -1), np.full_like(fresh, -1)
    counts = np.zeros(labels.shape[1], np.int64)
    for column in range(labels.shape[1]):
        values = np.unique(labels[:, column])
        values = values[values >= 0]
        counts[column] = len(values)
        for source, into in ((labels, found), (fresh, others)):
            place = np.searchsorted(values, source[:, column]).clip(0, len(values) - 1)
            into[:, column] = np.where(values[place] == source[:, column], place, -1)
    return found, others, counts


def _gaps(rng: Generator, values: Array, share: float) -> NDArray[np.bool_]:
    """Return cells to hide: at random, or more of some values of a column."""
    chance = np.full(values.shape, share)
    if values.size and rng.random() < GAPS_BY_VALUE:
        chance *= np.exp(rng.normal(size=values.shape[1]) * standard(values)).clip(0.1, 3)
    return rng.random(values.shape) < chance


def _draw_table(
    rng: Generator, size: int, rows: int, numbers: int, categories: int, responses: float
) -> tuple[Array, Codes]:
    """Return numbers and codes of the context and the fresh rows of one random density."""
    count, hidden = size + rows, max(0, min(categories, 3) + int(rng.integers(0, 3)) - numbers // 2)
    latent = standard(_chosen(rng, FAMILIES)(rng, count, max(1, numbers + hidden)))
    codes = np.empty((count, categories), np.int64)
    ways = _chosen(rng, CATEGORIES, categories)
    respond = rng.random() < responses
    for column, way in enumerate(ways):
        way = _from_response if column == categories - 1 and respond else way
        made = way(rng, latent, codes[:, :column])
        flipped = rng.random(count) < (rng.uniform(0, 0.3) if rng.random() < 0.3 else 0)
        codes[:, column] = np.where(flipped, rng.permutation(made), made)
    x = latent[:, :numbers]
    if categories and rng.random() < MOVED:
        x = _moved(rng, x, codes)
    if numbers > 1 and respond:
        x[:, -1] = standard(_response(rng, x[:, :-1], codes, 1))[:, 0]
        x[:, -1] += _noise_size(rng, x[:, :-1]) * rng.normal(size=count)
    return _finished(rng, x, size), codes


def _finished(rng: Generator, x: Array, size: int) -> Array:
    """Return columns warped, with outliers, in standard units, and mostly without ties."""
    widths = _warp_columns(rng, x)
    if x.shape[1] and rng.random() < OUTLIERS:
        _add_outliers(rng, x)
    x = standard(x * rng.choice([-1.0, 1.0], x.shape[1]))
    noise = rng.uniform(-0.5, 0.5, x.shape)
    if rng.random() >= TIED:
        return x + noise * widths
    # The context keeps its ties.
    step = column_resolution(torch.from_numpy(x[:size])).numpy()
    step = np.where(step > 0, np.maximum(step, 0.004), 0.0)
    return np.concatenate([x[:size], x[size:] + noise[size:] * step])


def _chosen(rng: Generator, shares: dict[Any, float], count: int | None = None) -> Any:
    """Draw one of the keys, or `count` of them, with their shares."""
    return rng.choice(np.array([*shares]), count, p=[*shares.values()])


def standard(x: Array) -> Array:
    """Return columns with mean 0 and standard deviation 1."""
    return (x - x.mean(0)) / (x.std(0) + 1e-12)


def _log_uniform(rng: Generator, low: float, high: float, size: Any = None) -> Any:
    """Draw numbers whose logarithms are uniform."""
    return np.exp(rng.uniform(np.log(low), np.log(high), size))


def _random_shares(rng: Generator, parts: int) -> Array:
    """Draw shares of parts, which add up to 1."""
    return rng.dirichlet(np.full(parts, _log_uniform(rng, 0.5, 5.0)))


def _noise(rng: Generator, shape: tuple[int, ...]) -> Array:
    kind = rng.random()
    if kind < 0.25:
        return rng.uniform(-1.7, 1.7, shape)
    if kind < 0.45:
        return rng.standard_t(rng.uniform(2.5, 8), shape)
    if kind < 0.55:
        return rng.exponential(1.0, shape) - 1
    return rng.normal(size=shape)


def _axes(rng: Generator, columns: int, spread: float) -> Array:
    """Return a random square root of a covariance, rotated or along the axes. (D, D)."""
    scales = np.exp(0.5 * spread * rng.normal(size=columns))
    if rng.random() < 0.35:
        return np.diag(scales)
    rotation, _ = np.linalg.qr(rng.normal(size=(columns, columns)))
    return rotation * scales


def _mixture(rng: Generator, count: int, columns: int) -> Array:
    """Gaussian or Student components with means and shapes of their own."""
    parts = 1 if rng.random() < 0.2 else 1 + min(rng.geometric(0.28), 12)
    label = rng.choice(parts, count, p=_random_shares(rng, parts))
    apart = _log_uniform(rng, 0.4, 6.0) / (rng.uniform(1, columns**0.5) if columns > 3 else 1)
    means = apart * rng.normal(size=(parts, columns))
    if rng.random() < 0.3:
        means *= rng.random(columns) < 0.5
    spread, sizes = rng.uniform(0, 2.5), rng.uniform(0, 1.2)
    shared = _axes(rng, columns, spread) if rng.random() < 0.3 else None
    degrees = rng.uniform(2, 10) if rng.random() < 0.3 else None
    x = rng.normal(size=(count, columns))
    if degrees is not None:
        x /= np.sqrt(rng.chisquare(degrees, (count, 1)) / degrees)
    for part in range(parts):
        axes = _axes(rng, columns, spread) if shared is None else shared
        mine = label == part
        x[mine] = means[part] + x[mine] @ (axes * np.exp(sizes * rng.normal())).T
    return x


def _activate(rng: Generator, x: Array) -> Array:
    choices: list[Callable[[Array], Array]] = [
        np.tanh,
        lambda z: np.maximum(z, 0),
        lambda z: np.sin(z * rng.uniform(0.5, 2.5)),
        lambda z: np.where(z > 0, z, 0.1 * z),
        np.abs,
        lambda z: np.exp(np.clip(0.7 * z, -4, 3)),
        lambda z: z * np.abs(z),
        lambda z: 1 / (1 + np.exp(np.clip(-3 * z, -30, 30))),
        lambda z: z,
    ]
    return choices[rng.integers(len(choices))](x)


def _network(rng: Generator, count: int, columns: int) -> Array:
    """Nodes of a random network with noise at each layer, as in a structural causal model."""
    inputs = int(rng.integers(1, columns + 3))
    hidden = _noise(rng, (count, inputs))
    if rng.random() < 0.55:
        parts = int(rng.integers(2, 9))
        label = rng.choice(parts, count, p=_random_shares(rng, parts))
        centres = rng.uniform(0.5, 2) * rng.normal(size=(parts, inputs))
        hidden = hidden * np.exp(rng.uniform(-2.5, 0.2)) + centres[label]
    nodes = [hidden] if rng.random() < 0.7 else []
    noise = np.exp(rng.uniform(-4.5, -0.3))
    for _ in range(int(rng.integers(1, 4))):
        width = int(rng.integers(max(3, columns // 2), 18))
        weights = rng.normal(size=(hidden.shape[1], width)) / np.sqrt(hidden.shape[1])
        if rng.random() < 0.4:
            weights *= rng.random(weights.shape) < 0.5
        before = (standard(hidden) @ weights + 0.7 * rng.normal(size=width)) * rng.uniform(0.7, 2)
        halves = [_activate(rng, half) for half in np.array_split(before, 2, axis=1)]
        after = np.concatenate(halves, 1)
        hidden = after / (after.std(0) + 0.1) + noise * _noise(rng, after.shape)
        nodes.append(hidden)
    pool = np.concatenate(nodes, 1) if rng.random() < 0.6 else nodes[-1]
    if pool.shape[1] < columns:
        pool = np.concatenate([pool, pool @ rng.normal(size=(pool.shape[1], columns))], 1)
    x = standard(pool[:, rng.choice(pool.shape[1], columns, replace=False)])
    return x + rng.normal(size=x.shape) * np.exp(rng.uniform(-5, -1, columns))


def _copula(rng: Generator, count: int, columns: int) -> Array:
    """Columns of one shape, joined by a few Gaussian or Student factors."""
    factors = int(rng.integers(1, columns + 1))
    x = standard(rng.normal(size=(count, factors)) @ rng.normal(size=(factors, columns)))
    x += np.exp(rng.uniform(-2, 1)) * rng.normal(size=x.shape)
    if rng.random() < 0.3:
        x /= np.sqrt(rng.chisquare(4, (count, 1)) / 4)
    return standard(x)


def _factor(rng: Generator, count: int, columns: int) -> Array:
    """One or two factors that set the mean and the noise of every column."""
    z = _noise(rng, (count, int(rng.integers(1, 3))))
    loadings, slopes = rng.normal(size=(2, z.shape[1], columns))
    log_noise = np.clip(z @ slopes * rng.uniform(0, 0.8), -3, 3) + rng.uniform(-3, 0, columns)
    return z @ loadings + rng.normal(size=(count, columns)) * np.exp(log_noise)


def _regimes(rng: Generator, count: int, columns: int) -> Array:
    """Each column is predicted from those before it, by a line that breaks at a threshold."""
    x = np.empty((count, columns))
    for column in range(columns):
        noise = _noise(rng, (count,))
        if column == 0 or rng.random() < 0.25:
            x[:, column] = noise
            continue
        parents = x[:, rng.choice(column, min(column, int(rng.integers(1, 4))), replace=False)]
        split = parents[:, 0] > np.quantile(parents[:, 0], rng.uniform(0.15, 0.85))
        slopes, offsets = rng.normal(size=(2, parents.shape[1])), 1.5 * rng.normal(size=2)
        low, high = parents @ slopes[0] + offsets[0], parents @ slopes[1] + offsets[1]
        sizes = np.exp(rng.uniform(-3.5, 0.3, 2))
        x[:, column] = np.where(split, low + sizes[0] * noise, high + sizes[1] * noise)
        x[:, column] /= x[:, column].std() + 1e-9
    return x


# The families of joint densities, with their shares.
FAMILIES = {_mixture: 0.33, _network: 0.39, _copula: 0.12, _factor: 0.09, _regimes: 0.07}


def _warp_columns(rng: Generator, x: Array) -> Array:
    """Warp some columns in place; return the width of the noise that removes ties, (D,)."""
    chance = rng.choice([0.0, 0.3, 0.8, 1.0], p=WARPED)
    together = rng.integers(len(WARPS)) if rng.random() < 0.5 else None
    widths = np.zeros(x.shape[1])
    for column in range(x.shape[1]):
        if rng.random() >= chance:
            continue
        warp = WARPS[rng.integers(len(WARPS)) if together is None else together]
        c, sign = standard(x[:, column]), 1 if rng.random() < 0.7 else -1
        warped, width = warp(rng, sign * c)
        x[:, column] = sign * warped
        widths[column] = width / (warped.std() + 1e-12)
    return widths


def _clipped(rng: Generator, c: Array) -> tuple[Array, float]:
    c = np.maximum(c, np.quantile(c, rng.uniform(0.05, 0.6)))
    if rng.random() < 0.4:
        c = np.minimum(c, np.quantile(c, rng.uniform(0.7, 0.98)))
    return c, _log_uniform(rng, 0.004, 0.1) * c.std()


def _rounded(rng: Generator, c: Array) -> tuple[Array, float]:
    step = _log_uniform(rng, 0.01, 0.6) * c.std()
    return np.round(c / step) * step, step * (1 if rng.random() < 0.7 else 0.2)


def _inflated(rng: Generator, c: Array) -> tuple[Array, float]:
    chosen = rng.random(len(c)) < rng.uniform(0.05, 0.5)
    c = np.where(chosen, np.quantile(c, rng.random() ** 2), c)
    return c, _log_uniform(rng, 0.004, 0.1) * c.std()


def _truncated(rng: Generator, c: Array) -> tuple[Array, float]:
    c = np.maximum(np.exp(np.clip(1.2 * c, -8, 6)) - rng.uniform(0, 1), 0)
    return c, _log_uniform(rng, 0.004, 0.05) * c.std()


def _counts(rng: Generator, c: Array) -> tuple[Array, float]:
    rate = np.exp(np.clip(rng.uniform(0, 3.5) + rng.uniform(0.1, 1.0) * c, -5, 7))
    return rng.poisson(rate).astype(float), 1.0


WARPS: list[Callable[[Generator, Array], tuple[Array, float]]] = [
    lambda rng, c: (np.exp(np.clip(c * rng.uniform(0.3, 1.4), -8, 6)), 0.0),
    lambda rng, c: (np.sinh(np.arcsinh(c) * rng.uniform(0.5, 1.6) + rng.uniform(-1, 1)), 0.0),
    lambda rng, c: (np.sign(c) * np.abs(c) ** rng.uniform(0.5, 2.5), 0.0),
    lambda rng, c: (ndtr(c * rng.uniform(0.6, 2.5)), 0.0),
    lambda rng, c: (np.log1p(np.exp(np.clip(c * rng.uniform(1, 5), -30, 30))), 0.0),
    lambda rng, c: ((c - rng.uniform(-2, 2)) ** 2, 0.0),
    _clipped,
    _rounded,
    _inflated,
    _truncated,
    _counts,
]


def _add_outliers(rng: Generator, x: Array) -> None:
    """Scale or move a few rows far away, in place."""
    chosen = rng.random(len(x)) < rng.uniform(0.003, 0.05)
    far = np.exp(rng.uniform(1, 3))
    if rng.random() < 0.5:
        x[chosen] *= far
    else:
        x[chosen] += far * x.std(0) * rng.normal(size=(int(chosen.sum()), x.shape[1]))


def _noise_size(rng: Generator, x: Array) -> Array:
    """Return standard deviations of noise, in a third of cases different from row to row. (n,)"""
    scale = _log_uniform(rng, 0.05, 2.0)
    if rng.random() < 0.67:
        return np.full(len(x), scale)
    return scale * np.exp(np.clip(x @ rng.normal(size=x.shape[1]) / np.sqrt(x.shape[1]), -2, 2))


def _moved(rng: Generator, x: Array, codes: Codes) -> Array:
    """Shift and stretch some numbers by the values of some categories."""
    x = x.copy()
    for column in range(codes.shape[1]):
        if rng.random() < 0.5 or not x.shape[1]:
            continue
        values = int(codes[:, column].max()) + 1
        chosen = rng.random(x.shape[1]) < rng.uniform(0.1, 1)
        shifts = rng.uniform(0.2, 2.5) * rng.normal(size=(values, x.shape[1])) * chosen
        stretches = np.exp(rng.uniform(0, 0.7) * rng.normal(size=(values, x.shape[1])) * chosen)
        x = x * stretches[codes[:, column]] + shifts[codes[:, column]]
    return standard(x)


def _response(rng: Generator, x: Array, codes: Codes, outputs: int) -> Array:
    """Return random functions of numbers and categories: lines, trees, networks. (n, outputs)"""
    effects = [
        rng.normal(size=int(codes[:, column].max()) + 1)[codes[:, column]]
        for column in range(codes.shape[1])
    ]
    inputs = np.concatenate([x, *(each[:, None] for each in effects)], 1)
    if not inputs.shape[1]:
        return np.zeros((len(x), outputs))
    few = max(1, min(inputs.shape[1], int(_log_uniform(rng, 1, 13))))
    inputs = standard(inputs[:, rng.choice(inputs.shape[1], few, replace=False)])
    total = np.zeros((len(x), outputs))
    kind = rng.random()
    if kind < 0.55:
        weights = rng.normal(size=(few, outputs)) * np.exp(
            rng.uniform(0, 1.2) * rng.normal(size=(few, 1))
        )
        total += standard(inputs @ weights)
    if kind > 0.4:
        for _ in range(int(rng.integers(1, 6))):
            total += _tree(rng, inputs, outputs)
    if rng.random() < 0.35:
        width = int(rng.integers(3, 17))
        inner = inputs @ rng.normal(size=(few, width)) * rng.uniform(0.3, 2) / np.sqrt(few)
        inner = np.tanh(inner + rng.normal(size=width)) if rng.random() < 0.5 else np.abs(inner)
        total += standard(inner @ rng.normal(size=(width, outputs)))
    return total


def _tree(rng: Generator, inputs: Array, outputs: int) -> Array:
    """Return the leaves of a random tree of thresholds, of equal depth."""
    leaf = np.zeros(len(inputs), np.int64)
    depth = int(rng.integers(1, 4))
    for _ in range(depth):
        pick = rng.integers(inputs.shape[1])
        cut = np.quantile(inputs[:, pick], rng.uniform(0.1, 0.9))
        leaf = 2 * leaf + (inputs[:, pick] > cut)
    return rng.normal(size=(2**depth, outputs))[leaf]


def _value_count(rng: Generator) -> int:
    kind = rng.random()
    if kind < 0.42:
        return 2
    if kind < 0.85:
        return int(rng.integers(3, 8))
    return int(_log_uniform(rng, 8, MOST_VALUES + 0.99))


def _bins(rng: Generator, latent: Array, codes: Codes) -> Codes:
    """Bins of a hidden column, with or without noise."""
    column = latent[:, rng.integers(latent.shape[1])]
    if rng.random() < 0.5:
        column = column + _log_uniform(rng, 0.05, 1.0) * rng.normal(size=len(column))
    cuts = np.quantile(column, _random_shares(rng, _value_count(rng)).cumsum()[:-1])
    return np.searchsorted(cuts, column).astype(np.int64)


def _from_response(rng: Generator, latent: Array, codes: Codes) -> Codes:
    """The value with the largest random function, with or without noise."""
    values = _value_count(rng)
    logits = _log_uniform(rng, 0.5, 6.0) * _response(rng, latent, codes, values)
    logits = logits + rng.uniform(0, 1.5) * rng.normal(size=values)
    if rng.random() < 0.75:
        logits = logits + rng.gumbel(size=logits.shape)
    return logits.argmax(1)


def _cluster(rng: Generator, latent: Array, codes: Codes) -> Codes:
    """The nearest of a few rows in some hidden columns."""
    values = min(_value_count(rng), 16, len(latent))
    chosen = latent[:, rng.random(latent.shape[1]) < 0.7]
    centres = chosen[rng.choice(len(chosen), values, replace=False)]
    distances = ((chosen[:, None] - centres) ** 2).sum(2)
    noise = rng.uniform(0, 0.5) * rng.normal(size=distances.shape)
    return (distances * np.exp(noise)).argmin(1)


def _unrelated(rng: Generator, latent: Array, codes: Codes) -> Codes:
    """Values of falling frequency that depend on nothing."""
    values = _value_count(rng)
    weights = (1 + np.arange(values)) ** -rng.uniform(0, 2)
    return rng.choice(values, len(latent), p=weights / weights.sum())


def _child(rng: Generator, latent: Array, codes: Codes) -> Codes:
    """Values whose frequencies depend on that of another category."""
    if not codes.shape[1]:
        return _bins(rng, latent, codes)
    parent, values = codes[:, rng.integers(codes.shape[1])], _value_count(rng)
    table = rng.dirichlet(np.full(values, _log_uniform(rng, 0.05, 2.0)), int(parent.max()) + 1)
    return (table.cumsum(1)[parent] < rng.random((len(parent), 1))).sum(1).clip(0, values - 1)


# The ways to make a category, with their shares.
CATEGORIES = {_bins: 0.27, _from_response: 0.33, _cluster: 0.13, _child: 0.13, _unrelated: 0.14}
