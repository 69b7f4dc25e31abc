"""Writing files so that a reader, or a run killed halfway, never meets half of one."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

__all__ = ["write_atomically"]


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
