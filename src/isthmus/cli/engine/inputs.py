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
        **_published(part, package.parents[1]),
        **environment(),
    }


def _published(part: Part, checkout: Path) -> dict[str, str]:
    """The study's published results, which the parts about it show, lie beside the package."""
    directory = checkout / "docs" / "study"
    if part.function.startswith("study:") and directory.is_dir():
        return {"study": source_digest(directory)}
    return {}


@cache
def environment() -> dict[str, str]:
    """Versions of what isthmus stands on; nothing is imported to find out."""
    return {
        "python": platform.python_version(),
        **{package: version(package) for package in PACKAGES},
    }


@cache
def source_digest(directory: Path) -> str:
    """A digest of all files of a package, code and data, by path and content."""
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(f"{path.relative_to(directory).as_posix()}\0".encode())
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
