"""Points of a plane from tables, arrays and files."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
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
class Plane:
    """Points (n, 2), the names of the two axes, and sentences on how they came about."""

    points: NDArray[np.float64]
    axes: tuple[str, str]
    notes: tuple[str, ...] = field(default=())


def plane_of(X: Any, columns: Any = None, *, standardise: bool | None = None) -> Plane:
    """Return two columns as they are, or the first two principal components of more.

    Rows with gaps and constant columns are left out, and more than 500 rows are thinned. Columns
    are scaled to variance 1 first; by default, if there are more than two.
    """
    if hasattr(X, "select_dtypes"):
        X = X.select_dtypes("number")
    rows, names = as_table(X, columns)
    notes = []
    whole = np.isfinite(rows).all(1)
    if not whole.all():
        notes.append(f"{int((~whole).sum()):,} rows with gaps are left out.")
        rows = rows[whole]
    if not len(rows):
        raise InvalidInputError("Every row has a gap; fill them first, with isthmus complete.")
    varies = np.ptp(rows, axis=0) > 0
    if len(rows) > 1 and rows.shape[1] > 2:
        rows, names = rows[:, varies], tuple(np.array(names)[varies])
    if rows.shape[1] < 2:
        raise InvalidInputError(
            "The playground is a plane: it needs at least two columns of numbers that vary."
        )
    if len(rows) > MOST_ROWS:
        notes.append(f"{MOST_ROWS} of {len(rows):,} rows are shown, drawn at random.")
    wide = rows.shape[1] > 2
    scaled = wide if standardise is None else standardise
    rows = Scaling.of(rows, scaled).into(rows)
    axes = (str(names[0]), str(names[1]))
    if wide:
        rows, axes = _principal(rows)
        notes.append(f"The first two principal components of {len(names)} columns.")
    elif scaled:
        notes.append("Both columns are standardised.")
    if len(rows) > MOST_ROWS:
        chosen = np.random.default_rng(0).choice(len(rows), MOST_ROWS, replace=False)
        rows = rows[np.sort(chosen)]
    return Plane(rows, axes, tuple(notes))


def _principal(rows: NDArray[np.float64]) -> tuple[NDArray[np.float64], tuple[str, str]]:
    """Return the first two principal components and their names; those of one row are zero."""
    with np.errstate(invalid="ignore"):
        pca = PCA(2, svd_solver="full").fit(np.vstack([rows, rows]))
    share = np.nan_to_num(pca.explained_variance_ratio_)
    return pca.transform(rows), (f"component 1 ({share[0]:.0%})", f"component 2 ({share[1]:.0%})")


def plane_of_table(table: Table, *, standardise: bool | None = None) -> Plane:
    """Return the plane of a table that was read from a file."""
    found = plane_of(table.X, table.columns, standardise=standardise)
    return Plane(found.points, found.axes, (*table.notes, *found.notes))


def plane_of_text(name: str, text: str) -> Plane:
    """Return the plane of the text of a CSV, TSV or JSON file that was chosen on the page."""
    suffix = Path(name).suffix.lower()
    try:
        kind = FileFormat.of(Path(f"table{suffix}")).kind
    except InvalidInputError:
        kind = ""
    if kind not in ("text", "json"):
        raise InvalidInputError(
            "Choose a CSV, TSV or JSON file; for other formats, run isthmus play FILE."
        )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"table{suffix}"
        path.write_text(text, encoding="utf-8", errors="replace")  # of halves of pairs
        try:
            table = read_table(path, encoding="utf-8" if kind == "text" else None)
        except InvalidInputError as error:
            # The name of the temporary file means nothing to the user.
            raise InvalidInputError(str(error).replace(str(path), "The file")) from None
    return plane_of_table(table, standardise=True)
