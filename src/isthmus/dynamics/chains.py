"""Chains: the result of sample_chains."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import Tensor

from isthmus.dynamics.diagnostics import FEWEST_DRAWS, effective_sample_size, split_r_hat

__all__ = ["Chains"]


@dataclass(frozen=True, eq=False, repr=False)
class Chains:
    """The draws of several chains, with diagnostics.

    Attributes
    ----------
    draws : Tensor (draws, chains, D)
    acceptance : Tensor (chains,)
        Mean acceptance probability of each chain after burn-in; 1 for unadjusted Langevin.
    sampler : Sampler, optional
        The sampler that made the draws, with its step size if that was tuned.
    """

    draws: Tensor
    acceptance: Tensor
    sampler: Any = None

    @cached_property
    def r_hat(self) -> Tensor:
        """Split R-hat of each coordinate: (D,). Above 1.01, chains have not mixed."""
        return split_r_hat(self.draws)

    @cached_property
    def ess(self) -> Tensor:
        """Effective sample size of the mean of each coordinate: (D,)."""
        return effective_sample_size(self.draws)

    def flatten(self) -> Tensor:
        """Return all draws, the first of every chain first: (draws * chains, D)."""
        return self.draws.flatten(0, 1)

    def __repr__(self) -> str:
        draws, chains, dim = self.draws.shape
        acceptance = float(self.acceptance.mean())
        line = f"Chains({draws=}, {chains=}, D={dim}, {acceptance=:.3f})"
        if draws < FEWEST_DRAWS:
            return line
        return (
            f"{line}\n  R-hat at most {float(self.r_hat.max()):.3f}, effective sample size "
            f"at least {float(self.ess.min()):.0f} of {draws * chains}"
        )
