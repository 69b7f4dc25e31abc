"""Synthetic tables: a broad distribution over joint densities of numeric columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from numpy.typing import NDArray
from scipy.special import ndtr

from isthmus.incontext.tables.features import column_resolution

Array = NDArray[np.float64]

# Shares of the families of joint densities.
SHARES = {"mixture": 0.33, "network": 0.39, "copula": 0.12, "factor": 0.09, "regimes": 0.07}
# Shares of tables in which no column is warped, few are, most are, and all are.
WARPED = (0.3, 0.25, 0.25, 0.2)
# Share of tables whose context keeps exact ties, and of tables with outliers.
TIED, OUTLIERS = 0.2, 0.1
# The most standard deviations of the context that a row may lie away from its mean.
FARTHEST = 1e3


@dataclass(frozen=True)
class Batch:
    """Tables of one shape: context rows and fresh rows, in units of the context's columns.

    Attributes
    ----------
    context : ndarray (B, n, D), float32
        Mean 0 and standard deviation 1 over the observed cells of a column; NaN if missing.
    rows : ndarray (B, m, D), float32
    """

    context: NDArray[np.float32]
    rows: NDArray[np.float32]


def draw_batch(
    rng: Generator, tables: int, size: int, rows: int, columns: int, missing: float = 0.0
) -> Batch:
    """Draw `tables` tables of `size` context rows, and `rows` fresh rows of each.

    Each cell of a context is missing with probability `missing`.
    """
    contexts = np.empty((tables, size, columns), np.float32)
    fresh = np.empty((tables, rows, columns), np.float32)
    done = 0
    while done < tables:
        context, queries = _draw_table(rng, size, rows, columns)
        if missing:
            context[rng.random(context.shape) < missing] = np.nan
            if (np.isfinite(context).sum(0) < 3).any():
                continue
        mean, deviation = np.nanmean(context, 0), np.nanstd(context, 0)
        spread = queries.std(0)
        if not (np.isfinite(spread).all() and (deviation > 1e-3 * spread + 1e-9).all()):
            continue
        contexts[done] = (context - mean) / deviation
        fresh[done] = np.clip((queries - mean) / deviation, -FARTHEST, FARTHEST)
        done += 1
    return Batch(contexts, fresh)


def _draw_table(rng: Generator, size: int, rows: int, columns: int) -> tuple[Array, Array]:
    """Return context rows and fresh rows of one random density."""
    family = FAMILIES[rng.choice(list(FAMILIES), p=list(SHARES.values()))]
    x = family(rng, size + rows, columns)
    widths = warp_columns(rng, x)
    if rng.random() < OUTLIERS:
        add_outliers(rng, x)
    x *= rng.choice([-1.0, 1.0], columns)
    x = standard(x)
    x = untied(rng, x, widths, size)
    return x[:size], x[size:]


def untied(rng: Generator, x: Array, widths: Array, size: int) -> Array:
    """Add noise of given widths (D,), or in some tables keep the ties of the context rows."""
    noise = rng.uniform(-0.5, 0.5, x.shape)
    if rng.random() < TIED:
        step = column_resolution(torch.from_numpy(x[:size])).numpy()
        step = np.where(step > 0, np.maximum(step, 0.004), 0.0)
        return np.concatenate([x[:size], x[size:] + noise[size:] * step])
    return x + noise * widths


def standard(x: Array) -> Array:
    """Return columns with mean 0 and standard deviation 1."""
    return (x - x.mean(0)) / (x.std(0) + 1e-12)


def log_uniform(rng: Generator, low: float, high: float, size: Any = None) -> Any:
    """Draw numbers whose logarithms are uniform."""
    return np.exp(rng.uniform(np.log(low), np.log(high), size))


def random_shares(rng: Generator, parts: int) -> Array:
    """Draw shares of parts, which add up to 1."""
    return rng.dirichlet(np.full(parts, log_uniform(rng, 0.5, 5.0)))


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
    label = rng.choice(parts, count, p=random_shares(rng, parts))
    apart = log_uniform(rng, 0.4, 6.0) / (rng.uniform(1, columns**0.5) if columns > 3 else 1)
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
        label = rng.choice(parts, count, p=random_shares(rng, parts))
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


FAMILIES: dict[str, Callable[[Generator, int, int], Array]] = {
    "mixture": _mixture,
    "network": _network,
    "copula": _copula,
    "factor": _factor,
    "regimes": _regimes,
}


def warp_columns(rng: Generator, x: Array) -> Array:
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
    return c, log_uniform(rng, 0.004, 0.1) * c.std()


def _rounded(rng: Generator, c: Array) -> tuple[Array, float]:
    step = log_uniform(rng, 0.01, 0.6) * c.std()
    return np.round(c / step) * step, step * (1 if rng.random() < 0.7 else 0.2)


def _inflated(rng: Generator, c: Array) -> tuple[Array, float]:
    chosen = rng.random(len(c)) < rng.uniform(0.05, 0.5)
    c = np.where(chosen, np.quantile(c, rng.random() ** 2), c)
    return c, log_uniform(rng, 0.004, 0.1) * c.std()


def _truncated(rng: Generator, c: Array) -> tuple[Array, float]:
    c = np.maximum(np.exp(np.clip(1.2 * c, -8, 6)) - rng.uniform(0, 1), 0)
    return c, log_uniform(rng, 0.004, 0.05) * c.std()


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


def add_outliers(rng: Generator, x: Array) -> None:
    """Scale or move a few rows far away, in place."""
    chosen = rng.random(len(x)) < rng.uniform(0.003, 0.05)
    far = np.exp(rng.uniform(1, 3))
    if rng.random() < 0.5:
        x[chosen] *= far
    else:
        x[chosen] += far * x.std(0) * rng.normal(size=(int(chosen.sum()), x.shape[1]))
