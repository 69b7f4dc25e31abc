"""Basins of attraction on a grid: one update of every node, followed by interpolation.

The update of all nodes is a map of the plane, known on the grid. Applying the interpolated map to
itself twelve times stands for 4,096 updates and costs twelve look-ups of each node. That decides
all nodes but those next to a border of two basins, which are retrieved.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.dynamics.modes import shared_fixed_points
from isthmus.dynamics.retrieve import retrieve
from isthmus.energy import Energy
from isthmus.memories.crp import CRPMixture
from isthmus.memories.hopfield import Hopfield
from isthmus.play.scene import Scene

DOUBLINGS = 12
# Up to this many cells a move is interpolated; a longer one is that of the nearest node.
INTERPOLATED_CELLS = 1.5
# A map that moves no node by more than this many cells is at rest.
AT_REST_CELLS = 1e-3
# Ends of nodes this many cells from every mode belong to no basin.
LOST_CELLS = 2.5
# Longest move of a node down a sampled slope, in cells, and the slope that moves it as far, as a
# share of the median one.
LONGEST_MOVE, FULL_SLOPE = 0.7, 0.3
# Points at rest closer than this, in units of the plane, are one mode.
SAME_MODE, NEAR_MODE = 2e-3, 5
ROUNDS, MOST_STEPS = 48, 400

Labels = NDArray[np.int16]


class BasinMap(NamedTuple):
    """The label of every node, (rows, columns), and the modes (M, 2) with theirs (M,).

    A label is the index of the first memory in the basin, so that it stays while others move;
    that of the prior of a CRP mixture is -2, and of no basin -1.
    """

    labels: Labels
    modes: NDArray[np.float64]
    mode_labels: Labels

    def nearest(self, ends: Tensor, lost: float) -> Labels:
        """Return the label of the mode nearest to each end (n, 2), or -1 if it is lost. (n,)."""
        distance, nearest = torch.cdist(ends, torch.from_numpy(self.modes).to(ends)).min(1)
        return np.where(distance.numpy() <= lost, self.mode_labels[nearest.numpy()], np.int16(-1))


def downhill(heights: Tensor, nodes: Tensor) -> Tensor:
    """Move the nodes (rows, columns, 2) down the slope of their heights (rows, columns)."""
    cell = (nodes[1, 1] - nodes[0, 0]).abs()
    inside = torch.isfinite(heights)
    if not bool(inside.any()):
        return nodes.clone()
    finite = heights[inside]
    wall = finite.max() + (finite.max() - finite.min()) + 1
    by_row, by_column = torch.gradient(torch.where(inside, heights, wall))
    # In cells, so that slopes along both axes are comparable; rows go down.
    slope = torch.stack([by_column / cell[0], -by_row / cell[1]], -1)
    size = torch.linalg.vector_norm(slope, dim=-1, keepdim=True)
    full = FULL_SLOPE * size[inside].median().clamp(min=1e-30)
    length = LONGEST_MOVE * cell.min() * (size / full).clamp(max=1)
    return nodes - torch.where(inside[..., None], length * slope / size.clamp(min=1e-30), 0)


def follow(moved: Tensor, nodes: Tensor) -> Tensor:
    """Return where the nodes (rows, columns, 2) end if their map to `moved` is repeated."""
    corner, far = nodes[0, 0], nodes[-1, -1]
    scaled = 2 * (moved - corner) / (far - corner) - 1
    cells = scaled.new_tensor([nodes.shape[1] - 1, nodes.shape[0] - 1]) / 2
    for _ in range(DOUBLINGS):
        smooth, nearest = (_look_up(scaled, mode) for mode in ("bilinear", "nearest"))
        # Between nodes that part company there is nothing to interpolate.
        leaps = ((nearest - scaled) * cells).abs().amax(-1, keepdim=True) > INTERPOLATED_CELLS
        before, scaled = scaled, torch.where(leaps, nearest, smooth)
        if float(((scaled - before) * cells).abs().amax()) < AT_REST_CELLS:
            break  # composing it with itself again changes nothing
    return corner + (scaled + 1) / 2 * (far - corner)


def _look_up(scaled: Tensor, mode: str) -> Tensor:
    """Return the map (rows, columns, 2), in [-1, 1], at the places that it leads to."""
    image, places = scaled.permute(2, 0, 1)[None], scaled.clamp(-1, 1)[None]
    options: dict[str, Any] = {"mode": mode, "padding_mode": "border", "align_corners": True}
    return torch.nn.functional.grid_sample(image, places, **options)[0].permute(1, 2, 0)


def label_basins(
    energy: Energy, scene: Scene, nodes: Tensor, moved: Tensor, exact: bool
) -> BasinMap:
    """Return the basins of the nodes (rows, columns, 2), whose update is `moved`.

    A draft has them as the interpolated map shows them, to about a cell. If `exact`, modes are
    retrieved, and so is every node next to a border.
    """
    cell, tol = float((nodes[1, 1] - nodes[0, 0]).abs().max()), 1e-5
    same = SAME_MODE * scene.unit if exact else cell
    lost = max(LOST_CELLS * cell, same)
    starts = scene.memories
    if isinstance(energy, CRPMixture):  # new clusters have a mode of their own
        starts = torch.cat([starts, starts.new_tensor([scene.centre])])
    ends = _on_one_circle(energy, follow(moved, nodes), scene)
    if exact:
        state = retrieve(energy, starts, tol=tol, max_steps=2000).state
        resting = _on_one_circle(energy, state, scene)
    else:
        resting = ends.reshape(-1, 2)[_nearest_node(starts, nodes)]
    points = resting.double().numpy()
    _, first = np.unique(shared_fixed_points(points, same / 2), return_index=True)
    names = np.where(first < len(scene.memories), first, -2).astype(np.int16)
    basins = BasinMap(np.empty(0, np.int16), points[first], names)
    labels = basins.nearest(ends.reshape(-1, 2), lost).reshape(ends.shape[:2])
    known = np.zeros(labels.shape, dtype=bool)
    for _ in range(ROUNDS if exact else 0):
        open_nodes = _next_to_a_border(labels) & ~known
        if not open_nodes.any():
            break
        chosen = []
        for block in nodes[torch.from_numpy(open_nodes)].split(4096):
            found = retrieve(energy, block, tol=tol, max_steps=MOST_STEPS)
            state = _on_one_circle(energy, found.state, scene)
            # What rests elsewhere is in no basin of a memory; what still moves is on its way.
            at_rest, on_its_way = (basins.nearest(state, far) for far in (NEAR_MODE * same, lost))
            chosen.append(np.where(found.converged.numpy(), at_rest, on_its_way))
        labels[open_nodes] = np.concatenate(chosen)
        known |= open_nodes
    return basins._replace(labels=labels)


def _nearest_node(points: Tensor, nodes: Tensor) -> Tensor:
    """Return the place of the node nearest to each point, rows after rows. (n, 2) -> (n,)."""
    last = torch.tensor([nodes.shape[1] - 1, nodes.shape[0] - 1])
    share = (points - nodes[0, 0]) / (nodes[-1, -1] - nodes[0, 0])
    column, row = (share * last).round().long().clamp(min=torch.zeros(2), max=last).long().unbind(1)
    return row * nodes.shape[1] + column


def _next_to_a_border(labels: Labels) -> NDArray[np.bool_]:
    """Return True for nodes with a neighbour of another label."""
    border = np.zeros(labels.shape, dtype=bool)
    across, down = np.diff(labels, axis=1) != 0, np.diff(labels, axis=0) != 0
    border[:, 1:] |= across
    border[:, :-1] |= across
    border[1:] |= down
    border[:-1] |= down
    return border


def _on_one_circle(energy: Energy, ends: Tensor, scene: Scene) -> Tensor:
    """Bring the ends of a classical Hopfield network, whose states keep their length, together."""
    if not isinstance(energy, Hopfield):
        return ends
    length = torch.linalg.vector_norm(ends, dim=-1, keepdim=True)
    typical = torch.linalg.vector_norm(scene.memories, dim=1).mean()
    return torch.where(length > 0, ends / length.clamp(min=1e-30) * typical, ends)
