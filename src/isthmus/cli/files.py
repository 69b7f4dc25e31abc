"""Paths on the command line, checked before any work."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from isthmus.errors import InvalidInputError
from isthmus.files import check_writable as writable_file

__all__ = ["path", "separate_files", "writable_directory", "writable_file"]


def path(text: str) -> Path:
    """Convert an argument to a path; an empty one would be the current directory."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def writable_directory(out: Path) -> Path:
    """Return the directory, which is made if necessary."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise InvalidInputError(f"--out {out} is a file; name a directory.") from None
    except OSError as error:
        raise InvalidInputError(f"--out {out} cannot be made: {error.strerror}.") from None
    if not os.access(out, os.W_OK | os.X_OK):
        raise InvalidInputError(f"--out {out} is not writable; name another directory.")
    return out


def separate_files(places: Mapping[str, Path | None]) -> None:
    """Refuse options that name the same file; - is no file."""
    seen: dict[Path, str] = {}
    for option, target in places.items():
        if target is None or target == Path("-"):
            continue
        other = seen.setdefault(target.resolve(), option)
        if other != option:
            raise InvalidInputError(f"{option} {target} is taken by {other}; name another file.")
