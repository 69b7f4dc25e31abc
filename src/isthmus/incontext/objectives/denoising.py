"""Denoising score matching: learn the score of slightly blurred data."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.incontext.fields import check_fields
from isthmus.incontext.model import ICLEBM

__all__ = ["DenoisingScoreMatching"]


@dataclass(frozen=True, kw_only=True)
class DenoisingScoreMatching:
    r"""Match :math:`-\nabla E(\tilde x \mid x_{<n})` to :math:`(x_n - \tilde x)/\sigma^2`.

    Here :math:`\tilde x = x_n + \sigma\omega`. It needs no sampler and no proposal, but learns the
    density of data blurred by :math:`\sigma`, and does not learn the relative mass of modes that
    lie far apart (Vincent, 2011).

    Parameters
    ----------
    sigma : float
        Standard deviation of the blur.
    candidates : int
        Blurred copies of each point.
    """

    sigma: float = 0.15
    candidates: int = 1

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, model: ICLEBM, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the loss of sequences x: (B, S, D)."""
        batch, length, dim = x.shape
        noise = torch.randn(
            batch, length, self.candidates, dim,
            generator=generator, dtype=x.dtype, device=x.device,
        )  # fmt: skip
        blurred = (x[:, :, None] + self.sigma * noise).requires_grad_()
        energy = model.branch_energy(x, blurred)
        (gradient,) = torch.autograd.grad(energy.sum(), blurred, create_graph=True)
        loss = 0.5 * (self.sigma * gradient - noise).square().sum(dim=-1).mean()
        # Distributed training needs a gradient for every parameter, and the bias has none here.
        return loss + 0 * energy.sum()
