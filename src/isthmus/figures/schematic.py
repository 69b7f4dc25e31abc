"""Figure of the four models of learned memories: their states and their results."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Wedge
from numpy.typing import NDArray

from isthmus.cluster.elbo import elbo_flow
from isthmus.errors import ShapeError
from isthmus.figures.clustering import CLUSTERS, NEW, draw_new_region
from isthmus.figures.landscape_2d import draw_energy, draw_memories, draw_retrieval
from isthmus.figures.style import INK, heading, panels, styled, to_array
from isthmus.memories.crp import CRPMixture
from isthmus.memories.mixture import Mixture

__all__ = ["four_models"]


@styled
def four_models(
    means: Any,
    counts: Any,
    data: Any,
    *,
    beta: float,
    rho: float,
    alpha: float,
    reach: float,
    resolution: int = 201,
) -> Figure:
    """Draw ClAM, ClAM+CRP, ClAM+ELBO and ClAM+CRP+ELBO on the same memories and data.

    Above, the state is a datum that rolls down an energy in the space of data. Below, it stays
    where it is, and the state is its assignment, which flows to the posterior: a pie, green
    where it belongs to no memory yet. Left, the memories are given; right, new ones may open.

    Parameters
    ----------
    means : array (K, 2)
    counts : array (K,)
    data : array (N, 2)
    beta, rho, alpha : float
        As in :class:`isthmus.CRPMixture`.
    reach : float
        The panels show [-reach, reach]^2.

    Examples
    --------
    >>> figure = four_models(
    ...     [[-1.0, 0.0], [1.0, 0.0]], [5.0, 5.0], [[0.2, 1.0]],
    ...     beta=2.0, rho=0.2, alpha=1.0, reach=2.0, resolution=21,
    ... )
    >>> len(figure.axes)
    4
    """
    marks, weights, points = to_array(means), to_array(counts), to_array(data)
    if marks.ndim != 2 or marks.shape[1] != 2 or points.shape[1:] != (2,):
        raise ShapeError("means and data must be (K, 2) and (N, 2).")
    finite = Mixture(marks, beta=beta, log_weights=np.log(weights))
    growing = CRPMixture(marks, weights, beta=beta, rho=rho, alpha=alpha)
    figure, grid = panels(4, columns=2, panel_height=4.9, sharex=True, sharey=True)
    for axes, energy in zip(grid[:2], (finite, growing), strict=True):
        draw_energy(axes, energy, reach, resolution)
        draw_retrieval(axes, energy, points)
    draw_new_region(grid[1], growing, reach, resolution)
    models: tuple[Mixture | CRPMixture, ...] = (finite, growing)
    for axes, model in zip(grid[2:], models, strict=True):
        draw_energy(axes, model, reach, resolution)
        posteriors = _assignments(model, points)
        for place, shares in zip(points, posteriors, strict=True):
            _draw_pie(axes, place, shares, len(marks), 0.055 * reach)
    for axes in grid:
        draw_memories(axes, marks)
        axes.set(xlabel="x₁", ylabel="x₂")
        axes.label_outer()
    notes = {
        "ClAM": "State: the datum. It rolls to a memory and returns its label.",
        "ClAM + CRP": "The same, with room for more: a datum in the hatched part "
        "opens a memory, wherever it would roll.",
        "ClAM + ELBO": "State: its assignment. It flows to the posterior over memories (pies).",
        "ClAM + CRP + ELBO": "Posterior over memories and a new one (green): both at once.",
    }
    for axes, (name, note) in zip(grid, notes.items(), strict=True):
        heading(axes, name, note, characters=64, lines=2)
    return figure


def _assignments(energy: Mixture | CRPMixture, points: NDArray[Any]) -> NDArray[Any]:
    """Return the posteriors that the ELBO flow of each point reaches: (N, K) or (N, K + 1)."""
    log_joint = energy.responsibilities(energy.as_input(points)).clamp(min=1e-300).log()
    return to_array(elbo_flow(log_joint, "mirror").probabilities)


def _draw_pie(
    axes: Axes, place: NDArray[Any], shares: NDArray[Any], n_memories: int, radius: float
) -> None:
    """Draw a pie of the shares; the last one is that of a new memory."""
    colours = [CLUSTERS[k % len(CLUSTERS)] for k in range(n_memories)] + [NEW]
    ends = 90 + 360 * np.concatenate([[0.0], np.cumsum(shares)])
    for colour, share, start, end in zip(colours, shares, ends, ends[1:], strict=False):
        if share > 1e-3:
            axes.add_patch(
                Wedge(tuple(place), radius, start, end, facecolor=colour, lw=0,
                      zorder=5)
            )  # fmt: skip
    axes.add_patch(Wedge(tuple(place), radius, 0, 360, facecolor="none", edgecolor=INK, lw=0.7,
                         zorder=5))  # fmt: skip
