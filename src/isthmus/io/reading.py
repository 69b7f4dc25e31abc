"""Reading files that may be damaged or hostile: one clear error, and a bound on their size."""

from __future__ import annotations

import io
import os
import pickle
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from isthmus.errors import InvalidInputError, IsthmusError, MissingFileError

LIMIT_VARIABLE = "ISTHMUS_MAX_DECOMPRESSED"
# A compressed file may hold this many bytes, or this many times its own size if that is more.
ALWAYS_ALLOWED, LARGEST_RATIO = 64 * 2**20, 100
CHUNK = 2**20
# A child may take this many bytes for its libraries, and so many times the size limit.
CHILD_ALWAYS, CHILD_FACTOR = 256 * 2**20, 4
CHILD = "from isthmus.io.reading import _answer; _answer()"


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


def read_in_child(read: Callable[..., Any], path: Path, what: str, *arguments: str | None) -> Any:
    """Return ``read(path, *arguments)`` of a child process with limited memory, pickled.

    For formats whose parsers take memory before anybody can tell how much, or may crash. The limit
    grows with :func:`size_limit`; it is set on Linux only. `what` is that of :func:`reading`.
    """
    limit = size_limit(path)
    environment = {
        **os.environ,
        LIMIT_VARIABLE: str(limit),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        "ARROW_DEFAULT_MEMORY_POOL": "system",  # the others reserve address space
        "OPENBLAS_NUM_THREADS": "1",
    }
    # -P: code in the current directory is not imported by accident.
    command, pipe = [sys.executable, "-P", "-c", CHILD], subprocess.PIPE
    answer: tuple[Any, IsthmusError | None]
    answer = None, InvalidInputError(f"{_too_large(path, limit)} Or it is damaged.")
    with subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, env=environment
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        with child.stdin:
            pickle.dump((read, path, what, arguments), child.stdin)
        # Parsers in C++ may not survive that no memory is left.
        with suppress(EOFError, pickle.UnpicklingError):
            answer = pickle.load(child.stdout)
    if answer[1] is not None:
        raise answer[1]
    return answer[0]


def _answer() -> None:
    read, path, what, arguments = pickle.load(sys.stdin.buffer)
    limit = size_limit(path)
    if sys.platform == "linux":
        import resource

        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + CHILD_ALWAYS + CHILD_FACTOR * limit
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    result, error = None, None
    try:
        with reading(path, what):
            result = read(path, *arguments)
    except InvalidInputError as caught:
        error = _too_large(path, limit) if isinstance(caught.__cause__, MemoryError) else caught
    pickle.dump((result, error), sys.stdout.buffer, protocol=5)
    sys.stdout.flush()
    os._exit(0)  # without the threads of libraries, which would end in time or not
