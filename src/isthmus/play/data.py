"""Points of a plane from tables, arrays and files."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

    Rows with gaps and constant columns are left out, and more than 500 rows are thinned.

    Parameters
    ----------
    X : array (n, D) or data frame
    columns : sequence of str, optional
    standardise : bool, optional
        Scale the columns to variance 1 first. Default: if there are more than two.

    Examples
    --------
    >>> plane_of([[0.0, 1.0, 5.0], [2.0, 3.0, 5.0]]).axes
    ('x1', 'x2')
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
    centred = rows - rows.mean(0)
    _, sizes, directions = np.linalg.svd(centred, full_matrices=False)
    # The largest loading of a component is positive, so that the picture does not flip.
    largest = directions[np.arange(len(directions)), np.abs(directions).argmax(1)]
    directions = directions * np.sign(largest)[:, None]
    share = sizes**2 / max(float((sizes**2).sum()), 1e-300)
    if len(directions) < 2:  # a single row
        directions, share = np.vstack([directions, directions]), np.append(share, 0.0)
    axes = tuple(f"component {k + 1} ({share[k]:.0%})" for k in range(2))
    return centred @ directions[:2].T, (axes[0], axes[1])


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
