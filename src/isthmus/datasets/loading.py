"""Load datasets from this machine or, if missing, from their public homes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus.datasets.archives import Arrays, check_arrays, directories, find, read, write
from isthmus.datasets.download import download, labelled
from isthmus.datasets.manifest import Entry, entry
from isthmus.errors import DatasetChangedError, DatasetNotFoundError

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

    Returns
    -------
    Dataset

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

    Returns
    -------
    Path
        Path of the file.
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
