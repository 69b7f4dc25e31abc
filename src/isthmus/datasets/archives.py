"""Datasets as .npz files: their directories, checksums and contents."""

from __future__ import annotations

import hashlib
import io
import os
import sys
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from isthmus.datasets.manifest import Entry
from isthmus.errors import DatasetChangedError
from isthmus.files import write_atomically

Arrays = dict[str, NDArray[Any]]


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
