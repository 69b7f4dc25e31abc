"""Reading files that may be damaged or hostile: one clear error, and a bound on their size."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from isthmus.errors import InvalidInputError, IsthmusError, MissingFileError

LIMIT_VARIABLE = "ISTHMUS_MAX_DECOMPRESSED"
# A compressed file may hold this many bytes, or this many times its own size if that is more.
ALWAYS_ALLOWED, LARGEST_RATIO = 64 * 2**20, 100
CHUNK = 2**20


@contextmanager
def reading(path: str | Path, what: str, advice: str = "") -> Iterator[Path]:
    """Yield the path of a regular file; whatever goes wrong in the block is an error that names it.

    Parsers raise almost anything at damaged bytes, so the block should hold nothing but one.
    `what` completes the words "is not a readable", and `advice` says what to do.
    """
    place = Path(path)
    try:
        require_regular(place)
        yield place
    except FileNotFoundError:
        raise MissingFileError(f"{place} cannot be read: No such file.") from None
    except Exception as error:
        if isinstance(error, IsthmusError) and str(place) in str(error):
            raise
        words = f"{place} is not a readable {what}: {reason(error)}. {advice}"
        raise InvalidInputError(words.strip()) from error


def require_regular(path: Path) -> None:
    """Raise unless a path leads to a file with a content: not a directory, a pipe or a device."""
    if not stat.S_ISREG(path.stat().st_mode):
        kind = "directory; name a file in it" if path.is_dir() else "pipe or a device, not a file"
        raise InvalidInputError(f"{path} is a {kind}.")


def reason(error: Exception) -> str:
    """Return one line on why a file could not be read."""
    words = " ".join(str(error).split()).rstrip(".")
    if isinstance(error, OSError) and error.strerror:
        words = error.strerror
    elif isinstance(error, MemoryError):
        words = "it needs more memory than there is"
    elif isinstance(error, LookupError | AttributeError) or not words:
        words = f"{type(error).__name__} {words}".strip()
    return words if len(words) < 300 else words[:300] + "..."


def size_limit(path: str | Path) -> int:
    """Return the number of bytes that a compressed file may hold."""
    given = os.environ.get(LIMIT_VARIABLE, "")
    if not given:
        return max(ALWAYS_ALLOWED, LARGEST_RATIO * os.stat(path).st_size)
    if not (given.isascii() and given.isdecimal() and len(given) < 20):
        raise InvalidInputError(f"{LIMIT_VARIABLE} must be a number of bytes, not {given!r}.")
    return int(given)


def require_size(path: str | Path, size: int, expected: int = 0) -> None:
    """Raise if a compressed file holds, or says that it holds, more than the `expected` bytes.

    Whatever is expected, it may hold :func:`size_limit` bytes.
    """
    limit = max(expected, size_limit(path))
    if size > limit:
        raise _too_large(path, limit)


def _too_large(path: str | Path, limit: int) -> InvalidInputError:
    return InvalidInputError(
        f"{path} would take more than {limit} bytes when decompressed, which is far more than "
        f"its size. If you trust it, set {LIMIT_VARIABLE} to a larger number of bytes."
    )


def read_bounded(path: str | Path, stream: IO[bytes]) -> bytes:
    """Return the decompressed content of a file, unless it is too large."""
    limit, held = size_limit(path), io.BytesIO()
    while part := stream.read(CHUNK):
        if held.tell() + len(part) > limit:
            raise _too_large(path, limit)
        held.write(part)
    return held.getvalue()
