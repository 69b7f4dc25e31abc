"""Langevin dynamics of candidates at all indices of a sequence in parallel."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.errors import DivergenceError
from isthmus.incontext.config import CheckedFields
from isthmus.incontext.model import ICLEBM

__all__ = ["BranchLangevin"]


@dataclass(frozen=True, kw_only=True)
class BranchLangevin(CheckedFields):
    r"""Move the candidates of every index n, each on its own energy.

    .. math:: x \leftarrow x + s\,\omega, \qquad x \leftarrow x - \alpha\,\nabla E(x \mid x_{<n})

    Noise comes first, as in the authors' code. The temperature is :math:`s^2 / (2\alpha)`: 1 with
    :meth:`calibrated`, which samples; 1.6e-5 with :meth:`paper`, which descends (erratum E22).

    Parameters
    ----------
    steps : int
    step_size : float
        The step :math:`\alpha`.
    noise : float
        The standard deviation s of the noise of one step.
    clip : float, optional
        Bound on each coordinate of the gradient. Default: none.
    box : float, optional
        Half-width of the cube that candidates are clamped to. Default: none.
    """

    steps: int = 15
    step_size: float = 0.045
    noise: float = 0.3
    clip: float | None = None
    box: float | None = None

    zero = ("steps", "noise")

    @classmethod
    def paper(cls) -> BranchLangevin:
        """Use the paper's settings: 15 steps of size 3.16 with noise 0.01."""
        return cls(steps=15, step_size=3.16, noise=0.01)

    @classmethod
    def calibrated(cls, box: float | None = None) -> BranchLangevin:
        """Use temperature 1: noise eps = 0.3, step eps^2 / 2, gradient clipped at 10."""
        return cls(steps=15, step_size=0.045, noise=0.3, clip=10.0, box=box)

    @property
    def temperature(self) -> float:
        """Temperature that these settings sample at, in the limit of small steps."""
        return self.noise**2 / (2 * self.step_size)

    @torch.no_grad()
    def run(
        self, model: ICLEBM, x: Tensor, candidates: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Return candidates (B, S, C, D) moved given the real sequences x (B, S, D)."""
        length, count = candidates.shape[1:3]
        index = torch.arange(length, device=x.device).repeat_interleave(count)
        with torch.autocast(x.device.type, enabled=False):  # chains need full precision
            cache, mask = model.encode(x), model.mask(index, length)
            state = candidates.detach().flatten(1, 2).clone()  # (B, S C, D)
            for step in range(self.steps):
                if self.noise:
                    state += self.noise * torch.randn(
                        candidates.shape, generator=generator, dtype=x.dtype, device=x.device
                    ).view(state.shape)
                gradient = model.candidate_gradient(state, cache, index, mask)
                if self.clip is not None:
                    gradient.clamp_(-self.clip, self.clip)
                state -= self.step_size * gradient
                if self.box is not None:
                    state.clamp_(-self.box, self.box)
                if not bool(torch.isfinite(state).all()):
                    raise DivergenceError(
                        f"Candidates overflowed at step {step + 1} of "
                        f"{self.steps} with step_size={self.step_size:g}. Use a smaller step_size, "
                        "or set clip or box."
                    )
        return state.view(candidates.shape)
