"""Kernel density estimators whose kernels depend on the distance alone."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor
from torch.special import scaled_modified_bessel_k0, scaled_modified_bessel_k1

from isthmus.distribution import Laplace, Line
from isthmus.kernel.attention import Attention
from isthmus.kernel.logits import distance_logits, far_queries, needs_float64, squares_apart
from isthmus.memories.base import MarginalMemory, keep_observed
from isthmus.special import log_gamma_ratio
from isthmus.validation import as_positive

BLOCK_ENTRIES = 2**22


class RadialKDE(MarginalMemory):
    r"""A kernel density estimator with a kernel g of the squared distance.

    .. math:: E(x) = -\log \sum_n g(s_n), \qquad s_n = \lVert x - x_n \rVert^2, \qquad
        x \leftarrow \frac{\sum_n g'(s_n)\, x_n}{\sum_n g'(s_n)} .

    If g is convex and never increases, this :meth:`step` never raises the energy (Comaniciu and
    Meer, 2002): the sum lies above its tangent in the squared distances, which is largest where
    the weighted mean is. Where every kernel is zero, the energy is +inf; the score is zero and a
    step does not move.

    Parameters
    ----------
    memories : array or Tensor (N, D)
    bandwidth : float or scalar Tensor
        h, the unit of distances.
    """

    translation_invariant = True
    bandwidth: Tensor

    def __init__(self, memories: Any, bandwidth: float | Tensor = 1.0) -> None:
        super().__init__(memories)
        self._store("bandwidth", as_positive(bandwidth, "bandwidth", self.memories))
        as_positive(self.bandwidth.square(), "bandwidth squared", self.memories)

    @abstractmethod
    def _log_kernel(self, squares: Tensor, unseen: int | Tensor) -> Tensor:
        """Return log g of squared distances, with `unseen` further coordinates integrated out."""

    @abstractmethod
    def _log_slope(self, squares: Tensor) -> Tensor:
        """Return log(-g') of squared distances."""

    @abstractmethod
    def _draw_radii(self, n: int, gamma: Callable[[Any, int], Tensor]) -> Tensor:
        """Draw distances in units of the bandwidth from gamma variables of a shape. (n,)."""

    @abstractmethod
    def _coordinate(self) -> Any:
        """Return the distribution of a coordinate of a kernel of bandwidth 1, as scipy.stats."""

    def _line(self, column: int) -> Line:
        width, kernel = self.bandwidth, self._coordinate()
        return Line.of(self.log_mixing_weights, self.memories[:, column], width, kernel)

    def _squares(self, x: Tensor, memories: Tensor, observed: Tensor | None = None) -> Tensor:
        """Return squared distances over observed coordinates. (Q, D), (n, D) -> (Q, n)."""
        keys = self._keys()
        known = x if observed is None else torch.where(observed, x, keys.centre)
        if far_queries(known, keys.centre, 1 / self.bandwidth.square()) is not None:
            return squares_apart(known.double(), memories.double(), observed)
        if needs_float64(x - keys.centre, keys, None, 1 / self.bandwidth.square(), "sqeuclidean"):
            x, memories = x.double(), memories.double()
        x, memories, mask = x - keys.centre, memories - keys.centre, None
        if observed is not None:
            x, mask = x.masked_fill(~observed, 0), observed.to(x.dtype)
        squares = x.square().sum(1, keepdim=True) - distance_logits(x, memories, 0.0, 1.0, mask)
        # Derivatives are those of the formula, also where rounding made it negative.
        squares = squares + (squares.clamp(min=0) - squares).detach()
        return torch.where(squares.isnan(), torch.inf, squares)  # which is where squares overflow

    def _attend(
        self, x: Tensor, weight: Callable[[Tensor], Tensor], observed: Tensor | None = None
    ) -> Attention:
        """Return the log-sum-exp of a weight of the squared distances, and the weighted mean."""
        flat, found = x.reshape(-1, self.dim), []
        seen = None if observed is None else observed.reshape(flat.shape)
        for block in self.memories.split(max(BLOCK_ENTRIES // max(len(flat), 1), 256)):
            logits = weight(self._squares(flat, block, seen))
            total = torch.logsumexp(logits, 1)
            shares = (logits - _finite(total)[:, None]).exp()
            mean = shares @ (block.to(shares.dtype) - self._keys().centre)
            found.append((total.to(x.dtype), mean.to(x.dtype)))
        sums, means = map(torch.stack, zip(*found, strict=True))
        total = torch.logsumexp(sums, 0)
        mean = ((sums - _finite(total)).exp()[..., None] * means).sum(0)
        return Attention(total.reshape(x.shape[:-1]), mean.reshape(x.shape))

    def _kernel_of(self, seen: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Return log g of squared distances (Q, n) over observed coordinates."""
        unseen: int | Tensor = 0
        if seen is not None:
            unseen = (~seen).reshape(-1, self.dim).sum(1, keepdim=True).double()
        return lambda squares: self._log_kernel(squares, unseen)

    def _energy(self, x: Tensor) -> Tensor:
        return -self._attend(x, self._kernel_of(None)).logsumexp

    def log_normalizer(self) -> Tensor:
        """Return log Z, the logarithm of N times the integral of one kernel."""
        return self.log_total_weight + self._log_kernel(self.memories.new_zeros(()), self.dim)

    def _attend_density(self, x: Tensor, seen: Tensor | None) -> Attention:
        found = self._attend(x, self._kernel_of(seen), seen)
        return Attention(found.logsumexp - self.log_normalizer(), found.mean)

    def _logits(self, x: Tensor, seen: Tensor | None) -> Tensor:
        flat = x.reshape(-1, self.dim)
        observed = None if seen is None else seen.reshape(flat.shape)
        logits = self._kernel_of(seen)(self._squares(flat, self.memories, observed))
        return logits.reshape(*x.shape[:-1], self.n_memories)

    def _score(self, x: Tensor) -> Tensor:
        slope, energy = self._attend(x, self._log_slope), self._energy(x)
        size = 2 * (slope.logsumexp + torch.where(energy < torch.inf, energy, 0.0)).exp()
        force: Tensor = size[..., None] * (slope.mean - (x - self._keys().centre))
        return force

    def _step(self, x: Tensor, held: Tensor | None = None) -> Tensor:
        slope = self._attend(x, self._log_slope)
        somewhere = (slope.logsumexp > -torch.inf)[..., None]
        moved = torch.where(somewhere, slope.mean + self._keys().centre, x)
        return keep_observed(moved, x, held)

    def _draw_about(self, chosen: Tensor, generator: torch.Generator) -> Tensor:
        centres = self.memories[chosen]

        def gamma(shape: Any, n: int) -> Tensor:
            shapes = torch.as_tensor(shape, dtype=torch.float64, device=centres.device).expand(n)
            return torch._standard_gamma(shapes, generator=generator)

        direction = torch.empty_like(centres).normal_(generator=generator)
        direction = direction / torch.linalg.vector_norm(direction, dim=1, keepdim=True)
        radii = self._draw_radii(len(centres), gamma).to(centres.dtype)
        return centres + self.bandwidth * radii[:, None] * direction


class BallKDE(RadialKDE):
    r"""A radial estimator with the kernel :math:`g(s) = \max(0, 1 - s/h^2)^p`."""

    power: float

    def _log_kernel(self, squares: Tensor, unseen: int | Tensor) -> Tensor:
        # Integrating u coordinates out raises the power by u/2.
        unseen = torch.as_tensor(unseen, dtype=squares.dtype, device=squares.device)
        closeness = 1 - squares / self.bandwidth.square()
        power = self.power + 0.5 * unseen
        constant = math.lgamma(self.power + 1) - torch.lgamma(power + 1)
        constant = constant + unseen * (self.bandwidth.log() + 0.5 * math.log(math.pi))
        inside = closeness > 0
        log_kernel = power * torch.where(inside, closeness, 1.0).log() + constant
        return torch.where(inside, log_kernel, -torch.inf)

    def _log_slope(self, squares: Tensor) -> Tensor:
        # That of the power 1, whose weights are all equal.
        inside = squares < self.bandwidth.square()
        return torch.where(inside, -2 * self.bandwidth.log(), -torch.inf).to(squares.dtype)

    def _coordinate(self) -> Any:
        from scipy import stats

        power = self.power + 0.5 * (self.dim + 1)
        return stats.beta(power, power, loc=-1, scale=2)

    def _draw_radii(self, n: int, gamma: Callable[[Any, int], Tensor]) -> Tensor:
        inner, outer = gamma(0.5 * self.dim, n), gamma(self.power + 1, n)
        return (inner / (inner + outer)).sqrt()


@final
class EpanechnikovKDE(BallKDE):
    r"""Epanechnikov kernel density estimator.

    .. math:: E(x) = -\log \sum_n \max\bigl(0,\, 1 - \lVert x - x_n \rVert^2 / h^2\bigr)

    with the density :math:`p = e^{-E}\, (D+2) / (2 N V_D h^D)`, where :math:`V_D` is the
    volume of the unit ball.

    The kernel ends at distance h. Farther than that from every memory, **the energy is +inf**,
    the score and all responsibilities are zero, and :meth:`step`, the plain mean of all memories
    within h, does not move. Retrieval ends after finitely many steps.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> kde = ist.EpanechnikovKDE(torch.tensor([[0.0], [1.0], [9.0]]), bandwidth=2.0)
    >>> kde.energy(torch.tensor([[0.5], [5.0]]))
    tensor([-0.6286,     inf])
    >>> kde.step(torch.tensor([[0.1], [5.0]]))
    tensor([[0.5000],
            [5.0000]])
    """

    power = 1.0


@final
class UniformKDE(BallKDE):
    r"""Uniform kernel density estimator.

    .. math:: E(x) = -\log \#\{n : \lVert x - x_n \rVert < h\}

    with the density :math:`p = e^{-E} / (N V_D h^D)`, where :math:`V_D` is the volume of the unit
    ball. Where no memory is in reach, the density is zero and **the energy is +inf**.

    Between the edges of the balls the energy is constant and the score zero. :meth:`step` moves to
    the mean of the memories in reach if no fewer are in reach there, and else stays.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> kde = ist.UniformKDE(torch.tensor([[0.0], [1.0], [9.0]]), bandwidth=2.0)
    >>> kde.energy(torch.tensor([[0.1], [5.0]]))
    tensor([-0.6931,     inf])
    >>> kde.step(torch.tensor([[0.1], [5.0]]))
    tensor([[0.5000],
            [5.0000]])
    """

    power = 0.0

    def _score(self, x: Tensor) -> Tensor:
        return 0.0 * x

    def _step(self, x: Tensor, held: Tensor | None = None) -> Tensor:
        moved = super()._step(x, held)
        return torch.where((self._energy(moved) <= self._energy(x))[..., None], moved, x)


@final
class LaplaceKDE(RadialKDE):
    r"""Laplace kernel density estimator, in the Euclidean norm.

    .. math:: E(x) = -\log \sum_n e^{-\lVert x - x_n \rVert / h}

    with the density :math:`p = e^{-E}\, \Gamma(D/2) / (2 N \pi^{D/2}\, \Gamma(D)\, h^D)`.
    The energy has a cusp at every memory, so that a memory can be a minimum exactly; the score
    there is that of the other memories.

    :meth:`step` is Weiszfeld's: the mean of the memories, weighted by responsibility over
    distance. Memories at x itself keep their cusp in the bound (Vardi and Zhang, 2000).

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> kde = ist.LaplaceKDE(torch.tensor([[0.0], [4.0]]), bandwidth=1.0)
    >>> kde.step(torch.tensor([[3.0], [4.0]]))  # a memory that is a minimum stays
    tensor([[3.8273],
            [4.0000]])
    >>> kde.log_prob(torch.tensor([[0.0]]))
    tensor([-1.3681])
    """

    def _squares(self, x: Tensor, memories: Tensor, observed: Tensor | None = None) -> Tensor:
        # From differences, since rounding of products would show in the root near a memory.
        return squares_apart(x, memories, observed)

    def _log_kernel(self, squares: Tensor, unseen: int | Tensor) -> Tensor:
        distances = _root(squares) / self.bandwidth
        if isinstance(unseen, int) and unseen == 0:
            return -distances
        counts = torch.as_tensor(unseen, dtype=squares.dtype, device=squares.device)
        constant = 0.5 * (counts - 1) * math.log(2 * math.pi) + counts * self.bandwidth.log()
        found = torch.zeros_like(distances)
        for count in set(counts.flatten().tolist()):
            found = torch.where(counts == count, _log_bessel(0.5 * (count + 1), distances), found)
        return math.log(2) + constant + found

    def _log_slope(self, squares: Tensor) -> Tensor:
        scale = (2 * self.bandwidth * _root(squares, 1.0)).log()
        return torch.where(squares > 0, self._log_kernel(squares, 0) - scale, -torch.inf)

    def _step(self, x: Tensor, held: Tensor | None = None) -> Tensor:
        pull = self.bandwidth * self._score(x)
        if held is not None:
            pull = pull.masked_fill(held, 0)
        here = self._attend(x, lambda s: torch.zeros_like(s).masked_fill(s > 0, -torch.inf))
        own = (here.logsumexp + self._energy(x)).exp()
        share = (1 - own / torch.linalg.vector_norm(pull, dim=-1)).clamp(min=0)
        share = torch.where(own > 0, share, 1.0)[..., None]
        return keep_observed(torch.lerp(x, super()._step(x), share), x, held)

    def _coordinate(self) -> Any:
        from scipy import stats

        return stats.laplace() if self.dim == 1 else Laplace(self.dim)

    def _draw_radii(self, n: int, gamma: Callable[[Any, int], Tensor]) -> Tensor:
        return gamma(self.dim, n)


@final
class StudentKDE(RadialKDE):
    r"""Student-t kernel density estimator, robust against outliers.

    .. math:: E(x) = -\log \sum_n
        \Bigl(1 + \frac{\lVert x - x_n \rVert^2}{\nu h^2}\Bigr)^{-(\nu + D)/2}

    :meth:`step` weighs each memory by its responsibility divided by
    :math:`1 + \lVert x - x_n \rVert^2/(\nu h^2)`, as EM does. Far memories count less than under
    :class:`GaussianKDE`, the limit of many degrees of freedom. One degree is the Cauchy kernel.

    Parameters
    ----------
    memories, bandwidth
        As in :class:`isthmus.memories.RadialKDE`.
    dof : float or scalar Tensor
        Degrees of freedom, above zero. A kernel has a mean above 1 and a variance above 2.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> kde = ist.StudentKDE(torch.tensor([[0.0], [4.0]]), bandwidth=1.0, dof=3.0)
    >>> kde
    StudentKDE(N=2, D=1, bandwidth=1, dof=3, float32)
    >>> kde.step(torch.tensor([[3.0]]))
    tensor([[3.8571]])
    >>> kde.log_prob(torch.tensor([[100.0]]))  # under Gaussian kernels: -4610
    tensor([-17.1400])
    """

    dof: Tensor

    def __init__(
        self, memories: Any, bandwidth: float | Tensor = 1.0, dof: float | Tensor = 3.0
    ) -> None:
        super().__init__(memories, bandwidth)
        self._store("dof", as_positive(dof, "dof", self.memories))

    def _log_kernel(self, squares: Tensor, unseen: int | Tensor) -> Tensor:
        # Integrating u coordinates out leaves the kernel of the others.
        dof, bandwidth = self.dof.double(), self.bandwidth.double()
        left = dof + (self.dim - unseen)
        power = 0.5 * left
        constant = 0.5 * unseen * torch.log(2 * math.pi * bandwidth.square() * (dof / left))
        constant = constant - log_gamma_ratio(left, unseen)
        log_ratio = torch.log1p(squares / (self.dof * self.bandwidth.square()))
        return constant.to(squares.dtype) - power.to(squares.dtype) * log_ratio

    def _log_slope(self, squares: Tensor) -> Tensor:
        scale = self.dof * self.bandwidth.square()
        slope = 0.5 * (self.dof + self.dim) / scale
        return self._log_kernel(squares, 0) + slope.log() - torch.log1p(squares / scale)

    def _coordinate(self) -> Any:
        from scipy import stats

        return stats.t(float(self.dof))

    def _draw_radii(self, n: int, gamma: Callable[[Any, int], Tensor]) -> Tensor:
        tiny = torch.finfo(torch.float64).tiny
        mixing = gamma(0.5 * self.dof, n).clamp(min=tiny)
        return (self.dof * gamma(0.5 * self.dim, n) / mixing).sqrt()


def _finite(total: Tensor) -> Tensor:
    """Return `total` with zeros in place of -inf."""
    return torch.where(total > -torch.inf, total, 0.0)


def _root(squares: Tensor, at_zero: float = 0.0) -> Tensor:
    """Return the square root, with derivative zero at zero."""
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, 1.0).sqrt(), at_zero)


def _log_bessel(order: float, z: Tensor) -> Tensor:
    r"""Return log f of :math:`f_\nu(z) = z^\nu K_\nu(z)`, nu = 1/2, 1, ...; differentiable once."""
    # Orders rise by f_{v+1} = z^2 f_{v-1} + 2 v f_v, in which nothing cancels; f_v' = -z f_{v-1}.
    with torch.no_grad():
        here = z.double().clamp(min=torch.finfo(torch.float64).tiny ** 0.5)
        if order % 1:
            at, current = 0.5, 0.5 * math.log(math.pi / 2) - here
            before = current - here.log()
        else:
            at, current = 1.0, (here * scaled_modified_bessel_k1(here)).log() - here
            before = scaled_modified_bessel_k0(here).log() - here
        while at < order:
            following = torch.logaddexp(2 * here.log() + before, math.log(2 * at) + current)
            before, current, at = current, following, at + 1
        slope = (-here * (before - current).exp()).to(z.dtype)
    return current.to(z.dtype) + slope * (z - z.detach())
