"""Draw rows that resemble those of a table, and measure how well they do."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.spatial import cKDTree

from isthmus.errors import InvalidInputError, ShapeError
from isthmus.extras import require
from isthmus.printing import Summarised, counted
from isthmus.synthesis.generator import TABLES, CodedTable, FloatArray, RowGenerator, row_keys
from isthmus.tables.encoding import as_frame
from isthmus.validation import as_choice, as_count, as_flag, as_number, as_seed, require_kind

if TYPE_CHECKING:
    import pandas as pd

# The check keeps this share of the rows apart, and needs at least this many.
HELD_OUT, FEWEST_CHECKED, MOST_CHECKED = 0.3, 15, 2000
# Trees of the forest, fewer of many rows: a budget of computation.
TREES, WORK = (50, 200), 2**18
MOST_DRAWS = 10**9


@dataclass(frozen=True, eq=False)
class Draws(Summarised):
    """Rows drawn by :func:`draw_rows`. ``print`` shows a summary.

    Attributes
    ----------
    rows : DataFrame (n, D)
        With the columns and types of the table: of pandas, or of polars if the table is.
    kernel : str
        "tables" for the in-context density; else "round", "columns", "full" or "given", and
        `adaptive` if each row has its own width.
    auc : float or None
        Area under the curve of a random forest that tells draws from rows kept apart (0.5: it
        cannot). None, as in the others, if not checked.
    distance_ratio : float or None
        The median distance of a draw to the nearest row, over that of rows kept apart. Far below 1,
        draws are copies.
    membership : float or None
        Area under the curve that tells rows which were learned from rows kept apart by their
        distances to the nearest draw.
    copies : int
        Number of draws that equal a row of the table.
    repeats : float or None
        Share of the rows kept apart that equal a row of the rest.
    """

    rows: pd.DataFrame = field(repr=False)
    kernel: str
    adaptive: bool
    auc: float | None
    distance_ratio: float | None
    copies: int
    repeats: float | None = None
    notes: tuple[str, ...] = ()
    membership: float | None = None

    @property
    def summary(self) -> dict[str, Any]:
        """The contents of the printed summary, for JSON."""
        names = ("kernel", "adaptive", "auc", "membership", "distance_ratio", "copies", "repeats")
        return {"draws": len(self.rows)} | {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        kernel = f"{'adaptive ' * self.adaptive}{self.kernel} kernel"
        if self.kernel == TABLES:
            kernel = "in-context density of tables"
        lines = [f"{len(self.rows):,} draws ({kernel}), {self.copies} equal to a row of the table"]
        if self.repeats:
            lines.append(f"Of rows kept apart, {self.repeats:.0%} equal another row of the table.")
        shown = {
            "Two-sample check: a forest tells draws from rows kept apart with AUC {:.2f} (0.5: it "
            "cannot).": self.auc,
            "Membership: rows that were learned are told from others by their distance to the "
            "nearest draw with AUC {:.2f} (0.5: they cannot).": self.membership,
            "Draws are {:.2f} times as far from the nearest row as rows kept apart (far below 1: "
            "copies).": self.distance_ratio,
        }
        lines += [words.format(value) for words, value in shown.items() if value is not None]
        return "\n".join(lines)


def draw_rows(
    table: Any,
    n: int = 100,
    *,
    model: str = "auto",
    sigma: float | None = None,
    privacy: float = 0.0,
    outside: bool = False,
    check: bool = True,
    given: Mapping[Any, Any] | None = None,
    gaps: str = "keep",
    seed: int = 0,
) -> Draws:
    """Draw new rows that resemble those of a table of numbers and categories.

    Small tables of numbers are drawn from their in-context density
    (:class:`isthmus.incontext.ICLTables`). Of others, a row is chosen and moved by a Gaussian
    kernel with the shape of the data (:func:`isthmus.bandwidth.choose`). Then the values of each
    column of numbers are replaced by the quantiles of the table at their ranks, so that columns
    are distributed as in the table, and rounded as there. Categories are those of the chosen row,
    and values are exchanged with those of a similar row if a draw would be a copy. Rows that occur
    more than once may be drawn as they are.

    Parameters
    ----------
    table : DataFrame or array (m, D)
        Columns that are not numbers are categories. A warning names text that hardly repeats.
    n : int
    model : {"auto", "tables", "kernel"}
        "tables" needs 5 to 1,024 rows and up to 64 columns of numbers that vary, and no others;
        "auto" takes it where it can, and the kernel elsewhere, and where two columns have frequent
        values, such as 0, among others that hardly repeat.
    sigma : float, optional
        Bandwidth of a round kernel, in robust standard deviations. Default: "auto".
    privacy : float
        Standard deviations of noise on columns of numbers, with the covariance of the table; means
        and covariances stay. 0 is closest to the data. It is no guarantee: see `Draws.membership`.
        Draws that are `given` values get none.
    outside : bool
        Allow values outside the range of a column. Draws are then those of the density itself, as
        are draws that are `given` values: columns need not be distributed as in the table.
    check : bool
        Draw also from 70 % of the rows, and compare with the others.
    given : dict, optional
        Values that draws must have: a number or category, or (low, high) for a range, in the range
        of the column unless `outside`. Draws are from the conditional density of the kernel; ranges
        of correlated columns are met one by one.
    gaps : {"keep", "fill"}
        Missing numbers: "keep" draws gaps as often, and where similar rows have them. Missing
        categories are a category.
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
    require("pandas")
    import pandas as pd

    from isthmus.tables.categories import warn_of_columns

    n, seed = as_count(n, "n", at_most=MOST_DRAWS), as_seed(seed)
    sigma = None if sigma is None else as_number(sigma, "sigma", above=0)
    privacy = as_number(privacy, "privacy", at_least=0)
    outside, check = as_flag(outside, "outside"), as_flag(check, "check")
    as_choice(model, "model", ("auto", TABLES, "kernel"))
    as_choice(gaps, "gaps", ("keep", "fill"))
    if given is not None:
        require_kind(given, "given", Mapping)
    if given and model == TABLES:
        raise InvalidInputError('given= draws from the kernel; use model="kernel".')
    try:
        frame = pd.DataFrame(as_frame(table))
    except (ValueError, TypeError, RuntimeError) as error:
        raise ShapeError(f"table must be a data frame or an array (m, D): {error}") from None
    if frame.shape[1] == 0:
        raise ShapeError("The table has no columns.")
    if len(frame) < 2:
        raise InvalidInputError(f"table has {counted(len(frame), 'row')}; draws need at least 2.")
    warn_of_columns(frame)
    coded = CodedTable.of(frame)
    options: dict[str, Any] = {"sigma": sigma, "privacy": privacy, "outside": outside, "seed": seed}
    generator = RowGenerator(
        coded, model="kernel" if given else model, keep_gaps=gaps == "keep", **options
    )
    if given:
        generator.set_given(given)
    codes = generator.draw(n)
    rows = coded.decoded(codes)
    known = generator.known if gaps == "fill" else set(row_keys(coded.codes))
    copies = sum(key in known for key in row_keys(codes))
    polars = sys.modules.get("polars")
    if polars is not None and isinstance(table, polars.DataFrame):
        rows = polars.from_pandas(rows).cast(table.schema)
    found = Draws(rows, generator.kind, generator.adaptive, None, None, copies)
    if check and len(frame) * HELD_OUT >= FEWEST_CHECKED:
        found = replace(found, **_checked(generator, model, options))
    return found


def _checked(whole: RowGenerator, model: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return fields of `Draws` that compare draws with rows kept apart; none if they cannot."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.metrics import roc_auc_score
    from sklearn.model_selection import cross_val_predict

    seed, table = options["seed"], whole.table
    order = np.random.default_rng(seed).permutation(len(table.codes))
    apart = order[: min(int(len(order) * HELD_OUT), MOST_CHECKED)]
    learned = np.setdiff1d(order, apart)
    try:
        part = replace(table, codes=table.codes[learned])
        fitted = RowGenerator(part, model=model, **options)
    except InvalidInputError:
        return {}
    drawn = fitted.draw(min(len(learned), MOST_CHECKED))
    real, source = whole.codes[apart], whole.codes[learned]
    places = whole.moving if len(whole.moving) else slice(None)
    both = np.concatenate([real, drawn[: len(real)]])
    truth = np.arange(len(both)) >= len(real)
    trees = int(np.clip(WORK / len(both), *TREES))
    forest = RandomForestClassifier(trees, random_state=seed, min_samples_leaf=2)
    shuffled = np.random.default_rng(seed).permutation(len(both))
    score = cross_val_predict(forest, both[shuffled], truth[shuffled], cv=5, method="predict_proba")
    units = whole.scales[places]

    def nearest(rows: FloatArray, others: FloatArray) -> FloatArray:
        tree = cKDTree(others[:, places] / units)
        return np.asarray(tree.query(rows[:, places] / units)[0])

    away, usual = (float(np.median(nearest(rows, source))) for rows in (drawn, real))
    betrayed = -np.concatenate([nearest(rows, drawn) for rows in (source, real)])
    seen = set(row_keys(source))
    return {
        "auc": float(roc_auc_score(truth[shuffled], score[:, 1])),
        "membership": float(roc_auc_score(np.arange(len(betrayed)) < len(source), betrayed)),
        "distance_ratio": away / usual if usual > 0 else None,
        "repeats": float(np.mean([key in seen for key in row_keys(real)])),
    }
