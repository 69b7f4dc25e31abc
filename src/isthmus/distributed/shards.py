"""What the workers do: memories of one block each, and results that can be added up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from isthmus.memories.base import WeightedMemory
from isthmus.memories.gaussian import GaussianMemory
from isthmus.memories.modern import ModernHopfield

# Logits, or differences between points and memories, that are held at once.
BLOCK_ENTRIES = 2**22


@dataclass(frozen=True)
class Shard:
    """The memory of the rows of one block; `left_out` if all their weights are zero."""

    number: int
    memory: GaussianMemory
    left_out: bool = False

    @property
    def log_mass(self) -> float:
        """Log of the total weight of the memories, in float64."""
        memory = self.memory
        if self.left_out:
            return -torch.inf
        if isinstance(memory, ModernHopfield):
            length = memory.memories[0].double().square().sum()
            return float(0.5 * memory.beta.double() * length - memory.log_mixing_weights[0])
        return float(_exact_log_weights(memory).logsumexp(0))

    def _recall(self, log_mass: Tensor, mean: Tensor) -> Recall:
        log_mass = log_mass.double()
        return Recall(torch.full_like(log_mass, -torch.inf) if self.left_out else log_mass, mean)


def _exact_log_weights(memory: WeightedMemory) -> Tensor:
    """Return the log-weights of the memories in float64, not normalised. (N,)"""
    if isinstance(memory, ModernHopfield):
        return memory.log_mixing_weights
    if memory.log_weights is None:
        return memory.memories.new_zeros(memory.n_memories, dtype=torch.float64)
    return memory.log_weights.double()


@dataclass(frozen=True)
class Recall:
    """The log-sum-exp (Q,) of the memories of some shards, in float64, and their mean (Q, D)."""

    log_mass: Tensor
    mean: Tensor

    def __add__(self, other: Recall) -> Recall:
        total = torch.logaddexp(self.log_mass, other.log_mass)
        finite = torch.where(total > -torch.inf, total, 0.0)
        mine, yours = ((each.log_mass - finite).exp()[:, None] for each in (self, other))
        mean = mine * self.mean.double() + yours * other.mean.double()
        return Recall(total, mean.to(self.mean.dtype))


@torch.no_grad()
def recall_pull(shard: Shard, x: Tensor, part: str) -> Recall:
    """Return the log-sum-exp of the logits, and the "force" or the "target" of a step. (Q, D)"""
    pull = shard.memory._pull(x)
    return shard._recall(pull.logsumexp, getattr(pull, part))


@torch.no_grad()
def recall_density(shard: Shard, x: Tensor, seen: Tensor | None) -> Recall:
    """Return the log of weight times density, and the mean given the coordinates seen."""
    memory = shard.memory
    found = memory._attend_density(x, seen)
    mean = found.mean if seen is None else found.mean + memory._keys().centre
    return shard._recall(found.logsumexp.double() + shard.log_mass, mean)


class Shares(NamedTuple):
    """The responsibilities (Q, n) within one shard, and the log-mass (Q,) of the shard."""

    number: int
    log_mass: Tensor
    shares: Tensor


@torch.no_grad()
def recall_shares(shard: Shard, x: Tensor, seen: Tensor | None) -> list[Shares]:
    """Return the responsibilities of the memories of one shard."""
    density = recall_density(shard, x, seen)
    return [
        Shares(shard.number, density.log_mass, shard.memory._responsibilities(x, seen).double())
    ]


@dataclass(frozen=True)
class Ranked:
    """The k best memories of each query: values (Q, k), best first, and where they are."""

    values: Tensor
    number: Tensor
    place: Tensor

    @classmethod
    def best(cls, values: Tensor, number: Tensor, place: Tensor, k: int) -> Ranked:
        """Keep the k largest values; of equal ones, the first."""
        order = torch.argsort(values, dim=1, descending=True, stable=True)[:, :k]
        return cls(*(each.gather(1, order) for each in (values, number, place)))

    def __add__(self, other: Ranked) -> Ranked:
        k = max(self.values.shape[1], other.values.shape[1])
        parts = zip(vars(self).values(), vars(other).values(), strict=True)
        values, number, place = (torch.cat(pair, 1) for pair in parts)
        return Ranked.best(values, number, place, k)


def _ranked(shard: Shard, values: Tensor, start: int, k: int) -> Ranked:
    """Return the best columns of values (Q, n), which stand for memories from `start` on."""
    top, place = values.topk(min(k, values.shape[1]), dim=1)
    return Ranked.best(top, torch.full_like(place, shard.number), place + start, k)


@torch.no_grad()
def find_nearest(shard: Shard, x: Tensor, k: int) -> Ranked:
    """Return the k nearest memories of one shard, by minus their distance in float64."""
    memories, x, found = shard.memory.memories, x.double(), None
    rows = max(BLOCK_ENTRIES // max(len(x), 1), k)
    for start in range(0, len(memories), rows):
        block = memories[start : start + rows].double()
        apart = torch.cdist(x, block, compute_mode="donot_use_mm_for_euclid_dist")
        part = _ranked(shard, -apart, start, k)
        found = part if found is None else found + part
    assert found is not None
    # Of a list that is shorter than k, the rest is as far as can be.
    missing, pad = (0, k - found.values.shape[1]), torch.nn.functional.pad
    values = pad(found.values, missing, value=-torch.inf)
    return Ranked(values, *(pad(each, missing) for each in (found.number, found.place)))


@torch.no_grad()
def find_recalled(shard: Shard, x: Tensor) -> Ranked:
    """Return the memory of one shard with the largest logit."""
    memory, rows = shard.memory, []
    for part in x.split(max(BLOCK_ENTRIES // memory.n_memories, 1)):
        logits = memory._logits(part, None).double()
        if shard.left_out:
            logits = torch.full_like(logits, -torch.inf)
        rows.append(_ranked(shard, logits, 0, 1))
    joined = (torch.cat([getattr(row, name) for row in rows]) for name in vars(rows[0]))
    return Ranked(*joined)


@torch.no_grad()
def rows_at(
    shard: Shard, wanted: dict[int, tuple[Tensor, Tensor]]
) -> list[tuple[Tensor, Tensor]] | None:
    """Return memories of one shard at shares of its total weight, and where they are wanted."""
    places, where = wanted[shard.number]
    if not len(places):
        return None
    weights = _exact_log_weights(shard.memory)
    total = (weights - weights.max()).exp().cumsum(0)
    chosen = torch.searchsorted(total, where * total[-1], right=True).clamp(max=len(total) - 1)
    return [(places, shard.memory.memories[chosen])]
