"""Draw rows that resemble those of a table, and measure how well they do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from isthmus.errors import InvalidInputError
from isthmus.memories.bandwidth import as_rows
from isthmus.memories.kde import GaussianKDE
from isthmus.memories.shape_search import choose, robust_scales
from isthmus.validation import as_count, as_flag

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Draws", "draw_rows"]

FloatArray = NDArray[np.float64]

# A value that this share of the rows have, and at least this many, is kept as it is; so are all
# values of a column of whole numbers that has at most this many.
ATOM_SHARE, ATOM_ROWS, FEW_VALUES = 0.05, 5, 10
# Numbers with at most this many decimals are rounded as the table's are.
MOST_DECIMALS = 6
# Draws outside a range, or equal to a row, are drawn again at most this often; values are exchanged
# between rows that are among this many nearest.
TRIES, NEIGHBORS = 20, 8
# The check keeps this share of the rows apart, and needs at least this many.
HELD_OUT, FEWEST_CHECKED, MOST_CHECKED = 0.3, 15, 2000


@dataclass(frozen=True, eq=False)
class Draws:
    """Rows drawn by :func:`draw_rows`. ``print`` shows a summary.

    Attributes
    ----------
    rows : DataFrame (n, D)
        With the columns and types of the table.
    kernel : str
        "round", "columns", "full" or "given"; `adaptive` if each row has its own width.
    auc : float or None
        Area under the curve of a random forest that tells draws from rows kept apart: 0.5 if it
        cannot, 1 if it always can. None if not checked.
    distance_ratio : float or None
        The median distance of a draw to the nearest row that it may be made from, by the columns of
        numbers, over that of rows kept apart. Far below 1, draws are copies.
    copies : int
        Number of draws that equal a row of the table.
    """

    rows: pd.DataFrame = field(repr=False)
    kernel: str
    adaptive: bool
    auc: float | None
    distance_ratio: float | None
    copies: int
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> dict[str, Any]:
        """The contents of the printed summary, for JSON."""
        names = ("kernel", "adaptive", "auc", "distance_ratio", "copies")
        return {"draws": len(self.rows)} | {name: getattr(self, name) for name in names}

    def __str__(self) -> str:
        kernel = f"{'adaptive ' * self.adaptive}{self.kernel} kernel"
        lines = [f"{len(self.rows):,} draws ({kernel}), {self.copies} equal to a row of the table"]
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
    sigma: float | None = None,
    outside: bool = False,
    check: bool = True,
    seed: int = 0,
) -> Draws:
    """Draw new rows that resemble those of a table of numbers and categories.

    A row of the table is chosen and moved by the noise of a Gaussian kernel that has the shape of
    the data (:func:`isthmus.bandwidth.choose`). Whole numbers and decimals are rounded as the
    table's are; frequent values, small sets of values and categories are kept, or exchanged
    with those of a similar row if nothing else would change.

    Parameters
    ----------
    table : DataFrame or array (m, D)
        Columns that are not numbers are categories.
    n : int
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

    n, frame = as_count(n, "n"), pd.DataFrame(table)
    for value, name in ((outside, "outside"), (check, "check")):
        as_flag(value, name)
    if len(frame) < 2:
        raise InvalidInputError("One row gives no bandwidth; a table of two or more is needed.")
    model = _RowGenerator(frame, sigma, outside, seed)
    codes = model.draw(n, seed)
    rows, copies = model.decoded(codes), int(model.copied(codes).sum())
    auc = ratio = None
    if check and len(frame) * HELD_OUT >= FEWEST_CHECKED:
        auc, ratio = _checked(frame, sigma, outside, seed)
    return Draws(rows, model.kind, model.adaptive, auc, ratio, copies)


class _RowGenerator:
    """The kernel of a table, with what is known of its columns."""

    def __init__(self, frame: pd.DataFrame, sigma: float | None, outside: bool, seed: int) -> None:
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
        self.decimals = {place: _decimals(self.codes[:, place]) for place in self.moving}
        self.scales = robust_scales(self.codes)
        self.scales[self.scales == 0] = 1.0
        self.scales[list(self.levels)] = 1.0
        self.kde: GaussianKDE | None = None
        self.kind, self.adaptive = "given" if sigma else "none", False
        if len(self.moving):
            self._set_kernel(sigma, seed)
        self.known = {row.tobytes() for row in np.ascontiguousarray(self.codes)}

    def _set_kernel(self, sigma: float | None, seed: int) -> None:
        units = self.scales[self.moving]
        rows = as_rows(self.codes[:, self.moving] / units)
        if sigma is not None:
            self.kde = GaussianKDE(rows, sigma)
            return
        found = choose(rows, seed=seed)
        self.kde = GaussianKDE(rows, found)
        self.kind, self.adaptive = found.kind, found.factors is not None

    def _atoms(self) -> NDArray[np.bool_]:
        """Return True for cells whose value does not move. (m, D)"""
        count = len(self.codes)
        kept = np.ones(self.codes.shape, dtype=bool)
        for place in self.moving:
            column = self.codes[:, place]
            values, which, times = np.unique(column, return_inverse=True, return_counts=True)
            whole = bool((values == np.round(values)).all())
            if not (whole and len(values) <= FEW_VALUES):
                kept[:, place] = (times >= max(ATOM_ROWS, ATOM_SHARE * count))[which]
        return kept

    def draw(self, n: int, seed: int) -> FloatArray:
        """Return n rows of numbers and codes of categories. (n, D)"""
        generator = torch.Generator().manual_seed(seed)
        random = np.random.default_rng(seed)
        chosen = random.integers(len(self.codes), size=n)
        drawn = self._moved(chosen, generator)
        fixed = np.asarray(self.kept.all(1))
        drawn = self._crossed(drawn, chosen, fixed[chosen], random)
        for number in range(TRIES):
            wrong = self.copied(drawn)
            if not self.outside:
                wrong |= ((drawn < self.low) | (drawn > self.high)).any(1)
            if not wrong.any():
                break
            chosen[wrong] = random.integers(len(self.codes), size=int(wrong.sum()))
            drawn[wrong] = self._moved(chosen[wrong], generator)
            drawn = self._crossed(
                drawn, chosen, wrong & fixed[chosen], random, NEIGHBORS * (number + 2)
            )
        return drawn if self.outside else np.clip(drawn, self.low, self.high)

    def _moved(self, chosen: NDArray[Any], generator: torch.Generator) -> FloatArray:
        """Return rows with the noise of their kernel, rounded as the table is."""
        rows = self.codes[chosen].copy()
        if self.kde is None:
            return rows
        noisy = self.kde._draw_about(torch.from_numpy(chosen), generator).numpy()
        noisy = noisy * self.scales[self.moving]
        for at, place in enumerate(self.moving):
            decimals = self.decimals[place]
            values = noisy[:, at] if decimals is None else np.round(noisy[:, at], decimals)
            rows[:, place] = np.where(self.kept[chosen, place], rows[:, place], values)
        return rows

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
        rows = np.ascontiguousarray(drawn)
        return np.array([row.tobytes() in self.known for row in rows], dtype=bool)

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
        from pandas.api.types import is_integer_dtype

        columns = []
        for place, name in enumerate(self.frame.columns):
            kind, values = self.frame.dtypes.iloc[place], drawn[:, place]
            if place in self.levels:
                taken = self.levels[place].take(values.astype(int))
                columns.append(pd.Series(taken, name=name).astype(kind))
            else:
                column = pd.Series(values, name=name)
                columns.append(column.astype(kind) if is_integer_dtype(kind) else column)
        return pd.concat(columns, axis=1)


def _decimals(column: FloatArray) -> int | None:
    """Return the number of decimals that all values have at most, or None if there are many."""
    for decimals in range(MOST_DECIMALS + 1):
        if np.allclose(column, np.round(column, decimals), rtol=1e-12, atol=0):
            return decimals
    return None


def _checked(
    frame: pd.DataFrame, sigma: float | None, outside: bool, seed: int
) -> tuple[float | None, float | None]:
    """Return the AUC of a forest and the ratio of distances, from rows kept apart."""
    from scipy.spatial import cKDTree
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import cross_val_predict

    coded = _RowGenerator(frame, 1.0, True, seed)
    order = np.random.default_rng(seed).permutation(len(frame))
    apart = order[: min(int(len(frame) * HELD_OUT), MOST_CHECKED)]
    learned = np.setdiff1d(order, apart)
    try:
        model = _RowGenerator(frame.iloc[learned], sigma, outside, seed)
    except InvalidInputError:
        return None, None
    drawn = coded.encoded(model.decoded(model.draw(len(apart), seed)))
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
    return auc, near[0] / near[1] if near[1] > 0 else None
