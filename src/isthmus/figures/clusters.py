"""Pictures of the clusters of a table: a map with its legend, and the tree of merges."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray
from scipy.cluster.hierarchy import dendrogram
from sklearn.decomposition import PCA

from isthmus.errors import ShapeError
from isthmus.extras import require
from isthmus.figures import style
from isthmus.figures.style import literal, styled, to_array

# Clusters of one colour differ in their markers.
MARKERS = "os^Dv"
PALE = np.array(to_rgb("#dfe4e9"))
SHOWN_ROWS = 6000
# The legend has up to three columns of this many entries; the table of classes this many rows and
# columns.
LEGEND_ROWS, TABLE_SIDE = 14, 20


@styled
def cluster_map(
    X: Any,
    labels: Any,
    certainty: Any,
    memories: Any,
    *,
    title: str = "Clusters",
    columns: tuple[str, ...] = (),
    classes: Any = None,
    class_name: str = "class",
    barriers: Any = None,
    gap_curve: Mapping[str, Any] | None = None,
    resolution: float | None = None,
    seed: int = 0,
) -> Figure:
    """Draw rows in the colours of their clusters, with a legend beside the map.

    Two columns are drawn as they are, more along the two main directions.

    Parameters
    ----------
    X : array (n, D)
        Rows without missing values, in comparable units if D > 2. With D = 1, or where all rows
        lie on a line, they are drawn as a histogram.
    labels, certainty : array (n,)
        Cluster of each row, from 0, and its probability; rows of lower ones are paler.
    memories : array (K, D)
        Centres of the clusters.
    title : str
    columns : tuple of str
        The names of the columns, where D is 1 or 2.
    classes : array (n,), optional
        Known classes, for a table of the classes in each cluster.
    class_name : str
    barriers : array (K, K), optional
        Heights between clusters, as in `BasinFlow.barriers_`. Of each cluster, the lowest is drawn.
    gap_curve : mapping, optional
        As `BasinFlow.gap_curve_`: drawn beside the map, with the `resolution` chosen.
    resolution : float, optional
    seed : int
        Seed of the sample of rows shown, if there are more than 6,000.

    Examples
    --------
    >>> X = [[0.0, 0.0], [0.1, 0.3], [4.0, 4.2], [4.1, 4.0]]
    >>> figure = cluster_map(X, [0, 0, 1, 1], [1, 1, 1, 0.6], [[0.0, 0.1], [4.0, 4.1]])
    """
    rows, marks, sure = to_array(X), to_array(memories), to_array(certainty)
    owners = np.asarray(labels, dtype=np.int64)
    if rows.ndim != 2 or marks.ndim != 2 or rows.shape[1] != marks.shape[1]:
        raise ShapeError(f"X {rows.shape} and memories {marks.shape} must be (n, D) and (K, D).")
    if owners.shape != rows.shape[:1] or sure.shape != owners.shape:
        raise ShapeError("labels and certainty must have an entry for each row of X.")
    # Heights of the panels beside the map, in inches.
    parts = {"legend": 0.5 + 0.2 * min(len(marks), LEGEND_ROWS)}
    if gap_curve is not None and np.isfinite(gap_curve["gap"]).any():
        parts["gap"] = 2.2
    if classes is not None:
        parts["classes"] = 1.7 + 0.17 * min(len(marks), TABLE_SIDE)
    figure = style.new_figure(max(5.2 if rows.shape[1] == 1 else 7.2, sum(parts.values())))
    heights = [*parts.values(), max(figure.get_figheight() - sum(parts.values()), 0.01)]
    grid = figure.add_gridspec(len(heights), 2, width_ratios=[2.5, 1], height_ratios=heights)
    axes = figure.add_subplot(grid[:, 0])
    beside = {name: figure.add_subplot(grid[place, 1]) for place, name in enumerate(parts)}
    colours = draw_clusters(axes, rows, owners, sure, marks, title, columns, barriers, seed)
    _draw_legend(beside["legend"], np.bincount(owners, minlength=len(marks)), colours)
    if "gap" in parts and gap_curve is not None:
        draw_gap_curve(beside["gap"], gap_curve, resolution)
    if "classes" in parts:
        _draw_classes(beside["classes"], owners, np.asarray(classes).astype(str), class_name)
    return figure


def draw_clusters(
    axes: Axes,
    rows: NDArray[Any],
    owners: NDArray[Any],
    sure: NDArray[Any],
    marks: NDArray[Any],
    title: str = "Clusters",
    columns: tuple[str, ...] = (),
    barriers: Any = None,
    seed: int = 0,
) -> NDArray[Any]:
    """Draw the map, or the histogram, of :func:`cluster_map`; return the colours (K, 3)."""
    points, places, names = _plane(rows, marks, columns)
    colours = np.array([to_rgb(style.PALETTE[k % len(style.PALETTE)]) for k in range(len(marks))])
    axes.set(xlabel=names[0], ylabel=names[-1])
    if points.shape[1] == 1:
        _draw_histogram(axes, points[:, 0], places[:, 0], owners, colours)
        style.heading(axes, title, "Triangles are the centres of clusters.", characters=92)
        return colours
    if rows.shape[1] > 2:
        axes.set_aspect("equal", adjustable="datalim")
    shown = np.random.default_rng(seed).permutation(len(rows))[:SHOWN_ROWS]
    _draw_rows(axes, points[shown], owners[shown], colours, sure[shown])
    _draw_numbers(axes, places, colours)
    note = "Rings are centres; a row is paler, the less certain its cluster is."
    if len(marks) > 1 and barriers is not None:
        _draw_barriers(axes, to_array(barriers), places)
        note += " Lines: each cluster's lowest barrier, thick where low."
    if len(shown) < len(rows):
        note = f"{len(shown):,} of {len(rows):,} rows, drawn by lot. {note}"
    style.heading(axes, title, note, characters=min(92, style.fitting_characters(axes)))
    return colours


def _plane(
    rows: NDArray[Any], marks: NDArray[Any], columns: tuple[str, ...]
) -> tuple[NDArray[Any], NDArray[Any], list[str]]:
    """Return rows (n, d), memories (K, d) and the names of d = 1 or 2 axes."""
    dim = rows.shape[1]
    if dim <= 2:
        names = columns if len(columns) >= dim else ("x1", "x2")
        varies = np.flatnonzero(np.ptp(rows, axis=0) > 0)
        shown = varies if len(varies) else np.array([0])
        return rows[:, shown], marks[:, shown], [literal(names[place]) for place in shown]
    points, places, shares = project(rows, marks)
    if shares[1] < 1e-9:
        return points[:, :1], places[:, :1], ["main direction"]
    names = tuple(f"main direction {k + 1} ({shares[k]:.0%} of the variance)" for k in range(2))
    return points, places, list(names)


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


def _marker(cluster: int) -> str:
    return MARKERS[cluster // len(style.PALETTE) % len(MARKERS)]


def _draw_rows(
    axes: Axes,
    points: NDArray[Any],
    owners: NDArray[Any],
    colours: NDArray[Any],
    certainty: NDArray[Any],
) -> None:
    """Draw rows in their colours, paled from certain rows to those at even odds."""
    strength = (2 * certainty - 1).clip(0.0, 1.0)[:, None]
    paled = strength * colours[owners] + (1 - strength) * PALE
    order = np.argsort(strength[:, 0], kind="stable")  # pale ones do not hide the others
    look: dict[str, Any] = {"edgecolors": style.PAPER, "linewidths": 0.25, "rasterized": True}
    look |= {"s": float(np.clip(20000 / len(points), 8, 34)), "zorder": 2}
    markers = np.array([_marker(cluster) for cluster in owners[order]])
    for marker in dict.fromkeys(markers.tolist()):
        rows = order[markers == marker]
        axes.scatter(points[rows, 0], points[rows, 1], c=paled[rows], marker=marker, **look)


def _draw_numbers(axes: Axes, places: NDArray[Any], colours: NDArray[Any]) -> None:
    """Draw a numbered ring at each centre, small where there are many."""
    size, font = (330, 10.0) if len(places) <= 20 else (120, 6.5)
    look: dict[str, Any] = {"c": "#ffffffc0", "edgecolors": list(colours), "zorder": 4}
    axes.scatter(places[:, 0], places[:, 1], s=size, linewidths=0.2 * font, **look)
    centred: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontweight": "bold"}
    for number, place in enumerate(places, 1):
        axes.annotate(str(number), place, fontsize=font, zorder=5, **centred)


def _draw_histogram(
    axes: Axes, line: NDArray[Any], stops: NDArray[Any], owners: NDArray[Any], colours: NDArray[Any]
) -> None:
    edges = np.histogram_bin_edges(line, bins=min(80, max(12, len(line) // 8)))
    groups = [line[owners == cluster] for cluster in range(len(stops))]
    look: dict[str, Any] = {"color": list(colours), "edgecolor": style.PAPER, "linewidth": 0.4}
    axes.hist(groups, edges.tolist(), stacked=True, **look)
    top = axes.get_ylim()[1]
    axes.set(ylim=(0, 1.12 * top), ylabel="rows")
    axes.plot(stops, np.full(len(stops), 1.06 * top), "v", color=style.INK, ms=9, mec=style.PAPER)


def _draw_barriers(axes: Axes, barriers: NDArray[Any], places: NDArray[Any]) -> None:
    """Join each cluster to the one behind its lowest barrier, the thicker the lower it is."""
    heights = np.where(np.eye(len(barriers), dtype=bool), np.inf, barriers)
    pairs = {(min(pair), max(pair)) for pair in enumerate(heights.argmin(1).tolist())}
    finite = {pair: heights[pair] for pair in sorted(pairs) if np.isfinite(heights[pair])}
    for pair, height in finite.items():
        low, high = min(finite.values()), max(finite.values())
        width = 1.0 + 3.5 * (high - height) / max(high - low, 1e-9)
        axes.plot(*places[list(pair)].T, color=style.MUTED, lw=width, alpha=0.7, zorder=2.5)


def _draw_legend(axes: Axes, sizes: NDArray[Any], colours: NDArray[Any]) -> None:
    """List the first clusters and their sizes, in up to three columns beside the map."""
    axes.set_axis_off()
    handles = [
        Line2D([], [], marker=_marker(k), ls="", color=colours[k], ms=6, label=f"{k + 1}: {size:,}")
        for k, size in enumerate(sizes[: 3 * LEGEND_ROWS])
    ]
    look: dict[str, Any] = {"title": "cluster: number of rows", "title_fontsize": 9, "fontsize": 8}
    look |= {"handletextpad": 0.1, "columnspacing": 0.8, "borderaxespad": 0, "alignment": "left"}
    axes.legend(handles=handles, ncols=-(-len(handles) // LEGEND_ROWS), loc="upper left", **look)


def draw_gap_curve(axes: Axes, curve: Mapping[str, Any], resolution: float | None) -> None:
    """Draw the gap at each resolution, and the one that was chosen."""
    axes.plot(curve["resolution"], curve["gap"], "o-", color=style.CURVE, ms=3.5, lw=1.2)
    axes.axhline(0, color=style.RULE, lw=0.8, zorder=0)
    axes.set(xscale="log", xlabel="resolution", ylabel="gap to one cluster")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.minorticks_off()
    if resolution is not None and np.isfinite(resolution):
        axes.axvline(resolution, color=style.INK, lw=1.0, ls=":")


def _draw_classes(axes: Axes, owners: NDArray[Any], classes: NDArray[Any], class_name: str) -> None:
    """Draw the share of each class in each cluster, of the most common classes."""
    require("pandas")
    import pandas as pd

    kinds = pd.Series(classes).replace("", "unknown")
    whole = pd.crosstab(owners, kinds, normalize="index")
    table = whole.loc[: TABLE_SIDE - 1, kinds.value_counts().index[:TABLE_SIDE]]
    # Classes in the order of the clusters that hold most of them.
    table = table.iloc[:, np.argsort(table.to_numpy().argmax(0), kind="stable")]
    names = [literal(name if len(name) <= 14 else f"{name[:13]}…") for name in table.columns]
    axes.imshow(table, cmap=style.DEPTH, vmin=0, vmax=1, aspect="auto")
    look: dict[str, Any] = {"fontsize": 8 if max(table.shape) <= 10 else 6.5}
    axes.set_xticks(
        range(len(names)), names, rotation=60, ha="right", rotation_mode="anchor", **look
    )
    axes.set_yticks(range(len(table)), [str(number + 1) for number in table.index], **look)
    axes.set_title(f"Share of each {literal(class_name)}", fontsize=9.5, fontweight="normal")
    axes.set_ylabel("cluster")


@styled
def cluster_tree(
    linkage: Any, *, sizes: Any = None, title: str = "Merges", axes: Axes | None = None
) -> Figure:
    r"""Draw the tree in which clusters merge as the resolution falls.

    Parameters
    ----------
    linkage : array (K - 1, 4)
        As `BasinFlow.linkage_`, or any linkage of `scipy.cluster.hierarchy`.
    sizes : array (K,), optional
        Numbers of rows, written below the numbers of clusters.
    title : str
    axes : matplotlib Axes, optional
        Default: those of a new figure.

    Examples
    --------
    >>> figure = cluster_tree([[0, 1, 0.5, 2], [2, 3, 2.0, 3]], sizes=[60, 30, 10])
    >>> [text.get_text() for text in figure.axes[0].get_xticklabels()]
    ['3\n10', '1\n60', '2\n30']
    """
    tree = to_array(linkage).reshape(-1, 4)
    names = [str(leaf) for leaf in range(1, len(tree) + 2)]
    axes = axes or style.new_figure(4.6).subplots()
    if sizes is not None:
        names = [f"{name}\n{int(size):,}" for name, size in zip(names, sizes, strict=True)]
    if len(tree):
        look: dict[str, Any] = {"color_threshold": 0, "above_threshold_color": style.CURVE}
        dendrogram(tree, ax=axes, labels=names, leaf_font_size=9 if len(tree) < 20 else 5, **look)
        axes.set_ylim(0, 1.1 * float(tree[:, 2].max()) or 1.0)
    else:
        axes.set(xticks=[0], xticklabels=names, yticks=[])
    axes.set(xlabel="cluster" + ", number of rows" * (sizes is not None), ylabel="height of merge")
    note = "Two clusters join where the resolution falls to their height."
    style.heading(axes, title, note, characters=110, lines=1)
    return style.root_of(axes)
