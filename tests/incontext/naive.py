"""The oracle: the authors' loops, which encode every prefix anew for each index and chain."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from isthmus.incontext import ICLEBM


def transformer(model: ICLEBM, tokens: Tensor) -> Tensor:
    """A plain causal transformer with the model's weights. tokens: (B, S, D) -> (B, S)."""
    batch, length, _ = tokens.shape
    box, wall = model.config.box, model.config.wall
    inside = tokens if box is None else tokens.clamp(-box, box)
    stream = F.linear(inside / model.config.scale, model.embedding.weight, model.embedding.bias)
    if model.position is not None:
        stream = stream + model.position.weight[:length]
    for block in model.blocks:
        norm = block.attention_norm
        normed = F.layer_norm(stream, stream.shape[-1:], norm.weight, norm.bias)
        joint = F.linear(normed, block.query_key_value.weight, block.query_key_value.bias)
        query, key, value = (
            part.view(batch, length, block.heads, -1).transpose(1, 2) for part in joint.chunk(3, -1)
        )
        logits = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        weight = logits.masked_fill(later, -math.inf).softmax(-1)
        mixed = (weight @ value).transpose(1, 2).reshape(stream.shape)
        stream = stream + F.linear(mixed, block.attention_out.weight, block.attention_out.bias)
        norm = block.feedforward_norm
        normed = F.layer_norm(stream, stream.shape[-1:], norm.weight, norm.bias)
        raised = F.linear(normed, block.up.weight, block.up.bias)
        bent = 0.5 * raised * (1 + torch.erf(raised / math.sqrt(2)))
        stream = stream + F.linear(bent, block.down.weight, block.down.bias)
    energy = F.linear(stream, model.readout.weight, model.readout.bias).squeeze(-1)
    if box is None:
        return energy
    overshoot = (tokens - tokens.clamp(-box, box)).norm(dim=-1)
    return energy + 0.5 * (overshoot / wall) ** 2


def prefix_energy(model: ICLEBM, x: Tensor, candidate: Tensor, index: int) -> Tensor:
    """Energy of candidate (B, D) at `index`, with the real prefix before it. (B,)."""
    return transformer(model, torch.cat([x[:, :index], candidate[:, None]], dim=1))[:, -1]


def branch_energy(model: ICLEBM, x: Tensor, candidates: Tensor) -> Tensor:
    """The same for every index and candidate. (B, S, C)."""
    _, length, count, _ = candidates.shape
    energies = [
        prefix_energy(model, x, candidates[:, n, c], n) for n in range(length) for c in range(count)
    ]
    return torch.stack(energies, dim=-1).view(-1, length, count)


def langevin(
    model: ICLEBM, x: Tensor, start: Tensor, noise: list[Tensor], step_size: float
) -> Tensor:
    """End points of chains given the noise of each step, one index and chain at a time."""
    end = torch.empty_like(start)
    for n in range(x.shape[1]):
        for c in range(start.shape[2]):
            state = start[:, n, c].clone()
            for omega in noise:
                state = (state + omega[:, n, c]).detach().requires_grad_()
                energy = prefix_energy(model, x, state, n).sum()
                (gradient,) = torch.autograd.grad(energy, state)
                state = (state - step_size * gradient).detach()
            end[:, n, c] = state
    return end
