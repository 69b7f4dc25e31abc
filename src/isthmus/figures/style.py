"""The style of all figures: one palette, one set of sizes, no global state; and PNG files."""

from __future__ import annotations

import io
import textwrap
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from numpy.typing import NDArray
from torch import Tensor

from isthmus.errors import InvalidInputError
from isthmus.files import write_atomically

# Colours keep their meaning from figure to figure. Blue, orange and green are Okabe and Ito's,
# which differ for colour-blind eyes too.
INK = "#22303c"
MUTED = "#5c6b7a"
RULE = "#d5dce3"
PAPER = "#ffffff"
CURVE = "#0072b2"
MEMORY = "#d55e00"
NOWHERE = "#eef0f2"

# Low energy, or high probability, is dark.
DEPTH = LinearSegmentedColormap.from_list(
    "depth", ["#ffffff", "#e4eef6", "#bcd7ea", "#88b9d9", "#4f95c2", "#1f6ea6"]
)
PIXELS = LinearSegmentedColormap.from_list("pixels", [PAPER, INK])

WIDTH = 10.0
"""Inches. At 160 dots to the inch that is 1600 pixels, twice a README's column."""

NOTE_SIZE = 9.0

styled = matplotlib.rc_context(
    {
        "font.size": 10.5,
        "axes.titlesize": 11.5,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
        "font.family": "DejaVu Sans",
        "text.color": INK,
        "axes.labelcolor": MUTED,
        "axes.labelsize": 9.5,
        "axes.edgecolor": RULE,
        "axes.facecolor": PAPER,
        "axes.linewidth": 0.8,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
        "figure.facecolor": PAPER,
        "hatch.color": RULE,
        "hatch.linewidth": 0.8,
        "xtick.color": RULE,
        "ytick.color": RULE,
        "xtick.labelcolor": MUTED,
        "ytick.labelcolor": MUTED,
    }
)
"""Decorator that applies this style inside a function only."""


def to_array(values: Any) -> NDArray[Any]:
    """Return a tensor on any device, or anything array-like, as a float64 array."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
    return np.asarray(values, dtype=np.float64)


def new_figure(height: float, gap: float = 0.03) -> Figure:
    """Return an empty figure of the given height in inches, without overlapping parts.

    `gap` is the space between parts, as a share of their size.
    """
    engine = ConstrainedLayoutEngine(w_pad=0.05, h_pad=0.05, wspace=gap, hspace=gap)
    return Figure(figsize=(WIDTH, height), layout=engine)


def panels(
    count: int, *, columns: int, panel_height: float, **options: Any
) -> tuple[Figure, list[Axes]]:
    """Return a figure and its `count` axes, `columns` to a row."""
    columns = max(1, min(columns, count))
    rows = -(-count // columns)
    figure = new_figure(rows * panel_height)
    grid = figure.subplots(rows, columns, squeeze=False, **options)
    for spare in grid.flat[count:]:
        spare.remove()
    return figure, list(grid.flat[:count])


def heading(
    axes: Axes, title: str, note: str = "", *, characters: int = 42, lines: int = 2
) -> None:
    """Put a title above the axes, with a note of one or two lines below it.

    All panels of a figure reserve the same number of `lines`, so that their axes line up.
    """
    wrapped = textwrap.wrap(note, characters)
    above = 1.35 * NOTE_SIZE * (lines if note else 0)
    axes.set_title(title, pad=above + 7)
    for number, line in enumerate(wrapped):
        axes.annotate(
            line,
            (0, 1),
            xytext=(0, above - 1.35 * NOTE_SIZE * (number + 1) + 6),
            xycoords="axes fraction",
            textcoords="offset points",
            fontsize=NOTE_SIZE,
            color=MUTED,
        ).set_in_layout(False)


def grid_points(
    lower: NDArray[Any], upper: NDArray[Any], resolution: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return a square grid: x (R, R), y (R, R), and all points (R, R, 2)."""
    x, y = np.meshgrid(
        np.linspace(lower[0], upper[0], resolution), np.linspace(lower[1], upper[1], resolution)
    )
    return x, y, np.stack([x, y], -1)


def visible_range(height: NDArray[Any], share: float) -> tuple[float, float]:
    """Return the minimum and the `share` quantile of the finite heights."""
    finite = height[np.isfinite(height)]
    if finite.size == 0:
        raise InvalidInputError(
            "The energy is infinite everywhere on the grid. Raise the resolution, or widen the "
            "energy's kernel."
        )
    low, high = float(finite.min()), float(np.quantile(finite, share))
    return low, high if high > low else low + 1.0


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
