"""Partition of memories into small cells that lie close together, by k-means on two levels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

IntArray = NDArray[np.int64]
# Memories of a leaf, and leaves of a top cell.
LEAF, LEAVES = 32, 32
# Up to this many leaves, one top cell holds all.
ONE_TOP = 512
# Cells larger than this many times their size are split at medians.
LARGEST = 4
# k-means: rows for each centre, and rounds.
ROWS_PER_CENTRE, ROUNDS = 40, 6
# Up to this dimension, cells are split at medians.
MEDIAN_DIM = 3
BLOCK_ENTRIES = 2**22


class Partition(NamedTuple):
    """Rows in the order of their leaves, and the first row of each leaf and leaf of each top."""

    order: IntArray  # (N,)
    leaf_first: IntArray  # (K + 1,)
    top_first: IntArray  # (T + 1,)


@torch.no_grad()
def partition(memories: Tensor) -> Partition:
    """Partition memories (N, D) into leaves of about 32 rows and top cells of about 32 leaves."""
    centred = memories.detach().cpu().double()
    centred = centred - centred.mean(0)
    scale = float(centred.abs().max()) or 1.0
    points = (centred / scale).float()
    if points.shape[1] <= MEDIAN_DIM:
        order, first = median_order(points.numpy(), LEAF)
        top_first = np.append(np.arange(0, len(first) - 1, LEAVES), len(first) - 1)
        return Partition(order, first, top_first.astype(np.int64))
    generator = torch.Generator().manual_seed(0)
    order_parts, sizes, leaves_of_top = [], [], []
    for rows in _cells(points, LEAF * LEAVES, ONE_TOP * LEAF, generator):
        leaves = _cells(points[rows], LEAF, LEAF, generator)
        order_parts += [rows[leaf] for leaf in leaves]
        sizes += [len(leaf) for leaf in leaves]
        leaves_of_top.append(len(leaves))
    order = torch.cat(order_parts).numpy()
    return Partition(order, _firsts(sizes), _firsts(leaves_of_top))


def _firsts(sizes: list[int]) -> IntArray:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)


def _cells(points: Tensor, size: int, most: int, generator: torch.Generator) -> list[Tensor]:
    """Return the rows of cells of about `size`, neighbours near each other; one, if few rows."""
    if len(points) <= most:
        return [torch.arange(len(points))]
    labels = _kmeans(points, -(-len(points) // size), generator)
    cells: list[Tensor] = []
    for part in torch.argsort(labels, stable=True).split(torch.bincount(labels).tolist()):
        if len(part) > LARGEST * size:
            order, first = median_order(points[part].numpy(), size)
            cells += part[torch.from_numpy(order)].split(np.diff(first).tolist())
        elif len(part):
            cells.append(part)
    return [cells[place] for place in _tour(points, cells)]


def _tour(points: Tensor, cells: list[Tensor]) -> IntArray:
    """Return an order of cells in which neighbours are near: that of a tree of median splits."""
    if len(cells) <= 2:
        return np.arange(len(cells))
    rows = torch.cat(cells)
    owner = torch.repeat_interleave(torch.tensor([len(cell) for cell in cells]))
    sums = torch.zeros(len(cells), points.shape[1]).index_add_(0, owner, points[rows])
    sizes = torch.bincount(owner, minlength=len(cells))[:, None]
    return median_order((sums / sizes).numpy(), 1)[0]


def median_order(points: NDArray[np.float32], size: int) -> tuple[IntArray, IntArray]:
    """Split points at medians into cells of at most `size`: their order, and where cells begin."""
    from scipy.spatial import cKDTree

    tree = cKDTree(points, leafsize=size, compact_nodes=False)
    first: list[int] = []
    waiting = [tree.tree]
    while waiting:
        node = waiting.pop()
        if node.split_dim < 0:
            first += range(node.start_idx, node.end_idx, size)  # equal points are not split
        else:
            waiting += [node.greater, node.lesser]
    return tree.indices, np.array([*first, len(points)], dtype=np.int64)


def _kmeans(points: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return the nearest of `count` centres of each point, some of which may own none."""
    shuffled = torch.randperm(len(points), generator=generator)
    sample = points[shuffled[: ROWS_PER_CENTRE * count]]
    centres = sample[:count].clone()
    for _ in range(ROUNDS):
        labels = nearest(sample, centres)[:, 0]
        sizes = torch.bincount(labels, minlength=count)
        sums = torch.zeros_like(centres).index_add_(0, labels, sample)
        centres = torch.where(sizes[:, None] > 0, sums / sizes.clamp(min=1)[:, None], centres)
    return nearest(points, centres)[:, 0]


def nearest(points: Tensor, centres: Tensor, count: int = 1) -> Tensor:
    """Return the `count` nearest centres of each point, (n, D), (k, D) -> (n, count).

    They are found up to rounding errors.
    """
    halves = -0.5 * centres.square().sum(1)
    found = []
    for block in points.split(max(BLOCK_ENTRIES // len(centres), 256)):
        products = torch.addmm(halves, block, centres.mT)
        found.append(products.argmax(1, True) if count == 1 else products.topk(count).indices)
    return torch.cat(found)
