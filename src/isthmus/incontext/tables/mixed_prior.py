"""Synthetic tables of numbers and categories, with a column that may be asked for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from isthmus.incontext.tables.prior import (
    FAMILIES,
    FARTHEST,
    OUTLIERS,
    SHARES,
    Array,
    add_outliers,
    log_uniform,
    random_shares,
    standard,
    untied,
    warp_columns,
)

Codes = NDArray[np.int64]

# Shares of the ways to make a category, and of tables in which categories move numbers.
WAYS = {"bins": 0.27, "response": 0.33, "cluster": 0.13, "child": 0.13, "noise": 0.14}
MOVED = 0.5
# Share of tables whose last column is a response to the others, and of gaps that depend on values.
RESPONSES, GAPS_BY_VALUE = 0.4, 0.4
# The most values of a category.
MOST_VALUES = 64


@dataclass(frozen=True)
class MixedBatch:
    """Tables of one shape: context rows and fresh rows, in units of the context's columns.

    Attributes
    ----------
    context, rows : ndarray (B, n, D) and (B, m, D), float32
        Numbers, as in :class:`~isthmus.incontext.tables.prior.Batch`; a column of zeros where
        tables have none.
    codes, row_codes : ndarray (B, n, C) and (B, m, C), int64
        Categories in the context, -1 if missing; in fresh rows, V stands for a value that the
        context does not have, V being the largest of `counts`.
    counts : ndarray (B, C)
        Values of each column of the context.
    """

    context: NDArray[np.float32]
    rows: NDArray[np.float32]
    codes: Codes
    row_codes: Codes
    counts: Codes


def draw_mixed(
    rng: Generator,
    tables: int,
    size: int,
    rows: int,
    numbers: int,
    categories: int,
    missing: float = 0.0,
    responses: float = RESPONSES,
) -> MixedBatch:
    """Draw `tables` tables with columns of numbers and of categories, and fresh rows of each."""
    done: list[tuple[Array, Array, Codes, Codes, Codes]] = []
    while len(done) < tables:
        x, codes = _draw_table(rng, size, rows, numbers, categories, responses)
        context, labels = x[:size].copy(), codes[:size].copy()
        if missing:
            context[_gaps(rng, context, missing)] = np.nan
            labels[_gaps(rng, labels.astype(float), missing)] = -1
        found = _in_units(context, x[size:])
        if found is None or not (labels >= 0).any(0).all():
            continue
        done.append((*found, *_recoded(labels, codes[size:])))
    context, fresh, labels, row_labels, counts = (
        np.stack(each) for each in zip(*done, strict=True)
    )
    most = int(counts.max()) if categories else 1
    row_labels = np.where(row_labels < 0, most, row_labels)
    return MixedBatch(
        context.astype(np.float32), fresh.astype(np.float32), labels, row_labels, counts
    )


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
    family = FAMILIES[rng.choice(list(FAMILIES), p=list(SHARES.values()))]
    latent = standard(family(rng, count, max(1, numbers + hidden)))
    codes = np.empty((count, categories), np.int64)
    names = rng.choice(list(WAYS), categories, p=list(WAYS.values()))
    respond = rng.random() < responses
    for column, name in enumerate(names):
        if column == categories - 1 and respond:
            name = "response"
        made = CATEGORIES[name](rng, latent, codes[:, :column])
        flipped = rng.random(count) < (rng.uniform(0, 0.3) if rng.random() < 0.3 else 0)
        codes[:, column] = np.where(flipped, rng.permutation(made), made)
    x = latent[:, :numbers]
    if categories and rng.random() < MOVED:
        x = _moved(rng, x, codes)
    if numbers > 1 and respond:
        x[:, -1] = standard(response(rng, x[:, :-1], codes, 1))[:, 0]
        x[:, -1] += _noise_size(rng, x[:, :-1]) * rng.normal(size=count)
    widths = warp_columns(rng, x)
    if numbers and rng.random() < OUTLIERS:
        add_outliers(rng, x)
    x = standard(x * rng.choice([-1.0, 1.0], numbers))
    return untied(rng, x, widths, size), codes


def _noise_size(rng: Generator, x: Array) -> Array:
    """Return standard deviations of noise, in a third of cases different from row to row. (n,)"""
    scale = log_uniform(rng, 0.05, 2.0)
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


def response(rng: Generator, x: Array, codes: Codes, outputs: int) -> Array:
    """Return random functions of numbers and categories: lines, trees, networks. (n, outputs)"""
    effects = [
        rng.normal(size=int(codes[:, column].max()) + 1)[codes[:, column]]
        for column in range(codes.shape[1])
    ]
    inputs = np.concatenate([x, *(each[:, None] for each in effects)], 1)
    if not inputs.shape[1]:
        return np.zeros((len(x), outputs))
    few = max(1, min(inputs.shape[1], int(log_uniform(rng, 1, 13))))
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
    return int(log_uniform(rng, 8, MOST_VALUES + 0.99))


def _bins(rng: Generator, latent: Array, codes: Codes) -> Codes:
    """Bins of a hidden column, with or without noise."""
    column = latent[:, rng.integers(latent.shape[1])]
    if rng.random() < 0.5:
        column = column + log_uniform(rng, 0.05, 1.0) * rng.normal(size=len(column))
    cuts = np.quantile(column, random_shares(rng, _value_count(rng)).cumsum()[:-1])
    return np.searchsorted(cuts, column).astype(np.int64)


def _from_response(rng: Generator, latent: Array, codes: Codes) -> Codes:
    """The value with the largest random function, with or without noise."""
    values = _value_count(rng)
    logits = log_uniform(rng, 0.5, 6.0) * response(rng, latent, codes, values)
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


def _noise(rng: Generator, latent: Array, codes: Codes) -> Codes:
    """Values of falling frequency that depend on nothing."""
    values = _value_count(rng)
    weights = (1 + np.arange(values)) ** -rng.uniform(0, 2)
    return rng.choice(values, len(latent), p=weights / weights.sum())


def _child(rng: Generator, latent: Array, codes: Codes) -> Codes:
    """Values whose frequencies depend on that of another category."""
    if not codes.shape[1]:
        return _bins(rng, latent, codes)
    parent, values = codes[:, rng.integers(codes.shape[1])], _value_count(rng)
    table = rng.dirichlet(np.full(values, log_uniform(rng, 0.05, 2.0)), int(parent.max()) + 1)
    return (table.cumsum(1)[parent] < rng.random((len(parent), 1))).sum(1).clip(0, values - 1)


CATEGORIES: dict[str, Callable[[Generator, Array, Codes], Codes]] = {
    "bins": _bins,
    "response": _from_response,
    "cluster": _cluster,
    "child": _child,
    "noise": _noise,
}
