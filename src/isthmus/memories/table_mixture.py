"""Mixtures of Student-t distributions: of numbers, and of rows of numbers and categories."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import repeat
from typing import Any, NamedTuple, Self, final

import numpy as np
import torch
from torch import Tensor

from isthmus.distribution import Line
from isthmus.errors import DtypeError, InvalidInputError, ShapeError
from isthmus.memories.base import WeightedMemory, keep_observed
from isthmus.memories.gaussian import as_columns, patterns
from isthmus.special import log_gamma_ratio
from isthmus.validation import as_entries, as_points, as_tensor, is_transforming, require_range

# Entries of the largest temporary, which nearly fits the cache of a processor.
BLOCK_ENTRIES = 2**19
# How far probabilities of the values of a category may be from adding up to 1.
TOLERANCE = 1e-5
# A logarithm of 0 whose products with 0 are 0, and which others cannot reach.
NEVER = -1e30


class LineAt(NamedTuple):
    """One number given the rest of its row: a mixture of Student-t distributions for each row."""

    log_weights: Tensor  # (q, N), normalised
    centres: Tensor  # (q, N)
    scales: Tensor  # (q, N)
    dof: Tensor  # (N,)


class Frame(NamedTuple):
    """Components about their centre, each number in a unit of its own."""

    means: Tensor  # (N, D)
    inverse: Tensor  # of L: (N, D, D), or its diagonal (N, D)
    centre: Tensor  # (D,)
    unit: Tensor  # (D,)
    maps: Tensor | None  # of points and 1 to whitened points, of full shapes: (N D, D + 1)
    constants: Tensor  # logarithms of weight times normaliser (N,)
    log_shares: Tensor | None  # of all values, and of one that never occurs: (N, S + 1)


class StudentRows(WeightedMemory):
    """Components that are Student-t over D numbers times distributions over C categories."""

    has_responsibilities = True
    scale_trils: Tensor
    dof: Tensor
    n_values: tuple[int, ...] = ()
    """The number of values of each category."""

    def _with(self, means: Tensor, shares: list[Tensor], *others: Any) -> Self:
        """Return a mixture of this kind with other components."""
        parts = (shares,) if isinstance(self, TableMixture) else ()
        return self._alike(type(self)(means, *parts, *others))

    def _store_shapes(self, scale_trils: Any, dof: Any) -> None:
        """Check and keep what the constructor takes beside locations, shares and weights."""
        scales, dof = scale_trils if self.n_numbers else 1.0, as_tensor(dof, "dof").to(self.means)
        self._store("scale_trils", _as_scales(scales, self.means))
        if dof.shape not in ((), self.means.shape[:1]):
            raise ShapeError(
                f"dof must be a number or ({self.n_memories},), one per component, not "
                f"{tuple(dof.shape)}."
            )
        if not is_transforming() and not bool((dof > 0).all()):
            raise InvalidInputError("dof must be above zero; inf is a Gaussian component.")
        self._store("dof", dof)

    @property
    def n_numbers(self) -> int:
        """The number of columns of numbers D."""
        return self.dim - len(self.n_values)

    @property
    def means(self) -> Tensor:
        """Locations of the numbers. (N, D)."""
        return self.memories[:, : self.n_numbers]

    @property
    def shares(self) -> list[Tensor]:
        """Probabilities of the values of each category in each component, (N, V) each."""
        return [getattr(self, f"shares_{place}") for place in range(len(self.n_values))]

    @property
    def _widths(self) -> Tensor:
        """Scales of the components: (N, D, D), or their diagonals (N, D)."""
        scales = self.scale_trils if self.scale_trils.ndim else self.scale_trils[None]
        scales = scales if scales.ndim > 1 else scales[:, None]
        return scales if scales.ndim == 3 else scales.expand(self.n_memories, self.n_numbers)

    def log_normalizer(self) -> Tensor:
        """Return the log-normaliser log Z, the logarithm of the total weight: a scalar tensor."""
        return self.log_total_weight

    def _energy(self, x: Tensor) -> Tensor:
        return -self._of_seen(_log_sum, x, None)

    def _log_prob(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        total = self.log_normalizer()
        return self._of_seen(_log_sum, x, seen, total) - total

    def _responsibilities(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        return self._of_seen(_posterior, x, seen, self.log_mixing_weights.exp())

    def _of_seen(
        self, method: Callable[..., Tensor], x: Tensor, seen: Tensor | None, otherwise: Any = None
    ) -> Tensor:
        """Return a function of what is seen of each point, `otherwise` where nothing is."""
        flat = x.reshape(-1, self.dim)
        if seen is None:
            found = _by_block(method, self, flat)
        else:
            masks = seen.reshape(-1, self.dim)
            found = otherwise.expand(len(flat), *otherwise.shape).clone()
            for rows, known in _patterns(masks[:, : self.n_numbers]):
                part, kept = self._seeing_numbers(known)
                if part is not None:
                    points, mask = flat[rows][:, kept], masks[rows][:, kept]
                    found[rows] = _by_block(method, part, points, mask)
        return found.reshape((*x.shape[:-1], *found.shape[1:]))

    def _seeing_numbers(self, known: Tensor) -> tuple[Self | None, Tensor]:
        """Return the density without the other numbers, None if nothing is left; and columns."""
        kept = torch.cat([known, known.new_ones(len(self.n_values))])
        if bool(kept.all()):
            return self, kept
        places = known.nonzero()[:, 0].tolist()
        return (self._columns(places, self.shares) if bool(kept.any()) else None), kept

    def _columns(self, places: list[int], shares: list[Tensor]) -> Self:
        """Return the density of some numbers and categories alone."""
        scales = self._widths[:, places]
        scales = _refactored(scales) if scales.ndim == 3 and places else scales
        return self._with(self.means[:, places], shares, scales, self.dof, self.log_weights)

    def _score(self, x: Tensor) -> Tensor:
        unit = self._frame().unit

        def force(memory: Self, block: Tensor, _: None) -> Tensor:
            curvature, pull, point = memory._bound(block)
            full = curvature.ndim == 3
            back = (curvature @ point[..., None])[..., 0] if full else curvature * point
            return torch.cat([(pull - back) / unit, 0 * block[:, self.n_numbers :]], 1)

        found = _by_block(force, self, x.reshape(-1, self.dim))
        return require_range(found.reshape(x.shape), "The force")

    def _step(self, x: Tensor, held: Tensor | None = None) -> Tensor:
        """Move the numbers to the minimum of the quadratic bound on the energy."""
        frame, count = self._frame(), self.n_numbers

        def move(memory: Self, block: Tensor, fixed: Tensor | None) -> Tensor:
            curvature, pull, point = memory._bound(block)
            held = None if fixed is None else fixed[:, :count]
            moved = _minimum(curvature, pull, point, held) * frame.unit + frame.centre
            if self.n_values:  # a point whose categories never occur stays
                nowhere = (curvature.flatten(1) == 0).all(1, keepdim=True)
                moved = torch.where(nowhere, block[:, :count], moved)
            return torch.cat([moved, block[:, count:]], 1)

        rows_held = None if held is None else held.reshape(-1, self.dim)
        state = _by_block(move, self, x.reshape(-1, self.dim), rows_held).reshape(x.shape)
        return keep_observed(require_range(state, "The minimum of the bound"), x, held)

    def _conditional_mean(self, x: Tensor, seen: Tensor) -> Tensor:
        """Put unknown numbers at their exact mean, and categories at the most probable value.

        A component with one degree of freedom or less has no mean where nothing is known; its
        location is used instead.
        """
        count, centre = self.n_numbers, self._frame().centre
        filled, mask = x.reshape(-1, self.dim).clone(), seen.reshape(-1, self.dim)
        posterior = self._responsibilities(filled, mask)
        means = self.means - centre
        for rows, part in _patterns(mask[:, :count]):
            known, free = (each.nonzero()[:, 0].tolist() for each in (part, ~part))
            if not free:
                continue
            shares = posterior[rows]  # (q, N)
            slopes, _ = self._regression(known, free)  # (N, f, d)
            base = means[:, free] - (slopes @ means[:, known, None])[..., 0]
            along = torch.einsum("qn,nfd->qfd", shares, slopes)
            some = filled[rows]
            away = (some[:, known] - centre[known])[..., None]
            some[:, free] = shares @ base + (along @ away)[..., 0] + centre[free]
            filled[rows] = some
        for place, each in enumerate(self.shares, count):
            best = (posterior @ each).argmax(1).to(x.dtype)
            filled[:, place] = torch.where(mask[:, place], filled[:, place], best)
        return filled.reshape(x.shape)

    def _values_given(self, x: Tensor, seen: Tensor, column: int) -> Tensor:
        """Return probabilities of the values of a category, given what is seen. (q, V)"""
        hidden = seen.clone()
        hidden[:, self.n_numbers + column] = False
        return self._responsibilities(x, hidden) @ self.shares[column]

    def _line_given(self, x: Tensor, seen: Tensor, column: int) -> LineAt:
        """Return a number given what is seen of rows (q, D + C), of one pattern of numbers."""
        hidden = seen.clone()
        hidden[:, column] = False
        logs, centres, scales, factors, dof = self._given(x, hidden, [column])
        shape = len(x), self.n_memories
        widths = (scales.reshape(-1, 1) * factors).T.expand(shape)
        return LineAt(logs.T.log_softmax(1).expand(shape), centres[..., 0], widths, dof)

    def _given(self, x: Tensor, seen: Tensor, free: list[int]) -> tuple[Tensor, ...]:
        """Return components of free numbers, given what is seen of rows of one pattern of numbers.

        They have log-weights (N, q), locations (q, N, f), scales for all rows and factors (N, q) of
        these, and degrees of freedom (N,).
        """
        known = seen[0, : self.n_numbers]
        part, kept = self._seeing_numbers(known)
        places = known.nonzero()[:, 0].tolist()
        dof, d = self.dof.expand(self.n_memories), len(places)
        weights = self.memories.new_zeros(()) if self.log_weights is None else self.log_weights
        logs = weights.expand(self.n_memories)[:, None]
        squares = self.memories.new_zeros(1, 1)
        if part is not None:
            logs, squares = part._terms(x[:, kept], seen[:, kept])
        factors = ((1 + squares / dof[:, None]) / (1 + d / dof[:, None])).sqrt()
        slopes, scales = self._regression(places, free)
        away = (x[:, None, places] - self.means[:, places])[..., None]  # (q, N, d, 1)
        return logs, self.means[:, free] + (slopes @ away)[..., 0], scales, factors, dof + d

    def marginal(self, columns: Any) -> Self:
        """Return the density of some columns alone: numbers, then categories, in the given order.

        Parameters
        ----------
        columns : sequence of int
            Indices of the columns to keep.
        """
        chosen, count = as_columns(columns, self.dim), self.n_numbers
        shares = [self.shares[place - count] for place in chosen if place >= count]
        return self._columns([place for place in chosen if place < count], shares)

    def condition(self, observed: Any) -> Self:
        r"""Return the exact density of the unobserved columns, given the observed ones.

        With d observed numbers, a component gains d degrees of freedom, its scale matrix is
        that of a Gaussian times :math:`(\nu + q)/(\nu + d)`, q being its squared Mahalanobis
        distance to what is observed, and its weight is multiplied by its density there.

        Parameters
        ----------
        observed : array or Tensor (D,), or (D + C,) with categories
            Values of the observed columns, and NaN for the others, which keep their order.
        """
        x, count = self.as_input(observed, allow_nan=True), self.n_numbers
        if x.ndim != 1:
            raise ShapeError(
                f"observed must be one point of shape ({self.dim},), not {tuple(x.shape)}. "
                "Condition on one point at a time; conditional_mean takes many."
            )
        seen = ~x.isnan()
        if bool(seen.all()):
            raise InvalidInputError("observed has no NaN, so no coordinate is left.")
        free = (~seen[:count]).nonzero()[:, 0].tolist()
        logs, means, scales, factors, dof = self._given(
            x.nan_to_num(nan=0.0)[None], seen[None], free
        )
        if bool((logs == -torch.inf).all()):
            raise InvalidInputError("What is observed has probability 0.")
        scales = scales * (factors if scales.ndim == 2 else factors[..., None])
        shares = [e for e, here in zip(self.shares, seen[count:].tolist(), strict=True) if not here]
        return self._with(means[0], shares, scales, dof, logs[:, 0])

    conditional = condition

    def _regression(self, known: list[int], free: list[int]) -> tuple[Tensor, Tensor]:
        """Return slopes of free numbers on known ones (N, f, d), and their scales given these."""
        d, scales = len(known), self._widths
        if scales.ndim == 2 or not free:
            return scales.new_zeros(self.n_memories, len(free), d), scales[:, free]
        joint = _refactored(scales[:, known + free])
        lower, cross = joint[:, :d, :d], joint[:, d:, :d]
        slopes = torch.linalg.solve_triangular(lower, cross, upper=False, left=False)
        return slopes, joint[:, d:, d:]

    def _line(self, column: int) -> Line:
        if column >= self.n_numbers:
            raise self._missing("distribution function of a category", "It has probabilities")
        from scipy import stats

        one = self._columns([column], [])
        dof = one.dof.double().numpy(force=True)
        kernel = None if np.isinf(dof).all() else stats.t(dof)
        return Line.of(one.log_mixing_weights, one.means[:, 0], one.scale_trils.reshape(-1), kernel)

    def _draw_about(self, chosen: Tensor, generator: torch.Generator) -> Tensor:
        centres, scales = self.means[chosen], self._widths[chosen]
        noise = torch.empty_like(centres).normal_(generator=generator)
        if self.n_numbers:
            half = (0.5 * self.dof.double().expand(self.n_memories))[chosen]
            finite = torch.where(half.isinf(), 1.0, half)
            drawn = torch._standard_gamma(finite, generator=generator) / finite
            drawn = torch.where(half.isinf(), 1.0, drawn.clamp(min=torch.finfo(drawn.dtype).tiny))
            noise = noise / drawn.sqrt()[:, None].to(noise.dtype)
        noise = (scales @ noise[..., None])[..., 0] if scales.ndim == 3 else scales * noise
        columns = [centres + noise]
        for each in self.shares:
            uniform = torch.rand(len(chosen), 1, generator=generator, dtype=torch.float64,
                                 device=noise.device)  # fmt: skip
            total = each.double().cumsum(1)[chosen]
            codes = (total < uniform * total[:, -1:]).sum(1, keepdim=True)
            columns.append(codes.clamp(max=each.shape[1] - 1).to(noise))
        return torch.cat(columns, 1)

    def _frame(self) -> Frame:
        """Return the components in units in which they are about 1 wide, about their centre."""
        return self._kept("frame", self._make_frame)

    def _make_frame(self) -> Frame:
        scales, dim = self._widths, self.n_numbers
        each = scales.diagonal(dim1=1, dim2=2) if scales.ndim == 3 else scales
        unit = scales.detach().abs().amax((0, 2) if scales.ndim == 3 else 0)
        centre = (self.means.detach() / self.n_memories).sum(0)  # the sum may overflow
        means, maps = (self.means - centre) / unit, None
        if scales.ndim < 3:
            inverse = (each / unit).reciprocal()
        else:
            identity = torch.eye(dim, dtype=unit.dtype, device=unit.device)
            lower = (scales / unit[:, None]).tril()
            inverse = torch.linalg.solve_triangular(lower, identity.expand_as(lower), upper=False)
            maps = torch.cat([inverse, -(inverse @ means[..., None])], 2).flatten(0, 1)
        constants = log_gamma_ratio(self.dof.double(), dim) - 0.5 * dim * math.log(2 * math.pi)
        constants = constants.to(means.dtype) - each.log().sum(1)
        if self.log_weights is not None:
            constants = constants + self.log_weights
        log_shares = None
        if self.n_values:
            shares = torch.cat([*self.shares, torch.zeros_like(constants[:, None])], 1)
            logs = shares.clamp(min=torch.finfo(shares.dtype).tiny).log()
            log_shares = torch.where(shares > 0, logs, NEVER)
        return Frame(means, inverse, centre, unit, maps, constants, log_shares)

    def _terms(self, x: Tensor, seen: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return logarithms of terms, and squared Mahalanobis distances, at x. (N, q) each

        All numbers are seen; of categories, those that are not have probability 1.
        """
        frame = self._frame()
        squares = _squares((x[:, : self.n_numbers] - frame.centre) / frame.unit, frame)
        dof = self.dof.expand(self.n_memories)[:, None]
        gaussian, tail = dof.isinf(), 0.5 * squares
        if is_transforming() or not bool(gaussian.all()):
            finite = torch.where(gaussian, 1.0, dof)
            heavy = 0.5 * (finite + self.n_numbers) * torch.log1p(squares / finite)
            tail = torch.where(gaussian, tail, heavy)
        logs = frame.constants[:, None] - tail
        if frame.log_shares is not None:
            found = frame.log_shares @ self._flags(x, seen).T
            logs = torch.where(found < 0.5 * NEVER, -torch.inf, logs + found)
        return logs, squares

    def _flags(self, x: Tensor, seen: Tensor | None) -> Tensor:
        """Return the categories of points as indicators, 0 where not seen. (q, S + 1)

        The last is 1 if a code is beyond the values of its category.
        """
        codes, parts, beyond = x[:, self.n_numbers :].round(), [], x.new_zeros(len(x))
        for place, values in enumerate(self.n_values):
            index = torch.arange(values, dtype=x.dtype, device=x.device)
            here = x.new_ones(len(x)) if seen is None else seen[:, self.n_numbers + place].to(x)
            flags = (codes[:, place, None] == index).to(x.dtype) * here[:, None]
            beyond = beyond + here * (1 - flags.sum(1))
            parts.append(flags)
        return torch.cat([*parts, beyond[:, None]], 1)

    def _bound(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return sums of a_n P_n and of a_n P_n m_n, P being precisions, and x in the frame.

        The first are (q, D, D), or (q, D) where every P is diagonal.
        """
        frame = self._frame()
        logs, squares = self._terms(x)
        total = torch.logsumexp(logs, 0)
        if not (is_transforming() or self.n_values) and bool((total == -torch.inf).any()):
            raise InvalidInputError(
                "x has points whose squared distances to all components overflow. Rescale the data."
            )
        dof = self.dof.expand(self.n_memories)[:, None]
        weights = _shares(logs) * (1 + self.n_numbers / dof) / (1 + squares / dof)
        point = (x[:, : self.n_numbers] - frame.centre) / frame.unit
        if frame.inverse.ndim == 2:
            precisions = frame.inverse.square()
            return weights.T @ precisions, weights.T @ (precisions * frame.means), point
        precisions = frame.inverse.transpose(1, 2) @ frame.inverse
        targets = (precisions @ frame.means[..., None])[..., 0]
        curvature = (weights.T @ precisions.flatten(1)).unflatten(1, precisions.shape[1:])
        return curvature, weights.T @ targets, point


@final
class StudentMixture(StudentRows):
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

    def __init__(
        self, means: Any, scale_trils: Any = 1.0, dof: Any = math.inf, log_weights: Any = None
    ) -> None:
        super().__init__(means, "means", log_weights)
        self._store_shapes(scale_trils, dof)


@final
class TableMixture(StudentRows):
    r"""A mixture whose components are Student-t over numbers times categorical distributions.

    .. math:: p(x, c) = \sum_n w_n\, t_{\nu_n}(x; m_n, \Sigma_n) \prod_j p_{nj}(c_j)

    Rows of a table are points: D numbers, then C categories as codes 0, 1, ..., which are rounded;
    codes beyond the values of a category have probability 0. The density is one of numbers for
    each combination of categories. Densities, marginals, conditionals, responsibilities and draws
    are exact and closed-form; the score is that of the numbers, and 0 for categories.
    :class:`~isthmus.StudentMixture` is the case without categories. The memories are the location
    and the most probable categories of each component.

    Parameters
    ----------
    means : array or Tensor (N, D)
        Locations of the numbers; D may be 0.
    shares : sequence of arrays or Tensors (N, V_j)
        For each category, the probabilities of its values in each component.
    scale_trils, dof, log_weights
        As in :class:`~isthmus.StudentMixture`.

    Examples
    --------
    >>> import isthmus as ist
    >>> nan = float("nan")
    >>> pets = ist.TableMixture([[4.0], [30.0]], [[[0.9, 0.1], [0.2, 0.8]]], [1.0, 8.0])
    >>> pets
    TableMixture(N=2, numbers=1, categories=(2,), float64)
    >>> pets.log_prob([[4.0, 0], [4.0, 1]]).round(2)
    array([-1.72, -3.91])
    >>> pets.conditional([nan, 1.0]).log_mixing_weights.exp().numpy().round(2)
    array([0.11, 0.89])
    """

    def __init__(
        self,
        means: Any,
        shares: Sequence[Any] = (),
        scale_trils: Any = 1.0,
        dof: Any = math.inf,
        log_weights: Any = None,
    ) -> None:
        located = as_points(means, "means")
        if located.ndim != 2 or not len(located):
            raise ShapeError(
                f"means must be a table of shape (N, D) with N > 0, not {tuple(located.shape)}."
            )
        if not np.iterable(shares):
            raise DtypeError("shares must be a sequence of arrays, one for each category.")
        checked = [_as_shares(each, located, place) for place, each in enumerate(shares)]
        if not located.shape[1] and not checked:
            raise InvalidInputError("A mixture needs at least one number or category.")
        likeliest = [each.argmax(1, keepdim=True).to(located) for each in checked]
        super().__init__(torch.cat([located, *likeliest], 1), "means", log_weights)
        self.returns_arrays = not isinstance(means, Tensor)
        self.n_values = tuple(each.shape[1] for each in checked)
        for place, each in enumerate(checked):
            self._store(f"shares_{place}", each)
        self._store_shapes(scale_trils, dof)

    def _rebuilt(self, memories: Any, index: Tensor | None = None) -> Self:
        chosen = slice(None) if index is None else index
        parts = (self.scale_trils, self.dof, self.log_weights)
        scales, dof, logs = (p[chosen] if p is not None and p.ndim else p for p in parts)
        means = as_points(memories, "memories", dim=self.dim)[:, : self.n_numbers]
        shares = [each[chosen] for each in self.shares]
        return self._with(means, shares, scales, dof, logs)

    def __repr__(self) -> str:
        kind = str(self.memories.dtype).removeprefix("torch.")
        values = f"categories={self.n_values}"
        return f"TableMixture(N={self.n_memories}, numbers={self.n_numbers}, {values}, {kind})"


def _by_block(
    method: Callable[..., Tensor], memory: StudentRows, x: Tensor, mask: Tensor | None = None
) -> Tensor:
    """Return a function of a memory at blocks of points (q, D + C), and of rows of a mask."""
    width = max(1, len(x))
    if not is_transforming():
        width = max(1, BLOCK_ENTRIES // (memory.n_memories * memory.dim))
    masks = repeat(None) if mask is None else mask.split(width)
    return torch.cat([method(memory, *each) for each in zip(x.split(width), masks, strict=False)])


def _patterns(seen: Tensor) -> list[tuple[Any, Tensor]]:
    """Return each distinct row of a mask (q, D) after where it is; of D = 0, one for all rows."""
    return [*patterns(seen)] if seen.shape[1] else [(slice(None), seen.new_ones(0))]


def _log_sum(memory: StudentRows, x: Tensor, seen: Tensor | None) -> Tensor:
    """Return the logarithm of the density times the total weight. (q,)"""
    return torch.logsumexp(memory._terms(x, seen)[0], 0)


def _posterior(memory: StudentRows, x: Tensor, seen: Tensor | None) -> Tensor:
    """Return the share of each component in the density. (q, N)"""
    return _shares(memory._terms(x, seen)[0]).T


def _shares(logs: Tensor) -> Tensor:
    """Return the share of each term (N, q) in the density, 0 where it is 0."""
    total = torch.logsumexp(logs, 0)
    return (logs - torch.where(total == -torch.inf, 0.0, total)).exp()


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


def _as_scales(value: Any, means: Tensor) -> Tensor:
    """Return scales as (N, D, D), (N, D), (N,) or (), after checking their diagonals."""
    count, dim = means.shape
    shapes = (), (count,), (count, dim), (count, dim, dim)
    scales = as_entries(value, "scale_trils", means, *shapes, positive=False)
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


def _as_shares(value: Any, like: Tensor, place: int) -> Tensor:
    """Return probabilities of the values of a category as (N, V), normalised."""
    shares = as_tensor(value, f"shares[{place}]").to(like)
    if shares.ndim != 2 or len(shares) != len(like) or not shares.shape[1]:
        raise ShapeError(
            f"shares[{place}] must be ({len(like)}, V), a row for each component, not "
            f"{tuple(shares.shape)}."
        )
    total = shares.sum(1, keepdim=True)
    right = (shares >= 0).all() & ((total - 1).abs() <= TOLERANCE).all()
    if not is_transforming() and not bool(right):
        raise InvalidInputError(
            f"shares[{place}] must hold probabilities: rows that are not negative and add up to 1."
        )
    return shares / total
