"""Figures as PNG files."""

from __future__ import annotations

import io
from pathlib import Path

from matplotlib.figure import Figure

from isthmus.figures.style import styled
from isthmus.files import write_atomically

__all__ = ["png_bytes", "save"]

DOTS_PER_INCH = 160


@styled
def png_bytes(figure: Figure, dpi: int = DOTS_PER_INCH) -> bytes:
    """Return the figure as a PNG; equal figures give equal bytes."""
    buffer = io.BytesIO()
    # Without the version of matplotlib, the file depends on the figure only.
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def save(figure: Figure, path: str | Path, dpi: int = DOTS_PER_INCH) -> Path:
    """Write the figure as a PNG, atomically, and return its path."""
    return write_atomically(path, png_bytes(figure, dpi))
