"""Proposal: the density from which candidates are drawn, given the points so far."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from isthmus.incontext.config import CheckedFields
from isthmus.validation import as_number

__all__ = ["Proposal"]


@dataclass(frozen=True, kw_only=True)
class Proposal(CheckedFields):
    r"""The density :math:`q(x \mid x_{<n}) = u\,U(\text{box}) + (1-u)\,\mathrm{KDE}_h(x_{<n})`.

    It is uniform on the cube [-box, box]^D with probability u, and otherwise a Gaussian at an
    earlier point. At n = 0 it is uniform. Candidates for all indices are drawn at once.

    Parameters
    ----------
    box : float
        Half-width of the cube.
    uniform : float
        Weight u of the uniform part, in (0, 1].
    bandwidth : float
        Standard deviation h of the kernel at each earlier point.
    """

    box: float = 5.5
    uniform: float = 0.3
    bandwidth: float = 0.6

    def __post_init__(self) -> None:
        super().__post_init__()
        as_number(self.uniform, "uniform", above=0, at_most=1)

    def sample(self, x: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Draw `count` candidates for each index. x: (B, S, D) -> (B, S, count, D)."""
        batch, length, dim = x.shape
        shape = (batch, length, count)
        options: Any = {"generator": generator, "dtype": x.dtype, "device": x.device}
        spread = (2 * torch.rand(*shape, dim, **options) - 1) * self.box
        if self.uniform == 1:
            return spread
        index = torch.arange(length, device=x.device)[:, None]
        which = (torch.rand(shape, **options) * index).long()  # an earlier index, or 0
        center = x.gather(1, which.view(batch, -1, 1).expand(-1, -1, dim)).view(*shape, dim)
        near = center + self.bandwidth * torch.randn(*shape, dim, **options)
        far = (torch.rand(shape, **options) < self.uniform) | (index == 0)
        return torch.where(far[..., None], spread, near)

    def log_prob(self, x: Tensor, candidates: Tensor) -> Tensor:
        """Return log q of candidates (B, S, C, D) given sequences x (B, S, D): (B, S, C)."""
        length, dim = x.shape[1:]
        inside = (candidates.abs() <= self.box).all(dim=-1)
        flat = candidates.new_full((), -dim * math.log(2 * self.box))
        flat = torch.where(inside, flat, -math.inf)  # (B, S, C)
        if self.uniform == 1 or length == 0:
            return flat
        index = torch.arange(length, device=x.device)
        direct = "donot_use_mm_for_euclid_dist"  # exact also for a candidate at a context point
        distance = torch.cdist(candidates.flatten(1, 2), x, compute_mode=direct)
        exponent = -0.5 * (distance / self.bandwidth).square().view(*flat.shape, length)
        exponent = exponent.masked_fill(index >= index[:, None, None], -math.inf)
        constant = dim / 2 * math.log(2 * math.pi) + dim * math.log(self.bandwidth)
        near = exponent.logsumexp(dim=-1) - constant - index.clamp(min=1).log()[:, None]
        mixed = torch.logaddexp(flat + math.log(self.uniform), near + math.log1p(-self.uniform))
        return torch.where(index[:, None] == 0, flat, mixed)
