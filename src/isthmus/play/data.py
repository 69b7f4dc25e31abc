"""Points of a plane from tables, arrays and files."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from isthmus.errors import InvalidInputError
from isthmus.scaling import Scaling, as_table
from isthmus.tables.files import FileFormat, Table, read_table

# More rows than this are thinned at random.
MOST_ROWS = 500


@dataclass(frozen=True)
class Columns:
    """Columns of numbers, of which two, or the first two principal components, are a plane."""

    rows: NDArray[np.float64]
    names: tuple[str, ...]
    notes: tuple[str, ...] = ()
    standardise: bool | None = None

    @classmethod
    def of(cls, X: Any) -> Columns:
        """Return the columns of numbers of an array or a data frame."""
        numbers = X.select_dtypes("number") if hasattr(X, "select_dtypes") else X
        return cls(*as_table(numbers))

    @classmethod
    def of_table(cls, table: Table, standardise: bool = True) -> Columns:
        """Return those of a table that was read from a file."""
        rows, names = as_table(table.X, table.columns)
        return cls(rows, names, tuple(table.notes), standardise)

    @classmethod
    def of_file(cls, name: str, content: str) -> Columns:
        """Return those of a file that was chosen on the page, whose bytes come in base64."""
        try:
            data = base64.b64decode(content, validate=True)
        except ValueError:
            raise InvalidInputError("The content of a table must be in base64.") from None
        suffixes = "".join(Path(name).suffixes[-2:]).lower()
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"table{suffixes}"
            try:
                FileFormat.of(path)
                path.write_bytes(data)
                return cls.of_table(read_table(path))
            except InvalidInputError as error:
                # The name of the temporary file means nothing to the user.
                words = str(error).replace(str(path), "The file").replace(path.name, "The file")
                raise InvalidInputError(words) from None

    def plane(self, axes: Sequence[str] = ()) -> tuple[NDArray[np.float64], list[str], list[str]]:
        """Return points (n, 2), the names of their axes, and sentences on how they came about.

        Two columns are as they are; of more, the first two principal components are drawn. Rows
        with gaps and constant columns are left out, and more than 500 rows are thinned. Columns
        are scaled to variance 1 first; by default, if there are more than two.
        """
        chosen = [self.names.index(name) for name in axes if name in self.names]
        if len({*chosen}) != len(axes) or len(axes) not in (0, 2):
            raise InvalidInputError(f"axes must be two of the columns, not {list(axes)}.")
        rows = self.rows[:, chosen] if chosen else self.rows
        names: Any = np.array(axes or self.names, dtype=object)
        notes = list(self.notes)
        whole = np.isfinite(rows).all(1)
        if not whole.all():
            notes.append(f"{int((~whole).sum()):,} rows with gaps are left out.")
            rows = rows[whole]
        if not len(rows):
            raise InvalidInputError("Every row has a gap; fill them first, with isthmus complete.")
        varies = np.ptp(rows, axis=0) > 0
        if len(rows) > 1 and rows.shape[1] > 2:
            rows, names = rows[:, varies], names[varies]
        if rows.shape[1] < 2:
            raise InvalidInputError(
                "The playground is a plane: it needs at least two columns of numbers that vary."
            )
        wide = rows.shape[1] > 2
        scaled = wide if self.standardise is None else self.standardise
        points = Scaling.of(rows, scaled).into(rows)
        if wide:
            with np.errstate(invalid="ignore"):  # the components of one row are zero
                pca = PCA(2, svd_solver="full").fit(np.vstack([points, points]))
            shares = np.nan_to_num(pca.explained_variance_ratio_)
            notes.append(f"The first two principal components of {len(names)} columns.")
            points = pca.transform(points)
            names = [f"component {k} ({share:.0%})" for k, share in enumerate(shares, 1)]
        elif scaled:
            notes.append("Both columns are standardised.")
        if len(points) > MOST_ROWS:
            notes.append(f"{MOST_ROWS} of {len(points):,} rows are shown, drawn at random.")
            shown = np.random.default_rng(0).choice(len(points), MOST_ROWS, replace=False)
            points = points[np.sort(shown)]
        return points, [str(name) for name in names], notes
