"""fill_rows: missing cells by the exact conditionals of the in-context density of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from isthmus.errors import ShapeError
from isthmus.incontext.tables.model import ICLTables, as_numbers
from isthmus.incontext.tables.scoring import reader_of
from isthmus.memories.base import generator_for
from isthmus.validation import as_count, as_seed


@torch.no_grad()
def fill_rows(
    X: Any,
    rows: Any = None,
    *,
    draws: int | None = None,
    model: str | Path | ICLTables = "tables",
    seed: int = 0,
) -> NDArray[np.float64]:
    """Fill the missing cells of rows, given the other cells and a table.

    Parameters
    ----------
    X : array, Tensor or data frame (n, D)
        The table to read; NaN marks a missing cell.
    rows : array, Tensor or data frame (m, D), optional
        Rows to fill. Default: those of X.
    draws : int, optional
        Number of random fillings, for multiple imputation. Default: one filling by the
        conditional means, which have the least squared error.
    model : str, Path or ICLTables
        As in :func:`~isthmus.incontext.pretrained`.
    seed : int
        Of the random fillings.

    Returns
    -------
    ndarray (m, D), or (draws, m, D)

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from isthmus.incontext import fill_rows
    >>> petals = load_iris().data[:, 2:]
    >>> fill_rows(petals, [[1.5, np.nan], [5.5, np.nan]]).round(1)
    array([[1.5, 0.2],
           [5.5, 2. ]])
    >>> fill_rows(petals, [[1.5, np.nan]], draws=3).shape
    (3, 1, 2)
    """
    table, reader = as_numbers(X), reader_of(model)
    gaps = table if rows is None else as_numbers(rows)
    if table.ndim != 2:
        raise ShapeError(f"X must be a table of shape (n, D), not {table.shape}.")
    if gaps.ndim != 2 or gaps.shape[1:] != table.shape[1:]:
        raise ShapeError(f"rows must be (m, {table.shape[-1]}) as X, not {gaps.shape}.")
    generator = generator_for(as_seed(seed), torch.device("cpu"))
    density, points = reader.condition(table), torch.from_numpy(gaps)
    if draws is None:
        means: NDArray[np.float64] = np.asarray(density.conditional_mean(points, ~points.isnan()))
        return means
    filled = points.repeat(as_count(draws, "draws"), 1, 1)
    for row in points.isnan().any(1).nonzero()[:, 0].tolist():
        free = points[row].isnan()
        drawn = density.conditional(points[row]).sample(draws, seed=generator)
        filled[:, row, free] = torch.as_tensor(drawn)
    return filled.numpy()
