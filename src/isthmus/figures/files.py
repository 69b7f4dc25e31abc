"""Writing files so that a reader never meets half of one."""

from __future__ import annotations

import io
import os
from pathlib import Path

from matplotlib.figure import Figure

from isthmus.figures.style import styled

__all__ = ["png_bytes", "save", "write_atomically"]

DOTS_PER_INCH = 160


@styled
def png_bytes(figure: Figure, dpi: int = DOTS_PER_INCH) -> bytes:
    """Return the figure as a PNG; equal figures give equal bytes."""
    buffer = io.BytesIO()
    # Without the version of matplotlib in it, the file depends on the picture alone.
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def save(figure: Figure, path: str | Path, dpi: int = DOTS_PER_INCH) -> Path:
    """Write the figure as a PNG, all of it or nothing, and return its path."""
    return write_atomically(path, png_bytes(figure, dpi))


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
    data = content.encode() if isinstance(content, str) else content
    partial = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        partial.write_bytes(data)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    return target
