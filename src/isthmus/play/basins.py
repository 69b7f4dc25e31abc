"""Basins of attraction on a grid: one update of every node, followed by interpolation.

The update of all nodes is a map of the plane, known on the grid. Applying the interpolated map to
itself twelve times stands for 4,096 updates and costs twelve look-ups of each node. That decides
all nodes but those next to a border of two basins, which are retrieved.
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

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
# At a minimum to which no memory leads, at least this many nodes end.
FEWEST_NODES = 4
ROUNDS, MOST_STEPS = 48, 400

Labels = NDArray[np.int16]


class BasinMap(NamedTuple):
    """The label of every node, (rows, columns), and the modes (M, 2) with theirs (M,).

    A label is the index of the first memory in the basin, so that it stays while others move;
    that of a basin without a memory is negative below -1, and of no basin -1.
    """

    labels: Labels
    modes: NDArray[np.float64]
    mode_labels: Labels


def starts_of(energy: Energy, scene: Scene) -> Tensor:
    """Return the points from which modes are found: memories, and the prior of a CRP mixture."""
    if isinstance(energy, CRPMixture):
        return torch.cat([scene.memories, scene.memories.new_tensor([scene.centre])])
    return scene.memories


def downhill(heights: Tensor, nodes: Tensor) -> Tensor:
    """Move the nodes (rows, columns, 2) down the slope of their heights (rows, columns)."""
    cell = cell_of(nodes)
    inside = torch.isfinite(heights)
    if not bool(inside.any()):
        return nodes.clone()
    finite = heights[inside]
    wall = finite.max() + (finite.max() - finite.min()) + 1
    walled = torch.where(inside, heights, wall)
    by_row, by_column = torch.gradient(walled)
    # In cells, so that slopes along both axes are comparable; rows go down.
    slope = torch.stack([by_column / cell[0], -by_row / cell[1]], -1)
    size = torch.linalg.vector_norm(slope, dim=-1, keepdim=True)
    full = FULL_SLOPE * size[inside].median().clamp(min=1e-30)
    length = LONGEST_MOVE * cell.min() * (size / full).clamp(max=1)
    move = -length * slope / size.clamp(min=1e-30)
    return torch.where(inside[..., None], nodes + move, nodes)


def cell_of(nodes: Tensor) -> Tensor:
    """Return the width and height of a cell of the grid. (2,)."""
    return (nodes[1, 1] - nodes[0, 0]).abs()


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
    found = torch.nn.functional.grid_sample(
        scaled.permute(2, 0, 1)[None],
        scaled.clamp(-1, 1)[None],
        mode=mode,
        padding_mode="border",
        align_corners=True,
    )
    return found[0].permute(1, 2, 0)


def label_basins(
    energy: Energy, scene: Scene, nodes: Tensor, moved: Tensor, heights: Tensor, exact: bool
) -> BasinMap:
    """Return the basins of the nodes (rows, columns, 2), whose update is `moved`.

    A draft has those of memories, as the interpolated map shows them, to about a cell. If `exact`,
    modes are retrieved, also those without a memory, and so is every node next to a border.
    """
    ends = _on_one_circle(energy, follow(moved, nodes), scene)
    cell, tol = float(cell_of(nodes).max()), 1e-5 * scene.unit
    starts, same, lost = starts_of(energy, scene), cell, LOST_CELLS * cell
    if not exact:
        resting = ends.reshape(-1, 2)[_nearest_node(starts, nodes)]
        return _labelled(ends, resting, same, lost, len(scene.memories))
    same = SAME_MODE * scene.unit
    lost = max(lost, same)
    rest = partial(retrieve, energy, tol=tol, max_steps=2000)
    resting = _on_one_circle(energy, rest(starts).state, scene)
    basins = _labelled(ends, resting, same, lost, len(scene.memories))
    others = _other_ends(energy, ends, basins.labels, nodes, heights)
    if len(others):
        others = rest(others).state
        pushed = rest(others + same).state  # off a saddle
        others = others[(pushed - others).abs().amax(1) < same]
        both = torch.cat([resting, others])
        basins = _labelled(ends, both, same, lost, len(scene.memories))
    labels, known = basins.labels.copy(), np.zeros(basins.labels.shape, dtype=bool)
    for _ in range(ROUNDS):
        open_nodes = _next_to_a_border(labels) & ~known
        if not open_nodes.any():
            break
        chosen = []
        for block in nodes[torch.from_numpy(open_nodes)].split(4096):
            found = retrieve(energy, block, tol=tol, max_steps=MOST_STEPS)
            state = _on_one_circle(energy, found.state, scene)
            # What rests elsewhere is in no basin of a memory; what still moves is on its way.
            at_rest = _nearest_label(state, basins, NEAR_MODE * same)
            on_its_way = _nearest_label(state, basins, lost)
            chosen.append(np.where(found.converged.numpy(), at_rest, on_its_way))
        labels[open_nodes] = np.concatenate(chosen)
        known |= open_nodes
    return basins._replace(labels=labels)


def _other_ends(
    energy: Energy, ends: Tensor, labels: Labels, nodes: Tensor, heights: Tensor
) -> Tensor:
    """Return places where several nodes without a label end together. (m, 2)."""
    lost = ends[torch.from_numpy(labels == -1) & torch.isfinite(heights)]
    if isinstance(energy, Hopfield):  # its states rest on whole rays
        return lost[:0]
    near = _nearest_node(lost, nodes).numpy()
    _, first, counts = np.unique(near, return_index=True, return_counts=True)
    return lost[first[counts >= FEWEST_NODES]]


def _labelled(ends: Tensor, resting: Tensor, same: float, lost: float, memories: int) -> BasinMap:
    """Label the ends of nodes by the nearest of the points at rest, the memories' first."""
    points = resting.double().numpy()
    groups = shared_fixed_points(points, same / 2)
    _, first = np.unique(groups, return_index=True)
    labels = np.where(first < memories, first, -2 - (first - memories)).astype(np.int16)
    empty = np.full(ends.shape[:2], -1, dtype=np.int16)
    basins = BasinMap(empty, points[first], labels)
    found = _nearest_label(ends.reshape(-1, 2), basins, lost)
    return basins._replace(labels=found.reshape(empty.shape))


def _nearest_label(ends: Tensor, basins: BasinMap, lost: float) -> Labels:
    """Return the label of the mode nearest to each end (n, 2), or -1 if it is lost. (n,)."""
    distance, nearest = torch.cdist(ends, torch.from_numpy(basins.modes).to(ends)).min(1)
    found: Labels = np.where(
        distance.numpy() <= lost, basins.mode_labels[nearest.numpy()], np.int16(-1)
    )
    return found


def _nearest_node(points: Tensor, nodes: Tensor) -> Tensor:
    """Return the place of the node nearest to each point, rows after rows. (n, 2) -> (n,)."""
    rows, columns = nodes.shape[:2]
    share = (points - nodes[0, 0]) / (nodes[-1, -1] - nodes[0, 0])
    column = (share[:, 0] * (columns - 1)).round().long().clamp(0, columns - 1)
    row = (share[:, 1] * (rows - 1)).round().long().clamp(0, rows - 1)
    return row * columns + column


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
