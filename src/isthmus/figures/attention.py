"""The figure of attention: components and queries on the sphere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from numpy.typing import NDArray

from isthmus.attention import VMFMixture
from isthmus.errors import InvalidInputError
from isthmus.figures import style
from isthmus.figures.style import styled, to_array

SHADES = LinearSegmentedColormap.from_list("concentration", ["#cfe3f2", "#4f95c2", "#0b3c5d"])
LARGEST_DOT = 900.0
KEY = (
    "Disc: a component, its area the mixing weight. Dot: a query, with a line to the component "
    "it attends to most."
)


@styled
def attention_sphere(
    view: VMFMixture,
    *,
    sequence: int = 0,
    heads: Iterable[int] | None = None,
    position: int = -1,
) -> Figure:
    """Draw the components of heads, and the queries they cluster, on the sphere.

    Each panel shows the two directions in which a head's components are longest.

    Parameters
    ----------
    view : VMFMixture
    sequence : int
        Which of the B sequences to draw.
    heads : iterable of int, optional
        Which heads; by default the first four.
    position : int
        Whose mixture to draw where each query has one of its own.

    Examples
    --------
    >>> import torch
    >>> from isthmus.attention import PreNormAttention, vmf_view
    >>> layer = PreNormAttention(16, 2, batch_first=True)
    >>> figure = attention_sphere(vmf_view(layer, torch.randn(1, 6, 16)))
    """
    batch, n_heads = view.concentration.shape[:2]
    chosen = list(range(min(4, n_heads))) if heads is None else list(heads)
    if not chosen or not all(0 <= head < n_heads for head in chosen):
        raise InvalidInputError(f"heads must be some of 0 to {n_heads - 1}, not {chosen}.")
    if not -batch <= sequence < batch:
        raise InvalidInputError(f"sequence must be below {batch}, not {sequence}.")
    parts = [_components(view, sequence, head, position) for head in chosen]
    every = np.concatenate([kappa[seen] for _, kappa, _, seen in parts])
    scale = Normalize(every.min(), every.max() if np.ptp(every) > 0 else every.min() + 1)
    height = min(4.2, 9 / min(4, len(chosen)) + 0.95)
    figure, grid = style.panels(len(chosen), columns=4, panel_height=height)
    for axes, head, (directions, kappa, mixing, seen) in zip(grid, chosen, parts, strict=True):
        queries = to_array(view.query_direction[sequence])
        queries = queries[head] if queries.ndim == 3 else queries
        weights = to_array(view.responsibilities()[sequence, head])
        if view.concentration.ndim == 4:  # these components are those of one query only
            queries, weights = queries[[position]], weights[[position]]
        plane, share = _plane(directions[seen])
        axes.add_patch(Circle((0, 0), 1, facecolor="#f6f8fa", edgecolor=style.RULE, zorder=0))
        # The remaining height goes to the title.
        axes.set(xlim=(-1.08, 1.08), ylim=(-1.08, 1.08), aspect="equal", anchor="S")
        axes.set_axis_off()
        for query, own in zip(queries, weights * seen, strict=True):
            if own.any():
                ends = np.stack([query, directions[own.argmax()]]) @ plane
                axes.plot(*ends.T, color=style.MEMORY, lw=0.7, alpha=0.5, zorder=1)
        axes.plot(*(queries @ plane).T, "o", color=style.MEMORY, ms=3.5, mec=style.PAPER, zorder=4)
        look: dict[str, Any] = {"cmap": SHADES, "norm": scale, "edgecolor": style.INK, "zorder": 3}
        sizes = LARGEST_DOT * mixing[seen]
        style.scatter(axes, directions[seen] @ plane, s=sizes, c=kappa[seen], alpha=0.85, **look)
        note = f"{seen.sum()} components. This plane has {share:.0%} of their squared length."
        style.heading(axes, f"Head {head}", note, characters=31)
    bar = figure.colorbar(ScalarMappable(scale, SHADES), ax=grid, shrink=0.6, pad=0.02, aspect=22)
    bar.set_label("concentration κ")
    bar.outline.set_visible(False)
    figure.supxlabel(KEY, x=0.005, ha="left", fontsize=9, color=style.MUTED)
    return figure


def _components(
    view: VMFMixture, sequence: int, head: int, position: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return directions (T, D), concentrations, mixing weights and a mask of those above zero."""
    fields = {view.mean_direction: 2, view.concentration: 1, view.log_mixing.exp(): 1}
    parts = [(to_array(field[sequence, head]), axes) for field, axes in fields.items()]
    # An axis for the queries comes first where each has a mixture of its own.
    directions, kappa, mixing = (part[position] if part.ndim > n else part for part, n in parts)
    seen = mixing > 0
    if not seen.any():
        raise InvalidInputError(f"The query at position {position} sees no key; name another one.")
    return directions, kappa, mixing, seen


def _plane(directions: NDArray[Any]) -> tuple[NDArray[Any], float]:
    """Return the two main axes (D, 2) of the directions and the share of variance they explain."""
    # A row of zeros gives a single component its second axis.
    _, sizes, axes = np.linalg.svd(np.pad(directions, ((0, 1), (0, 0))), full_matrices=False)
    # The signs of singular vectors are arbitrary: make the larger side positive.
    plane = axes[:2].T * np.where((directions @ axes[:2].T).sum(0) < 0, -1.0, 1.0)
    return plane, float((sizes[:2] ** 2).sum() / (sizes**2).sum())
