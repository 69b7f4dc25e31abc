"""Paths on the command line, checked before any work."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path

from isthmus.errors import InvalidInputError
from isthmus.files import check_writable as writable_file
from isthmus.files import make_directory as writable_directory

__all__ = ["path", "separate_files", "writable_directory", "writable_file"]


def path(text: str) -> Path:
    """Convert an argument to a path; an empty one would be the current directory."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def separate_files(places: Mapping[str, Path | None]) -> None:
    """Refuse options that name the same file; - is no file."""
    seen: dict[Path, str] = {}
    for option, target in places.items():
        if target is None or target == Path("-"):
            continue
        other = seen.setdefault(target.resolve(), option)
        if other != option:
            raise InvalidInputError(f"{option} {target} is taken by {other}; name another file.")
