"""Figures as PNG and SVG files."""

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


@styled
def _svg_bytes(figure: Figure, dpi: int) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="svg", dpi=dpi, metadata={"Date": None})
    return buffer.getvalue()


def save(figure: Figure, path: str | Path, dpi: int = DOTS_PER_INCH) -> Path:
    """Write the figure as a PNG, or as an SVG if the path ends in .svg, and return its path."""
    as_bytes = _svg_bytes if Path(path).suffix.lower() == ".svg" else png_bytes
    return write_atomically(path, as_bytes(figure, dpi))
