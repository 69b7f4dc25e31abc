"""`MemoryImputer`, a scikit-learn transformer that fills gaps from memories."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils._set_output import _get_output_config, _wrap_data_with_container
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from isthmus.dynamics.retrieve import complete
from isthmus.errors import InvalidInputError
from isthmus.impute.learning import Spread, draw_block, learn
from isthmus.impute.shape import FloatArray
from isthmus.memories.gaussian import GaussianKDE
from isthmus.plotting import Plottable
from isthmus.printing import listed
from isthmus.rows import checked_table, without_text
from isthmus.scaling import Scaling
from isthmus.tables.encoding import Coding, as_frame, is_mixed
from isthmus.validation import as_choice, as_count

# Rows beyond these are not learned from: so many, or so many for each column.
LEARNED_ROWS, LEARNED_ROWS_A_COLUMN = 5000, 20
# Whole numbers are rounded unless that raises the error by more than this factor.
COSTLY = 1.02
# A cell farther off than so many ranges between the 5th and the 95th percentile is an error. In 80
# real tables, no value is farther off than 250.
GROSS = 300.0
# A column that varies by less than this share of its size is constant.
CONSTANT = 1e-10


class MemoryImputer(Plottable, OneToOneFeatureMixin, TransformerMixin, BaseEstimator):
    r"""Fill missing values with their means given the known ones.

    The rows of the table are memories. A row with known columns :math:`o` and gaps :math:`m`
    retrieves from them by its distances over :math:`o`, and a regression with the covariance
    :math:`S` of the table corrects for what sets the row apart from what it retrieved:

    .. math::

        \hat q_m = \bar x_m + S_{mo} S_{oo}^{-1} (q_o - \bar x_o), \quad
        \bar x = \sum_j w_j x_j, \quad w_j \propto \exp(-\lVert q_o - x_{jo}\rVert^2 / 2 h^2 r^2)

    with r the distance to the tenth neighbour, h = 0.42. Known cells are hidden to choose a ridge
    of :math:`S_{oo}`, and to blend this estimate with one that has covariances of its own in each
    neighbourhood. Fills stay within bounds: a value that several rows have and none exceeds, or 0
    in columns of one sign.

    Rows with gaps are learned from too. NaN, None and NA mark missing values. Columns of text,
    categories and truth values in a data frame are filled with their most probable value. Arrays
    come back, of objects if the frame is mixed; after ``set_output(transform="pandas")``, frames.

    Parameters
    ----------
    max_memories : int
        Rows to retrieve from; of more, a random choice.
    integers : {"auto", "round", "keep"}
        Round the means in columns of whole numbers: where that hardly raises the error, in all,
        or in none. The mean of a column of 0 and 1 is the probability of 1.
    random_state : int, RandomState instance or None

    Attributes
    ----------
    errors_, mean_errors_ : ndarray (D,)
        Root mean squared error to expect of each column, and that of its mean; the share of wrong
        values in columns of categories, and that of the most frequent value. Measured on hidden
        cells; NaN where none could be hidden.
    checked_ : ndarray (D,) of int
        Number of known cells that were hidden.
    indicator_ : ndarray (n_samples, D) of bool
        True where a value of the fitted table was missing.
    blend_ : ndarray (K, columns of numbers)
        Weights of the estimates, equal in all columns: retrieved, and, in tables of few columns,
        with local covariances.
    categories_ : dict
        Values of each column of categories by name, the most frequent first; at most 20.

    See Also
    --------
    fill_gaps : The same for a whole table, with a report.

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.impute import MemoryImputer
    >>> x = np.linspace(-1, 1, 101)
    >>> X = np.column_stack([x, x**2])
    >>> X[20, 1] = np.nan
    >>> filled = MemoryImputer().fit_transform(X)
    >>> bool(abs(filled[20, 1] - x[20] ** 2) < 0.05)
    True
    """

    def __init__(
        self, *, max_memories: int = 3000, integers: str = "auto", random_state: Any = 0
    ) -> None:
        self.max_memories = max_memories
        self.integers = integers
        self.random_state = random_state

    _coding: Coding

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from a table (n_samples, n_features) with gaps; `y` is ignored."""
        most = as_count(self.max_memories, "max_memories", at_least=2)
        as_choice(self.integers, "integers", ("auto", "round", "keep"))
        rows = self._numbers(X, reset=True)
        weights = _check_sample_weight(
            sample_weight, rows, dtype=np.float64, ensure_non_negative=True
        )
        self.indicator_ = np.isnan(rows)[:, self._coding.starts]
        if self.indicator_.all(0).any():
            empty = listed([str(name) for name in self._names[self.indicator_.all(0)]], 5)
            warnings.warn(
                f"Columns without a known value are filled with 0: {empty}.", stacklevel=2
            )
        rows, weights = rows[weights > 0], weights[weights > 0]
        places = self._coding.places
        groups = [places[place] for place in self._coding.categories]
        self._units = ColumnUnits.of(rows, weights, groups)
        generator = _generator(self.random_state)
        learned = max(LEARNED_ROWS, LEARNED_ROWS_A_COLUMN * rows.shape[1], most)
        if len(rows) > learned:
            chosen = np.sort(generator.permutation(len(rows))[:learned])
            rows, weights = rows[chosen], weights[chosen]
        widths = [place.stop - place.start for place in places]
        self._memories, self._blend, checks = learn(
            self._units.into(rows),
            weights / weights.mean(),
            np.repeat(np.arange(len(places)), widths),
            generator,
            most,
        )
        self._spread = Spread.of(checks, self._blend, generator)
        self._measure_errors()
        self.blend_ = np.repeat(self._blend.weights[:, None], rows.shape[1], axis=1)
        return self

    @property
    def energy_(self) -> GaussianKDE:
        """The memories as an energy, in standard units."""
        check_is_fitted(self, "blend_")
        return GaussianKDE(self._memories.filled, self._memories.typical_width())

    def transform(self, X: Any, how: str = "mean") -> Any:
        """Fill the gaps of rows (n, D), which need not be those of the fit.

        Parameters
        ----------
        X : array or data frame (n, D)
        how : {"mean", "mode"}
            The mean, which has the least squared error, or the minimum of `energy_` that it
            slides to, a combination of values that occurs.
        """
        check_is_fitted(self, "blend_")
        as_choice(how, "how", ("mean", "mode"))
        rows = self._numbers(X, reset=False)
        Z = self._units.into(rows)
        gaps = np.isnan(rows)
        filled = self._means(Z)
        if how == "mode" and gaps.any():
            open_rows = gaps.any(1)
            filled[open_rows] = complete(
                self.energy_, Z[open_rows], init=filled[open_rows], how="mode"
            )
        rounded = self._rounded if how == "mean" else self._units.whole
        return self._restored(X, rows, self._units.back(filled, rounded))

    def draw(self, X: Any, n: int = 1, random_state: Any = None) -> Any:
        """Draw n fillings of the gaps of rows at random, for multiple imputation.

        Each draws a memory for each row, as it retrieves, and the noise that hidden cells showed;
        memories are weighted anew for each filling, so that what is learned varies too.

        Returns
        -------
        An array (n, rows, D), of objects if X has columns that do not hold numbers, or a list of n
        data frames (`set_output`).
        """
        check_is_fitted(self, "blend_")
        n = as_count(n, "n")
        generator = _generator(self.random_state if random_state is None else random_state)
        rows = self._numbers(X, reset=False)
        Z = self._units.into(rows)
        drawn = np.repeat(Z[None], n, 0)
        renewal = generator.exponential(size=(n, len(self._memories.rows)))
        for places in self._memories.open_blocks(Z):
            block = draw_block(
                self._memories, self._blend, self._spread, Z[places], renewal, generator
            )
            drawn[:, places] = np.where(np.isnan(Z[places]), block, Z[places])
        fillings = []
        for one in drawn:
            uniform = generator.random((len(rows), self.n_features_in_))
            filled = self._units.back(one, self._units.whole)
            fillings.append(self._restored(X, rows, filled, uniform))
        if self._gives_frames:
            return [_wrap_data_with_container("transform", one, X, self) for one in fillings]
        return np.stack(fillings)

    def probabilities(self, X: Any) -> dict[Any, FloatArray]:
        """Return the probabilities of the values of each column of categories. {name: (n, k)}

        Values are in the order of `categories_`. A known value has the probability 1; where it is
        not in `categories_`, all others have 0.
        """
        check_is_fitted(self, "blend_")
        rows = self._numbers(X, reset=False)
        means = self._units.back(self._means(self._units.into(rows)), np.zeros(rows.shape[1], bool))
        filled = np.where(np.isnan(rows), means, rows)
        return {
            self._names[place]: self._coding.probabilities(filled, place)
            for place in self._coding.categories
        }

    def hidden_errors(self) -> tuple[FloatArray, FloatArray]:
        """Return the errors at hidden cells, and those of column means, both (m, D).

        They are in the units of the columns of numbers, and NaN at cells that were not hidden. Of
        a cell that was hidden several times, the root mean square is returned.
        """
        check_is_fitted(self, "blend_")
        column, found, truth, means = self._hidden_cells()
        rows, row = np.unique(self._blend.rows, return_inverse=True)
        shape = (max(len(rows), 1), len(self._units.whole))
        found = np.where(self._rounded[column], np.rint(found), found)
        place, size = row * shape[1] + column, shape[0] * shape[1]
        errors, baseline = (_errors(each - truth, place, size) for each in (found, means))
        return errors.reshape(shape), baseline.reshape(shape)

    def _hidden_cells(self) -> tuple[NDArray[np.intp], FloatArray, FloatArray, FloatArray]:
        """Return the columns, fills, values and column means of hidden cells, in their units."""
        units, column = self._units, self._blend.cells[1]
        own = Scaling(units.scaling.centre[column], units.scaling.scale[column])
        found = np.clip(own.back(self._blend.found), units.least[column], units.most[column])
        return column, found, own.back(self._blend.truth), own.centre

    def _means(self, Z: FloatArray) -> FloatArray:
        filled = Z.copy()
        for places in self._memories.open_blocks(Z):
            block = Z[places]
            means = self._blend.fill(self._memories, block)
            filled[places] = np.where(np.isnan(block), means, block)
        return filled

    def _numbers(self, X: Any, reset: bool) -> FloatArray:
        """Return a checked table as float64, with indicators in place of categories."""
        if isinstance(X, torch.Tensor):
            X = without_text(X)
        if not (is_mixed(X) if reset else self._coding.is_mixed):
            kinds = [np.float64, np.float32]
            table = checked_table(self, X, reset=reset, dtype=kinds, ensure_all_finite="allow-nan")
            if reset:
                self._coding = Coding(("number",) * table.shape[1])
            self._dtype = table.dtype
            return np.array(table, dtype=np.float64)
        if not hasattr(X, "columns"):
            raise InvalidInputError(
                "The imputer was fitted on a data frame with columns of text; pass one."
            )
        X = as_frame(X)
        validate_data(self, X, reset=reset, skip_check_array=True)
        if not len(X):
            raise InvalidInputError("X has no rows.")
        if reset:
            from isthmus.tables.categories import warn_of_columns

            warn_of_columns(X, stacklevel=4)
            self._coding = Coding.of(X)
        numbers = self._coding.into(X)
        if np.isinf(numbers).any():
            raise InvalidInputError("X has infinite values. Mark unknown values with NaN.")
        return numbers

    def _restored(
        self, X: Any, rows: FloatArray, filled: FloatArray, uniform: FloatArray | None = None
    ) -> Any:
        """Return X with its gaps filled from numbers, in the type of X."""
        if self._coding.is_mixed:
            frame = self._coding.back(as_frame(X), filled, uniform)
            return frame if self._gives_frames else frame.to_numpy(dtype=object)
        return np.where(np.isnan(rows), filled, rows).astype(self._dtype, copy=False)

    @property
    def _gives_frames(self) -> bool:
        return bool(_get_output_config("transform", self)["dense"] != "default")

    @property
    def _names(self) -> Any:
        """The names of columns, or their places if scikit-learn took none from the table."""
        return getattr(self, "feature_names_in_", np.arange(self.n_features_in_))

    def _measure_errors(self) -> None:
        """Set the errors of columns, and decide which are rounded."""
        units, coding, dim = self._units, self._coding, len(self._units.whole)
        column, found, truth, means = self._hidden_cells()
        plain, rounded, baseline = (
            _errors(each - truth, column, dim) for each in (found, np.rint(found), means)
        )
        self._rounded = units.whole & (self.integers != "keep")
        if self.integers == "auto":
            self._rounded &= ~(rounded > COSTLY * plain) & (units.most > units.least + 1)
        self.errors_ = np.where(self._rounded, rounded, plain)[coding.starts]
        self.mean_errors_ = baseline[coding.starts]
        self.categories_ = {self._names[at]: values for at, values in coding.categories.items()}
        for place, values in coding.categories.items():
            own = np.isin(column, np.arange(dim)[coding.places[place]])
            width = max(len(values), 1)  # the cells of a row stand together
            guesses, flags = (cells[own].reshape(-1, width) for cells in (found, truth))
            # A value that is none of the categories is always guessed wrong.
            right = np.where(flags.max(1) > 0.5, flags.argmax(1), -1)
            if len(right):
                self.errors_[place] = (guesses.argmax(1) != right).mean()
                self.mean_errors_[place] = (right != 0).mean()
        cells = np.unique(np.column_stack([self._blend.rows, column]), axis=0)
        self.checked_ = np.bincount(cells[:, 1], minlength=dim)[coding.starts]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _generator(random_state: Any) -> np.random.Generator:
    return np.random.default_rng(check_random_state(random_state).randint(2**31, size=4))


def _errors(differences: FloatArray, column: NDArray[np.intp], dim: int) -> FloatArray:
    """Return the root mean square of the cells of each column. (cells,) -> (D,)"""
    counts, largest = np.bincount(column, minlength=dim), np.zeros(dim)
    np.maximum.at(largest, column, np.abs(differences))
    size = np.where(largest > 0, largest, 1.0)  # squares of huge and of tiny numbers overflow
    sums = np.bincount(column, np.square(differences / size[column]), dim)
    means = np.divide(sums, counts, out=np.full(dim, np.nan), where=counts > 0)
    return np.asarray(size * np.sqrt(means))


@dataclass(frozen=True)
class ColumnUnits:
    """Standard units of columns, their bounds, and which hold whole numbers. All are (D,).

    A bound is a value that several rows have and none exceeds, or else 0 in columns of one sign.
    Cells farther from the `middle` than `reach` count as unknown.
    """

    scaling: Scaling
    least: FloatArray
    most: FloatArray
    reach: FloatArray
    middle: FloatArray
    whole: NDArray[np.bool_]
    empty: NDArray[np.bool_]

    @classmethod
    def of(cls, X: FloatArray, weights: FloatArray, groups: list[slice]) -> ColumnUnits:
        """Measure rows (n, D); the columns of a group share a scale."""
        empty = np.isnan(X).all(0)
        values = np.where(empty, 0.0, X)
        low, middle, high = np.nanpercentile(values, (5, 50, 95), axis=0)
        reach = np.where(high > low, GROSS * (high / 2 - low / 2) * 2, np.inf)
        learned = np.where(np.abs(values - middle) <= reach, values, np.nan)
        least, most = np.nanmin(learned, 0), np.nanmax(learned, 0)
        size = np.maximum(np.maximum(most, -least), np.finfo(np.float64).tiny)
        shares = weights[:, None] * ~np.isnan(learned)
        shares /= shares.sum(0)
        relative = np.nan_to_num(learned / size)
        mean = (shares * relative).sum(0)
        variance = (shares * np.square(relative - mean)).sum(0)
        for group in groups:
            variance[group] = (variance[group] * np.square(size[group])).sum() / size[group] ** 2
        scale = np.where(np.sqrt(variance) > CONSTANT, np.sqrt(variance), 1.0)
        whole = (np.isnan(X) | (X % 1 == 0)).all(0) & ~empty
        scaling = Scaling(mean * size, scale * size)
        low_end, high_end = np.where(least >= 0, 0.0, -np.inf), np.where(most <= 0, 0.0, np.inf)
        least = np.where((values == least).sum(0) > 1, least, low_end)
        most = np.where((values == most).sum(0) > 1, most, high_end)
        return cls(scaling, least, most, reach, middle, np.asarray(whole), np.asarray(empty))

    def into(self, X: FloatArray) -> FloatArray:
        """Return rows in standard units, NaN where unknown or grossly far off."""
        Z = self.scaling.into(X)
        Z[~(np.abs(X - self.middle) <= self.reach)] = np.nan
        Z[:, self.empty] = 0.0
        return Z

    def back(self, Z: FloatArray, rounded: NDArray[np.bool_]) -> FloatArray:
        """Return rows in the units of the table, within its bounds, whole where `rounded`."""
        X = np.clip(self.scaling.back(Z), self.least, self.most)
        return np.where(rounded, np.rint(X), X)
