r"""Modified Bessel functions on a log scale, for any order and argument.

Everything is computed from one smooth function, :math:`\log(I_\nu(x) / x^\nu)`, and its first two
derivatives. Where :math:`h = \sqrt{\nu^2 + x^2}` is small, they come from the power series of
:math:`I_\nu`; elsewhere from Debye's expansion in powers of 1/h, which holds for every order
and argument. Neither overflows, nor cancels as :math:`x \to 0`.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any, cast

import numpy as np
import torch
from numpy.polynomial import Polynomial
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from isthmus.errors import InvalidInputError
from isthmus.validation import is_transforming, require_finite

# From this h on, Debye's expansion with DEBYE_TERMS terms is exact to rounding; below it, the power
# series with SERIES_TERMS terms is.
DEBYE_RADIUS = 30.0
DEBYE_TERMS = 12
SERIES_TERMS = 50


def log_bessel_i(order: float, x: ArrayLike) -> NDArray[np.float64]:
    r"""Return :math:`\log I_\nu(x)`, of the modified Bessel function of the first kind.

    Parameters
    ----------
    order : float
        :math:`\nu`, at least -1/2.
    x : array (...)
        At least zero.

    Returns
    -------
    array (...) of float64

    Examples
    --------
    >>> from isthmus.special import log_bessel_i
    >>> log_bessel_i(400.0, [0.0, 1.0, 1e5]).round(3)
    array([     -inf, -2277.759, 99992.525])
    """
    if not -0.5 <= order < math.inf:
        raise InvalidInputError(f"order must be finite and at least -1/2, not {order!r}.")
    points = at_least_zero(torch.from_numpy(np.array(x, dtype=np.float64)), "x")
    smooth = log_scaled_bessel(order, points)
    result: NDArray[np.float64] = (smooth + torch.xlogy(order, points)).numpy()
    return result


def at_least_zero(value: Tensor, name: str) -> Tensor:
    """Return `value` after checking that it is finite and not negative."""
    require_finite(value, name, "Pass numbers that are at least zero.")
    if not is_transforming() and bool((value.detach() < 0).any()):
        raise InvalidInputError(f"{name} must be at least zero; {float(value.min()):g} is not.")
    return value


def log_scaled_bessel(order: float, x: Tensor, degree: int = 0) -> Tensor:
    r"""Return :math:`\log(I_\nu(x) / x^\nu)` or one of its derivatives by x.

    It is even and analytic, unlike :math:`\log I_\nu` itself. Its first derivative is
    :math:`I_{\nu+1}(x) / I_\nu(x)`.

    Parameters
    ----------
    order : float
        :math:`\nu`, at least -1/2.
    x : Tensor (...)
        At least zero. The result is differentiable in it, at x = 0 too.
    degree : {0, 1, 2}
        Order of the derivative.

    Returns
    -------
    Tensor (...)
        In the dtype of x, and computed in float64.

    Examples
    --------
    >>> import torch
    >>> from isthmus.bessel import log_scaled_bessel
    >>> log_scaled_bessel(1.0, torch.tensor([0.0, 1e4]), degree=1)
    tensor([0.0000, 0.9998])
    """
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
    """Debye's expansion, log I_v(x) ~ h - v asinh(v/x) - log(2 pi h)/2 + sum_k h^-k q_k(s).

    Here h = sqrt(v^2 + x^2) and s = v^2 / h^2.
    """
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
    r"""Return the coefficients of the polynomials q_k(s), k from 0 (which is unused) on.

    With :math:`\theta = x\, d/dx`, Bessel's equation is :math:`\theta\varphi + \varphi^2 = h^2`
    for :math:`\varphi = \theta \log I_\nu`. Writing
    :math:`\varphi = h + (1 - s) \sum_{n \ge 1} h^{1-n} g_n(s)` gives each g_n from those before
    it, and q_{n-1} by integration.
    """
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
