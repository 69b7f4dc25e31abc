"""What the workers do: memories of one block each, and results that can be added up."""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Literal

import torch
from torch import Tensor

from isthmus.memories.base import WeightedMemory
from isthmus.memories.gaussian import GaussianMemory
from isthmus.memories.modern import ModernHopfield

# Logits, or differences between points and memories, that are held at once.
BLOCK_ENTRIES = 2**22


@dataclass(frozen=True)
class Shard:
    """The memory of the rows of one block."""

    number: int
    memory: GaussianMemory

    @property
    def log_mass(self) -> float:
        """Log of the total weight of the memories, in float64."""
        memory = self.memory
        if isinstance(memory, ModernHopfield):
            length = memory.memories[0].double().square().sum()
            return float(0.5 * memory.beta.double() * length - memory.log_mixing_weights[0])
        return float(_exact_log_weights(memory).logsumexp(0))


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
        mine, yours = ((each.log_mass - total).exp()[:, None] for each in (self, other))
        mean = mine * self.mean.double() + yours * other.mean.double()
        return Recall(total, mean.to(self.mean.dtype))


@torch.no_grad()
def recall_pull(shard: Shard, x: Tensor, what: Literal["target", "force"]) -> Recall:
    """Return the log-sum-exp of the logits, and the target of a step or the force on points."""
    pull = shard.memory._pull(x)
    return Recall(pull.logsumexp.double(), getattr(pull, what))


@torch.no_grad()
def recall_density(shard: Shard, x: Tensor, seen: Tensor | None = None) -> Recall:
    """Return the log of weight times density, and the mean given the coordinates seen."""
    memory = shard.memory
    found = memory._attend_density(x, seen)
    mean = found.mean if seen is None else found.mean + memory._keys().centre
    return Recall(found.logsumexp.double() + shard.log_mass, mean)


@torch.no_grad()
def recall_shares(shard: Shard, x: Tensor, seen: Tensor | None) -> list[tuple[int, Tensor, Tensor]]:
    """Return number, log-mass (Q,) and responsibilities (Q, n) of one shard."""
    shares = shard.memory._responsibilities(x, seen).double()
    return [(shard.number, recall_density(shard, x, seen).log_mass, shares)]


@dataclass(frozen=True)
class Ranked:
    """Up to k best memories of each query: values (Q, k), best first, and where they are."""

    k: int
    values: Tensor
    number: Tensor
    place: Tensor

    @classmethod
    def of(cls, shard: Shard, values: Tensor, start: int, k: int) -> Ranked:
        """Return the best of values (Q, n), which stand for memories of a shard from `start` on."""
        top, place = values.topk(min(k, values.shape[1]), dim=1)
        return cls(k, top, torch.full_like(place, shard.number), place + start)

    def __add__(self, other: Ranked) -> Ranked:
        values = torch.cat([self.values, other.values], 1)
        number = torch.cat([self.number, other.number], 1)
        place = torch.cat([self.place, other.place], 1)
        # Of equal values, the first.
        order = torch.argsort(values, dim=1, descending=True, stable=True)[:, : self.k]
        return Ranked(self.k, *(each.gather(1, order) for each in (values, number, place)))


@torch.no_grad()
def find_nearest(shard: Shard, x: Tensor, k: int) -> Ranked:
    """Return the k nearest memories of one shard, by minus their distance in float64."""
    x, found, start = x.double(), [], 0
    for block in shard.memory.memories.split(max(BLOCK_ENTRIES // max(len(x), 1), k)):
        away = torch.cdist(x, block.double(), compute_mode="donot_use_mm_for_euclid_dist")
        found.append(Ranked.of(shard, -away, start, k))
        start += len(block)
    return reduce(add, found)


@torch.no_grad()
def find_recalled(shard: Shard, x: Tensor) -> Ranked:
    """Return the memory of one shard with the largest logit."""
    memory = shard.memory
    parts = x.split(max(BLOCK_ENTRIES // memory.n_memories, 1))
    best = [memory._logits(part, None).double().max(1, keepdim=True) for part in parts]
    values, place = (torch.cat(each) for each in zip(*best, strict=True))
    return Ranked(1, values, torch.full_like(place, shard.number), place)


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
