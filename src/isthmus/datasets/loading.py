"""Load datasets from .npz files on this machine or, if missing, from their public homes."""

from __future__ import annotations

import hashlib
import io
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from isthmus.datasets.download import Arrays, download, labelled
from isthmus.datasets.manifest import Entry, entry
from isthmus.errors import DatasetChangedError, DatasetNotFoundError
from isthmus.files import write_atomically

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
        yield self.X
        yield self.y

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
        Show a progress bar while downloading. Default: on a terminal, after two seconds.

    Raises
    ------
    DatasetNotFoundError
        The dataset is not on this machine and cannot be downloaded.
    DatasetChangedError
        The file is truncated or altered, or the download has another shape.

    Examples
    --------
    >>> from isthmus.datasets import load
    >>> iris = load("iris")
    >>> print(iris)
    iris: 150 samples, 4 features, 3 classes ...
    >>> X, y = iris
    >>> X.shape, y.shape
    ((150, 4), (150,))
    """
    known = entry(name)
    places = directories(data_home)
    path = find(name, places)
    if path is not None:
        arrays = read(known, path)
    else:
        arrays = _downloaded(known, places, download_if_missing, progress)
    return _dataset(known, arrays, leak)


def store(
    name: str,
    X: Any,
    y: Any,
    *,
    class_names: Any = None,
    feature_names: Any = None,
    data_home: str | Path | None = None,
) -> Path:
    """Store a dataset that was downloaded by hand, so that :func:`load` finds it.

    Returns the path of the file.

    Parameters
    ----------
    name : str
    X : array-like (n_samples, n_features)
        Raw features, the leaked column of boston_housing included.
    y : array-like (n_samples,)
        Labels of any kind.
    class_names, feature_names : sequence of str, optional
    data_home : str or Path, optional
        See :func:`load`. Default: the first writable directory.
    """
    known = entry(name)
    arrays = labelled(known, X, y, class_names, feature_names)
    check_arrays(known, arrays, f"The array passed as {name}")
    return write(known, arrays, _writable(directories(data_home)))


def _downloaded(known: Entry, places: list[Path], allowed: bool, progress: bool | None) -> Arrays:
    home = known.home
    bundled = home.fetcher is not None and home.fetcher.startswith("load_")
    if home.fetcher is None and home.openml is None:
        raise _not_found(known, places, "it has no public source to download from")
    if not allowed and not bundled:
        raise _not_found(known, places, "downloads are turned off")
    try:
        arrays = download(known, progress)
    except OSError as error:
        raise _not_found(known, places, f"{home} did not answer ({error})") from error
    except (ValueError, KeyError, IndexError) as error:
        raise DatasetChangedError(
            f"The download from {home} is not {known.name}: {error}. "
            f"Put {known.name}.npz into {places[0]} instead."
        ) from error
    check_arrays(known, arrays, f"The download from {home}")
    if not bundled:
        write(known, arrays, _writable(places))
    return arrays


def _not_found(known: Entry, places: list[Path], reason: str) -> DatasetNotFoundError:
    searched = " and ".join(map(str, places))
    return DatasetNotFoundError(
        f"{known.name}.npz is not in {searched}, and {reason}. Download {known.home} on another "
        f"machine and store it with isthmus.datasets.store({known.name!r}, X, y), or copy "
        f"{known.name}.npz into {places[-1]}, or set ISTHMUS_DATA to its directory."
    )


def _writable(places: list[Path]) -> Path:
    for place in places:
        parent = next(each for each in (place, *place.parents) if each.exists())
        if os.access(parent, os.W_OK | os.X_OK):
            return place
    return places[-1]


def _dataset(known: Entry, arrays: Arrays, leak: bool) -> Dataset:
    X = arrays["X"]
    features = [str(word) for word in arrays.get("feature_names", [])]
    if known.name in LEAKED and not leak:
        X = np.delete(X, LEAKED[known.name], axis=1)
        features = [word for place, word in enumerate(features) if place != LEAKED[known.name]]
    words = tuple(str(word) for word in arrays["class_names"])
    # The note is about the stored file, not about one with all features of the source.
    note = known.note if arrays["X"].shape[1] == known.n_features else ""
    return Dataset(known.name, X, arrays["y"], words, tuple(features), note)


def directories(data_home: str | Path | None) -> list[Path]:
    """Return the directories to search: `data_home`, or else ISTHMUS_DATA and the user's cache."""
    if data_home is not None:
        return [Path(data_home).expanduser()]
    named = os.environ.get("ISTHMUS_DATA")
    return [*([Path(named).expanduser()] if named else []), _user_cache() / "isthmus" / "data"]


def _user_cache() -> Path:
    if "XDG_CACHE_HOME" in os.environ:
        return Path(os.environ["XDG_CACHE_HOME"])
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home() / "AppData" / "Local"))
    return Path.home() / ".cache"


def find(name: str, places: list[Path]) -> Path | None:
    """Return the first file of a dataset, or None."""
    candidates = (place / f"{name}.npz" for place in places)
    return next((path for path in candidates if path.is_file()), None)


def read(entry: Entry, path: Path) -> Arrays:
    """Return the arrays of a file that matches the manifest or the checksum of its download."""
    content = path.read_bytes()
    found = hashlib.sha256(content).hexdigest()
    if found not in (entry.sha256, _noted_checksum(path)):
        raise DatasetChangedError(
            f"{path} is not the {entry.name} that isthmus knows: its sha256 is {found[:12]}…, not "
            f"{entry.sha256[:12]}…. It is truncated or altered. {_advice(entry)}"
        )
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (BadZipFile, EOFError, OSError, ValueError, AttributeError) as error:
        raise DatasetChangedError(
            f"{path} cannot be read, although its checksum is correct: {error}. {_advice(entry)}"
        ) from None
    check_arrays(entry, arrays, str(path), _advice(entry))
    return arrays


def _advice(entry: Entry) -> str:
    return f"Remove it and load the dataset again to download it from {entry.home}."


def write(entry: Entry, arrays: Arrays, directory: Path) -> Path:
    """Store arrays in a file, with its checksum beside it."""
    directory.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    # Typed so that no array is mistaken for the argument allow_pickle.
    contents: dict[str, Any] = dict(arrays)
    np.savez_compressed(buffer, **contents)
    path = directory / f"{entry.name}.npz"
    # The checksum first: if killed in between, no file without its checksum remains.
    digest = hashlib.sha256(buffer.getvalue()).hexdigest()
    write_atomically(_note(path), f"{digest}  {path.name}\n")
    return write_atomically(path, buffer.getvalue())


def _note(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _noted_checksum(path: Path) -> str | None:
    try:
        return _note(path).read_text().split()[0]
    except (OSError, IndexError):
        return None


def check_arrays(
    entry: Entry, arrays: Arrays, origin: str, advice: str = "Nothing was stored."
) -> None:
    """Raise unless shape, labels and class sizes match the manifest.

    Classes may come in another order, because another source may name them differently.
    """
    problem = _problem(entry, arrays)
    if problem:
        raise DatasetChangedError(
            f"{origin} is not the {entry.name} that isthmus knows: {problem}. {advice}"
        )


def _problem(entry: Entry, arrays: Arrays) -> str:
    missing = {"X", "y", "class_names"} - set(arrays)
    if missing:
        return f"it has no {' and no '.join(sorted(missing))}"
    features = {entry.n_features, entry.home.n_features or entry.n_features}
    X, y = arrays["X"], arrays["y"]
    if X.ndim != 2 or len(X) != entry.n_samples or X.shape[1] not in features:
        wanted = " or ".join(f"({entry.n_samples}, {width})" for width in sorted(features))
        return f"X has shape {X.shape}, not {wanted}"
    if y.shape != (entry.n_samples,):
        return f"y has shape {y.shape}, not ({entry.n_samples},)"
    if sorted(np.unique(y, return_counts=True)[1].tolist()) != sorted(entry.class_counts):
        return f"its classes are not the {entry.n_classes} of the known sizes"
    if X.dtype.kind not in "fiu" or not np.isfinite(X).all():
        return "X has values that are missing or infinite"
    return ""
