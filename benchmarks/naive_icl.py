"""The in-context training step as the paper's appendix prints it, and with the same numbers.

Loops over indices, chains and Langevin steps; every energy encodes its whole prefix. The
transformer itself is a fast one: its attention is PyTorch's own.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from isthmus.incontext import ICLEBM
from isthmus.incontext.objectives import BranchLangevin


def transformer(model: ICLEBM, x: Tensor) -> Tensor:
    """Energies of a plain causal transformer with the model's weights. (B, S, D) -> (B, S)."""
    stream = model.embedding(x)
    for block in model.layers:
        joint = block.query_key_value(block.attention_norm(stream))
        query, key, value = joint.unflatten(-1, (3, block.heads, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        stream = stream + block.attention_out(mixed.transpose(1, 2).flatten(2))
        stream = stream + block.down(F.gelu(block.up(block.feedforward_norm(stream))))
    return model.readout(stream).squeeze(-1)


def prefix_energy(model: ICLEBM, x: Tensor, candidate: Tensor, index: int) -> Tensor:
    """Energy of a candidate (B, D) in the place of x[:, index]. (B,)."""
    return transformer(model, torch.cat([x[:, :index], candidate[:, None]], dim=1))[:, -1]


def langevin(
    model: ICLEBM, x: Tensor, start: Tensor, sampler: BranchLangevin, generator: torch.Generator
) -> Tensor:
    """Negatives (B, S, C, D), one index and chain after the other."""
    noise = [torch.randn(start.shape, generator=generator) for _ in range(sampler.steps)]
    end = torch.empty_like(start)
    for index in range(x.shape[1]):
        for chain in range(start.shape[2]):
            state = start[:, index, chain]
            for omega in noise:
                state = (state + sampler.noise * omega[:, index, chain]).requires_grad_()
                energy = prefix_energy(model, x, state, index).sum()
                (slope,) = torch.autograd.grad(energy, state)
                state = (state - sampler.step_size * slope).detach()
            end[:, index, chain] = state
    return end


def loss(model: ICLEBM, x: Tensor, negative: Tensor, regularization: float) -> Tensor:
    """The paper's loss with the authors' regulariser."""
    rows = [
        torch.stack([prefix_energy(model, x, each, index) for each in negative[:, index].unbind(1)])
        for index in range(x.shape[1])
    ]
    real, fake = transformer(model, x), torch.stack(rows)
    penalty = real.square().mean() + fake.square().mean()
    return real.mean() - fake.mean() + regularization * penalty
