"""Basins of attraction on a grid: one update of every node, followed by interpolation.

The update of all nodes is a map of the plane, known on the grid. Applying the interpolated map to
itself twelve times stands for 4,096 updates and costs twelve look-ups of each node. That decides
all nodes but those next to a border of two basins, which are retrieved.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import ndimage
from torch import Tensor
from torch.nn.functional import grid_sample

from isthmus.dynamics.modes import shared_fixed_points
from isthmus.dynamics.retrieve import retrieve
from isthmus.energy import Energy
from isthmus.memories.crp import CRPMixture
from isthmus.memories.hopfield import Hopfield
from isthmus.play.messages import Scene

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
EXTREMES = (ndimage.minimum_filter, ndimage.maximum_filter)

Labels = NDArray[np.int16]


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
        image, places = scaled.permute(2, 0, 1)[None], scaled.clamp(-1, 1)[None]
        smooth, nearest = (
            grid_sample(image, places, mode, align_corners=True)[0].permute(1, 2, 0)
            for mode in ("bilinear", "nearest")
        )
        # Between nodes that part company there is nothing to interpolate.
        leaps = ((nearest - scaled) * cells).abs().amax(-1, keepdim=True) > INTERPOLATED_CELLS
        before, scaled = scaled, torch.where(leaps, nearest, smooth)
        if float(((scaled - before) * cells).abs().amax()) < AT_REST_CELLS:
            break  # composing it with itself again changes nothing
    return corner + (scaled + 1) / 2 * (far - corner)


def label_basins(
    energy: Energy, scene: Scene, nodes: Tensor, moved: Tensor, exact: bool
) -> tuple[Labels, NDArray[np.float64], Labels]:
    """Return the labels of the nodes (rows, columns, 2), the modes (M, 2) and their labels.

    `moved` is the update of the nodes. A draft has basins as the interpolated map shows them, to
    about a cell. If `exact`, modes are retrieved, and so is every node next to a border. A label
    is the index of the first memory in the basin, so that it stays while others move; that of the
    prior of a CRP mixture is -2, and of no basin -1.
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
        points = _on_one_circle(energy, state, scene).double().numpy()
    else:  # of the nearest nodes
        column = (starts[:, :1] - nodes[0, :, 0]).abs().argmin(1)
        row = (starts[:, 1:] - nodes[:, 0, 1]).abs().argmin(1)
        points = ends[row, column].double().numpy()
    _, first = np.unique(shared_fixed_points(points, same / 2), return_index=True)
    names = np.where(first < len(scene.memories), first, -2).astype(np.int16)
    modes = points[first]

    def labels_at(places: Tensor, far: float) -> Labels:
        """Return the label of the mode nearest to each place (n, 2), -1 beyond `far`."""
        distance, nearest = torch.cdist(places, torch.from_numpy(modes).to(places)).min(1)
        return np.where(distance.numpy() <= far, names[nearest.numpy()], np.int16(-1))

    labels = labels_at(ends.reshape(-1, 2), lost).reshape(ends.shape[:2])
    known, cross = np.zeros(labels.shape, dtype=bool), ndimage.generate_binary_structure(2, 1)
    for _ in range(ROUNDS if exact else 0):
        beside = (each(labels, footprint=cross) != labels for each in EXTREMES)
        open_nodes = np.logical_or(*beside) & ~known
        if not open_nodes.any():
            break
        chosen = []
        for block in nodes[torch.from_numpy(open_nodes)].split(4096):
            found = retrieve(energy, block, tol=tol, max_steps=MOST_STEPS)
            state = _on_one_circle(energy, found.state, scene)
            # What rests elsewhere is in no basin of a memory; what still moves is on its way.
            at_rest, on_its_way = (labels_at(state, far) for far in (NEAR_MODE * same, lost))
            chosen.append(np.where(found.converged.numpy(), at_rest, on_its_way))
        labels[open_nodes] = np.concatenate(chosen)
        known |= open_nodes
    return labels, modes, names


def _on_one_circle(energy: Energy, ends: Tensor, scene: Scene) -> Tensor:
    """Bring the ends of a classical Hopfield network, whose states keep their length, together."""
    if not isinstance(energy, Hopfield):
        return ends
    length = torch.linalg.vector_norm(ends, dim=-1, keepdim=True)
    typical = torch.linalg.vector_norm(scene.memories, dim=1).mean()
    return torch.where(length > 0, ends / length.clamp(min=1e-30) * typical, ends)
