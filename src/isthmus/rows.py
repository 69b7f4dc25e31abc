"""checked_table: the rows that are passed to an estimator, as an array of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils.validation import validate_data

from isthmus.errors import DtypeError, InvalidInputError, IsthmusError, ShapeError
from isthmus.validation import holds_text, require_values, unmasked


def checked_table(estimator: Any, X: Any, **options: Any) -> NDArray[Any]:
    """Return rows as scikit-learn checks them, without text or masked values.

    Options are those of ``sklearn.utils.validation.validate_data``, whose messages are kept.
    """
    try:
        table: NDArray[Any] = validate_data(estimator, without_text(X), **options)
    except IsthmusError:
        raise
    except ValueError as error:
        raise InvalidInputError(str(error)) from error
    except TypeError as error:
        raise DtypeError(str(error)) from error
    return table


def without_text(X: Any) -> Any:
    """Return X, with NaN where it is masked; raise if it holds text, dates or records.

    scikit-learn would read some of them as numbers. Columns of pandas and polars are named.
    """
    if isinstance(X, torch.Tensor):
        require_values(X, "X")
        return X.detach().cpu().resolve_conj().numpy()
    columns = getattr(X, "columns", None)
    if columns is not None:
        if not len(columns):
            raise ShapeError("X has no columns.")
        names = [name for name in columns if not is_numeric(X[name])]
        if names:
            listed = ", ".join(map(repr, names))
            raise InvalidInputError(
                f"Column {listed} of X does not hold numbers. Leave it out, or encode "
                "the table with isthmus.tables.encode."
            )
        return X
    X = unmasked(X)
    if isinstance(X, list | tuple | np.ndarray | int):
        try:
            array = np.asarray(X)
            array = array if array.dtype.kind != "O" or holds_text(array) else array.astype(float)
        except OverflowError:
            raise InvalidInputError("X has numbers beyond double precision.") from None
        except (TypeError, ValueError):  # which scikit-learn reports
            return X
        if holds_text(array):
            raise DtypeError(
                "X holds text, dates or records, not numbers. Leave such columns out, or pass a "
                "data frame through isthmus.tables.encode."
            )
    return X


def is_numeric(column: Any) -> bool:
    """Return True for a column that converts to numbers without reading text."""
    try:
        np.asarray(column, dtype=float)
    except (TypeError, ValueError):
        return False
    return not holds_text(np.asarray(column))
