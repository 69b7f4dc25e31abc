"""Columns of a data frame as numbers, and the way back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isthmus.errors import DtypeError, InvalidInputError, ShapeError
from isthmus.rows import is_numeric

if TYPE_CHECKING:
    import pandas as pd

FloatArray = NDArray[np.float64]

# The most frequent categories of a column become indicators; all others are alike.
MOST_CATEGORIES = 20
# Seconds from 1970 that times of nanoseconds hold.
MOST_SECONDS = 2**63 // 10**9 - 1


def encode(frame: Any) -> pd.DataFrame:
    """Return a data frame as numbers, the way that estimators of this library read it.

    Numbers stay, times become seconds, and of categories and truth values each of the 20 most
    frequent values becomes an indicator of 0 and 1. NaN marks missing cells.

    Examples
    --------
    >>> import pandas as pd
    >>> from isthmus.tables import encode
    >>> encode(pd.DataFrame({"age": [31, 40], "sex": ["f", None]}))
        age  sex=f
    0  31.0    1.0
    1  40.0    NaN
    """
    frame = as_frame(frame)
    if not hasattr(frame, "columns"):
        raise DtypeError("frame must be a data frame of pandas or polars.")
    if frame.shape[1] == 0:
        raise ShapeError("The frame has no columns.")
    return Coding.of(frame).frame(frame)


def encoded(estimator: Any, X: Any, reset: bool) -> Any:
    """Return a mixed data frame as numbers, coded as in the fit; anything else as it is."""
    is_frame = hasattr(X, "to_pandas") or (hasattr(X, "iloc") and not hasattr(X, "dask"))
    if reset:
        estimator.__dict__.pop("_coding", None)
        if is_frame and is_mixed(X) and not all(is_numeric(X[name]) for name in X.columns):
            estimator._coding = Coding.of(as_frame(X))
    coding = estimator.__dict__.get("_coding")
    if coding is None or not is_frame:
        return X
    frame = as_frame(X)
    if frame.shape[1] != len(coding.kinds):
        raise InvalidInputError(f"X has {frame.shape[1]} columns; the fit had {len(coding.kinds)}.")
    return coding.frame(frame)


def is_mixed(X: Any) -> bool:
    """Return True for a data frame with columns that do not hold numbers."""
    if not hasattr(X, "columns") or not hasattr(X, "dtypes"):
        return False
    if len(set(X.columns)) < len(X.columns):
        raise InvalidInputError("Columns have the same name; rename them first.")
    return not all(_is_number(X[name]) for name in X.columns)


def as_frame(X: Any) -> Any:
    """Return a data frame of pandas or polars as one of pandas."""
    return X.to_pandas() if hasattr(X, "to_pandas") else X


def seconds(times: Any) -> FloatArray:
    """Return times as seconds since 1970, in UTC if they have a time zone."""
    import pandas as pd

    index = pd.DatetimeIndex(pd.to_datetime(times, utc=True)).tz_localize(None)
    found: FloatArray = index.to_numpy().astype("datetime64[us]").astype(np.int64) / 1e6
    return found


def stamps(numbers: FloatArray) -> NDArray[Any]:
    """Return seconds since 1970 as times, and NaT where no time is so far."""
    inside = np.abs(numbers) < 2**63 / 1e6
    found = (np.where(inside, numbers, 0.0) * 1e6).round().astype("int64").astype("datetime64[us]")
    return np.where(inside, found, np.datetime64("NaT"))


def as_times(numbers: FloatArray, dtype: Any) -> pd.Series:
    """Return seconds since 1970 as times of a type, within its range and in its time zone."""
    import pandas as pd

    if "[ns" in str(dtype):
        numbers = np.clip(numbers, -MOST_SECONDS, MOST_SECONDS)
    times = pd.Series(stamps(numbers))
    times = times if getattr(dtype, "tz", None) is None else times.dt.tz_localize("UTC")
    return times.astype(dtype)


def as_integers(numbers: FloatArray, dtype: Any) -> FloatArray:
    """Return numbers rounded to integers that a type holds."""
    held = np.iinfo(getattr(dtype, "numpy_dtype", dtype))
    # The largest integers of 64 bits are no floating-point numbers.
    most = held.max if held.bits < 64 else held.max // 2**11 * 2**11
    return np.clip(np.round(numbers), held.min, most)


def _is_number(column: Any) -> bool:
    import pandas as pd

    if isinstance(column, pd.Series):
        return pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column)
    return bool(column.dtype.is_numeric())


def is_category(column: pd.Series, name: Any) -> bool:
    """Return True for a column that does not hold numbers; raise if its cells are no categories."""
    from isthmus.tables.columns import is_nested

    if column.dtype.kind == "c" or is_nested(column):
        raise DtypeError(
            f"Column {name!r} holds lists, complex numbers or other cells that are neither "
            "numbers nor categories; leave it out."
        )
    return not _is_number(column)


@dataclass(frozen=True)
class Coding:
    """How the columns of a data frame become numbers: as they are, as seconds, as indicators.

    `kinds` has a word for each column, and `categories` the values of those with indicators.
    """

    kinds: tuple[str, ...]
    categories: dict[int, list[Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A file of JSON has lists, and names for keys.
        object.__setattr__(self, "kinds", tuple(self.kinds))
        numbered = {int(place): values for place, values in self.categories.items()}
        object.__setattr__(self, "categories", numbered)

    @classmethod
    def of(cls, frame: Any, most: int = MOST_CATEGORIES) -> Coding:
        """Find the kind of each column, and its most frequent categories."""
        import pandas as pd

        kinds, categories = [], {}
        for place, (name, column) in enumerate(frame.items()):
            if not is_category(column, name):
                kinds.append("number")
            elif pd.api.types.is_datetime64_any_dtype(column):
                kinds.append("time")
            else:
                kinds.append("category")
                counts = column.astype(object).value_counts(sort=False)
                order = np.argsort(-counts.to_numpy(), kind="stable")[:most]
                categories[place] = [counts.index[number] for number in order]
        return cls(tuple(kinds), categories)

    @property
    def is_mixed(self) -> bool:
        """True if some column does not hold numbers."""
        return set(self.kinds) != {"number"}

    @property
    def starts(self) -> list[int]:
        """The first number of each column."""
        return [place.start for place in self.places]

    @property
    def places(self) -> list[slice]:
        """The numbers of each column."""
        widths = [max(len(self.categories.get(place, "x")), 1) for place in range(len(self.kinds))]
        ends = np.cumsum(widths).tolist()
        return [slice(end - width, end) for end, width in zip(ends, widths, strict=True)]

    def into(self, frame: Any) -> FloatArray:
        """Return a data frame as numbers (n, D), NaN where missing."""
        parts = []
        for place, kind in enumerate(self.kinds):
            column = frame.iloc[:, place]
            missing = column.isna().to_numpy()
            if kind == "number":
                parts.append(column.to_numpy(dtype=np.float64, na_value=np.nan)[:, None])
            elif kind == "time":
                parts.append(np.where(missing, np.nan, seconds(column))[:, None])
            else:
                known = {value: number for number, value in enumerate(self.categories[place])}
                codes = column.astype(object).map(known).to_numpy(dtype=np.float64, na_value=-1)
                flags = (codes[:, None] == np.arange(max(len(known), 1))).astype(np.float64)
                parts.append(np.where(missing[:, None], np.nan, flags))
        return np.concatenate(parts, 1)

    def frame(self, frame: Any) -> pd.DataFrame:
        """Return a data frame of the same columns as one of numbers, with the same index."""
        import pandas as pd

        names = []
        for place, name in enumerate(frame.columns):
            values = self.categories.get(place)
            names += [str(name)] if values is None else [f"{name}={value}" for value in values]
            names += [str(name)] if values == [] else []
        return pd.DataFrame(self.into(frame), columns=names, index=frame.index)

    def codes(self, frame: Any) -> tuple[FloatArray, FloatArray]:
        """Return the numbers (n, D), and numbers of categories (n, C): -1 missing, k if new."""
        numbers, codes = [np.empty((len(frame), 0))], [np.empty((len(frame), 0))]
        flags = self.into(frame)
        for kind, place in zip(self.kinds, self.places, strict=True):
            part = flags[:, place]
            if kind != "category":
                numbers.append(part)
                continue
            code = np.where((part == 1).any(1), (part == 1).argmax(1), part.shape[1])
            codes.append(np.where(np.isnan(part[:, 0]), -1.0, code)[:, None])
        return np.concatenate(numbers, 1), np.concatenate(codes, 1)

    def probabilities(self, filled: FloatArray, place: int) -> FloatArray:
        """Return the probabilities of the categories of a column. (n, k)

        They are 0 where a cell is known and none of them.
        """
        found = np.maximum(filled[:, self.places[place]], 0)
        other = (filled[:, self.places[place]] == 0).all(1, keepdims=True)
        found = np.where(other, 0.0, found + 1e-9)
        return found / np.maximum(found.sum(1, keepdims=True), 1e-9)

    def back(self, frame: Any, filled: FloatArray, uniform: FloatArray | None = None) -> Any:
        """Return a data frame whose gaps are filled from numbers (n, D).

        A category is the most probable one, or drawn by `uniform` (n, columns) random numbers.
        """
        result = frame.copy()
        for place, kind in enumerate(self.kinds):
            column = frame.iloc[:, place]
            missing = column.isna().to_numpy()
            if not missing.any():
                continue
            if kind == "category":
                if not self.categories[place]:
                    continue
                found = self.probabilities(filled, place)[missing]
                chosen = found.argmax(1)
                if uniform is not None:
                    below = found.cumsum(1) < uniform[missing, place][:, None]
                    chosen = np.minimum(below.sum(1), found.shape[1] - 1)
                values: Any = np.array(self.categories[place], dtype=object)[chosen]
            else:
                values = filled[missing, self.places[place].start]
                if kind == "time":
                    values = as_times(values, column.dtype).to_numpy()
            new = column.copy()
            new[missing] = values
            result.isetitem(place, new)
        return result
