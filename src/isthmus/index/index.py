"""Index: memories in cells with bounds, built once and independent of the bandwidth."""

from __future__ import annotations

import hashlib
import math
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.errors import InvalidInputError, ShapeError
from isthmus.index.cells import Partition, partition
from isthmus.index.codes import Codes
from isthmus.io.archive import map_archive
from isthmus.io.files import write_atomically
from isthmus.kernel.logits import Keys, tensor_version
from isthmus.validation import as_path

FloatArray = NDArray[np.float64]
FORMAT = "isthmus-index-2"
# Cells whose balls are found at once.
GROUPS = 512
# Larger coordinates could overflow when distances are squared.
LARGEST = {torch.float32: 1e17, torch.float64: 1e150}


class Balls(NamedTuple):
    """Balls that hold cells, and the first row of each leaf, or leaf of each top."""

    centres: NDArray[np.floating]  # (C, D)
    radii: NDArray[np.floating]  # (C,)
    first: NDArray[np.int64]  # (C + 1,)


class Index:
    """An index of memories, with which :func:`attend` skips those that provably do not matter.

    Memories are grouped into cells of about 32 by k-means on two levels (at medians, up to three
    dimensions), each with a ball that holds it; the index holds a copy of them in that
    order. It does not depend on the bandwidth, so one index serves any number of energies.

    Parameters
    ----------
    memories : array or Tensor (N, D)
        On the CPU; in float32 or float64, as the energies that will use it.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> from isthmus.attend import Index
    >>> memories = torch.randn(2000, 3, generator=torch.Generator().manual_seed(0))
    >>> index = Index(memories)
    >>> index
    Index(N=2000, D=3, cells=64, float32)
    >>> queries = memories[:2] + 0.01
    >>> found = ist.attend(queries, memories, beta=50.0, metric="sqeuclidean", index=index)
    >>> bool((found.error_bound.logsumexp <= 1e-6).all())
    True
    """

    points: NDArray[Any]
    order: NDArray[np.int64]
    centre: FloatArray
    leaves: Balls
    tops: Balls

    def __init__(self, memories: Any) -> None:
        keys = memories if isinstance(memories, Keys) else Keys.of(memories)
        if 0 in keys.memories.shape:
            raise ShapeError(f"memories is empty (shape {tuple(keys.memories.shape)}).")
        memories = keys.memories.detach()
        cells = partition(_indexable(memories))
        self._set(memories.numpy()[cells.order], cells)
        self._remember(memories)

    def _set(self, points: NDArray[Any], cells: Partition) -> None:
        self.order, self.points = cells.order, np.ascontiguousarray(points)
        self.centre = np.asarray(self.points.mean(0, dtype=np.float64))
        self.leaves = _balls(self.points, np.zeros(len(points)), cells.leaf_first)
        self.tops = _balls(self.leaves.centres, self.leaves.radii, cells.top_first)

    @cached_property
    def extent(self) -> float:
        """An upper bound on the distance of a memory from the centre of all."""
        low, high = (f(self.points, axis=0).astype(np.float64) for f in (np.min, np.max))
        corner = np.maximum(np.abs(low - self.centre), np.abs(high - self.centre))
        return float(np.linalg.norm(corner)) * (1 + 1e-12)

    @cached_property
    def squares(self) -> FloatArray:
        """The squared norms of the memories, in the order of the cells."""
        return np.einsum("nd,nd->n", self.points, self.points, dtype=np.float64)

    @cached_property
    def codes(self) -> Codes:
        """The memories in the order of the cells, rounded to one byte for each coordinate."""
        return Codes.of(self.points, self.centre)

    @property
    def n_memories(self) -> int:
        """The number of memories N."""
        return len(self.points)

    @property
    def dim(self) -> int:
        """The number of coordinates D."""
        return int(self.points.shape[1])

    @property
    def n_cells(self) -> int:
        """The number of cells."""
        return len(self.leaves.radii)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the memories."""
        return torch.float32 if self.points.dtype == np.float32 else torch.float64

    @cached_property
    def digest(self) -> str:
        """Digest of the memories in their own order."""
        original = np.empty_like(self.points)
        original[self.order] = self.points
        return digest_of(original)

    def _remember(self, memories: Tensor) -> None:
        """Note a tensor that is known to hold the memories of this index."""
        # An alias keeps the storage alive, so that its address identifies it.
        self._known = memories.detach(), memories, tensor_version(memories)

    def is_of(self, memories: Tensor) -> bool:
        """Return True if memories (N, D) are those of this index."""
        known = getattr(self, "_known", None)
        version = tensor_version(memories)
        if known is not None and memories is known[1] and version == known[2]:
            return True
        same = memories.shape == self.points.shape and memories.dtype == self.dtype
        if not same or memories.device.type != "cpu":
            return False
        if is_equal := digest_of(memories.detach().numpy()) == self.digest:
            self._remember(memories)
        return is_equal

    def require(self, memories: Tensor) -> None:
        """Raise if memories (N, D) are not those of this index."""
        if not self.is_of(memories):
            shape = f"{tuple(memories.shape)}, {str(memories.dtype).removeprefix('torch.')}"
            raise InvalidInputError(
                f"This index is of other memories: {self!r}, but those here are {shape}, or have "
                "other values. Build one with Index(memories)."
            )

    def moved(self, memories: Tensor) -> Index:
        """Return an index of memories in the same cells, after a shift or a linear map of all."""
        other = Index.__new__(Index)
        cells = Partition(self.order, self.leaves.first, self.tops.first)
        memories = _indexable(memories.detach())
        other._set(memories.numpy()[self.order], cells)
        other._remember(memories)
        return other

    def __repr__(self) -> str:
        kind = str(self.dtype).removeprefix("torch.")
        return f"Index(N={self.n_memories}, D={self.dim}, cells={self.n_cells}, {kind})"

    def __getstate__(self) -> dict[str, Any]:
        computed = ("_known", "codes", "squares")
        return {name: value for name, value in vars(self).items() if name not in computed}

    def save(self, path: str | Path) -> None:
        """Write the index to a safetensors file, atomically."""
        from safetensors.numpy import save

        arrays = {"points": self.points, "order": self.order}
        arrays |= {"leaves.first": self.leaves.first, "tops.first": self.tops.first}
        digest = _content(arrays, self.digest)
        metadata = {"format": FORMAT, "memories": self.digest, "digest": digest}
        write_atomically(path, save(arrays, metadata))

    @classmethod
    def load(cls, path: str | Path, *, verify: bool = True) -> Self:
        """Map the memories of a file of :meth:`save`, and compute the bounds of their cells.

        With `verify`, compare the contents with their digest. Cells are checked in any case.
        """
        metadata, arrays = map_archive(as_path(path, "path"), (FORMAT,), "isthmus index")
        index = cls.__new__(cls)
        cells = _cells_of(arrays)
        if cells is not None and is_indexable(torch.from_numpy(arrays["points"])):
            index._set(arrays["points"], cells)
            if not verify or metadata.get("digest") == _content(arrays, index.digest):
                return index
        raise InvalidInputError(f"{path} was altered after it was saved. Save the index again.")


def _cells_of(arrays: dict[str, NDArray[Any]]) -> Partition | None:
    """Return the cells in a file, or None if they are not a partition of its points."""
    if not {"points", "order", "leaves.first", "tops.first"} <= set(arrays):
        return None
    points, order = arrays["points"], arrays["order"]
    firsts = arrays["leaves.first"], arrays["tops.first"]
    right = points.ndim == 2 and points.size > 0 and points.dtype in (np.float32, np.float64)
    whole = all(each.ndim == 1 and each.dtype == np.int64 for each in (order, *firsts))
    if not (right and whole and np.array_equal(np.sort(order), np.arange(len(points)))):
        return None
    for first, count in zip(firsts, (len(points), len(firsts[0]) - 1), strict=True):
        divides = len(first) > 1 and first[0] == 0 and first[-1] == count
        if not (divides and (first[:-1] < first[1:]).all()):
            return None
    return Partition(order, *firsts)


def _indexable(memories: Tensor) -> Tensor:
    """Return memories (N, D) of which an index can be built, or raise."""
    if memories.device.type != "cpu":
        raise InvalidInputError("An index holds memories on the CPU. Use index=False here.")
    if not is_indexable(memories):
        raise InvalidInputError(
            f"Coordinates beyond {LARGEST[memories.dtype]:g} cannot be indexed in "
            f"{memories.dtype}. Rescale the memories, or pass index=False."
        )
    return memories


def is_indexable(memories: Tensor) -> bool:
    """Return True if distances of the points (N, D) can be squared in their dtype."""
    largest = float(memories.detach().abs().max()) if memories.numel() else 0.0
    return math.isfinite(largest) and largest < LARGEST[memories.dtype]


def _balls(centres: NDArray[Any], radii: NDArray[Any], first: NDArray[np.int64]) -> Balls:
    """Return balls that hold groups of balls, with radii rounded up, some groups at a time."""
    dim, dtype = centres.shape[1], centres.dtype
    raised = 1 + (dim + 8) * 2.0**-52 + 4 * np.finfo(dtype).eps
    parts = []
    for start in range(0, len(first) - 1, GROUPS):
        some = first[start : start + GROUPS + 1]
        inside, places, sizes = slice(some[0], some[-1]), some[:-1] - some[0], np.diff(some)
        points = centres[inside].astype(np.float64)
        apart = points - np.repeat(points[places], sizes, 0)
        middle = points[places] + np.add.reduceat(apart, places) / sizes[:, None]
        middle = middle.astype(dtype)
        apart = points - np.repeat(middle.astype(np.float64), sizes, 0)
        reach = np.sqrt(np.einsum("nd,nd->n", apart, apart)) + radii[inside]
        parts.append((middle, (np.maximum.reduceat(reach, places) * raised).astype(dtype)))
    middles, reaches = map(np.concatenate, zip(*parts, strict=True))
    return Balls(middles, reaches, first)


def digest_of(memories: NDArray[Any]) -> str:
    """Return a digest of the dtype, the shape and the values of an array."""
    digest = hashlib.blake2b(f"{memories.dtype} {memories.shape}".encode(), digest_size=20)
    digest.update(np.ascontiguousarray(memories).data)
    return digest.hexdigest()


def _content(arrays: dict[str, NDArray[Any]], memories: str) -> str:
    digest = hashlib.blake2b(memories.encode(), digest_size=20)
    for name in sorted(arrays):
        digest.update(f"{name} {digest_of(arrays[name])}".encode())
    return digest.hexdigest()
