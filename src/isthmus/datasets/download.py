"""Downloads of datasets, converted to the form of the stored files."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus.datasets.manifest import Entry
from isthmus.progress import progress

Arrays = dict[str, NDArray[Any]]

REFRESH = 0.2


def download(entry: Entry, show: bool | None = None) -> Arrays:
    """Fetch a dataset from its home, a fetcher of scikit-learn or OpenML, with a progress bar."""
    with TemporaryDirectory(prefix="isthmus-") as scratch, _show_progress(entry, scratch, show):
        bunch = _fetch(entry, scratch)
    return _arrays(entry, bunch)


def _fetch(entry: Entry, scratch: str) -> Any:
    from sklearn import datasets

    home = entry.home
    if home.fetcher is None:
        options = {"as_frame": False, "parser": "liac-arff", "cache": True}
        return datasets.fetch_openml(data_id=home.openml, data_home=scratch, **options)
    fetcher = getattr(datasets, home.fetcher)
    return fetcher() if home.fetcher.startswith("load_") else fetcher(data_home=scratch)


def _arrays(entry: Entry, bunch: Any) -> Arrays:
    home = entry.home
    table, target = np.asarray(bunch.data), getattr(bunch, "target", None)
    columns = _names(bunch, "feature_names")
    if target is None:  # the last column holds the labels
        table, target, columns = table[:, :-1], table[:, -1], columns[:-1]
    if len(columns) != table.shape[1]:
        columns = []
    else:
        kept = [place for place, name in enumerate(columns) if name not in home.drop]
        table, columns = table[:, kept], [columns[place] for place in kept]
    X = _numbers(table, columns, getattr(bunch, "categories", None) or {})
    X = X[: home.rows] * home.scale
    labels = np.asarray(target)[: home.rows]
    if home.scale != 1:
        X = np.rint(X)
    if home.target_as_feature:
        X = np.column_stack([X, labels.astype(float)])
        columns = [*columns, *_names(bunch, "target_names")]
        labels = np.rint(labels.astype(float)).astype(int)
    known = getattr(bunch, "target_names", None) if labels.dtype.kind in "iu" else None
    return labelled(entry, X, labels, known, columns)


def labelled(
    entry: Entry, X: Any, y: Any, class_names: Any = None, feature_names: Any = None
) -> Arrays:
    """Return arrays in the form of the stored files: labels 0 .. K-1, and a name for each."""
    found, codes = np.unique(np.asarray(y), return_inverse=True)
    given = class_names is not None and len(class_names) == len(found)
    plain = [value.decode() if isinstance(value, bytes) else value for value in found]
    words = class_names if given else plain
    arrays: Arrays = {
        "X": np.ascontiguousarray(X, dtype=entry.dtype),
        "y": codes.reshape(-1).astype(np.int64),
        "class_names": np.array([str(word) for word in words]),
    }
    if feature_names is not None and len(feature_names) == np.shape(X)[1]:
        arrays["feature_names"] = np.array([str(name) for name in feature_names])
    return arrays


def _names(bunch: Any, field: str) -> list[str]:
    found = getattr(bunch, field, None)
    return [] if found is None else [str(name) for name in found]


def _numbers(
    table: NDArray[Any], columns: list[str], categories: dict[str, list[str]]
) -> NDArray[np.float64]:
    """Return numbers; OpenML sometimes gives positions in a list of numbers as words instead."""
    X = np.asarray(table, dtype=np.float64)
    for place, name in enumerate(columns):
        values = [_value(word) for word in categories.get(name) or []]
        if values and None not in values:
            X[:, place] = np.array(values, dtype=np.float64)[X[:, place].astype(int)]
    return X


def _value(word: str) -> float | None:
    truths = {"true": 1.0, "false": 0.0}
    if word.lower() in truths:
        return truths[word.lower()]
    try:
        return float(word)
    except ValueError:
        return None


@contextmanager
def _show_progress(entry: Entry, scratch: str, show: bool | None) -> Iterator[None]:
    """Show the number of bytes that have arrived in the directory that fetchers write to."""
    ended = threading.Event()
    with progress(f"{entry.name} from {entry.home}", show=show, unit="bytes") as report:

        def watch() -> None:
            report(0)
            while not ended.wait(REFRESH):
                report(_size(Path(scratch)))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()


def _size(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:  # moved meanwhile
            continue
    return total
