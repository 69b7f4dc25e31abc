"""Draw rows that resemble those of a table, and measure how well they do."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from isthmus.bandwidth.rules import as_rows
from isthmus.bandwidth.search import choose, robust_scales
from isthmus.errors import DtypeError, InvalidInputError, ShapeError
from isthmus.memories.gaussian import GaussianKDE
from isthmus.memories.student_mixture import StudentMixture
from isthmus.tables.styles import count_decimals
from isthmus.validation import as_choice, as_count, as_flag, as_number, as_seed

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Draws", "draw_rows"]

FloatArray = NDArray[np.float64]

TABLES = "tables"
# A value that this share of the rows have, and at least this many, is kept as it is.
ATOM_SHARE, ATOM_ROWS = 0.05, 5
# Draws outside a range, or equal to a row, are drawn again at most this often; values are exchanged
# between rows that are among this many nearest.
TRIES, NEIGHBORS = 20, 8
# Copies are allowed where this share of the rows equal another row.
MOSTLY_REPEATED = 0.9
# The check keeps this share of the rows apart, and needs at least this many.
HELD_OUT, FEWEST_CHECKED, MOST_CHECKED = 0.3, 15, 2000
MOST_DRAWS = 10**9


@dataclass(frozen=True, eq=False)
class Draws:
    """Rows drawn by :func:`draw_rows`. ``print`` shows a summary.

    Attributes
    ----------
    rows : DataFrame (n, D)
        With the columns and types of the table.
    kernel : str
        "tables" for the in-context density; else "round", "columns", "full" or "given", and
        `adaptive` if each row has its own width.
    auc : float or None
        Area under the curve of a random forest that tells draws from rows kept apart: 0.5 if it
        cannot, 1 if it always can. None if not checked.
    distance_ratio : float or None
        The median distance of a draw to the nearest row that it may be made from, by the columns of
        numbers, over that of rows kept apart. Far below 1, draws are copies.
    copies : int
        Number of draws that equal a row of the table.
    repeats : float or None
        Share of the rows kept apart that equal a row of the rest: what to expect of new rows, above
        0 where all columns have few values. None if not checked.
    """

    rows: pd.DataFrame = field(repr=False)
    kernel: str
    adaptive: bool
    auc: float | None
    distance_ratio: float | None
    copies: int
    repeats: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> dict[str, Any]:
        """The contents of the printed summary, for JSON."""
        names = ("kernel", "adaptive", "auc", "distance_ratio", "copies", "repeats")
        return {"draws": len(self.rows)} | {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        kernel = f"{'adaptive ' * self.adaptive}{self.kernel} kernel"
        if self.kernel == TABLES:
            kernel = "in-context density of tables"
        lines = [f"{len(self.rows):,} draws ({kernel}), {self.copies} equal to a row of the table"]
        if self.repeats:
            lines.append(f"Of rows kept apart, {self.repeats:.0%} equal another row of the table.")
        if self.auc is not None:
            lines.append(
                f"Two-sample check: a forest tells draws from rows kept apart with AUC "
                f"{self.auc:.2f} (0.5: it cannot)."
            )
        if self.distance_ratio is not None:
            lines.append(
                f"Draws are {self.distance_ratio:.2f} times as far from the nearest row as rows "
                "kept apart (far below 1: copies)."
            )
        return "\n".join(lines)


def draw_rows(
    table: Any,
    n: int = 100,
    *,
    model: str = "auto",
    sigma: float | None = None,
    outside: bool = False,
    check: bool = True,
    seed: int = 0,
) -> Draws:
    """Draw new rows that resemble those of a table of numbers and categories.

    Small tables of numbers are drawn from their in-context density
    (:class:`isthmus.incontext.ICLTables`). Of others, a row is chosen and moved by the noise of a
    Gaussian kernel that has the shape of the data (:func:`isthmus.bandwidth.choose`). Whole
    numbers and decimals are rounded as the table's are; frequent values and
    categories are those of the chosen, or the nearest, row, exchanged with those of a similar row
    if nothing else would change.

    Parameters
    ----------
    table : DataFrame or array (m, D)
        Columns that are not numbers are categories. A warning names columns that look like ids,
        and text that holds numbers, dates or hardly repeats.
    n : int
    model : {"auto", "tables", "kernel"}
        "tables" needs 5 to 1,024 rows and up to 16 columns of numbers that vary, and no others,
        with cells that are not all frequent values; "auto" takes it where it can, and the
        kernel elsewhere.
    sigma : float, optional
        Bandwidth of a round kernel, in robust standard deviations. Default: "auto".
    outside : bool
        Allow values outside the range of a column.
    check : bool
        Draw also from 70 % of the rows, and compare with the others.
    seed : int

    Examples
    --------
    >>> import pandas as pd
    >>> from isthmus.synthesis import draw_rows
    >>> table = pd.DataFrame({"age": range(20, 60), "sex": ["f", "m"] * 20})
    >>> draws = draw_rows(table, 5, check=False)
    >>> draws.rows.shape, bool(draws.rows.age.between(20, 59).all()), draws.copies
    ((5, 2), True, 0)
    """
    import pandas as pd

    from isthmus.tables.columns import is_nested
    from isthmus.tables.frames import warn_of_columns

    n, seed = as_count(n, "n", at_most=MOST_DRAWS), as_seed(seed)
    sigma = None if sigma is None else as_number(sigma, "sigma", above=0)
    try:
        frame = pd.DataFrame(table)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ShapeError(f"table must be a data frame or an array (m, D): {error}") from None
    for value, name in ((outside, "outside"), (check, "check")):
        as_flag(value, name)
    if len(frame) < 2:
        raise InvalidInputError("One row gives no bandwidth; a table of two or more is needed.")
    as_choice(model, "model", ("auto", TABLES, "kernel"))
    for place, name in enumerate(frame.columns):
        if is_nested(frame.iloc[:, place]):
            raise DtypeError(
                f"Column {name!r} holds lists or other cells that are neither numbers nor "
                "categories; leave it out."
            )
    warn_of_columns(frame)
    generator = _RowGenerator(frame, sigma, outside, seed, model)
    codes = generator.draw(n, seed)
    rows, copies = generator.decoded(codes), int(generator.copied(codes).sum())
    auc = ratio = repeats = None
    if check and len(frame) * HELD_OUT >= FEWEST_CHECKED:
        auc, ratio, repeats = _checked(frame, sigma, outside, seed, model)
    return Draws(rows, generator.kind, generator.adaptive, auc, ratio, copies, repeats)


class _RowGenerator:
    """The kernel of a table, with what is known of its columns."""

    def __init__(
        self,
        frame: pd.DataFrame,
        sigma: float | None,
        outside: bool,
        seed: int,
        model: str = "kernel",
    ) -> None:
        import pandas as pd
        from pandas.api.types import is_bool_dtype, is_numeric_dtype

        self.frame, self.outside = frame, outside
        self.levels: dict[int, Any] = {}
        columns = []
        for place in range(frame.shape[1]):
            column = frame.iloc[:, place]
            if is_numeric_dtype(column) and not is_bool_dtype(column):
                columns.append(column.to_numpy(np.float64, na_value=np.nan))
            else:
                codes, levels = column.factorize(use_na_sentinel=False)
                self.levels[place] = pd.Index(levels)
                columns.append(codes.astype(np.float64))
        self.codes = np.column_stack(columns)
        numbers = [place for place in range(frame.shape[1]) if place not in self.levels]
        if np.isnan(self.codes).any():
            raise InvalidInputError("The table has missing numbers; fill them first.")
        self.low, self.high = self.codes.min(0), self.codes.max(0)
        varies = self.low < self.high
        self.moving = np.array([place for place in numbers if varies[place]], dtype=int)
        self.kept = self._atoms()
        self.decimals = {place: count_decimals(self.codes[:, place]) for place in self.moving}
        self.scales = robust_scales(self.codes)
        self.scales[self.scales == 0] = 1.0
        self.scales[list(self.levels)] = 1.0
        self.kde: GaussianKDE | None = None
        self.density: StudentMixture | None = None
        self.kind, self.adaptive = "given" if sigma else "none", False
        if model != "kernel" and sigma is None:
            self._set_density(required=model == TABLES)
        if len(self.moving) and self.density is None:
            self._set_kernel(sigma, seed)
        times = Counter(_keys(self.codes))
        self.known = set(times)
        # Where rows repeat as a rule, new ones do, too.
        alone = sum(count == 1 for count in times.values())
        self.repeats = alone <= (1 - MOSTLY_REPEATED) * len(self.codes)

    def _set_kernel(self, sigma: float | None, seed: int) -> None:
        units = self.scales[self.moving]
        rows = as_rows(self.codes[:, self.moving] / units)
        if sigma is not None:
            self.kde = GaussianKDE(rows, sigma)
            return
        found = choose(rows, seed=seed)
        self.kde = GaussianKDE(rows, found)
        self.kind, self.adaptive = found.kind, found.factors is not None

    def _set_density(self, required: bool) -> None:
        """Read the table in context, if it is small and has no categories."""
        from isthmus.incontext import pretrained
        from isthmus.incontext.tables.model import FEWEST_ROWS

        reader = pretrained("tables")
        most_rows, most_columns = reader.config.max_rows, reader.config.max_columns
        fits = not self.levels and 1 <= len(self.moving) <= most_columns
        if fits and FEWEST_ROWS <= len(self.codes) <= most_rows and not self.kept.all():
            self.density, self.kind = reader.condition(self.codes[:, self.moving]), TABLES
        elif required:
            raise InvalidInputError(
                f'model="tables" needs {FEWEST_ROWS} to {most_rows:,} rows and 1 to '
                f"{most_columns} columns of numbers that vary, no categories, and cells that are "
                'not all frequent values. Use model="kernel".'
            )

    def _atoms(self) -> NDArray[np.bool_]:
        """Return True for cells whose value does not move. (m, D)"""
        count = len(self.codes)
        kept = np.ones(self.codes.shape, dtype=bool)
        for place in self.moving:
            column = self.codes[:, place]
            _, which, times = np.unique(column, return_inverse=True, return_counts=True)
            kept[:, place] = (times >= max(ATOM_ROWS, ATOM_SHARE * count))[which]
        return kept

    def draw(self, n: int, seed: int) -> FloatArray:
        """Return n rows of numbers and codes of categories. (n, D)"""
        generator = torch.Generator().manual_seed(seed)
        random = np.random.default_rng(seed)
        drawn, chosen = self._proposed(n, generator, random)
        fixed = np.asarray(self.kept.all(1)) & (not self.repeats)
        drawn = self._crossed(drawn, chosen, fixed[chosen], random)
        for number in range(TRIES):
            wrong = self.copied(drawn) & (not self.repeats)
            if not self.outside:
                wrong |= ((drawn < self.low) | (drawn > self.high)).any(1)
            if not wrong.any():
                break
            drawn[wrong], chosen[wrong] = self._proposed(int(wrong.sum()), generator, random)
            drawn = self._crossed(
                drawn, chosen, wrong & fixed[chosen], random, NEIGHBORS * (number + 2)
            )
        return drawn if self.outside else np.clip(drawn, self.low, self.high)

    def _proposed(
        self, n: int, generator: torch.Generator, random: np.random.Generator
    ) -> tuple[FloatArray, NDArray[Any]]:
        """Return n draws, rounded as the table is, and the rows that give their fixed values."""
        if self.density is None:
            chosen = random.integers(len(self.codes), size=n)
            if self.kde is None:
                return self.codes[chosen].copy(), chosen
            noisy = self.kde._draw_about(torch.from_numpy(chosen), generator).numpy()
            noisy = noisy * self.scales[self.moving]
        else:
            from scipy.spatial import cKDTree

            noisy = np.asarray(self.density.sample(n, seed=generator))
            units = self.scales[self.moving]
            chosen = cKDTree(self.codes[:, self.moving] / units).query(noisy / units)[1]
        rows = self.codes[chosen].copy()
        for at, place in enumerate(self.moving):
            decimals = self.decimals[place]
            values = noisy[:, at] if decimals is None else np.round(noisy[:, at], decimals)
            values = self._stored(values, place)
            rows[:, place] = np.where(self.kept[chosen, place], rows[:, place], values)
        return rows, chosen

    def _crossed(
        self,
        drawn: FloatArray,
        chosen: NDArray[Any],
        which: NDArray[np.bool_],
        random: np.random.Generator,
        neighbors: int = NEIGHBORS,
    ) -> FloatArray:
        """Exchange values with a similar row, in rows where nothing else moves."""
        for row in np.flatnonzero(which):
            apart = (self.codes != self.codes[chosen[row]]).mean(1)
            other = random.choice(np.argsort(apart, kind="stable")[1 : neighbors + 1])
            swap = random.random(self.codes.shape[1]) < 0.5
            drawn[row, swap] = self.codes[other, swap]
        return drawn

    def copied(self, drawn: FloatArray) -> NDArray[np.bool_]:
        """Return True for draws that equal a row of the table."""
        return np.array([key in self.known for key in _keys(drawn)], dtype=bool)

    def _stored(self, values: FloatArray, place: int) -> FloatArray:
        """Return values as a column of narrow floats holds them."""
        kind = self.frame.dtypes.iloc[place]
        narrow = getattr(kind, "numpy_dtype", kind)
        if narrow in (np.float16, np.float32):
            return values.astype(narrow).astype(np.float64)
        return values

    def encoded(self, frame: pd.DataFrame) -> FloatArray:
        """Return rows of the same columns as numbers and codes."""
        columns = [
            self.levels[place].get_indexer(frame.iloc[:, place])
            if place in self.levels
            else frame.iloc[:, place].to_numpy(np.float64)
            for place in range(frame.shape[1])
        ]
        return np.column_stack(columns).astype(np.float64)

    def decoded(self, drawn: FloatArray) -> pd.DataFrame:
        """Return draws with the columns, types and categories of the table."""
        import pandas as pd

        columns = []
        for place, name in enumerate(self.frame.columns):
            values: Any = drawn[:, place]
            if place in self.levels:
                values = self.levels[place].take(values.astype(int))
            columns.append(pd.Series(values, name=name).astype(self.frame.dtypes.iloc[place]))
        return pd.concat(columns, axis=1)


def _keys(rows: FloatArray) -> list[bytes]:
    """Return bytes that are the same for equal rows; -0.0 equals 0.0."""
    return [row.tobytes() for row in np.ascontiguousarray(rows + 0.0)]


def _checked(
    frame: pd.DataFrame, sigma: float | None, outside: bool, seed: int, model: str
) -> tuple[float | None, float | None, float | None]:
    """Return the AUC of a forest, the ratio of distances and the repeats of rows kept apart."""
    from scipy.spatial import cKDTree
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import cross_val_predict

    coded = _RowGenerator(frame, 1.0, True, seed)
    order = np.random.default_rng(seed).permutation(len(frame))
    apart = order[: min(int(len(frame) * HELD_OUT), MOST_CHECKED)]
    learned = np.setdiff1d(order, apart)
    try:
        fitted = _RowGenerator(frame.iloc[learned], sigma, outside, seed, model)
    except InvalidInputError:
        return None, None, None
    drawn = coded.encoded(fitted.decoded(fitted.draw(len(apart), seed)))
    real, source = coded.codes[apart], coded.codes[learned]
    both = np.concatenate([real, drawn])
    truth = np.arange(len(both)) >= len(real)
    forest = RandomForestClassifier(200, random_state=seed, min_samples_leaf=2)
    shuffled = np.random.default_rng(seed).permutation(len(both))
    score = cross_val_predict(forest, both[shuffled], truth[shuffled], cv=5, method="predict_proba")
    from sklearn.metrics import roc_auc_score

    auc = float(roc_auc_score(truth[shuffled], score[:, 1]))
    places = coded.moving if len(coded.moving) else slice(None)
    units = coded.scales[places]
    tree = cKDTree(source[:, places] / units)
    near = [float(np.median(tree.query(rows[:, places] / units)[0])) for rows in (drawn, real)]
    seen = set(_keys(source))
    repeats = float(np.mean([key in seen for key in _keys(real)]))
    return auc, near[0] / near[1] if near[1] > 0 else None, repeats
