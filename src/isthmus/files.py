"""Files: written so that nobody ever meets half of one, and those that come with isthmus."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isthmus.errors import RunInProgressError

__all__ = ["held_alone", "shipped", "write_atomically"]

# Where a wheel has what lies beside the package in a clone; see pyproject.toml.
SHIPPED = "_shipped"


def write_atomically(path: str | Path, content: str | bytes) -> Path:
    """Write a file beside its final place and move it there in one go.

    Parameters
    ----------
    path : str or Path
    content : str or bytes
        Text is written as UTF-8.

    Returns
    -------
    Path
    """
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target.parent} is not a folder; make it first to save {target}.")
    data = content.encode() if isinstance(content, str) else content
    # Not tempfile, whose files nobody else may read, whatever the umask says.
    partial = target.with_name(f".{target.name}.{secrets.token_hex(8)}.part")
    try:
        with partial.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    return target


@contextmanager
def held_alone(lock: Path, directory: Path) -> Iterator[None]:
    """Hold a directory for this process alone, until it leaves, however it ends.

    Parameters
    ----------
    lock : Path
        A file that stands for the directory; it stays behind, and means nothing by itself.
    directory : Path
        Named in the error if another process holds it.
    """
    import fcntl  # not on Windows, where the rest of this module is of use all the same

    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise RunInProgressError(
                f"Another run is writing to {directory}. Wait for it, or name another directory."
            ) from None
        yield


def shipped(place: str) -> Path | None:
    """A file or folder of the repository that is no part of the package, such as ``benchmarks``.

    Parameters
    ----------
    place : str
        Where it is in a clone of the repository.

    Returns
    -------
    Path or None
        In the clone, or in the installed package; None if it is in neither.
    """
    package = Path(__file__).parent
    for root in (package.parents[1], package / SHIPPED):
        if (root / place).exists():
            return root / place
    return None
