"""Paths on the command line, and places that are checked before any work is done."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from pathlib import Path

from isthmus.errors import InvalidInputError

__all__ = ["path", "separate_files", "writable_directory", "writable_file"]


def path(text: str) -> Path:
    """A path on the command line: not an empty one, which would be the current directory."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def writable_directory(out: Path) -> Path:
    """Make the directory if need be, before any work is done that could not be kept."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise InvalidInputError(f"--out {out} is a file; name a directory.") from None
    except OSError as error:
        raise InvalidInputError(f"--out {out} cannot be made: {error.strerror}.") from None
    if not os.access(out, os.W_OK | os.X_OK):
        raise InvalidInputError(f"--out {out} cannot be written to; name another directory.")
    return out


def separate_files(places: Mapping[str, Path | None]) -> None:
    """Refuse options that name the same file, of which one would be lost; - is no file."""
    seen: dict[Path, str] = {}
    for option, target in places.items():
        if target is None or target == Path("-"):
            continue
        other = seen.setdefault(target.resolve(), option)
        if other != option:
            raise InvalidInputError(f"{option} {target} is taken by {other}; name another file.")


def writable_file(path: Path, option: str = "-o") -> Path:
    """Check that a file can be put there, before any work is done that could not be kept."""
    if path.is_dir():
        raise InvalidInputError(f"{option} {path} is a directory; name a file.")
    if not path.parent.is_dir():
        raise InvalidInputError(
            f"{option} {path}: {path.parent} is not a directory; make it first."
        )
    probe = path.with_name(f".{path.name}.probe")
    try:
        probe.touch()
        probe.unlink()
    except OSError:
        raise InvalidInputError(
            f"{option} {path}: {path.parent} cannot be written to; name another."
        ) from None
    return path
