"""The style of all figures: one palette, one set of sizes, no global state; and PNG files."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Annotation
from numpy.typing import NDArray
from torch import Tensor

from isthmus.errors import InvalidInputError
from isthmus.io.files import write_atomically
from isthmus.printing import printable

# Colours keep their meaning from figure to figure. Blue, orange, green, purple, sky and yellow are
# Okabe and Ito's, which differ for colour-blind eyes too.
INK = "#22303c"
MUTED = "#5c6b7a"
RULE = "#d5dce3"
PAPER = "#ffffff"
CURVE = "#0072b2"
MEMORY = "#d55e00"
NOWHERE = "#eef0f2"
GREEN, PURPLE, SKY, YELLOW = "#009e73", "#cc79a7", "#56b4e9", "#e69f00"
# Of groups, darkest tones first.
PALETTE = (CURVE, YELLOW, GREEN, PURPLE, MEMORY, SKY, "#7a5195", "#8c6d31")

# Low energy, or high probability, is dark.
DEPTH = LinearSegmentedColormap.from_list(
    "depth", ["#ffffff", "#e4eef6", "#bcd7ea", "#88b9d9", "#4f95c2", "#1f6ea6"]
)
PIXELS = LinearSegmentedColormap.from_list("pixels", [PAPER, INK])

WIDTH, DOTS_PER_INCH = 10.0, 160  # in inches: 1600 pixels, twice a README's column
NOTE_SIZE = 9.0

styled = matplotlib.rc_context(
    {
        # Not those of a matplotlibrc, which may lie in the current directory.
        **{k: v for k, v in matplotlib.rcParamsDefault.items() if k != "backend"},
        "font.family": "DejaVu Sans",
        "font.size": 10.5,
        "axes.titlesize": 11.5,
        "axes.labelsize": 9.5,
        **dict.fromkeys(("xtick.labelsize", "ytick.labelsize", "legend.fontsize"), 9),
        "text.color": INK,
        **dict.fromkeys(("axes.labelcolor", "xtick.labelcolor", "ytick.labelcolor"), MUTED),
        **dict.fromkeys(("axes.edgecolor", "xtick.color", "ytick.color", "hatch.color"), RULE),
        **dict.fromkeys(("axes.facecolor", "figure.facecolor"), PAPER),
        **dict.fromkeys(("axes.linewidth", "hatch.linewidth"), 0.8),
        **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
        "axes.titlelocation": "left",
        "axes.titleweight": "bold",
    }
)
"""Decorator that applies this style inside a function only."""


def to_array(values: Any) -> NDArray[Any]:
    """Return a tensor on any device, or anything array-like, as a float64 array."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
    return np.asarray(values, dtype=np.float64)


def new_figure(height: float, gap: float = 0.03) -> Figure:
    """Return an empty figure of this height in inches; `gap` parts its panels, in their sizes."""
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
    """Put a title above the axes and a note below it, for which all panels reserve `lines`."""
    lines = max(lines, len(textwrap.wrap(note, characters)))
    above = 1.35 * NOTE_SIZE * (lines if note else 0)
    axes.set_title(title, pad=above + 7)
    look: dict[str, Any] = {"xycoords": "axes fraction", "color": MUTED, "in_layout": False}
    for number, line in enumerate(textwrap.wrap(note, characters), 1):
        note_at(axes, line, (0, 1), (0, above - 1.35 * NOTE_SIZE * number + 6), **look)


def root_of(axes: Axes) -> Figure:
    """Return the figure of axes, which may be those of a subfigure."""
    root: Any = axes.figure.figure  # get_figure(root=True) needs Matplotlib 3.10
    assert isinstance(root, Figure)
    return root


def fitting_characters(axes: Axes) -> int:
    """Return about how many characters of a note are as wide as the axes."""
    inches = axes.get_position().width * root_of(axes).get_figwidth()
    return max(20, int(72 * inches / (0.5 * NOTE_SIZE)))


def note_at(
    axes: Axes, text: str, place: Any, offset: tuple[float, float], **look: Any
) -> Annotation:
    """Write a note at a place, moved by an offset in points."""
    look = {"fontsize": NOTE_SIZE, **look}
    return axes.annotate(text, place, xytext=offset, textcoords="offset points", **look)


def label_plane(axes: Axes, names: Sequence[str] = ("x₁", "x₂")) -> None:
    """Name the coordinates of a plane, on the outer panels of a figure only."""
    axes.set(xlabel=literal(names[0]), ylabel=literal(names[1]))
    axes.label_outer()


def grid_points(
    lower: Any, upper: Any, resolution: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return a grid between two corners, (2,) or numbers: x (R, R), y (R, R), points (R, R, 2)."""
    sides = np.linspace(np.broadcast_to(lower, 2), np.broadcast_to(upper, 2), resolution)
    x, y = np.meshgrid(*sides.T)
    return x, y, np.stack([x, y], -1)


def limits_of(points: NDArray[Any], margin: float) -> tuple[Any, Any]:
    """Return the lowest and highest coordinates with a margin, a share of their distance."""
    lower, upper = points.min(0), points.max(0)
    space = np.where(upper > lower, margin * (upper - lower), 1.0)
    return lower - space, upper + space


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


def literal(text: str) -> str:
    r"""Return a name from data as text that Matplotlib draws as it is, not as a formula.

    >>> print(literal("$a_{$"))
    \$a_{\$
    """
    return printable(text).replace("$", r"\$")


@styled
def png_bytes(figure: Figure, dpi: int = DOTS_PER_INCH, form: str = "png") -> bytes:
    """Return the figure as a PNG, or an SVG; equal figures give equal bytes."""
    buffer = io.BytesIO()
    # Without matplotlib's version and the date, the file depends on the figure only.
    metadata = {"svg": {"Date": None}, "png": {"Software": None}}[form]
    figure.savefig(buffer, format=form, dpi=dpi, metadata=metadata)
    return buffer.getvalue()


def save(figure: Figure, path: str | Path, dpi: int = DOTS_PER_INCH) -> Path:
    """Write the figure as a PNG, or as an SVG if the path ends in .svg, and return its path."""
    form = "svg" if Path(path).suffix.lower() == ".svg" else "png"
    return write_atomically(path, png_bytes(figure, dpi, form))
