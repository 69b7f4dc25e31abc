"""Atomic writes, locked directories, and the files that ship beside the package."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isthmus.errors import InvalidInputError, RunInProgressError

# Holds, in a wheel, the folders that lie beside the package in a clone; see pyproject.toml.
SHIPPED = "_shipped"
LOCK = ".lock"


def write_atomically(path: str | Path, content: str | bytes) -> Path:
    """Write a file under a temporary name and move it into place. Text is encoded as UTF-8.

    A file that is replaced passes on its permissions; a symbolic link is followed.
    """
    with replacing(path) as partial, partial.open("wb") as file:
        file.write(content.encode() if isinstance(content, str) else content)
    return Path(path)


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """Yield the name of an empty file, which replaces another if the block ends without an error.

    Otherwise the other file stays as it is, and nothing is left. Errors name it.
    """
    target = Path(os.path.realpath(path))
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target.parent} is not a folder; make it first to save {target}.")
    if target.exists() and not target.is_file():
        raise InvalidInputError(f"{path} is not an ordinary file, so it cannot be replaced.")
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    # Not tempfile: its files are private to the user, whatever the umask.
    partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    try:
        partial.touch(exist_ok=False)
        if mode is not None:
            partial.chmod(mode | stat.S_IRUSR | stat.S_IWUSR)
        yield partial
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        if mode is not None:
            partial.chmod(mode)
        os.replace(partial, target)
    except BaseException as error:
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(partial)):
            raise OSError(error.errno, error.strerror, str(target)) from None
        raise


def append_line(path: Path, line: str) -> None:
    """Add a line to a file, which errors name."""
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None


def real_path(path: str | Path) -> Path:
    """Return a path without links; one in a loop of links stays as it is."""
    return Path(os.path.realpath(path))


def check_writable(path: str | Path, option: str = "-o") -> Path:
    """Return the path of a file to be written, checked before any work begins.

    `option` is the name of the argument, for messages.
    """
    target, parent = Path(path), real_path(path).parent
    if real_path(target).is_symlink():
        raise InvalidInputError(f"{option} {target} is a link to itself; name another file.")
    if target.is_dir():
        raise InvalidInputError(f"{option} {target} is a directory; name a file.")
    if target.exists() and not target.is_file():
        raise InvalidInputError(f"{option} {target} is not an ordinary file; name another.")
    if not parent.is_dir():
        raise InvalidInputError(f"{option} {target}: {parent} is not a directory; make it first.")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise InvalidInputError(
            f"{option} {target}: {parent} cannot be written to; name another directory."
        )
    return target


def make_directory(path: str | Path, option: str = "out") -> Path:
    """Make a directory, if necessary, and check that files can be written to it."""
    out = Path(path)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise InvalidInputError(f"{option} {out} is a file; choose a directory.") from None
    except OSError as error:
        raise InvalidInputError(f"{option} {out} cannot be made: {error.strerror}.") from None
    if not os.access(out, os.W_OK | os.X_OK):
        raise InvalidInputError(f"{option} {out} is not writable; choose another directory.")
    return out


@contextmanager
def exclusive(directory: str | Path, wait: float = 0.0) -> Iterator[None]:
    """Lock a directory for this process until the block ends, or the process does.

    Raise RunInProgressError if another process holds the lock after `wait` seconds.
    """
    from filelock import FileLock, Timeout

    place = Path(directory) / LOCK
    if place.is_symlink() or (place.exists() and (not place.is_file() or place.stat().st_size)):
        # To lock it would empty it.
        raise InvalidInputError(f"{place} is not a lock of isthmus; choose another directory.")
    lock = FileLock(place)
    try:
        lock.acquire(timeout=wait)
    except Timeout:
        raise RunInProgressError(
            f"Another run is writing to {directory}. Wait for it to finish, or choose another "
            "directory."
        ) from None
    try:
        yield
    finally:
        lock.release()


def shipped(place: str) -> Path | None:
    """Return the path of a file or folder that ships beside the package, or None.

    `place` is its path in a clone of the repository, such as ``"benchmarks"``.
    """
    package = Path(__file__).parents[1]
    for root in (package.parents[1], package / SHIPPED):
        if (root / place).exists():
            return root / place
    return None
