r"""Modified Bessel functions on a log scale, the von Mises-Fisher distribution, gamma functions.

Bessel functions are computed from one function, :math:`\log(I_\nu(x) / x^\nu)`, and its first two
derivatives. Where :math:`h = \sqrt{\nu^2 + x^2}` is small, they come from the power series of
:math:`I_\nu`; elsewhere from Debye's expansion in powers of 1/h, which holds for every order
and argument. Neither overflows, nor cancels as :math:`x \to 0`.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, cast

import torch
from numpy.polynomial import Polynomial
from torch import Tensor

# From this h on, Debye's expansion with DEBYE_TERMS terms is exact to rounding; below it, the power
# series with SERIES_TERMS terms is.
DEBYE_RADIUS, DEBYE_TERMS, SERIES_TERMS = 30.0, 12, 50
# From this many half degrees of freedom for each half coordinate on, a series replaces lgamma.
MANY_DEGREES = 1e3


def log_gamma_ratio(dof: Tensor, dim: int | Tensor) -> Tensor:
    """Return log Gamma((v + D)/2) - log Gamma(v/2) - (D/2) log(v/2), in float64."""
    half, extra = 0.5 * dof, torch.as_tensor(0.5 * dim, dtype=dof.dtype, device=dof.device)
    large = half > MANY_DEGREES * extra.clamp(min=1.0)
    some = torch.where(large, 1.0, half)
    direct = torch.lgamma(some + extra) - torch.lgamma(some) - extra * some.log()
    small = torch.where(large, half, 1.0).reciprocal()
    first = 0.5 * extra * (extra - 1)
    series = first * small - first * (2 * extra - 1) / 6 * small**2
    series = series + first**2 / 3 * small**3
    return torch.where(large, series, direct)


def log_vmf_normalizer(dim: int, kappa: Tensor) -> Tensor:
    """Return log C of the densities C exp(kappa mu . x) on the unit sphere in `dim` dimensions."""
    half = 0.5 * dim
    log_constant = -half * math.log(2 * math.pi) - log_scaled_bessel(half - 1, kappa.double())
    return log_constant.to(kappa.dtype)


def vmf_mean_length(dim: int, kappa: Tensor) -> Tensor:
    """Return the length of the mean, I_{p/2}(k) / I_{p/2-1}(k)."""
    return log_scaled_bessel(0.5 * dim - 1, kappa, 1)


@torch.no_grad()
def sample_vmf(directions: Tensor, kappa: float | Tensor, generator: torch.Generator) -> Tensor:
    """Draw a unit vector about each direction (n, p), p > 1, by Wood's (1994) rejection sampler."""
    count, dim = directions.shape
    kappa = torch.as_tensor(kappa, dtype=torch.float64, device=directions.device).expand(count)
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
    # Beyond this, a draw is the direction itself to the last digit, and squares would overflow.
    kappa = kappa.clamp(max=1e100)
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


def log_scaled_bessel(order: float, x: Tensor, degree: int = 0) -> Tensor:
    """Return log(I_v(x) / x^v), or its derivative of degree 1, which is I_{v+1} / I_v, or 2."""
    if degree == 2:
        return _evaluate(order, x.double(), 2).to(x.dtype)
    found = _LogScaledBessel.apply(order, x, degree)
    return cast("Tensor", found)


class _LogScaledBessel(torch.autograd.Function):
    """A derivative of log(I_v(x) / x^v), whose own derivative is the next one."""

    generate_vmap_rule = True

    @staticmethod
    def forward(order: float, x: Tensor, degree: int) -> Tensor:
        return _evaluate(order, x.double(), degree).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.order, x, ctx.degree = inputs
        ctx.save_for_backward(x)
        ctx.save_for_forward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, Tensor, None]:
        (x,) = ctx.saved_tensors
        return None, grads[0] * log_scaled_bessel(ctx.order, x, ctx.degree + 1), None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> Tensor:
        (x,) = ctx.saved_tensors
        slope: Tensor = tangents[1] * log_scaled_bessel(ctx.order, x, ctx.degree + 1)
        return slope


def _evaluate(order: float, x: Tensor, degree: int) -> Tensor:
    """Return the derivative of degree 0, 1 or 2 of log(I_v(x) / x^v) for float64 x >= 0."""
    if order >= DEBYE_RADIUS:
        return _debye(order, x, degree)
    near = x * x + order * order < DEBYE_RADIUS**2
    by_series = _series(order, torch.where(near, x, 0.0), degree)
    return torch.where(near, by_series, _debye(order, torch.where(near, DEBYE_RADIUS, x), degree))


def _series(order: float, x: Tensor, degree: int) -> Tensor:
    """Use I_v(x) / (x/2)^v = S(y) / Gamma(v + 1), S = sum_k y^k / (k! (v+1)_k), y = x^2/4."""
    y = 0.25 * x * x
    total = _series_sum(order, y)
    if degree == 0:
        return total.log() - order * math.log(2) - math.lgamma(order + 1)
    first = _series_sum(order + 1, y) / ((order + 1) * total)
    if degree == 1:
        return 0.5 * x * first
    second = _series_sum(order + 2, y) / ((order + 1) * (order + 2) * total)
    return 0.5 * first + y * (second - first * first)


def _series_sum(order: float, y: Tensor) -> Tensor:
    total = torch.ones_like(y)
    for k in range(SERIES_TERMS, 0, -1):
        total = 1 + total * y / (k * (order + k))
    return total


def _debye(order: float, x: Tensor, degree: int) -> Tensor:
    """Debye's expansion, log I_v(x) ~ h - v asinh(v/x) - log(2 pi h)/2 + sum_k h^-k q_k(s)."""
    # s = v^2 / h^2
    h = torch.hypot(x, x.new_tensor(order))
    if degree == 0:
        correction = _debye_sum(order / h, h, 0)
        return h - order * (order + h).log() - 0.5 * (2 * math.pi * h).log() + correction
    cosine = x / h
    first = 0.5 + _debye_sum(order / h, h, 1)
    if degree == 1:
        return x / (order + h) - cosine * first / h
    second = _debye_sum(order / h, h, 2)
    bend = (2 * cosine * cosine - 1) * first + cosine * cosine * second
    return order / (h * (order + h)) + bend / (h * h)


def _debye_sum(sine: Tensor, h: Tensor, degree: int) -> Tensor:
    """Return the sum over k >= 1 of h^-k q_k(sine^2), differentiated `degree` times by -log h."""
    s = sine * sine
    total = torch.zeros_like(h)
    for k in range(DEBYE_TERMS, 0, -1):
        inner = torch.zeros_like(h)
        for j in range(k, -1, -1):
            inner = inner * s + _debye_coefficients()[k][j] * (k + 2 * j) ** degree
        total = (total + inner) / h
    return total


@cache
def _debye_coefficients() -> tuple[tuple[float, ...], ...]:
    """Return the coefficients of the polynomials q_k(s), k from 0 (which is unused) on."""
    # Bessel's equation is tf + f^2 = h^2 with t = x d/dx and f = t log I_v. Writing f as
    # h + (1 - s) sum_n h^(1-n) g_n(s) gives each g_n from those before, q_{n-1} by integration.
    s = Polynomial([0.0, 1.0])
    slopes = [Polynomial([0.0]), Polynomial([-0.5])]
    for n in range(2, DEBYE_TERMS + 2):
        last = slopes[-1]
        products = sum((slopes[j] * slopes[n - j] for j in range(1, n)), Polynomial([0.0]))
        inner = (n - 2) * last + 2 * s * last.deriv() - products
        slopes.append(-s * last + 0.5 * (1 - s) * inner)
    by_integration = (
        tuple(-float(g) / (k + 2 * j) for j, g in enumerate(slopes[k + 1].coef))
        for k in range(1, DEBYE_TERMS + 1)
    )
    return (0.0,), *by_integration
