"""ConditionedTable: the density of a data frame, which answers questions about its columns."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from isthmus.distribution import probabilities
from isthmus.errors import DtypeError, InvalidInputError, ShapeError
from isthmus.extras import require
from isthmus.incontext.tables.model import MOST_VALUES, Array, ICLTables
from isthmus.incontext.tables.outliers import RowScores, odd_columns
from isthmus.memories.gaussian import patterns
from isthmus.memories.table_mixture import LineAt, StudentMixture, TableMixture
from isthmus.printing import Summarised, definitions, listed
from isthmus.scaling import count_decimals
from isthmus.tables.encoding import (
    Coding,
    as_frame,
    as_integers,
    as_times,
    is_mixed,
    seconds,
    stamps,
)
from isthmus.validation import as_array, as_count, as_number, as_seed, rectangular, require_kind

if TYPE_CHECKING:
    import pandas as pd

# Rows times components of one pass, and what the components that are left out share of a row.
BLOCK_ENTRIES, LEAST_SHARE = 2**20, 1e-7
# Steps of the search for a quantile, which doubles its digits in most, and its error.
MOST_STEPS, TOLERANCE = 60, 1e-7
# The largest number of rows, relative to the table's.
FARTHEST = 1e100


class Column(NamedTuple):
    """A column of a table, and where it is in the density: numbers first, then categories."""

    kind: str
    at: int
    dtype: Any
    values: list[Any] | None = None  # of a category
    decimals: int | None = None  # of a number


def read_frame(reader: ICLTables, X: Any, target: Any = None) -> ConditionedTable:
    """Return what a model reads of a data frame."""
    require("pandas")
    is_mixed(X)  # refuses columns of one name
    frame = as_frame(X)
    if not frame.shape[1]:
        raise ShapeError("X has no columns.")
    coding = Coding.of(frame, MOST_VALUES)
    for place in coding.categories:
        distinct = frame.iloc[:, place].nunique()
        if distinct > max(MOST_VALUES, len(frame) / 2):
            raise InvalidInputError(
                f"Column {frame.columns[place]!r} holds text, or other values than numbers and "
                f"times, that hardly repeats ({distinct} values). Leave it out."
            )
    order = sorted(range(frame.shape[1]), key=lambda place: place in coding.categories)
    columns = {
        name: Column(
            kind, order.index(place), frame.dtypes.iloc[place], coding.categories.get(place)
        )
        for place, (name, kind) in enumerate(zip(frame.columns, coding.kinds, strict=True))
    }
    if target is not None:
        _require_column(target, columns)
        target = columns[target].at
    numbers, codes = coding.codes(frame)
    names = [frame.columns[place] for place in order]
    # Times count from the first one, as nothing depends on 1970.
    times = [coding.kinds[place] == "time" for place in order[: numbers.shape[1]]]
    first = np.where(times, np.nanmin(numbers, 0, initial=np.inf), 0.0)
    origin = np.where(np.isfinite(first), first, 0.0)
    energy = reader.density_of(numbers, codes.astype(np.int64), names, target, origin)
    return _conditioned(energy, columns, numbers)


def read_numbers(reader: ICLTables, table: Array, names: Any = None) -> ConditionedTable:
    """Return what a model reads of numbers (n, D), which needs no pandas."""
    names = range(table.shape[1]) if names is None else names
    columns = {name: Column("number", at, np.dtype(np.float64)) for at, name in enumerate(names)}
    return _conditioned(reader.condition(table), columns, table)


def _conditioned(energy: Any, columns: dict[Any, Column], numbers: Array) -> ConditionedTable:
    energy.returns_arrays = True
    for name, each in columns.items():
        if each.values is None:
            known = numbers[:, each.at]
            decimals = count_decimals(known[~np.isnan(known)])
            columns[name] = each._replace(decimals=decimals)
    return ConditionedTable(energy, columns)


def _require_column(column: Any, columns: Iterable[Any]) -> None:
    if not isinstance(column, Hashable) or column not in columns:
        names = listed(list(map(str, columns)))
        raise InvalidInputError(f"The table has no column {column!r}; it has {names}.")


@dataclass(frozen=True)
class Answer(Summarised):
    """What is known of a column, given values of others: :meth:`ConditionedTable.ask`.

    Attributes
    ----------
    column, given
        What was asked for.
    probabilities : dict
        Of the values of a category, the most probable first; empty for a number.
    mean, median, interval, level
        Of a number; None for a category.
    """

    column: Any
    given: dict[Any, Any]
    probabilities: dict[Any, float] = field(default_factory=dict)
    mean: Any = None
    median: Any = None
    interval: tuple[Any, Any] | None = None
    level: float | None = None

    @property
    def summary(self) -> dict[str, Any]:
        """The answer for JSON."""
        given = {str(name): _plain(value) for name, value in self.given.items()}
        found: dict[str, Any] = {"column": str(self.column), "given": given}
        if self.interval is None:
            shares = {str(value): share for value, share in self.probabilities.items()}
            return found | {"probabilities": shares}
        found |= {"mean": _plain(self.mean), "median": _plain(self.median)}
        return found | {"interval": [*map(_plain, self.interval)], "level": self.level}

    def __str__(self) -> str:
        known = ", ".join(f"{name} = {value}" for name, value in self.given.items())
        words = {str(value): f"{share:.1%}" for value, share in self.probabilities.items()}
        if self.interval is not None:
            words = {"mean": _shown(self.mean), "median": _shown(self.median)}
            words[f"{self.level:.0%} interval"] = " to ".join(map(_shown, self.interval))
        return "\n".join([f"{self.column}{' given ' * bool(known)}{known}", *definitions(words)])


def _plain(value: Any) -> Any:
    """Return a value as JSON holds it, which has no infinite numbers."""
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | float | np.number):
        return float(value) if np.isfinite(value) else None
    return None if value != value else str(value)  # NaT


def _shown(value: Any) -> str:
    return f"{value:.5g}" if isinstance(value, float | np.floating) else str(value)


class ConditionedTable:
    """The density of a table, which answers questions about it.

    :meth:`isthmus.incontext.ICLTables.condition` of a data frame returns it. All answers are exact
    conditionals of one density, :attr:`energy`. Rows are data frames, dictionaries, lists of
    dictionaries, or arrays with all columns; columns that they lack, and missing cells, are
    unknown. A category that the table does not have is allowed, and unlikely; :meth:`predict`,
    :meth:`fill` and :meth:`sample` leave such values out.

    Attributes
    ----------
    energy : TableMixture, or StudentMixture of an array
        The density of the numbers, in their units (times in seconds), then of the categories, whose
        last value stands for all that the table does not have.
    columns : tuple
        Names of the columns.
    categories : dict of name to list
        Values of each category, the most frequent first.

    Examples
    --------
    >>> import numpy as np, pandas as pd
    >>> from isthmus.incontext import pretrained
    >>> rng = np.random.default_rng(0)
    >>> kind = rng.choice(["cat", "dog"], 80)
    >>> weight = np.where(kind == "cat", rng.normal(4, 1, 80), rng.normal(20, 5, 80))
    >>> table = pretrained("tables").condition(pd.DataFrame({"kind": kind, "weight": weight}))
    >>> bool(table.predict("kind", {"weight": 3.5})["cat"].iloc[0] > 0.9)
    True
    >>> table.conditional({"kind": "dog"}).columns
    ('weight',)
    >>> low, high = table.interval("weight", 0.9, {"kind": "cat"})
    >>> bool(0 < low[0] < 4 < high[0] < 9)
    True
    """

    def __init__(
        self, energy: StudentMixture | TableMixture, columns: Mapping[Any, Column]
    ) -> None:
        self.energy, self._columns = energy, columns

    def __repr__(self) -> str:
        return f"ConditionedTable({listed(list(map(str, self.columns)), 6)})"

    @property
    def columns(self) -> tuple[Any, ...]:
        """Names of the columns."""
        return tuple(self._columns)

    @property
    def categories(self) -> dict[Any, list[Any]]:
        """Values of each category."""
        return {name: each.values for name, each in self._columns.items() if each.values}

    def log_prob(self, rows: Any) -> Array:
        """Return the log-density of the known cells of each row, 0 if there is none. (m,)"""
        x, seen = self._read(rows)
        found: Array = self.energy._log_prob(x, seen).numpy()
        return found

    def conditional(self, given: Mapping[Any, Any]) -> ConditionedTable:
        """Return the density of the other columns, given some: the same kind of object."""
        _, x, seen = self._explained(self._frame(self._known(given)))
        if bool(seen.all()):
            raise InvalidInputError("given leaves no column to ask for.")
        energy = self.energy
        if bool(seen.any()):
            energy = energy.condition(torch.where(seen[0], x[0], torch.nan))
        places = (~seen[0]).cumsum(0) - 1
        left = {
            name: each._replace(at=int(places[each.at]))
            for name, each in self._columns.items()
            if not seen[0, each.at]
        }
        return ConditionedTable(energy, left)

    def predict(self, column: Any, rows: Any = None) -> pd.DataFrame | pd.Series:
        """Return the probabilities of a category, or the mean of a number, given other columns.

        Parameters
        ----------
        column : hashable
            Name of the column to predict; its cells in `rows` are not read.
        rows : data frame, dict, list of dict, or array, optional
            Default: one row of which nothing is known.

        Returns
        -------
        DataFrame (m, values) or Series (m,)
            Probabilities among the values that the table has, which add up to 1. Of times, the
            mean as a time.
        """
        import pandas as pd

        asked, x, seen, index = self._asked(column, rows)
        if asked.values is not None:
            values = pd.Index(asked.values, name=column)
            return pd.DataFrame(self._shares(asked, x, seen), columns=values, index=index)
        mean = self._by_line(
            asked, x, seen, lambda line, _: (line.log_weights.exp() * line.centres).sum(1)
        )
        if asked.kind == "time":
            return _typed(asked, mean).set_axis(index).rename(column)
        return pd.Series(mean, index=index, name=column)

    def quantile(self, column: Any, q: Any, rows: Any = None) -> NDArray[Any]:
        """Return quantiles of a number given other columns: (m,), or (m, Q) for several `q`.

        Of times, they are ``datetime64``, or timestamps in the time zone of the column. The other
        parameters are those of :meth:`predict`.
        """
        levels = probabilities(q)
        asked, x, seen, _ = self._asked(column, rows, number=True)
        flat = levels.reshape(-1)
        found = self._by_line(asked, x, seen, lambda line, _: _quantiles(line, flat), len(flat))
        zone, shape = getattr(asked.dtype, "tz", None), (len(x), *levels.shape)
        found = stamps(found) if asked.kind == "time" else found
        if zone is not None:
            import pandas as pd

            utc = pd.Series(found.reshape(-1)).dt.tz_localize("UTC")
            found = utc.dt.tz_convert(zone).to_numpy()
        return found.reshape(shape)

    def interval(self, column: Any, level: float = 0.9, rows: Any = None) -> tuple[Any, Any]:
        """Return the ends, (m,) each, of the central interval with the probability `level`."""
        level = as_number(level, "level", at_least=0, at_most=1)
        both = self.quantile(column, [0.5 - level / 2, 0.5 + level / 2], rows)
        return both[:, 0], both[:, 1]

    def cdf(self, column: Any, value: Any, rows: Any = None) -> Array:
        """Return the probability that a number is at most `value`, one or (m,). -> (m,)"""
        asked, x, seen, _ = self._asked(column, rows, number=True)
        try:
            times = asked.kind == "time"
            points = seconds(np.atleast_1d(value)) if times else as_array(value, "value")
            points = np.broadcast_to(points, (len(x),))
        except (TypeError, ValueError):
            words = f"value must be one {asked.kind}, or one for each of the {len(x)} rows."
            raise InvalidInputError(words) from None

        def below(line: LineAt, chosen: Array) -> Array:
            weights, centres, scales, dof = (part.numpy() for part in line)
            found = special.stdtr(dof, (points[chosen, None] - centres) / scales)
            return np.asarray((np.exp(weights) * found).sum(1))

        return self._by_line(asked, x, seen, below)

    def fill(self, rows: Any) -> pd.DataFrame:
        """Return rows with gaps filled: the mean of a number, the most probable category."""
        import pandas as pd

        frame, x, seen = self._explained(self._frame(rows))
        filled, result = self.energy._conditional_mean(x, seen), frame.copy()
        for name, each in self._columns.items():
            gaps, cells = ~seen[:, each.at].numpy(), frame[name]
            if not gaps.any():
                continue
            if each.values is not None:
                best = self._shares(each, x, seen).argmax(1)[gaps]
                values: Any = np.array(each.values, dtype=object)[best]
                if cells.dtype.kind in "iuf":  # numbers that are given for a category
                    cells = cells.astype(object)
                if isinstance(cells.dtype, pd.CategoricalDtype):
                    cells = cells.cat.add_categories(set(values) - set(cells.cat.categories))
            else:
                values = filled[:, each.at].numpy()[gaps]
            is_given = cells.dtype.kind == "M" and not gaps.all()
            typed = _typed(each._replace(dtype=cells.dtype) if is_given else each, values)
            if not gaps.all():
                both = cells.astype(object)
                both[gaps] = typed.astype(object).to_numpy()
                typed = _held(both, cells.dtype).infer_objects()
            result[name] = typed.set_axis(frame.index)
        return result

    def sample(self, n: int, given: Mapping[Any, Any] | None = None, seed: int = 0) -> pd.DataFrame:
        """Draw rows, with the columns and types of the table, which have the `given` values.

        Numbers are rounded to the decimals of the table; categories are those that it has.
        """
        import pandas as pd

        n, seed = as_count(n, "n", at_least=0), as_seed(seed)
        known = self._known(given)
        part = self.conditional(known) if known else self
        energy, shares = part.energy, []
        if energy.n_values:  # those that the table has
            logs = energy.log_mixing_weights
            for own, coded in zip(energy.shares, part.categories.values(), strict=True):
                kept = torch.where(torch.arange(own.shape[1]) < len(coded), own, 0.0)
                total = kept.sum(1, keepdim=True)
                shares.append(kept / total.clamp(min=1e-300))
                logs = logs + total[:, 0].log()
            energy = TableMixture(energy.means, shares, energy.scale_trils, energy.dof, logs)
        drawn = energy._sample(n, seed).numpy()
        columns: dict[Any, Any] = {}
        for name, each in part._columns.items():
            values: Any = drawn[:, each.at]
            if each.values is not None:
                values = pd.Series(each.values, dtype=object).iloc[values.astype(int)].to_numpy()
            elif each.decimals is not None:
                values = np.round(values, each.decimals)
            columns[name] = _typed(each, values)
        for name, value in known.items():
            each = self._columns[name]
            value = pd.to_numeric(value) if each.kind == "number" else value
            same = pd.Series([value] * n, dtype=object)
            is_time = each.kind == "time"
            columns[name] = _typed(each, seconds(same)) if is_time else _held(same, each.dtype)
        return pd.DataFrame({name: columns[name] for name in self.columns})

    def ask(
        self, column: Any, given: Mapping[Any, Any] | None = None, *, level: float = 0.9
    ) -> Answer:
        """Return what is known of a column given values of others, which prints well.

        Parameters
        ----------
        column : hashable
        given : dict, optional
        level : float
            Probability of the interval of a number.
        """
        import pandas as pd

        rows = self._known(given)
        _require_column(column, self.columns)
        if column in rows:
            raise InvalidInputError(f"given has a value of {column!r}, which is asked for.")
        found = self.predict(column, rows)
        if isinstance(found, pd.DataFrame):
            chances = found.iloc[0].sort_values(ascending=False, kind="stable")
            shares = dict(zip(chances.index, map(float, chances), strict=True))
            return Answer(column, rows, probabilities=shares)
        (low,), (high,) = self.interval(column, level, rows)
        median = self.quantile(column, 0.5, rows)[0]
        return Answer(column, rows, {}, found.iloc[0], median, (low, high), level)

    def outliers(
        self, rows: Any, level: float = 1.0, *, draws: int = 4000, seed: int = 0
    ) -> RowScores:
        """Return how usual rows are: a p-value for each, and the columns that make outliers odd.

        The p-value is the probability that a row of the density, of the same known columns, is no
        more likely, estimated by `draws`.

        Parameters
        ----------
        rows : data frame, dict, list of dict, or array
        level : float
            A row is an outlier if fewer than this percentage of draws are less likely.
        draws, seed : int
        """
        level, draws = as_number(level, "level", above=0, below=100), as_count(draws, "draws")
        x, seen = self._read(rows)
        own = self.energy._sample(draws, as_seed(seed))
        log_density = self.energy._log_prob(x, seen)
        percentile = torch.full_like(log_density, torch.nan)
        for chosen, pattern in patterns(seen):
            if bool(pattern.any()):
                usual = self.energy._log_prob(own, pattern.expand(len(own), -1)).sort().values
                below = torch.searchsorted(usual, log_density[chosen], right=True)
                percentile[chosen] = 100 * below.double() / draws
        log_density[~seen.any(1)] = torch.nan
        outlier = (percentile < level).numpy()
        odd = np.flatnonzero(outlier)
        names = odd_columns(odd, self._surprises(x[odd], seen[odd]), self.columns)
        p_value = (1 + 0.01 * draws * percentile.numpy()) / (1 + draws)
        numbers = log_density.numpy(), percentile.numpy()
        return RowScores(*numbers, outlier, level, names, p_value=p_value)

    def _surprises(self, x: Tensor, seen: Tensor) -> Array:
        """Return -log p of each cell given the others, in standard units. (q, columns)"""
        whole, gains = self.energy._log_prob(x, seen), np.zeros((len(x), len(self.columns)))
        for place, each in enumerate(self._columns.values()):
            mask, unit = seen.clone(), 1.0
            mask[:, each.at] = False
            if each.values is None and len(x):
                low, high = self.energy._line(each.at).ppf(np.array([0.16, 0.84]))
                unit = 0.5 * (high - low)
            more = (self.energy._log_prob(x, mask) - whole).numpy()
            gains[:, place] = np.where(seen[:, each.at].numpy(), more - np.log(unit), 0.0)
        return gains

    def _shares(self, column: Column, x: Tensor, seen: Tensor) -> Array:
        """Return probabilities of a category among the values that the table has. (q, V)"""
        found = self.energy._values_given(x, seen, column.at - self.energy.n_numbers)
        shares: Array = found[:, : len(column.values or [])].numpy()
        return shares / shares.sum(1, keepdims=True)

    def _asked(
        self, column: Any, rows: Any, number: bool = False
    ) -> tuple[Column, Tensor, Tensor, Any]:
        """Return a column, or `number`, and the rows that it is asked for, with their index."""
        _require_column(column, self._columns)
        asked = self._columns[column]
        if number and asked.values is not None:
            raise InvalidInputError(f"{column!r} is a category, which has probabilities: predict.")
        frame, x, seen = self._explained(self._frame({} if rows is None else rows, column))
        seen[:, asked.at] = False
        return asked, x, seen, frame.index

    def _by_line(
        self, column: Column, x: Tensor, seen: Tensor, function: Any, *shape: int
    ) -> Array:
        """Return a function of a number given the rest of each row, and of which rows. (q, ...)"""
        found, numbers = np.empty((len(x), *shape)), seen[:, : self.energy.n_numbers]
        width = max(1, BLOCK_ENTRIES // (self.energy.n_memories * numbers.shape[1]))
        for chosen, _ in patterns(numbers):
            for rows in chosen.nonzero()[:, 0].split(width):
                line = self.energy._line_given(x[rows], seen[rows], column.at)
                found[rows.numpy()] = function(line, rows.numpy())
        return found

    def _known(self, given: Any) -> dict[Any, Any]:
        """Return what is given of columns of the table, one value each, without gaps."""
        import pandas as pd

        given = {} if given is None else given
        require_kind(given, "given", Mapping)
        if unknown := [name for name in given if name not in self.columns]:
            raise InvalidInputError(
                f"given names {listed(unknown)}, which the table does not have."
            )
        if several := [name for name, value in given.items() if np.ndim(value)]:
            raise InvalidInputError(f"given must have one value of {listed(several)}.")
        return {name: value for name, value in given.items() if not pd.isna(value)}

    def _read(self, rows: Any) -> tuple[Tensor, Tensor]:
        """Return rows as points of the density, 0 where not known, and which cells are."""
        plain = (
            isinstance(rows, np.ndarray)
            and rows.dtype.kind == "f"
            and all(each.kind == "number" for each in self._columns.values())
        )
        if plain and rows.shape[1:] == (len(self.columns),):  # without pandas
            return self._points(rows.astype(np.float64))
        return self._coded(self._frame(rows))

    def _points(self, cells: Array) -> tuple[Tensor, Tensor]:
        x = torch.from_numpy(cells)
        numbers = x[:, : self.energy.n_numbers]
        # Their squared distances from the table would overflow.
        size = self.energy.means.abs().amax(0).clamp(min=1.0) if numbers.shape[1] else 1.0
        if bool((numbers.abs() / size > FARTHEST).any()):
            raise InvalidInputError(
                "rows have numbers that are infinite, or too large to compare with the table's. "
                "Mark missing cells with NaN."
            )
        return x.nan_to_num(nan=0.0), ~x.isnan()

    def _explained(self, frame: pd.DataFrame) -> tuple[pd.DataFrame, Tensor, Tensor]:
        """Return a frame, and its points with the values of the table in constant columns."""
        x, seen = self._coded(frame)
        count, means = self.energy.n_numbers, self.energy.means
        x[:, :count] = torch.where((means == means[0]).all(0), means[0], x[:, :count])
        for each in self._columns.values():
            if each.values is not None and len(each.values) == 1:
                x[:, each.at] = 0.0
        return frame, x, seen

    def _frame(self, rows: Any, asked: Any = None) -> pd.DataFrame:
        """Return rows as a data frame of the table's columns, with gaps where they lack one."""
        import pandas as pd

        rows = dict(rows) if isinstance(rows, pd.Series) else rows
        frame = as_frame(rows)
        if isinstance(rows, Mapping):
            plain = any(np.ndim(value) for value in rows.values())
            frame = pd.DataFrame(rows) if plain else pd.DataFrame([dict(rows)], index=[0])
        elif isinstance(rows, list) and rows and isinstance(rows[0], Mapping):
            frame = pd.DataFrame(rows)
        elif not hasattr(rows, "columns"):
            array = rectangular(rows, "rows")
            others = [name for name in self.columns if name != asked]
            names = self.columns if array.shape[-1:] == (len(self.columns),) else others
            if array.ndim != 2 or array.shape[1] != len(names):
                raise InvalidInputError(
                    f"rows must have {len(self.columns)} columns, as the table; an array of shape "
                    f"{array.shape} has not. Data frames and dictionaries may have fewer."
                )
            frame = pd.DataFrame(array, columns=list(names))
        if len(set(frame.columns)) < frame.shape[1]:
            raise InvalidInputError("Columns of rows have the same name; rename them first.")
        if frame.shape[1] and not set(frame.columns) & set(self.columns):
            raise InvalidInputError("rows have no column of the table.")
        return frame.reindex(columns=list(self.columns))

    def _coded(self, frame: pd.DataFrame) -> tuple[Tensor, Tensor]:
        """Return a frame as :meth:`_read` does."""
        import pandas as pd

        typed = frame.copy()
        for name, each in self._columns.items():
            try:
                if each.kind == "number":
                    typed[name] = pd.to_numeric(frame[name]).astype(np.float64)
                elif each.kind == "time":
                    typed[name] = pd.to_datetime(frame[name])
            except (TypeError, ValueError, OverflowError):
                words = f"Column {name!r} holds {each.kind}s; the rows have other cells."
                raise DtypeError(words) from None
        values = [each.values for each in self._columns.values()]
        categories = {place: each for place, each in enumerate(values) if each is not None}
        coding = Coding(tuple(each.kind for each in self._columns.values()), categories)
        numbers, codes = coding.codes(typed)
        return self._points(np.concatenate([numbers, np.where(codes < 0, np.nan, codes)], 1))


def _typed(column: Column, values: Any) -> pd.Series:
    """Return values as a column of the type that the table has."""
    import pandas as pd

    if column.kind == "time":
        return as_times(values, column.dtype)
    if column.kind == "number" and column.dtype.kind in "iu":
        values = as_integers(values, column.dtype)
    return pd.Series(values).astype(column.dtype)


def _held(column: pd.Series, dtype: Any) -> pd.Series:
    """Return a column of objects as one of a type that holds them, or else of a type of theirs."""
    with suppress(TypeError, ValueError):
        typed = column.astype(dtype)
        if dtype.kind == "f" or bool((typed.astype(object) == column).all()):
            return typed
    return column.infer_objects()


def _quantiles(line: LineAt, levels: Array) -> Array:
    """Return quantiles of each row's mixture, by Newton's method in a bracket. (q, Q)"""
    found, inner = np.empty((len(line.centres), len(levels))), np.clip(levels, 1e-12, 1 - 1e-12)
    parts = line.log_weights.exp().numpy(), line.centres.numpy(), line.scales.numpy()
    for row, weights in enumerate(parts[0]):
        order = np.argsort(-weights)
        kept = order[: 1 + int(np.searchsorted(weights[order].cumsum(), 1 - LEAST_SHARE))]
        kept = kept[np.argsort(parts[1][row, kept])]
        weight, centre, scale = (part[row, kept] for part in parts)
        weight, dof = weight / weight.sum(), line.dof.numpy()[kept]
        x = np.interp(levels, np.cumsum(weight) - 0.5 * weight, centre)
        unit = special.gammaln(0.5 * (dof + 1)) - special.gammaln(0.5 * dof)
        height = weight * np.exp(unit) / np.sqrt(np.pi * dof) / scale
        ends = centre + scale * special.stdtrit(dof, inner[:, None])
        # Near the solution by a distribution function that is fast, then by the exact one.
        for cdf in (_approximate_cdf, special.stdtr):
            low, high = ends.min(1), ends.max(1)
            x = np.clip(x, low, high)
            for _ in range(MOST_STEPS):
                distance = (x[:, None] - centre) / scale
                excess = cdf(dof, distance) @ weight - levels
                if np.all((np.abs(excess) <= TOLERANCE) | (high <= low)):
                    break
                low, high = np.where(excess < 0, x, low), np.where(excess >= 0, x, high)
                slope = ((1 + distance**2 / dof) ** (-0.5 * (dof + 1))) @ height
                with np.errstate(divide="ignore", invalid="ignore"):
                    moved = x - excess / slope
                x = np.where((moved > low) & (moved < high), moved, 0.5 * low + 0.5 * high)
        found[row] = x
    found[:, levels <= 0], found[:, levels >= 1] = -np.inf, np.inf
    return found


def _approximate_cdf(dof: Array, distance: Array) -> Array:
    """Return Student's distribution function by Hill's normal approximation (1970)."""
    a = np.maximum(dof - 0.5, 0.5)
    b, w = 48 * a**2, np.sqrt(a * np.log1p(distance**2 / dof))
    z = w + (w**3 + 3 * w) / b
    found: Array = special.ndtr(np.copysign(z, distance))
    return found
