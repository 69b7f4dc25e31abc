"""What a part depends on: as long as none of it changes, a part that is done stays done."""

from __future__ import annotations

import hashlib
import platform
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import isthmus
from isthmus.cli.parts import Part
from isthmus.files import shipped

__all__ = ["Inputs", "environment", "inputs_of", "source_digest"]

Inputs = dict[str, Any]

# Packages whose version may show in a number or a picture.
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "matplotlib")


def inputs_of(part: Part, seed: int, full: bool) -> Inputs:
    """All that decides what the part comes to, by name; for JSON."""
    package = Path(isthmus.__file__).parent
    return {
        "name": part.name,
        "function": part.function,
        "seed": seed,
        "full": full,
        "isthmus": isthmus.__version__,
        "source": source_digest(package),
        **_shown(part),
        **environment(),
    }


def _shown(part: Part) -> dict[str, str]:
    """A digest of what the part shows that lies beside the package."""
    place = shipped(part.shows) if part.shows else None
    return {} if place is None else {"shows": source_digest(place)}


@cache
def environment() -> dict[str, str]:
    """Versions of what isthmus stands on; nothing is imported to find out."""
    return {
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
    }


@cache
def source_digest(directory: Path) -> str:
    """A digest of all files of a folder, code and data, by path and content; or of one file."""
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*")) if directory.is_dir() else [directory]:
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(directory).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
