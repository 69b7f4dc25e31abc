"""Map of the clusters of a table, with uncertain rows in pale colours."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from sklearn.decomposition import PCA

from isthmus.errors import ShapeError
from isthmus.figures.style import CURVE, INK, PAPER, heading, new_figure, scatter, styled, to_array

# The palette of Okabe and Ito, darkest tones first, without yellow, which is hard to see.
COLOURS = (CURVE, "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9", "#7a5195", "#8c6d31")
PALE = "#dfe4e9"
SHOWN_ROWS = 6000
NAMED_IN_LEGEND = 8
# The largest number of rounds in which overlapping rings are moved apart.
MOVES = 300


@styled
def cluster_map(
    X: Any,
    labels: Any,
    certainty: Any,
    memories: Any,
    *,
    title: str = "Clusters",
    columns: tuple[str, ...] = (),
    seed: int = 0,
) -> Figure:
    """Draw rows in the colours of their clusters along the two main directions.

    Where there are more clusters than colours, neighbours still differ, and the numbers beside
    the memories distinguish the rest.

    Parameters
    ----------
    X : array (n, D)
        Rows without missing values, in comparable units. With D = 1, or where all rows
        lie on a line, they are drawn as a histogram.
    labels : array (n,) of int
        Cluster of each row, from 0.
    certainty : array (n,)
        Probability of the cluster of each row; lower values are paler.
    memories : array (K, D)
    title : str
    columns : tuple of str
        The name of the one column, where D = 1.
    seed : int
        Seed of the sample of rows shown, if there are more than 6,000.

    Examples
    --------
    >>> X = [[0.0, 0.0], [0.1, 0.3], [4.0, 4.2], [4.1, 4.0]]
    >>> figure = cluster_map(X, [0, 0, 1, 1], [1, 1, 1, 0.6], [[0.0, 0.1], [4.0, 4.1]])
    >>> figure.axes[0].get_xlabel()
    'main direction 1 (100% of the variance)'
    """
    rows, marks, sure = to_array(X), to_array(memories), to_array(certainty)
    owners = np.asarray(labels, dtype=np.int64)
    if rows.ndim != 2 or marks.ndim != 2 or rows.shape[1] != marks.shape[1]:
        raise ShapeError(f"X {rows.shape} and memories {marks.shape} must be (n, D) and (K, D).")
    if owners.shape != rows.shape[:1] or sure.shape != owners.shape:
        raise ShapeError("labels and certainty must have an entry for each row of X.")
    points, places, shares = project(rows, marks)
    colours = _spread_colours(places)
    flat = rows.shape[1] == 1 or shares[1] < 1e-9
    figure = new_figure(5.2 if flat else 7.2)
    axes = figure.subplots()
    kept = np.arange(len(rows))
    if len(rows) > SHOWN_ROWS and not flat:
        kept = np.random.default_rng(seed).choice(len(rows), SHOWN_ROWS, replace=False)
    if flat:
        line = rows[:, 0] if rows.shape[1] == 1 else points[:, 0]
        stops = marks[:, 0] if rows.shape[1] == 1 else places[:, 0]
        _draw_histogram(axes, line, stops, owners, colours)
        axes.set_xlabel(columns[0] if rows.shape[1] == 1 and columns else "main direction")
        note = "Triangles are memories."
    else:
        names = [f"main direction {k + 1} ({shares[k]:.0%} of the variance)" for k in range(2)]
        axes.set(xlabel=names[0], ylabel=names[1])
        axes.set_aspect("equal", adjustable="datalim")
        _draw_rows(axes, points[kept], colours[owners[kept]], sure[kept])
        moved = _draw_places(axes, places, colours)
        rings = "Rings are memories" + ", moved apart where they met" * moved
        note = f"{rings}; a row is the paler, the less sure its cluster is."
        if len(places) > len(COLOURS):
            note += " Colours repeat."
    if len(kept) < len(rows):
        note = f"{len(kept):,} of {len(rows):,} rows, drawn by lot. {note}"
    heading(axes, title, note, characters=110, lines=1)
    _legend(axes, owners, colours)
    return figure


def project(
    rows: NDArray[Any], marks: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return rows (n, 2), memories (K, 2) and shares of variance (2,) along the main directions."""
    centre, found = rows.mean(0), min(2, *rows.shape)
    with np.errstate(invalid="ignore", divide="ignore"):  # all rows may be equal
        pca = PCA(found, random_state=0).fit(rows - centre)
    shares = np.nan_to_num(pca.explained_variance_ratio_)
    basis = np.pad(pca.components_, ((0, 2 - found), (0, 0))).T
    return (rows - centre) @ basis, (marks - centre) @ basis, np.pad(shares, (0, 2 - found))


def _spread_colours(places: NDArray[Any]) -> NDArray[Any]:
    """Return a colour for each memory; repeated colours are far apart on the map. (K, 3)"""
    palette = np.array([to_rgb(colour) for colour in COLOURS])
    chosen = np.arange(len(places))
    for number in range(len(COLOURS), len(places)):
        away = np.linalg.norm(places[:number] - places[number], axis=1)
        nearest = [away[chosen[:number] == colour].min() for colour in range(len(COLOURS))]
        chosen[number] = int(np.argmax(nearest))
    picked: NDArray[Any] = palette[chosen]
    return picked


def _draw_rows(
    axes: Axes, points: NDArray[Any], colours: NDArray[Any], certainty: NDArray[Any]
) -> None:
    """Draw rows in their colours, paled from certain rows to those at even odds."""
    strength = ((certainty - 0.5) / 0.5).clip(0.0, 1.0)[:, None]
    paled = strength * colours + (1 - strength) * np.array(to_rgb(PALE))
    size = float(np.clip(20000 / len(points), 8, 34))
    order = np.argsort(strength[:, 0], kind="stable")  # pale ones do not hide the others
    look: dict[str, Any] = {"edgecolors": PAPER, "linewidths": 0.25, "rasterized": True}
    scatter(axes, points[order], s=size, c=paled[order], zorder=2, **look)


def _draw_places(axes: Axes, places: NDArray[Any], colours: NDArray[Any]) -> bool:
    """Draw numbered rings; return True if some were moved apart to be legible."""
    large = len(places) <= 20
    moved, rings = _apart(axes, places, 24.0 if large else 17.0)
    for place, ring, colour in zip(places[moved], rings[moved], colours[moved], strict=True):
        stem = np.stack([place, ring], axis=1)
        axes.plot(*stem, "o-", color=colour, lw=1.6, ms=5, mec=PAPER, markevery=[0], zorder=3)
    edges: dict[str, Any] = {
        "edgecolors": [tuple(colour) for colour in colours],
        "linewidths": 2.4 if large else 1.8,
    }
    face = PAPER if large else "#ffffffa0"
    scatter(axes, rings, s=330 if large else 170, c=face, zorder=4, **edges)
    centred: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontweight": "bold"}
    for number, place in enumerate(rings, 1):
        axes.annotate(str(number), place, fontsize=10 if large else 7.5, zorder=5, **centred)
    return bool(moved.any())


def _apart(
    axes: Axes, places: NDArray[Any], points: float
) -> tuple[NDArray[np.bool_], NDArray[Any]]:
    """Push positions that are nearer than a distance, in points, away from each other."""
    axes.autoscale_view()
    axes.apply_aspect()
    scale = axes.figure.dpi / 72
    before = axes.transData.transform(places) / scale
    # Rings at the same position move in different directions.
    angles = 2.4 * np.arange(len(places))
    now = before + 1e-3 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    for _ in range(MOVES):
        away = now[:, None] - now
        distances = np.linalg.norm(away, axis=2)
        np.fill_diagonal(distances, np.inf)
        short = (points - distances).clip(min=0)
        if not short.any():
            break
        now += (away * (0.5 * short / distances)[..., None]).sum(1)
    moved: NDArray[np.bool_] = np.linalg.norm(now - before, axis=1) > 1
    found = axes.transData.inverted().transform(now * scale)
    return moved, np.where(moved[:, None], found, places)


def _draw_histogram(
    axes: Axes,
    line: NDArray[Any],
    stops: NDArray[Any],
    owners: NDArray[Any],
    colours: NDArray[Any],
) -> None:
    edges = np.histogram_bin_edges(line, bins=min(80, max(12, len(line) // 8)))
    groups = [line[owners == cluster] for cluster in range(len(stops))]
    look: dict[str, Any] = {"color": list(colours), "edgecolor": PAPER, "linewidth": 0.4}
    axes.hist(groups, edges.tolist(), stacked=True, **look)
    top = axes.get_ylim()[1]
    axes.set_ylim(0, 1.12 * top)
    axes.plot(stops, np.full(len(stops), 1.06 * top), "v", color=INK, ms=9, mec=PAPER)
    axes.set_ylabel("rows")


def _legend(axes: Axes, owners: NDArray[Any], colours: NDArray[Any]) -> None:
    sizes = np.bincount(owners, minlength=len(colours))
    if len(sizes) > NAMED_IN_LEGEND:
        return
    handles = [
        Line2D([], [], marker="o", ls="", color=colour, ms=7, label=f"{number}: {size:,} rows")
        for number, (colour, size) in enumerate(zip(colours, sizes, strict=True), 1)
    ]
    axes.legend(handles=handles, fontsize=9.5, loc="best", handletextpad=0.2)
