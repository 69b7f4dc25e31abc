"""The mixture of Student-t distributions: a memory whose patterns have shapes and tails."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor

from isthmus.distribution import NORMAL, Line, student
from isthmus.errors import InvalidInputError, ShapeError
from isthmus.memories.base import WeightedMemory, keep_observed
from isthmus.memories.gaussian import as_columns, patterns
from isthmus.special import log_gamma_ratio
from isthmus.validation import as_entries, as_numbers, as_tensor, is_transforming, require_range

# Entries of the largest temporary, which nearly fits the cache of a processor.
BLOCK_ENTRIES = 2**19


@final
class StudentMixture(WeightedMemory):
    r"""A mixture of Student-t distributions, each with a location, shape and tail of its own.

    .. math:: E(x) = -\log \sum_n w_n\, c_n
        \Bigl(1 + \frac{q_n(x)}{\nu_n}\Bigr)^{-(\nu_n + D)/2}, \qquad
        q_n(x) = (x - m_n)^\top \Sigma_n^{-1} (x - m_n), \qquad \Sigma_n = L_n L_n^\top ,

    where :math:`c_n` makes each term a density, so that :math:`p(x) = e^{-E(x)} / \sum_n w_n`.
    With infinite degrees of freedom a component is the Gaussian :math:`N(m_n, \Sigma_n)`.
    Marginals and conditionals are mixtures of this kind again: :meth:`marginal`,
    :meth:`conditional`.

    :meth:`step` solves :math:`\sum_n a_n \Sigma_n^{-1} (x' - m_n) = 0` with
    :math:`a_n = r_n(x)\, (\nu_n + D) / (\nu_n + q_n(x))`, where :math:`r_n` are the
    responsibilities. It never raises the energy (docs/paper.md has the proof). The force
    :math:`-\nabla E = \sum_n a_n \Sigma_n^{-1} (m_n - x)` vanishes where it rests.

    Parameters
    ----------
    means : array or Tensor (N, D)
        Locations m; means of the components only where the degrees of freedom exceed 1.
    scale_trils : array or Tensor, optional
        L: lower triangles (N, D, D) with positive diagonals, their diagonals (N, D) where the
        axes are those of the data, or (N,) or a number for round components. Default: 1.
    dof : array or Tensor, optional
        Degrees of freedom, (N,) or a number, above zero; ``inf``, the default, is a Gaussian.
    log_weights : array or Tensor (N,), optional
        log w; need not be normalised, and ``-inf`` leaves a component out. Default: equal.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> wide, narrow = torch.eye(2), torch.tensor([[1.0, 0.0], [0.9, 0.1]])
    >>> means = torch.tensor([[0.0, 0.0], [4.0, 4.0]])
    >>> mixture = ist.StudentMixture(means, torch.stack([wide, narrow]), dof=[3.0, 30.0])
    >>> mixture
    StudentMixture(N=2, D=2, float32)
    >>> mixture.log_prob(torch.tensor([[4.0, 4.0], [90.0, 0.0]]))
    tensor([ -0.2282, -22.2845])
    >>> mixture.conditional([5.0, float("nan")]).means.data  # the second coordinate given the first
    tensor([[0.0000],
            [4.9000]])
    """

    translation_invariant = True
    has_responsibilities = True
    scale_trils: Tensor
    dof: Tensor

    def __init__(
        self, means: Any, scale_trils: Any = 1.0, dof: Any = math.inf, log_weights: Any = None
    ) -> None:
        super().__init__(means, "means", log_weights)
        self._store("scale_trils", _as_scales(scale_trils, self.memories))
        self._store("dof", _as_dof(dof, self.memories))

    @property
    def means(self) -> Tensor:
        """The memories, by the name that mixtures use. (N, D)."""
        return self.memories

    def log_normalizer(self) -> Tensor:
        """Return the log-normaliser log Z, the logarithm of the total weight: a scalar tensor."""
        return self.log_total_weight

    def _energy(self, x: Tensor) -> Tensor:
        parts, constants = self._frame(), self._constants()
        blocks = [self._terms(block, parts, constants).sum for block in self._blocks(x)]
        return -torch.cat(blocks).reshape(x.shape[:-1])

    def _log_prob(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        if seen is None:
            return -self._energy(x) - self.log_normalizer()
        found = x.new_zeros(x.shape[:-1])
        for rows, known in patterns(seen):
            if known.any():
                found[rows] = self.marginal(known)._log_prob(x[rows][:, known])
        return found

    def _score(self, x: Tensor) -> Tensor:
        parts, constants = self._frame(), self._constants()
        forces = []
        for block in self._blocks(x):
            curvature, pull = self._pull(block, parts, constants)
            point = (block - parts.centre) / parts.unit
            if curvature.ndim == 3:
                forces.append((pull - (curvature @ point[..., None])[..., 0]) / parts.unit)
            else:
                forces.append((pull - curvature * point) / parts.unit)
        return require_range(torch.cat(forces).reshape(x.shape), "The force")

    def _step(self, x: Tensor, held: Tensor | None = None) -> Tensor:
        """Move to the minimum of the quadratic bound on the energy."""
        parts, constants = self._frame(), self._constants()
        rows_held = None if held is None else held.reshape(-1, self.dim)
        moved, at = [], 0
        for block in self._blocks(x):
            curvature, pull = self._pull(block, parts, constants)
            point = (block - parts.centre) / parts.unit
            fixed = None if rows_held is None else rows_held[at : at + len(block)]
            moved.append(_minimum(curvature, pull, point, fixed) * parts.unit + parts.centre)
            at += len(block)
        state = require_range(torch.cat(moved).reshape(x.shape), "The minimum of the bound")
        return keep_observed(state, x, held)

    def _responsibilities(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        if seen is None:
            parts, constants = self._frame(), self._constants()
            blocks = [self._terms(block, parts, constants) for block in self._blocks(x)]
            shares = torch.cat([_shares(found).T for found in blocks])
            return shares.reshape(*x.shape[:-1], self.n_memories)
        shares = self.log_mixing_weights.exp().expand(*x.shape[:-1], -1).clone()
        for rows, known in patterns(seen):
            if known.any():
                shares[rows] = self.marginal(known)._responsibilities(x[rows][:, known])
        return shares

    def _conditional_mean(self, x: Tensor, seen: Tensor) -> Tensor:
        """Put unknown coordinates at their exact mean given the known ones.

        A component with one degree of freedom or less has no mean where nothing is known; its
        location is used instead.
        """
        return self._mean_given(x, seen, self._responsibilities(x, seen))

    def _mean_given(self, x: Tensor, seen: Tensor, responsibilities: Tensor) -> Tensor:
        """Put unknown coordinates at their mean given the known ones and responsibilities."""
        filled, centre = x.clone(), _mean(self.memories)
        means = self.memories - centre
        for rows, mask in patterns(seen):
            known, free = (each.nonzero()[:, 0].tolist() for each in (mask, ~mask))
            if not free:
                continue
            shares = responsibilities[rows]  # (q, N)
            slopes, _ = self._regression(known, free)  # (N, f, d)
            base = means[:, free] - (slopes @ means[:, known, None])[..., 0]
            along = torch.einsum("qn,nfd->qfd", shares, slopes)
            away = (x[rows][:, known] - centre[known])[..., None]
            some = filled[rows]
            some[:, free] = shares @ base + (along @ away)[..., 0] + centre[free]
            filled[rows] = some
        return filled

    def marginal(self, columns: Any) -> StudentMixture:
        """Return the density of some coordinates alone, in the given order.

        Parameters
        ----------
        columns : sequence of int
            Indices of the coordinates to keep.
        """
        chosen = as_columns(columns, self.dim)
        scales = self.scale_trils
        if scales.ndim == 3:
            scales = _refactored(scales[:, chosen])
        elif scales.ndim == 2:
            scales = scales[:, chosen]
        return self._alike(
            StudentMixture(self.memories[:, chosen], scales, self.dof, self.log_weights)
        )

    def condition(self, observed: Any) -> StudentMixture:
        r"""Return the exact density of the unobserved coordinates, given the observed ones.

        With d observed coordinates, a component gains d degrees of freedom, its scale matrix is
        that of a Gaussian times :math:`(\nu + q)/(\nu + d)`, q being its squared Mahalanobis
        distance to what is observed, and its weight is multiplied by its density there.

        Parameters
        ----------
        observed : array or Tensor (D,)
            Values of the observed coordinates, and NaN for the others, which keep their order.
        """
        x = self.as_input(observed, allow_nan=True)
        if x.ndim != 1:
            raise ShapeError(
                f"observed must be one point of shape ({self.dim},), not {tuple(x.shape)}. "
                "Condition on one point at a time; conditional_mean takes many."
            )
        seen = ~x.isnan()
        known, free = seen.nonzero()[:, 0].tolist(), (~seen).nonzero()[:, 0].tolist()
        if not free:
            raise InvalidInputError("observed has no NaN, so no coordinate is left.")
        if not known:
            return self.marginal(free)
        part = self.marginal(known)
        frame = part._frame()
        point = (x[known][None] - frame.centre) / frame.unit
        squares = _squares(point, frame)[:, 0]  # (N,)
        terms = part._terms(x[known][None], frame, part._constants())
        dof = self.dof.expand(self.n_memories)
        ratio = (1 + squares / dof) / (1 + len(known) / dof)
        means, scales = self.memories[:, free], self.scale_trils
        if scales.ndim == 3:
            slopes, rest = self._regression(known, free)
            away = (x[known] - self.memories[:, known])[..., None]
            means, scales = means + (slopes @ away)[..., 0], rest * ratio.sqrt()[:, None, None]
        elif scales.ndim == 2:
            scales = scales[:, free] * ratio.sqrt()[:, None]
        else:
            scales = scales * ratio.sqrt()
        return self._alike(StudentMixture(means, scales, dof + len(known), terms.logs[:, 0]))

    conditional = condition

    def _regression(self, known: list[int], free: list[int]) -> tuple[Tensor, Tensor]:
        """Return slopes of free coordinates on known ones (N, f, d), and scales given these."""
        d, scales = len(known), self.scale_trils
        if scales.ndim < 3 or not known:
            return self.memories.new_zeros(self.n_memories, len(free), d), scales
        joint = _refactored(scales[:, known + free])
        lower, cross = joint[:, :d, :d], joint[:, d:, :d]
        slopes = torch.linalg.solve_triangular(lower, cross, upper=False, left=False)
        return slopes, joint[:, d:, d:]

    def _line(self, column: int) -> Line:
        one = self.marginal([column])
        dof = one.dof.numpy(force=True)
        kernel = NORMAL if np.isinf(dof).all() else student(dof)
        return Line.of(one.log_mixing_weights, one.means[:, 0], one.scale_trils.reshape(-1), kernel)

    def _draw_about(self, chosen: Tensor, generator: torch.Generator) -> Tensor:
        centres, scales = self.memories[chosen], self.scale_trils
        noise = torch.empty_like(centres).normal_(generator=generator)
        half = (0.5 * self.dof.double().expand(self.n_memories))[chosen]
        finite = torch.where(half.isinf(), 1.0, half)
        drawn = torch._standard_gamma(finite, generator=generator) / finite
        drawn = torch.where(half.isinf(), 1.0, drawn.clamp(min=torch.finfo(drawn.dtype).tiny))
        noise = noise / drawn.sqrt()[:, None].to(noise.dtype)
        if scales.ndim == 3:
            return centres + (scales[chosen] @ noise[..., None])[..., 0]
        if scales.ndim == 0:
            return centres + scales * noise
        each = scales[chosen] if scales.ndim == 2 else scales[chosen, None]
        return centres + each * noise

    def _frame(self) -> Frame:
        """Return the components in units in which they are about 1 wide, about their centre."""
        scales, detached = self.scale_trils, self.scale_trils.detach().abs()
        if scales.ndim == 3:
            unit = detached.amax((0, 2))
        else:
            unit = detached.reshape(-1, self.dim if scales.ndim == 2 else 1).amax(0)
        unit = unit.expand(self.dim)
        centre = _mean(self.memories.detach())
        means = (self.memories - centre) / unit
        if scales.ndim < 3:
            each = scales if scales.ndim == 2 else scales.reshape(-1, 1)
            return Frame(means, (each / unit).expand_as(means).reciprocal(), centre, unit)
        identity = torch.eye(self.dim, dtype=unit.dtype, device=unit.device)
        lower = (scales / unit[:, None]).tril()
        inverse = torch.linalg.solve_triangular(lower, identity.expand_as(lower), upper=False)
        maps = torch.cat([inverse, -(inverse @ means[..., None])], 2)
        return Frame(means, inverse, centre, unit, maps.flatten(0, 1))

    def _constants(self) -> Tensor:
        """Return logarithms of weight times normaliser of each component. (N,)."""
        scales, dof = self.scale_trils, self.dof.double()
        if scales.ndim == 3:
            logs = scales.diagonal(dim1=1, dim2=2).log().sum(1)
        else:
            logs = scales.log() * (1 if scales.ndim == 2 else self.dim)
            logs = logs.sum(1) if scales.ndim == 2 else logs
        constants = log_gamma_ratio(dof, self.dim) - 0.5 * self.dim * math.log(2 * math.pi)
        constants = constants.to(self.memories.dtype) - logs
        if self.log_weights is not None:
            constants = constants + self.log_weights
        return constants.expand(self.n_memories)

    def _blocks(self, x: Tensor) -> tuple[Tensor, ...]:
        flat = x.reshape(-1, self.dim)
        width = flat.shape[0]
        if not is_transforming():
            width = BLOCK_ENTRIES // (self.n_memories * self.dim)
        return flat.split(max(1, width)) if len(flat) else (flat,)

    def _terms(self, x: Tensor, frame: Frame, constants: Tensor) -> Terms:
        """Return the logarithms of the terms of the density at x (q, D), and what they are of."""
        squares = _squares((x - frame.centre) / frame.unit, frame)  # (N, q)
        dof = self.dof.expand(self.n_memories)[:, None]
        gaussian = dof.isinf()
        tail = 0.5 * squares
        if is_transforming() or not bool(gaussian.all()):
            finite = torch.where(gaussian, 1.0, dof)
            heavy = 0.5 * (finite + self.dim) * torch.log1p(squares / finite)
            tail = torch.where(gaussian, tail, heavy)
        logs = constants[:, None] - tail
        return Terms(logs, torch.logsumexp(logs, 0), squares)

    def _pull(
        self, x: Tensor, frame: Frame, constants: Tensor, shares: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return sums of a_n P_n and of a_n P_n m_n at x (q, D), P being precisions.

        The first are (q, D, D), or (q, D) where every P is diagonal. `shares` (N, q) are the
        responsibilities, if more than x decides them.
        """
        found = self._terms(x, frame, constants)
        if not is_transforming() and bool((found.sum == -torch.inf).any()):
            raise InvalidInputError(
                "x has points whose squared distances to all components overflow. Rescale the data."
            )
        dof = self.dof.expand(self.n_memories)[:, None]
        shares = _shares(found) if shares is None else shares
        weights = shares * (1 + self.dim / dof) / (1 + found.squares / dof)
        if frame.inverse.ndim == 2:
            precisions = frame.inverse.square()
            return weights.T @ precisions, weights.T @ (precisions * frame.means)
        precisions = frame.inverse.transpose(1, 2) @ frame.inverse
        targets = (precisions @ frame.means[..., None])[..., 0]
        curvature = weights.T @ precisions.flatten(1)
        return curvature.view(len(x), self.dim, self.dim), weights.T @ targets


class Frame(NamedTuple):
    """Components about their centre, each coordinate in a unit of its own."""

    means: Tensor  # (N, D)
    inverse: Tensor  # of L: (N, D, D), or its diagonal (N, D)
    centre: Tensor  # (D,)
    unit: Tensor  # (D,)
    maps: Tensor | None = None  # of points and 1 to whitened points, of full shapes: (N D, D + 1)


class Terms(NamedTuple):
    """Logarithms of terms (N, q), of their sum (q,), and squared Mahalanobis distances (N, q)."""

    logs: Tensor
    sum: Tensor
    squares: Tensor


def _shares(found: Terms) -> Tensor:
    """Return the share of each term in the density at points (q, D), 0 where it is 0. (N, q)."""
    return (found.logs - torch.where(found.sum == -torch.inf, 0.0, found.sum)).exp()


def _squares(points: Tensor, frame: Frame) -> Tensor:
    """Return squared Mahalanobis distances of points (q, D) in the frame. (N, q)."""
    count, dim = frame.means.shape
    if frame.maps is None:
        white = (points[None] - frame.means[:, None]) * frame.inverse[:, None]  # (N, q, D)
        return white.square().sum(2)
    with_one = torch.cat([points, torch.ones_like(points[:, :1])], 1)
    return (frame.maps @ with_one.T).view(count, dim, -1).square().sum(1)


def _minimum(curvature: Tensor, pull: Tensor, point: Tensor, held: Tensor | None) -> Tensor:
    """Return the minimum of x' A x / 2 - b' x over the coordinates that are not held. (q, D)."""
    if curvature.ndim == 2:
        return pull / curvature
    if held is not None:
        free = ~held
        fixed = torch.where(held, point, 0.0)
        pull = torch.where(free, pull - (curvature @ fixed[..., None])[..., 0], fixed)
        both = free[:, :, None] & free[:, None, :]
        curvature = torch.where(both, curvature, torch.diag_embed(held.to(point.dtype)))
    # A unit diagonal: curvatures shrink with the square of the distance, and differ by column.
    scale = curvature.diagonal(dim1=1, dim2=2).rsqrt()
    balanced = curvature * scale[:, :, None] * scale[:, None, :]
    return scale * torch.linalg.solve(balanced, (scale * pull)[..., None])[..., 0]


def _refactored(rows: Tensor) -> Tensor:
    """Return lower triangles T with T T' = rows rows', for rows (N, d, D) of factors, d <= D."""
    upper = torch.linalg.qr(rows.transpose(1, 2), mode="r").R
    signs = torch.where(upper.diagonal(dim1=1, dim2=2) < 0, -1.0, 1.0)
    return (upper * signs[..., None]).transpose(1, 2)


def _mean(points: Tensor) -> Tensor:
    """Return the mean of rows whose sum may overflow. (N, D) -> (D,)."""
    return (points / len(points)).sum(0)


def _as_scales(value: Any, means: Tensor) -> Tensor:
    """Return scales as (N, D, D), (N, D), (N,) or (), after checking their diagonals."""
    (count, dim), given = means.shape, _floats(value, "scale_trils")
    shapes = (), (count,), (count, dim), (count, dim, dim)
    scales = as_entries(given, "scale_trils", means, *shapes, positive=False)
    if is_transforming():
        return scales
    diagonal = scales.diagonal(dim1=1, dim2=2) if scales.ndim == 3 else scales
    upper = scales.ndim == 3 and bool(scales.detach().triu(1).any())
    if upper or not bool((diagonal > 0).all()):
        raise InvalidInputError(
            "scale_trils must be lower triangles with positive diagonals: factors L of the scale "
            "matrix L L', such as torch.linalg.cholesky(covariance)."
        )
    return scales


def _as_dof(value: Any, means: Tensor) -> Tensor:
    """Return degrees of freedom as (N,) or (), positive and possibly infinite."""
    dof = as_tensor(_floats(value, "dof"), "dof").to(means)
    if dof.shape not in ((), means.shape[:1]):
        raise ShapeError(
            f"dof must be a number or ({len(means)},), one per component, not {tuple(dof.shape)}."
        )
    if not is_transforming() and not bool((dof > 0).all()):
        raise InvalidInputError("dof must be above zero; inf is a Gaussian component.")
    return dof


def _floats(value: Any, name: str) -> Any:
    """Return numbers and lists of them as a float64 array; arrays and tensors as they are."""
    return as_numbers(value, name) if isinstance(value, int | float | list) else value
