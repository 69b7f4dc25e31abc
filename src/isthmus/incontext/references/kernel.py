"""Gaussian kernel density estimates, with a bandwidth that is given, best, or Silverman's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, final

import torch
from torch import Tensor

from isthmus.errors import InvalidInputError
from isthmus.incontext.references.base import Reference, as_sequences
from isthmus.memories.bandwidth import silverman

__all__ = ["KernelDensity"]

# Bandwidths tried for the best one, as shares of the spread of the points, and the number of
# searches around the best of them.
SHARES = (0.01, 3.0, 25)
REFINEMENTS = 3


@final
class KernelDensity(Reference):
    r"""The mean of Gaussians around the points of the context; NaN if there are none.

    Parameters
    ----------
    bandwidth : float, "best" or "silverman"
        "best" is the one bandwidth with the lowest mean negative log-likelihood *on the points
        asked for*, over all tasks of the batch, which favours this reference: no estimate from
        the context could know it. "silverman" is :func:`isthmus.memories.bandwidth.silverman` for
        each context, which needs two points.

    Examples
    --------
    >>> import torch
    >>> from isthmus.incontext.references import KernelDensity
    >>> context = torch.tensor([[[0.0], [2.0]]])
    >>> KernelDensity(1.0).log_prob(context, torch.tensor([[[1.0]]]))
    tensor([[-1.4189]], dtype=torch.float64)
    """

    def __init__(self, bandwidth: float | Literal["best", "silverman"]) -> None:
        if isinstance(bandwidth, str):
            known = bandwidth in ("best", "silverman")
        else:
            known = 0 < bandwidth < math.inf
        if not known:
            raise InvalidInputError(
                f'bandwidth must be above zero, or "best" or "silverman", not {bandwidth!r}.'
            )
        self.bandwidth = bandwidth
        self.name = f"kde-{bandwidth}" if isinstance(bandwidth, str) else f"kde-{bandwidth:g}"

    def nested(self, sequence: Tensor, sizes: Sequence[int], points: Tensor) -> list[Tensor]:
        """Return log-densities of the same points given growing parts of a sequence."""
        sequence, points = as_sequences(sequence, sizes, points)
        return [self._one(sequence[:, :size], points) for size in sizes]

    def _one(self, context: Tensor, points: Tensor) -> Tensor:
        size, dim = context.shape[1:]
        if size == 0 or (size == 1 and self.bandwidth == "silverman"):
            return torch.full_like(points[..., 0], torch.nan)
        if self.bandwidth == "silverman":
            widths = silverman(context)[:, None]  # (B, 1, D)
            scaled = _log_mean_kernel(_squares(context / widths, points / widths), 1.0, dim)
            return scaled - widths.log().sum(-1)
        squares = _squares(context, points)
        if self.bandwidth == "best":
            return _best(squares, dim)
        return _log_mean_kernel(squares, float(self.bandwidth), dim)


def _squares(context: Tensor, points: Tensor) -> Tensor:
    """Return squared distances. (B, n, D), (B, M, D) -> (B, M, n)."""
    pairs = zip(points.unbind(-1), context.unbind(-1), strict=True)
    return sum((x[:, :, None] - y[:, None]).square() for x, y in pairs)  # type: ignore[return-value]


def _log_mean_kernel(squares: Tensor, bandwidth: float, dim: int) -> Tensor:
    """Return the log-density from squared distances. (B, M, n) -> (B, M)."""
    constant = dim / 2 * math.log(2 * math.pi * bandwidth**2) + math.log(squares.shape[-1])
    return torch.logsumexp(-squares / (2 * bandwidth**2), dim=-1) - constant


def _best(squares: Tensor, dim: int) -> Tensor:
    """Return the log-densities at the bandwidth that is best for these points."""
    spread = float(squares.mean().sqrt())
    low, high, count = SHARES
    low, high = math.log(low * spread), math.log(high * spread)
    best = squares[..., 0]
    for _ in range(1 + REFINEMENTS):
        grid = torch.linspace(low, high, count).exp().tolist()
        tried = [_log_mean_kernel(squares, bandwidth, dim) for bandwidth in grid]
        chosen = max(range(count), key=lambda i: float(tried[i].mean()))
        best = tried[chosen]
        low = math.log(grid[max(chosen - 1, 0)])
        high, count = math.log(grid[min(chosen + 1, len(grid) - 1)]), 7
    return best
