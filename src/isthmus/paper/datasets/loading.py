"""Load datasets from .npz files on this machine or, if missing, from their public homes."""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus.errors import DatasetChangedError, DatasetNotFoundError, InvalidInputError
from isthmus.io.arrays import open_npz
from isthmus.io.files import write_atomically
from isthmus.paper.datasets.manifest import Entry, entry
from isthmus.progress import progress as show_progress
from isthmus.validation import as_path

Arrays = dict[str, NDArray[Any]]

# The labels of this dataset are the rounded column.
LEAKED = {"boston_housing": 13}


@dataclass(frozen=True)
class Dataset:
    """Rows with known classes, which unpack as ``X, y = load(name)``.

    Attributes
    ----------
    X : ndarray (n_samples, n_features)
        Raw features, not scaled.
    y : ndarray (n_samples,)
        Labels 0 .. K-1.
    class_names, feature_names : tuple of str
        `feature_names` is empty if the source has none.
    note : str
        Differences from the paper.
    """

    name: str
    X: NDArray[Any] = field(repr=False)
    y: NDArray[np.int64] = field(repr=False)
    class_names: tuple[str, ...] = field(repr=False)
    feature_names: tuple[str, ...] = field(repr=False)
    note: str = field(repr=False)

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        yield from (self.X, self.y)

    def __str__(self) -> str:
        n, dim = self.X.shape
        text = f"{self.name}: {n} samples, {dim} features, {self.n_classes} classes"
        return f"{text}\n{self.note}" if self.note else text


def load(
    name: str,
    data_home: str | Path | None = None,
    *,
    leak: bool = False,
    download_if_missing: bool = True,
    progress: bool | None = None,
) -> Dataset:
    """Load one of the 15 datasets of the paper's comparison.

    Parameters
    ----------
    name : str
        One of :func:`isthmus.datasets.names`.
    data_home : str or Path, optional
        Directory of the .npz files. Default: the environment variable ``ISTHMUS_DATA``, then the
        user's cache.
    leak : bool
        Keep the column that the labels are computed from (boston_housing only). The paper's table
        counts it, but it makes a comparison invalid.
    download_if_missing : bool
        Download a dataset that is not on this machine from its public home, check its shape and
        class sizes, and store it.
    progress : bool, optional
        Show a progress bar while downloading. Default: on a terminal.

    Raises
    ------
    DatasetNotFoundError
        The dataset is not on this machine and cannot be downloaded.
    DatasetChangedError
        The file is damaged, or it or the download has another shape.

    Examples
    --------
    >>> from isthmus.datasets import load
    >>> print(load("iris"))
    iris: 150 samples, 4 features, 3 classes ...
    >>> X, y = load("iris")
    >>> X.shape, y.shape
    ((150, 4), (150,))
    """
    known, places = entry(name), directories(data_home)
    path = find(name, places)
    if path is not None:
        arrays = _read(known, path)
    elif known.home.is_bundled:
        arrays = fetch(known)
    else:
        arrays = _downloaded(known, places, download_if_missing, progress)
    X, features = arrays["X"], tuple(map(str, arrays.get("feature_names", ())))
    # The note is about the stored file, not about one with all features of the source.
    note = known.note if X.shape[1] == known.n_features else ""
    if name in LEAKED and not leak:
        X = np.delete(X, LEAKED[name], axis=1)
        features = features[: LEAKED[name]] + features[LEAKED[name] + 1 :]
    return Dataset(name, X, arrays["y"], tuple(map(str, arrays["class_names"])), features, note)


def store(
    name: str,
    X: Any,
    y: Any,
    *,
    class_names: Any = None,
    feature_names: Any = None,
    data_home: str | Path | None = None,
) -> Path:
    """Store a dataset that was downloaded by hand, so that :func:`load` finds it; return its path.

    Parameters
    ----------
    name : str
    X, y : array-like (n_samples, n_features), (n_samples,)
        Raw features, the leaked column of boston_housing included, and labels of any kind.
    class_names, feature_names : sequence of str, optional
    data_home : str or Path, optional
        See :func:`load`. Default: the first writable directory.
    """
    known = entry(name)
    arrays = _labelled(known, X, y, class_names, feature_names)
    _check(known, arrays, f"The array passed as {name}")
    return _write(known, arrays, directories(data_home))


def directories(data_home: str | Path | None) -> list[Path]:
    """Return the directories to search: `data_home`, or else ISTHMUS_DATA and the user's cache."""
    if data_home is not None:
        return [as_path(data_home, "data_home").expanduser()]
    home = Path.home()
    usual = {
        "darwin": home / "Library" / "Caches",
        "win32": Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")),
    }.get(sys.platform, home / ".cache")
    cache = Path(os.environ.get("XDG_CACHE_HOME", usual))
    named = os.environ.get("ISTHMUS_DATA")
    return [*([Path(named).expanduser()] if named else []), cache / "isthmus" / "data"]


def find(name: str, places: list[Path]) -> Path | None:
    """Return the first file of a dataset, or None."""
    return next(filter(os.path.lexists, (place / f"{name}.npz" for place in places)), None)


def _read(known: Entry, path: Path) -> Arrays:
    """Return the arrays of a file that match the manifest."""
    advice = f"Remove it and load the dataset again to download it from {known.home}."
    try:
        with open_npz(path, "dataset", advice) as archive:
            stored = {"X", "y", "class_names", "feature_names"} & set(archive.shapes)
            arrays = archive.read(stored, expected=known.largest_size)
    except InvalidInputError as error:
        raise DatasetChangedError(str(error)) from None
    _check(known, arrays, str(path), advice)
    return arrays


def _write(known: Entry, arrays: Arrays, places: list[Path]) -> Path:
    """Store arrays in a file of the first writable directory."""
    for directory in places:
        with suppress(OSError):
            directory.mkdir(parents=True, exist_ok=True)
        if os.access(directory, os.W_OK | os.X_OK):
            break
    buffer = io.BytesIO()
    # Typed so that no array is mistaken for the argument allow_pickle.
    contents: dict[str, Any] = dict(arrays)
    np.savez_compressed(buffer, **contents)
    return write_atomically(directory / f"{known.name}.npz", buffer.getvalue())


def _check(known: Entry, arrays: Arrays, origin: str, advice: str = "Nothing was stored.") -> None:
    """Raise unless shape, labels and class sizes, in any order, match the manifest."""
    shapes = [(known.n_samples, width) for width in known.widths]
    X, y = (arrays.get(name, np.empty(0)) for name in "Xy")
    counts = sorted(np.unique(y, return_counts=True)[1].tolist()) if y.ndim == 1 else []
    problem = ""
    if X.shape not in shapes:
        problem = f"X has shape {X.shape}, not {' or '.join(map(str, shapes))}"
    elif counts != sorted(known.class_counts) or "class_names" not in arrays:
        problem = f"its classes are not the {known.n_classes} of the known sizes"
    elif X.dtype.kind not in "fiu" or not np.isfinite(X).all():
        problem = "X has values that are missing or infinite"
    if problem:
        raise DatasetChangedError(
            f"{origin} is not the {known.name} that isthmus knows: {problem}. {advice}"
        )


def _downloaded(known: Entry, places: list[Path], allowed: bool, show: bool | None) -> Arrays:
    """Download a dataset and store it."""
    home, reason = known.home, "downloads are turned off"
    if home.by_hand is not None:
        reason = "it has no public source to download from"
    elif allowed:
        # A bar that is asked for is there at once; nothing updates this one.
        shown = sys.stderr is not None and sys.stderr.isatty() if show is None else show
        try:
            with (
                TemporaryDirectory(prefix="isthmus-") as scratch,
                show_progress(f"{known.name} from {home}", show=shown) as report,
                warnings.catch_warnings(action="ignore"),  # before another attempt
            ):
                report(0)
                arrays = fetch(known, scratch)
        except (ValueError, LookupError) as error:
            raise DatasetChangedError(
                f"The download from {home} is not {known.name}: {error}. "
                f"Put {known.name}.npz into {places[0]} instead."
            ) from error
        except Exception as error:  # fetchers let errors of archives that were cut off pass
            reason = f"{home} did not answer ({error})"
        else:
            _check(known, arrays, f"The download from {home}")
            _write(known, arrays, places)
            return arrays
    raise DatasetNotFoundError(
        f"{known.name}.npz is not in {' and '.join(map(str, places))}, and {reason}. Download "
        f"{home} on another machine and store it with isthmus.datasets.store({known.name!r}, "
        f"X, y), or copy {known.name}.npz into {places[-1]}, or set ISTHMUS_DATA to its "
        "directory."
    )


def fetch(known: Entry, scratch: str | None = None) -> Arrays:
    """Fetch a dataset by a fetcher of scikit-learn, which writes to the directory `scratch`."""
    from sklearn import datasets

    home = known.home
    options: dict[str, Any] = {} if scratch is None else {"data_home": scratch}
    if home.fetcher is None:
        options |= {"data_id": home.openml, "as_frame": False, "parser": "liac-arff"}
    bunch = getattr(datasets, home.fetcher or "fetch_openml")(**options)
    table, labels = np.asarray(bunch.data), getattr(bunch, "target", None)
    columns = list(map(str, getattr(bunch, "feature_names", ())))
    if labels is None:  # the last column holds the labels
        table, labels, columns = table[:, :-1], table[:, -1], columns[:-1]
    if len(columns) == table.shape[1]:
        kept = [place for place, name in enumerate(columns) if name not in home.drop]
        table, columns = table[:, kept], [columns[place] for place in kept]
    else:
        columns = []
    X = _numbers(table, columns, getattr(bunch, "categories", None) or {})
    X, labels = X[: home.rows] * home.scale, np.asarray(labels)[: home.rows]
    if home.scale != 1:
        X = np.rint(X)
    names = getattr(bunch, "target_names", None)
    if home.target_as_feature:
        X = np.column_stack([X, labels.astype(float)])
        columns += map(str, names or ())
        labels = np.rint(labels.astype(float)).astype(int)
    return _labelled(known, X, labels, names if labels.dtype.kind in "iu" else None, columns)


def _labelled(
    known: Entry, X: Any, y: Any, class_names: Any = None, feature_names: Any = None
) -> Arrays:
    """Return arrays in the form of the stored files: labels 0 .. K-1, and a name for each."""
    found, codes = np.unique(np.asarray(y), return_inverse=True)
    if class_names is None or len(class_names) != len(found):
        class_names = [value.decode() if isinstance(value, bytes) else value for value in found]
    arrays: Arrays = {
        "X": np.ascontiguousarray(X, dtype=known.dtype),
        "y": codes.reshape(-1).astype(np.int64),
        "class_names": np.array([str(word) for word in class_names]),
    }
    if feature_names is not None and len(feature_names) == np.shape(X)[1]:
        arrays["feature_names"] = np.array([str(name) for name in feature_names])
    return arrays


def _numbers(
    table: NDArray[Any], columns: list[str], categories: dict[str, list[str]]
) -> NDArray[np.float64]:
    """Return numbers; OpenML sometimes gives positions in a list of numbers as words instead."""
    X = np.asarray(table, dtype=np.float64)
    for place, name in enumerate(columns):
        words = [{"true": "1", "false": "0"}.get(w.lower(), w) for w in categories.get(name) or ()]
        with suppress(ValueError):  # words that are no numbers
            values = np.array(words, dtype=np.float64)
            X[:, place] = values[X[:, place].astype(int)] if words else X[:, place]
    return X
