r"""Gaussian memories in shards: every pass visits all shards and adds up what they recall.

With weights :math:`w_s = \mathrm{softmax}_s(\ell_s)` of the log-sum-exps :math:`\ell_s` of the
shards, the log-sum-exp of all memories is that of the :math:`\ell_s`, and their mean is
:math:`\sum_s w_s \mu_s`. Both can be added up in any grouping, so a tree does.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from isthmus.compose import held_move
from isthmus.distributed.blocks import Blocks, TableBlock, dask_blocks
from isthmus.distributed.connection import as_client
from isthmus.distributed.shards import (
    Ranked,
    Recall,
    Shard,
    find_nearest,
    find_recalled,
    recall_density,
    recall_pull,
    recall_shares,
    rows_at,
)
from isthmus.energy import Energy
from isthmus.errors import InvalidInputError, IsthmusError, UnsupportedOperationError
from isthmus.memories.base import generator_for, keep_observed
from isthmus.memories.gaussian import GaussianKDE, GaussianMemory
from isthmus.memories.mixture import Mixture
from isthmus.memories.modern import ModernHopfield
from isthmus.validation import as_count, is_transforming

KINDS = (GaussianKDE, Mixture, ModernHopfield)
# Numbers of the queries of one pass: 32 MiB in float64.
PASS_ENTRIES = 2**22
# The log-weight of memories in a block of which all weights are zero.
NOTHING = -1e30
# Responsibilities that may be gathered.
MOST_RESPONSIBILITIES = 2**24


@dataclass(frozen=True)
class Nearest:
    """The nearest memories of points, nearest first.

    Attributes
    ----------
    distances : Tensor (..., k)
        Euclidean distances, in float64.
    index : Tensor (..., k)
        Places of the memories in the data, counted through all blocks.
    """

    distances: Tensor
    index: Tensor


def shard(
    energy_class: type[GaussianMemory],
    data: Any,
    *,
    client: Any = None,
    security: Any = None,
    **settings: Any,
) -> ShardedMemory:
    """Return a memory whose patterns are the rows of a Dask collection and stay on its workers.

    Each block becomes a memory on a worker. If a worker is lost, Dask computes its blocks again
    from their source.

    Parameters
    ----------
    energy_class : GaussianKDE, Mixture or ModernHopfield
    data : dask array (N, D), dask DataFrame, or path
        A path is a Parquet file, a directory of them, or a pattern with ``*``, and must be the same
        on the workers. Blocks of some 10 MB keep the overhead of a pass small.
    client : distributed.Client or str, optional
        Or the address of a scheduler. Default: the default client of this process; without one,
        blocks are kept in this process, and threads compute.
    security : distributed.Security, optional
        Certificates for the address of a scheduler; passed on to Dask.
    **settings
        Those of `energy_class`. ``log_weights`` is an array (N,), or a Dask array in the blocks of
        the data. Kernels must share their covariance, and bandwidths must be numbers.

    Returns
    -------
    ShardedMemory

    Examples
    --------
    >>> import dask.array as da, isthmus as ist
    >>> from isthmus.distributed import shard
    >>> data = da.from_array([[0.0, 0.0], [1.0, 1.0], [5.0, 5.0]], chunks=(2, 2))
    >>> memory = shard(ist.GaussianKDE, data, sigma=0.5)
    >>> memory
    ShardedMemory(GaussianKDE, N=3, D=2, 2 shards, sigma=0.5, float64)
    >>> ist.retrieve(memory, [[4.0, 4.5]]).state.round(3)
    array([[5., 5.]])
    """
    if not any(energy_class is kind for kind in KINDS):
        names = ", ".join(kind.__name__ for kind in KINDS)
        given = getattr(energy_class, "__name__", energy_class)
        raise UnsupportedOperationError(f"shard takes one of {names}, not {given}.")
    _check_settings(energy_class, settings)
    log_weights = settings.pop("log_weights", None)
    found = as_client(client, security)
    blocks = dask_blocks(data, client=found, extra=log_weights, name="data")
    shards = blocks.mapped(_built, energy_class, settings)
    entries = sorted(
        shards.total(lambda each: [(each.number, each.memory.n_memories, each.log_mass)])
    )
    if max(log_mass for _, _, log_mass in entries) < NOTHING / 2:
        raise InvalidInputError("All weights of the memories are zero; one must be positive.")
    return ShardedMemory(shards, entries, energy_class, settings)


def _check_settings(energy_class: type, settings: dict[str, Any]) -> None:
    sigma = settings.get("sigma")
    if energy_class is GaussianKDE and sigma is None and settings.get("covariance") is None:
        sigma = "auto"
    if isinstance(sigma, str):
        raise InvalidInputError(
            f"sigma={sigma!r} needs all memories in one place. Choose it on a sample, "
            "with isthmus.bandwidth.choose(sample), and pass the number."
        )
    if settings.get("index") not in (None, True, False, "auto"):
        raise InvalidInputError("Every shard builds its own index: pass True, False or 'auto'.")
    shape = getattr(settings.get("covariance"), "ndim", None)
    own = settings.get("covariance_type") not in (None, "tied") or shape == 3
    if settings.get("factors") is not None or own:
        raise InvalidInputError(
            "Kernels in shards share one covariance; factors and covariances of each memory are "
            "not available. Use sigma, or one covariance (D, D)."
        )


def _built(block: TableBlock, kind: type[GaussianMemory], settings: dict[str, Any]) -> Shard | None:
    if block.extra is not None:
        # A memory needs some weight; of all blocks together, this is none.
        none = (block.extra == -np.inf).all()
        settings = settings | {"log_weights": np.maximum(block.extra, NOTHING if none else -np.inf)}
    try:
        memory: Any = kind(block.values, **settings)
    except IsthmusError as error:
        raise type(error)(f"{block.name}: {error}") from None
    memory.requires_grad_(False)
    return Shard(block.number, memory)


def _differentiable(x: Tensor, value: Tensor, gradient: Callable[[], Tensor]) -> Tensor:
    """Return a value (...) of points (..., D) that autograd knows the gradient of, if it asks."""
    if not (x.requires_grad and torch.is_grad_enabled()):
        return value
    return value + ((x - x.detach()) * gradient()).sum(-1)


@final
class ShardedMemory(Energy):
    """A Gaussian memory in shards on the workers of a Dask cluster; made by :func:`shard`.

    Points are tensors or arrays as for any energy, and results are in this process. First
    derivatives of :meth:`energy` and :meth:`log_prob` by the points are known to autograd.

    Attributes
    ----------
    n_memories, dim, n_shards : int
    """

    returns_arrays = True
    has_step = has_responsibilities = has_conditional_mean = has_exact_draws = True
    _is_pointwise = _in_shards = True

    def __init__(
        self,
        shards: Blocks,
        entries: list[tuple[int, int, float]],
        kind: type[GaussianMemory],
        settings: dict[str, Any],
    ) -> None:
        super().__init__()
        self._shards, self._entries = shards, entries  # number, size and log-mass of each
        # One memory at the origin, which has the settings of all.
        own = {name: settings[name] for name in settings.keys() - {"index", "normalize"}}
        like: Any = kind(np.zeros((1, shards.layout.dim), shards.layout.dtype), **own)
        self._like: GaussianMemory = like.requires_grad_(False)
        numbers, counts, log_masses = zip(*entries, strict=True)
        self._numbers, sizes = torch.tensor(numbers), torch.tensor(counts)
        self._log_masses = torch.tensor(log_masses, dtype=torch.float64)
        self._starts = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])

    @property
    def dim(self) -> int:
        """The number of coordinates D."""
        return self._like.dim

    @property
    def n_memories(self) -> int:
        """The number of memories N."""
        return int(self._starts[-1])

    @property
    def n_shards(self) -> int:
        """The number of blocks that have rows."""
        return len(self._entries)

    @property
    def is_round(self) -> bool:
        """True if all kernels have one variance in all directions."""
        return self._like.is_round

    @property
    def sigma(self) -> Tensor:
        """The bandwidth."""
        return self._like.sigma

    @property
    def variance(self) -> Tensor:
        """The variance of each kernel along each axis."""
        return self._like.variance

    @property
    def inverse_temperature(self) -> Tensor:
        """The factor between this energy and a negative log-density: a scalar tensor."""
        return self._like.inverse_temperature

    @property
    def log_total_weight(self) -> Tensor:
        """Log of the total weight of the memories, in float64."""
        return torch.logsumexp(self._log_masses, 0)

    def log_normalizer(self) -> Tensor:
        """Return the log-normaliser log Z, a scalar tensor."""
        one = self._like.log_normalizer() - self._like.log_total_weight
        return (one.double() + self.log_total_weight).to(one.dtype)

    def _pass(self, recalls: Callable[..., Recall], x: Tensor, *seen: Tensor) -> Recall:
        """Send points (..., D) to all shards, in portions, and return what they recall together."""
        if is_transforming():
            raise UnsupportedOperationError(
                "Memories in shards cannot be traced by torch.func or torch.compile."
            )
        size = max(PASS_ENTRIES // self.dim, 1)
        flat = (each.detach().reshape(-1, self.dim).split(size) for each in (x, *seen))
        found = [self._shards.total(recalls, *each) for each in zip(*flat, strict=True)]
        mean = torch.cat([each.mean for each in found]).to(x.dtype).reshape(x.shape)
        return Recall(torch.cat([each.log_mass for each in found]).reshape(x.shape[:-1]), mean)

    def _graphless(self, x: Tensor, what: str) -> Tensor:
        if x.requires_grad and torch.is_grad_enabled():
            raise UnsupportedOperationError(
                f"{what} of a memory in shards has no derivative. Use torch.no_grad(), or detach "
                "the points."
            )
        return x

    def _energy(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            value = self._step_and_energy(x)[1]
        return _differentiable(x, value, lambda: -self._score(x.detach()))

    def _step_and_energy(self, x: Tensor, held: Tensor | None = None) -> tuple[Tensor, Tensor]:
        found = self._pass(partial(recall_pull, what="target"), self._graphless(x, "A step"))
        moved, precision = found.mean, None if held is None else self._like._pull(x).precision
        if held is not None and precision is not None:
            moved = x + held_move(precision, moved - x, ~held)
        return keep_observed(moved, x, held), self._like._energy_of(x, found.log_mass.to(x.dtype))

    def _step(self, x: Tensor, held: Tensor | None = None) -> Tensor:
        return self._step_and_energy(x, held)[0]

    def _score(self, x: Tensor) -> Tensor:
        found = self._pass(partial(recall_pull, what="force"), self._graphless(x, "The score"))
        return found.mean / self._like._force_unit()

    def _log_prob(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        if seen is not None:
            x = self._graphless(x, "The density of some coordinates")
        found = self._pass(recall_density, x, *([] if seen is None else [seen]))
        value = (found.log_mass - self.log_total_weight).to(x.dtype)
        scale = self.inverse_temperature
        return _differentiable(x, value, lambda: scale * self._score(x.detach()))

    def _conditional_mean(self, x: Tensor, seen: Tensor) -> Tensor:
        return torch.where(seen, x, self._pass(recall_density, x, seen).mean)

    def _responsibilities(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        size = x.numel() // max(self.dim, 1) * self.n_memories
        if size > MOST_RESPONSIBILITIES:
            raise UnsupportedOperationError(
                f"The responsibilities of {self.n_memories:,} memories for these points are "
                f"{size:,} numbers, too many to gather. Ask for fewer points at a time, or for "
                "nearest(x, k), or for retrieve(...).memory."
            )
        flat, mask = (None if each is None else each.reshape(-1, self.dim) for each in (x, seen))
        found = sorted(self._shards.total(recall_shares, flat, mask), key=lambda part: part[0])
        _, masses, shares = zip(*found, strict=True)
        weights = torch.softmax(torch.stack(masses), 0)[..., None]
        joined = torch.cat([weight * part for weight, part in zip(weights, shares, strict=True)], 1)
        return joined.to(x.dtype).reshape(*x.shape[:-1], self.n_memories)

    def nearest(self, x: Any, k: int = 1) -> Nearest:
        """Return the k nearest memories of each point. x: (..., D) -> (..., k)."""
        x = self.as_input(x)
        k = as_count(k, "k", at_most=self.n_memories)
        flat = x.detach().reshape(-1, self.dim)
        found = self._shards.total(find_nearest, flat, k)
        shape = (*x.shape[:-1], k)
        return Nearest(-found.values.reshape(shape), self._index(found).reshape(shape))

    def separation(self, x: Any) -> Tensor:
        """Return half the squared distance of stored patterns to the nearest other memory. (...)"""
        if self.n_memories == 1:
            return self._at(lambda x: x.new_full(x.shape[:-1], torch.inf, dtype=torch.float64), x)
        return self._at(lambda x: 0.5 * self.nearest(x, 2).distances[..., 1].square(), x)

    def recalled(self, x: Any) -> Tensor:
        """Return the memory with the largest responsibility for each point. (..., D) -> (...)"""
        return self._at(self._recalled, x)

    def _recalled(self, x: Tensor) -> Tensor:
        found = self._shards.total(find_recalled, x.detach().reshape(-1, self.dim))
        return self._index(found).reshape(x.shape[:-1])

    def _index(self, found: Ranked) -> Tensor:
        """Return places counted through all blocks, of which some may be empty."""
        return found.place + self._starts[torch.searchsorted(self._numbers, found.number)]

    def draw_memories(self, n: int, generator: torch.Generator) -> Tensor:
        """Return n memories, drawn in proportion to their weights. -> (n, D)"""
        n = as_count(n, "n", at_least=0)
        # As draw_index would: a position on the line of all weights, in two steps.
        masses = (self._log_masses - self._log_masses.max()).exp()
        ends = masses.cumsum(0)
        position = torch.rand(n, generator=generator, dtype=torch.float64) * ends[-1]
        chosen = torch.searchsorted(ends, position, right=True).clamp(max=len(ends) - 1)
        where = (position - (ends - masses)[chosen]) / masses[chosen]
        wanted = {
            number: (torch.nonzero(chosen == order)[:, 0], where[chosen == order])
            for order, number in enumerate(self._numbers.tolist())
        }
        drawn = self._like.memories.new_zeros(n, self.dim)
        for places, rows in self._shards.reduce(rows_at, wanted) or ():
            drawn[places] = rows
        return drawn

    _chain_starts = draw_memories

    def _curvature(self) -> Tensor | None:
        return 1 / (self.variance * self.inverse_temperature) if self.is_round else None

    def _length(self) -> float:
        if self.is_round:
            return float(self.variance) ** 0.5
        return float(torch.linalg.eigvalsh(self._like.covariance).max()) ** 0.5

    @torch.no_grad()
    def _sample(self, n: int, seed: int | torch.Generator = 0) -> Tensor:
        generator = generator_for(seed, torch.device("cpu"))
        centres = self.draw_memories(n, generator)
        # The one memory of `_like` is at the origin.
        return centres + self._like._draw_about(torch.zeros(len(centres)).long(), generator)

    def __repr__(self) -> str:
        own = repr(self._like).split("(", 1)[1].split(", ")[2:]
        parts = [type(self._like).__name__, f"N={self.n_memories}", f"D={self.dim}"]
        parts.append(f"{self.n_shards} shard{'s' if self.n_shards > 1 else ''}")
        return f"ShardedMemory({', '.join([*parts, *own])}"
