"""The von Mises-Fisher distribution on the unit sphere, in any dimension."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isthmus.bessel import at_least_zero, log_bessel_i, log_scaled_bessel
from isthmus.errors import InvalidInputError, ShapeError
from isthmus.validation import as_points, as_tensor, is_transforming

__all__ = [
    "log_bessel_i",
    "log_vmf_normalizer",
    "sample_vmf",
    "vmf_concentration",
    "vmf_mean_length",
]

NEWTON_STEPS = 8


def log_vmf_normalizer(dim: int, kappa: Tensor) -> Tensor:
    r"""Return the log-normaliser of the von Mises-Fisher density.

    .. math::
        \log C_p(\kappa) = (\tfrac p2 - 1) \log \kappa - \tfrac p2 \log 2\pi
        - \log I_{p/2-1}(\kappa)

    The density :math:`C_p(\kappa)\, e^{\kappa \mu \cdot x}` is taken with respect to area on the
    unit sphere in p dimensions, so that at :math:`\kappa = 0` this is minus the log of the
    whole area.

    Parameters
    ----------
    dim : int
        p, at least 1 (where the "sphere" is the two points -1 and 1).
    kappa : Tensor (...)
        Concentrations, at least zero. The result is differentiable in them, any number of
        times.

    Returns
    -------
    Tensor (...)

    Examples
    --------
    >>> import torch
    >>> from isthmus.special import log_vmf_normalizer
    >>> log_vmf_normalizer(3, torch.tensor([0.0, 1.0, 1e4])).exp()
    tensor([0.0796, 0.0677, 0.0000])
    """
    order = _order(dim)
    kappa = at_least_zero(as_tensor(kappa, "kappa"), "kappa")
    log_constant = -0.5 * dim * math.log(2 * math.pi) - log_scaled_bessel(order, kappa.double())
    return log_constant.to(kappa.dtype)


def vmf_mean_length(dim: int, kappa: Tensor) -> Tensor:
    r"""Return the length of the mean of a von Mises-Fisher distribution.

    .. math:: A_p(\kappa) = I_{p/2}(\kappa) / I_{p/2-1}(\kappa)

    Parameters
    ----------
    dim : int
        p, at least 1.
    kappa : Tensor (...)
        Concentrations, at least zero. The result is differentiable in them.

    Returns
    -------
    Tensor (...)
        In [0, 1), up to rounding.

    Examples
    --------
    >>> import torch
    >>> from isthmus.special import vmf_mean_length
    >>> vmf_mean_length(3, torch.tensor([0.0, 1.0, 100.0]))
    tensor([0.0000, 0.3130, 0.9900])
    """
    kappa = at_least_zero(as_tensor(kappa, "kappa"), "kappa")
    return log_scaled_bessel(_order(dim), kappa, 1)


def vmf_concentration(dim: int, mean_length: Tensor) -> Tensor:
    r"""Return the concentration of the von Mises-Fisher distribution with this mean length.

    The inverse of :func:`vmf_mean_length`, by Newton's method from the start of Banerjee et
    al. (2005), :math:`r (p - r^2) / (1 - r^2)`, between Amos's bounds
    :math:`(p - 1) r / (1 - r^2)` and :math:`p\, r / (1 - r^2)`.

    Parameters
    ----------
    dim : int
        p, at least 2.
    mean_length : Tensor (...)
        r, at least zero and below one. The result is differentiable in it.

    Returns
    -------
    Tensor (...)

    Examples
    --------
    >>> import torch
    >>> from isthmus.special import vmf_concentration
    >>> vmf_concentration(3, torch.tensor([0.0, 0.31303528, 0.99]))
    tensor([  0.0000,   1.0000, 100.0001])
    """
    order = _order(dim, least=2)
    given = at_least_zero(as_tensor(mean_length, "mean_length"), "mean_length")
    if not is_transforming() and bool((given.detach() >= 1).any()):
        raise InvalidInputError(
            "mean_length must be below one: it is one only if all points coincide, and then the "
            "concentration is infinite."
        )
    length = given.double()
    with torch.no_grad():
        unit = length / ((1 - length) * (1 + length))
        kappa = unit * (dim - length.square())
        for _ in range(NEWTON_STEPS):
            excess = log_scaled_bessel(order, kappa, 1) - length
            kappa = kappa - excess / log_scaled_bessel(order, kappa, 2)
            kappa = torch.minimum(torch.maximum(kappa, (dim - 1) * unit), dim * unit)
        slope = log_scaled_bessel(order, kappa, 2)
    # Adds nothing to the value; its derivative is that of the inverse function.
    return (kappa + (length - length.detach()) / slope).to(given.dtype)


@torch.no_grad()
def sample_vmf(directions: Tensor, kappa: float | Tensor, generator: torch.Generator) -> Tensor:
    r"""Draw one exact sample from a von Mises-Fisher distribution about each direction.

    Wood's (1994) rejection sampler finds the cosine :math:`w = \mu \cdot x`, with Ulrich's
    two-uniform draw of its Beta proposal; the rest of x is uniform across :math:`\mu`. The
    work per draw does not grow with :math:`\kappa`.

    Parameters
    ----------
    directions : Tensor (n, p)
        Unit vectors :math:`\mu`, with p at least 2.
    kappa : float or Tensor () or (n,)
        Concentrations, at least zero.
    generator : torch.Generator
        The random stream, on the device of `directions`.

    Returns
    -------
    Tensor (n, p)
        Unit vectors.

    Examples
    --------
    >>> import torch
    >>> from isthmus.special import sample_vmf
    >>> north = torch.tensor([[0.0, 0.0, 1.0]]).expand(1000, 3)
    >>> sample_vmf(north, 100.0, torch.Generator().manual_seed(0)).mean(0).round(decimals=2)
    tensor([0.0000, 0.0000, 0.9900])
    """
    directions = as_points(directions, "directions")
    if directions.ndim != 2 or directions.shape[1] < 2:
        raise ShapeError(f"directions must be (n, p), p >= 2, not {tuple(directions.shape)}.")
    count, dim = directions.shape
    kappa = torch.as_tensor(kappa, dtype=torch.float64, device=directions.device)
    if kappa.shape not in ((), (count,)):
        raise ShapeError(f"kappa must be a number or ({count},), not {tuple(kappa.shape)}.")
    kappa = at_least_zero(kappa, "kappa").expand(count)
    drop = _draw_one_minus_cosine(dim, kappa, generator)

    # Draw about the first axis, then reflect that axis onto mu: orthogonal to rounding for any mu.
    pole = torch.nn.functional.normalize(directions.double(), dim=1)
    sign = torch.where(pole[:, 0] < 0, -1.0, 1.0).to(pole)
    drawn = torch.empty_like(pole).normal_(generator=generator)
    across = torch.linalg.vector_norm(drawn[:, 1:], dim=1).clamp(min=torch.finfo(pole.dtype).tiny)
    drawn *= ((drop * (2 - drop)).sqrt() / across)[:, None]
    drawn[:, 0] = -sign * (1 - drop)
    mirror = pole.clone()
    mirror[:, 0] += sign
    along = (drawn * mirror).sum(1) / (1 + pole[:, 0].abs())
    return (drawn - along[:, None] * mirror).to(directions.dtype)


def _draw_one_minus_cosine(dim: int, kappa: Tensor, generator: torch.Generator) -> Tensor:
    """Draw 1 - mu . x, which keeps its digits where kappa is large. (n,)."""
    # Wood's b, and his x_0 = (1 - b) / (1 + b).
    spread = (dim - 1) / (2 * kappa + torch.hypot(2 * kappa, kappa.new_tensor(dim - 1.0)))
    centre_drop = 2 * spread / (1 + spread)
    result = torch.empty_like(kappa)
    waiting = torch.arange(kappa.shape[0], device=kappa.device)
    power = 2 / (dim - 2) if dim > 2 else math.inf
    while waiting.numel():
        b, base = spread[waiting], centre_drop[waiting]
        uniform = torch.rand(3, b.shape[0], dtype=b.dtype, device=b.device, generator=generator)
        radius = (-torch.expm1(power * uniform[1].log())).sqrt()
        swing = radius * torch.cos(2 * math.pi * uniform[0])
        beta = 0.5 * (1 + swing)
        drop = 2 * b * beta / (0.5 * (1 - swing) + b * beta)
        ratio = (base + (1 - base) * drop) / (base * (2 - base))
        log_accept = kappa[waiting] * (base - drop) + (dim - 1) * ratio.log()
        accepted = log_accept >= uniform[2].log()
        result[waiting[accepted]] = drop[accepted]
        waiting = waiting[~accepted]
    return result


def _order(dim: int, least: int = 1) -> float:
    if int(dim) != dim or dim < least:
        raise InvalidInputError(f"dim must be a whole number, at least {least}, not {dim!r}.")
    return 0.5 * int(dim) - 1
