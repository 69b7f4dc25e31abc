"""`isthmus.plot`: one picture of each object, on matplotlib axes."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from isthmus.capacity import Certificate
from isthmus.dynamics.modes import shared_fixed_points
from isthmus.dynamics.retrieve import retrieve
from isthmus.energy import Energy
from isthmus.errors import InvalidInputError
from isthmus.extras import require
from isthmus.figures import landscapes as land
from isthmus.figures import style
from isthmus.figures.clusters import cluster_map, cluster_tree, draw_clusters, draw_gap_curve
from isthmus.figures.memories import certificate_plot
from isthmus.figures.style import grid_points, limits_of, literal, styled, to_array
from isthmus.impute import MemoryImputer
from isthmus.memories.base import Memory
from isthmus.tables.encoding import as_frame
from isthmus.validation import as_choice, as_count

# Coordinates of a grid of pairs; points of one of its panels a side.
MOST_PAIRS, PAIR_POINTS = 5, 61
# Contours of a pair: the smallest regions that hold these probabilities.
REGIONS = (0.99, 0.95, 0.9, 0.8, 0.65, 0.5, 0.35, 0.2, 0.1)
# Memories and rows beyond these are not drawn one by one.
MOST_MEMORIES, MOST_ROWS = 500, 2000
# Retrieval starts from this many points a side to find basins.
BASIN_POINTS = {1: 400, 2: 60}
MOST_COLUMNS = 12


@styled
def plot(thing: Any, X: Any = None, *, axes: Axes | None = None, **options: Any) -> Any:
    """Draw an energy, a fitted estimator or a certificate, and return the axes.

    ========================= ====================================================================
    energy, D = 1 or 2        landscape, memories, basins (`basins`), and paths from `queries`
    energy, D > 2             densities of pairs of coordinates, and rows X; axes (D, D)
    clusterer and its rows X  map; with `kind` "gap" or "tree", the curve of gaps or the merges
    ``TableDensity``          as its energy
    ``MemoryImputer`` and X   `draws` of the missing values of each column beside the known ones
    ``Certificate`` and X     patterns by what is proved, with their guaranteed balls
    ========================= ====================================================================

    Parameters
    ----------
    thing : Energy, estimator or Certificate
    X : array or data frame (n, D), optional
        Rows to draw. Clusterers, imputers and certificates need those that they describe.
    axes : matplotlib Axes, optional
        Default: those of a new figure, with a legend beside them where one is needed.
    **options
        queries : array (Q, D); basins : bool; columns : two coordinates (of an energy)
        kind : {"map", "gap", "tree"} (of a clusterer); draws : int (of an imputer)

    Returns
    -------
    matplotlib Axes, or an array of them for pairs

    Examples
    --------
    >>> import numpy as np, isthmus as ist
    >>> axes = ist.plot(ist.GaussianKDE(np.eye(2), 0.3), queries=[[0.9, 0.9]])
    >>> axes.get_xlabel()
    'x₁'
    >>> axes.figure.savefig("landscape.png")  # doctest: +SKIP
    """
    if isinstance(thing, Certificate):
        return _certificate(thing, X, axes, **options)
    if isinstance(thing, MemoryImputer):
        return _imputations(thing, X, axes, **options)
    if hasattr(thing, "cluster_centers_"):
        return _clusters(thing, X, axes, **options)
    names = getattr(thing, "feature_names_in_", getattr(X, "columns", ()))
    energy = thing if isinstance(thing, Energy) else getattr(thing, "energy_", None)
    if energy is None or energy.dim is None:
        raise InvalidInputError(
            f"{type(thing).__name__} has no picture. Pass an energy with a number of coordinates, "
            "a fitted estimator or a certificate."
        )
    rows = None if X is None else to_array(X)
    if energy.dim > 2 or "columns" in options or not isinstance(thing, Energy):
        return _pairs(energy, rows, axes, [str(name) for name in names], **options)
    return _landscape(energy, rows, axes, **options)


def _new_axes(height: float = 5.6) -> Axes:
    figure = style.new_figure(height)
    figure.set_figwidth(7.0)
    return figure.subplots()


def _window(energy: Energy, *points: Any) -> NDArray[Any]:
    """Return points that a picture must show: those given, memories, or draws."""
    known = [to_array(energy.as_input(each)) for each in points if each is not None]
    if isinstance(energy, Memory):
        known.append(to_array(energy.memories))
    if not known and energy.has_exact_draws:
        known.append(to_array(energy.sample(500)))
    if not known:
        raise InvalidInputError("The energy has no memories to show; pass rows X of the window.")
    return np.concatenate([each.reshape(-1, energy.dim or 1) for each in known])


def _landscape(
    energy: Energy, rows: Any, axes: Axes | None, queries: Any = None, basins: bool = True
) -> Axes:
    axes = axes or _new_axes()
    window = _window(energy, rows, queries)
    marks = to_array(energy.memories) if isinstance(energy, Memory) else window[:0]
    marks = marks if len(marks) <= MOST_MEMORIES else marks[:0]
    if energy.dim == 1:
        land.draw_landscape(axes, energy, marks, queries, window=window)
        axes.set(xlabel="x", ylabel="energy")
        x = np.linspace(*axes.get_xlim(), BASIN_POINTS[1])
        for edge in np.flatnonzero(np.diff(_basins(energy, x[:, None]))) if basins else ():
            axes.axvline(0.5 * (x[edge] + x[edge + 1]), color=style.INK, ls=":", lw=1.0)
        return axes
    lower, upper = limits_of(window, 0.25)
    land.draw_energy(axes, energy, (lower, upper))
    axes.set(xlabel="x₁", ylabel="x₂")
    if basins:
        # Wider by a hair, so that no point lies on an axis of symmetry and rests on a saddle.
        wider = upper + 0.007 * (upper - lower) * np.array([1.0, 0.0])
        x, y, points = grid_points(lower, wider, BASIN_POINTS[2])
        labels = _basins(energy, points.reshape(-1, 2)).reshape(x.shape)
        look: dict[str, Any] = {"colors": style.INK, "linewidths": 0.8, "linestyles": "dotted"}
        for label in np.unique(labels)[:40] if np.ptp(labels) else ():
            axes.contour(x, y, labels == label, [0.5], **look)
    if rows is not None:
        land.draw_draws(axes, rows[:MOST_ROWS])
    land.draw_memories(axes, marks, 7 if len(marks) <= 50 else 3)
    if queries is not None:
        land.draw_retrieval(axes, energy, to_array(energy.as_input(queries)))
    return axes


def _basins(energy: Energy, points: NDArray[Any]) -> NDArray[np.int64]:
    """Return the number of the minimum that each point (n, D) is retrieved to; -1 for none."""
    found = retrieve(energy, points)
    ends, labels = to_array(found.state), np.full(len(points), -1)
    moves = np.isfinite(to_array(found.energy))
    if moves.any():
        near = 0.01 * float(np.ptp(points, axis=0).max())
        labels[moves] = shared_fixed_points(ends[moves], near)
    return labels


def _pairs(
    energy: Energy,
    rows: NDArray[Any] | None,
    axes: Axes | None,
    names: list[str],
    columns: tuple[int, int] | None = None,
) -> Any:
    dim = energy.dim or 0
    names = [literal(name) for name in names] or [f"x{place + 1}" for place in range(dim)]
    shown = to_array(energy.sample(500)) if rows is None else rows[:MOST_ROWS]
    if columns is not None:
        axes = axes or _new_axes()
        _draw_pair(axes, energy, shown, *columns, names)
        return axes
    if axes is not None:
        raise InvalidInputError("All pairs take several axes; choose columns=(i, j).")
    count = min(dim, MOST_PAIRS)
    figure = style.new_figure(1.0 + 1.75 * count)
    grid = figure.subplots(count, count, squeeze=False)
    for (row, column), panel in np.ndenumerate(grid):
        if column > row:
            panel.set_axis_off()
            continue
        _draw_pair(panel, energy, shown, column, row, names)
        panel.label_outer()
    title = f"Density of each coordinate and pair; dots are {'draws' if rows is None else 'rows'}."
    title += f" The first {count} of {dim}." * (count < dim)
    figure.suptitle(title, x=0.01, ha="left", fontsize=11.5, fontweight="bold")
    return grid


def _draw_pair(
    axes: Axes, energy: Energy, rows: NDArray[Any], first: int, second: int, names: list[str]
) -> None:
    """Draw the density of two coordinates with rows; of one twice, with a histogram."""
    chosen = [first] if first == second else [first, second]
    lower, upper = (np.nanquantile(rows[:, chosen], q, axis=0) for q in (0.005, 0.995))
    space = 0.12 * np.where(upper > lower, upper - lower, 1.0)
    lower, upper = lower - space, upper + space
    seen = np.isin(np.arange(rows.shape[1]), chosen)
    if len(chosen) == 1:
        x = np.linspace(lower[0], upper[0], 4 * PAIR_POINTS)
        points = np.zeros((len(x), rows.shape[1]))
        points[:, first] = x
        inside = rows[(rows[:, first] >= lower[0]) & (rows[:, first] <= upper[0]), first]
        axes.hist(inside, 25, density=True, color=style.RULE)
        axes.plot(x, np.exp(to_array(energy.log_prob(points, seen))), color=style.CURVE, lw=1.6)
        axes.set(xlabel=names[first], ylabel="density", yticks=[])
        return
    x, y, plane = grid_points(lower, upper, PAIR_POINTS)
    points = np.zeros((*x.shape, rows.shape[1]))
    points[..., chosen] = plane
    height = to_array(energy.log_prob(points, np.broadcast_to(seen, points.shape)))
    density = np.exp(height - height.max())
    ordered = np.sort(density, axis=None)
    below = np.cumsum(ordered) / ordered.sum()
    levels = ordered[np.searchsorted(below, 1 - np.array(REGIONS))]
    axes.contourf(x, y, density, np.unique([*levels, 1.0]), cmap=style.DEPTH, norm="log")
    land.draw_draws(axes, rows[:, chosen], 1.6)
    axes.set(xlim=(lower[0], upper[0]), ylim=(lower[1], upper[1]))
    axes.set(xlabel=names[first], ylabel=names[second])


def _clusters(model: Any, X: Any, axes: Axes | None, kind: str = "map") -> Axes:
    as_choice(kind, "kind", ("map", "gap", "tree"))
    name = type(model).__name__
    if kind != "map" and not hasattr(model, "gap_curve_"):
        raise InvalidInputError(f"{name} has no {kind}; BasinFlow has.")
    if kind == "tree":
        sizes = np.bincount(model.labels_, minlength=model.n_clusters_)
        return cluster_tree(model.linkage_, sizes=sizes, axes=axes).axes[0]
    if kind == "gap":
        axes = axes or _new_axes(4.0)
        draw_gap_curve(axes, model.gap_curve_, model.resolution_)
        return axes
    if X is None:
        raise InvalidInputError("Pass the rows to draw: model.plot(X).")
    rows = model._table(X) if hasattr(model, "_table") else to_array(X)
    labels, centres = np.asarray(model.predict(X)), to_array(model.cluster_centers_)
    sure = model.predict_proba(X).max(1) if hasattr(model, "predict_proba") else np.ones(len(rows))
    rows = np.where(np.isnan(rows), centres[labels], rows)
    if rows.shape[1] > 2:  # in comparable units
        scale = np.where(np.ptp(rows, axis=0) > 0, rows.std(0), 1.0)
        rows, centres = rows / scale, centres / scale
    columns = tuple(map(str, getattr(model, "feature_names_in_", ())))
    parts: dict[str, Any] = {"columns": columns, "barriers": getattr(model, "barriers_", None)}
    parts["title"] = f"{name}: {len(centres)} cluster{'s' * (len(centres) != 1)}"
    if axes is not None:
        draw_clusters(axes, rows, labels, sure, centres, **parts)
        return axes
    parts |= {name: getattr(model, f"{name}_", None) for name in ("gap_curve", "resolution")}
    return cluster_map(rows, labels, sure, centres, **parts).axes[0]


def _certificate(certificate: Certificate, X: Any, axes: Axes | None) -> Axes:
    if X is None:
        raise InvalidInputError("Pass the patterns of the certificate: certificate.plot(X).")
    names = [str(name) for name in getattr(X, "columns", ())]
    figure = certificate_plot(certificate, X, names, axes=axes)
    return axes or figure.axes[0]


def _imputations(model: MemoryImputer, X: Any, axes: Axes | None, draws: int = 5) -> Axes:
    """Draw the known values of columns with gaps, and draws of the missing ones beside them."""
    if X is None:
        raise InvalidInputError("Pass the table with gaps: imputer.plot(X).")
    require("pandas")
    import pandas as pd

    fillings = [pd.DataFrame(one) for one in model.draw(X, as_count(draws, "draws"))]
    frame, generator = pd.DataFrame(as_frame(X)), np.random.default_rng(0)
    numbers = frame.apply(pd.to_numeric, errors="coerce").astype(float)
    # Columns with gaps of which all other cells are numbers.
    gaps = frame.isna()
    chosen = np.flatnonzero(gaps.any() & (numbers.isna() == gaps).all())[:MOST_COLUMNS]
    if not len(chosen):
        raise InvalidInputError("X has no column of numbers with gaps to draw.")
    axes = axes or _new_axes()
    for spot, place in enumerate(chosen):
        known, missing = numbers.iloc[:, place].dropna(), gaps.iloc[:, place].to_numpy()
        drawn = np.concatenate([one.iloc[missing, place].to_numpy(float) for one in fillings])
        for shift, colour, own in ((-0.2, style.CURVE, known), (0.2, style.MEMORY, drawn)):
            own = (generator.permutation(own)[:MOST_ROWS] - known.mean()) / (known.std(ddof=0) or 1)
            x = spot + shift + generator.uniform(-0.13, 0.13, len(own))
            axes.plot(x, own, "o", ms=3, mew=0, alpha=0.5, color=colour)
    names = [literal(str(name)) for name in frame.columns[chosen]]
    axes.set_xticks(range(len(chosen)), names, rotation=30, ha="right")
    axes.set(ylabel="standard deviations from the mean of the known")
    note = f"Blue: known. Orange: {draws} draws of each missing value."
    style.heading(axes, "Filled values", note)
    return axes
