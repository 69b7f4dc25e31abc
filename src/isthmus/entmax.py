r"""entmax: the map from logits to probabilities that can be exactly zero.

For :math:`\alpha \ge 1`,

.. math::
    \mathrm{entmax}_\alpha(z) = \arg\max_{p \in \triangle}\; p \cdot z - \Omega_\alpha(p),
    \qquad \Omega_\alpha(p) = \frac{1}{\alpha (\alpha - 1)} \sum_i (p_i^\alpha - p_i) ,

is softmax at :math:`\alpha = 1`, in the limit, and sparsemax at 2 (Peters, Niculae and Martins,
2019, Sparse Sequence-to-Sequence Models). Its solution is
:math:`p_i = [(\alpha - 1) z_i - \tau]_+^{1/(\alpha - 1)}`, where the threshold :math:`\tau` makes
the sum one.
"""

from __future__ import annotations

import torch
from torch import Tensor

# Newton steps with a gradient. The first makes the first derivative exact, the second the second
# and the third.
NEWTON_STEPS = 2


def entmax(logits: Tensor, alpha: float, dim: int = -1) -> Tensor:
    r"""Return probabilities along `dim`, zero where a logit is far below the largest.

    Exact to rounding and differentiable three times, in plain operations: ``torch.func``,
    ``torch.compile`` and ``torch.export`` see through it. A logit of ``-inf`` has probability zero;
    not all may be.

    Parameters
    ----------
    logits : Tensor (..., N, ...)
    alpha : float
        At least 1: 1 is softmax, 2 sparsemax.
    dim : int
        The axis that sums to one.

    Examples
    --------
    >>> import torch
    >>> logits = torch.tensor([1.0, 0.6, -1.0])
    >>> entmax(logits, 1.0)
    tensor([0.5538, 0.3712, 0.0750])
    >>> entmax(logits, 1.5)
    tensor([0.6400, 0.3600, 0.0000])
    """
    if alpha == 1:
        return torch.softmax(logits, dim)
    power = 1 / (alpha - 1)
    scaled = (alpha - 1) * (logits - logits.detach().amax(dim, keepdim=True))
    threshold = _threshold(scaled.detach(), power, dim)
    for _ in range(NEWTON_STEPS):
        excess = _raised(scaled - threshold, power).sum(dim, keepdim=True) - 1
        slope = power * _raised(scaled - threshold, power - 1).sum(dim, keepdim=True)
        threshold = threshold + excess / slope
    return _raised(scaled - threshold, power)


def _raised(base: Tensor, power: float) -> Tensor:
    """Return base ** power where positive, else zero, with finite derivatives of any order."""
    positive = base > 0
    return torch.where(positive, torch.where(positive, base, 1.0) ** power, 0.0)


def _threshold(scaled: Tensor, power: float, dim: int) -> Tensor:
    """Return tau by bisection, for values whose maximum is zero: it is between -1 and 0."""
    low = torch.full_like(scaled.amax(dim, keepdim=True), -1.0)
    width = 0.5
    while width > torch.finfo(scaled.dtype).eps / 2:
        middle = low + width
        low = torch.where(_raised(scaled - middle, power).sum(dim, keepdim=True) >= 1, middle, low)
        width /= 2
    return low
