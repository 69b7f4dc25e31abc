"""TableMixture: a memory of rows of numbers and categories, exact in every marginal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, final

import numpy as np
import torch
from torch import Tensor, nn

from isthmus.distribution import Line
from isthmus.energy import Energy
from isthmus.errors import DtypeError, InvalidInputError, ShapeError
from isthmus.memories.base import draw_index, generator_for
from isthmus.memories.gaussian import as_columns, patterns
from isthmus.memories.student_mixture import StudentMixture
from isthmus.validation import as_log_weights, as_numbers, as_tensor, is_transforming

# Components times points that are held at once.
BLOCK_ENTRIES = 2**19
# How far probabilities of the values of a category may be from adding up to 1.
TOLERANCE = 1e-5


class LineAt(NamedTuple):
    """One number given the rest of its row: a mixture of Student-t distributions for each row."""

    log_weights: Tensor  # (q, N), normalised
    centres: Tensor  # (q, N)
    scales: Tensor  # (q, N)
    dof: Tensor  # (N,)


@final
class TableMixture(Energy):
    r"""A mixture whose components are Student-t over numbers times categorical distributions.

    .. math:: p(x, c) = \sum_n w_n\, t_{\nu_n}(x; m_n, \Sigma_n) \prod_j p_{nj}(c_j)

    Rows of a table are points: D numbers, then C categories as codes 0, 1, ..., which are rounded;
    codes beyond the values of a category have probability 0. The density is one of numbers for
    each combination of categories. Densities, marginals, conditionals, responsibilities and draws
    are exact and closed-form; the score is that of the numbers, and 0 for categories.
    Without categories, this is a :class:`~isthmus.StudentMixture`.

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
    >>> pets.conditional([nan, 1.0]).numbers.log_mixing_weights.exp().numpy().round(2)
    array([0.11, 0.89])
    """

    log_weights: Tensor | None
    """Log-weights (N,) of a mixture without numbers, which have their own."""

    has_responsibilities = True
    has_conditional_mean = True
    has_exact_draws = True
    has_step = True
    _is_pointwise = True

    def __init__(
        self,
        means: Any,
        shares: Sequence[Any] = (),
        scale_trils: Any = 1.0,
        dof: Any = math.inf,
        log_weights: Any = None,
    ) -> None:
        super().__init__()
        located = as_tensor(means if isinstance(means, Tensor) else as_numbers(means, "means"), "m")
        if located.ndim != 2 or not len(located):
            raise ShapeError(
                f"means must be a table of shape (N, D) with N > 0, not {tuple(located.shape)}."
            )
        self.returns_arrays = not isinstance(means, Tensor)
        self.numbers: StudentMixture | None = None
        plain: Tensor | None = None
        if located.shape[1]:
            self.numbers = StudentMixture(located, scale_trils, dof, log_weights)
        else:
            plain = located.new_zeros(len(located))
            if log_weights is not None:
                plain = as_log_weights(log_weights, "log_weights", located).to(located)
        self.register_parameter(
            "log_weights", None if plain is None else nn.Parameter(plain, requires_grad=False)
        )
        if not np.iterable(shares):
            raise DtypeError("shares must be a sequence of arrays, one for each category.")
        checked = [_as_shares(each, located, place) for place, each in enumerate(shares)]
        self.shares = nn.ParameterList(nn.Parameter(each, requires_grad=False) for each in checked)
        if not self.dim:
            raise InvalidInputError("A mixture needs at least one number or category.")

    @classmethod
    def of(
        cls, numbers: StudentMixture | None, shares: Sequence[Tensor], logs: Any
    ) -> TableMixture:
        """Return the mixture of given parts; log-weights (N,) replace those of the numbers."""
        if numbers is None:
            return cls(shares[0].new_zeros(len(shares[0]), 0), shares, log_weights=logs)
        logs = numbers.log_weights if logs is None else logs
        return cls(numbers.means, shares, numbers.scale_trils, numbers.dof, logs)

    @property
    def n_numbers(self) -> int:
        """The number of columns of numbers D."""
        return 0 if self.numbers is None else self.numbers.dim

    @property
    def n_values(self) -> tuple[int, ...]:
        """The number of values of each category."""
        return tuple(each.shape[1] for each in self.shares)

    @property
    def n_memories(self) -> int:
        """The number of components N."""
        return self._template.shape[0]

    @property
    def dim(self) -> int:
        """The number of columns D + C."""
        return self.n_numbers + len(self.shares)

    @property
    def _template(self) -> Tensor:
        if self.numbers is not None:
            return self.numbers.memories
        assert self.log_weights is not None
        return self.log_weights

    def __repr__(self) -> str:
        kind = str(self._template.dtype).removeprefix("torch.")
        values = f"categories={self.n_values}"
        return f"TableMixture(N={self.n_memories}, numbers={self.n_numbers}, {values}, {kind})"

    @property
    def log_mixing_weights(self) -> Tensor:
        """Normalised log-weights log(w / W). (N,)"""
        if self.numbers is not None:
            return self.numbers.log_mixing_weights
        assert self.log_weights is not None
        return torch.log_softmax(self.log_weights, 0)

    def log_normalizer(self) -> Tensor:
        """Return the log-normaliser log Z, the logarithm of the total weight: a scalar tensor."""
        if self.numbers is not None:
            return self.numbers.log_total_weight
        assert self.log_weights is not None
        return torch.logsumexp(self.log_weights, 0)

    def _energy(self, x: Tensor) -> Tensor:
        return -self._logsumexp(x, None)

    def _log_prob(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        return self._logsumexp(x, seen) - self.log_normalizer()

    def _logsumexp(self, x: Tensor, seen: Tensor | None) -> Tensor:
        if x.shape[:-1].numel() == 0:
            return x.new_zeros(x.shape[:-1])
        width = x.shape[:-1].numel()
        if not is_transforming():
            width = max(4, BLOCK_ENTRIES // (self.n_memories * self.dim))
        flat, mask = x.reshape(-1, self.dim), None if seen is None else seen.reshape(-1, self.dim)
        if mask is not None and not is_transforming() and bool(mask.all()):
            mask = None
        kept = self._kept()
        sums = []
        for at, block in zip(range(0, len(flat), width), flat.split(width), strict=True):
            part = None if mask is None else mask[at : at + width]
            sums.append(torch.logsumexp(self._logs(block, part, kept), 1))
        return torch.cat(sums).reshape(x.shape[:-1])

    def _kept(self) -> tuple[Any, Tensor | None]:
        """Return what no point decides: the frame of the numbers, and log-probabilities."""
        numbers = None if self.numbers is None else _prepared(self.numbers)
        return numbers, self._log_shares() if len(self.shares) else None

    def _logs(self, x: Tensor, seen: Tensor | None, kept: Any = None) -> Tensor:
        """Return logarithms of the terms of the density of what is seen of points. (q, N)"""
        prepared, log_shares = self._kept() if kept is None else kept
        count = self.n_numbers
        numbers, known = x[:, :count], None if seen is None else seen[:, :count]
        if self.numbers is None:
            assert self.log_weights is not None
            logs = self.log_weights + 0 * x[:, :1]  # a gradient of 0
        elif known is None or (not is_transforming() and bool(known.all())):
            logs = _number_logs(self.numbers, numbers, prepared)
        else:
            empty = self.numbers.log_mixing_weights + self.log_normalizer()
            logs = empty.expand(len(x), -1).clone()
            for rows, places in patterns(known):
                if places.any():
                    part = self.numbers.marginal(places)
                    logs[rows] = _number_logs(part, numbers[rows][:, places], _prepared(part))
        if log_shares is None:
            return logs
        found = self._flags(x, seen) @ log_shares.to(x.dtype)
        never = found < 0.5 * _never(x)
        return torch.where(never, -torch.inf, logs + found)

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

    def _log_shares(self) -> Tensor:
        """Return log-probabilities of all values, and of one that never occurs. (S + 1, N)"""
        each = torch.cat(list(self.shares), 1).T
        never = _never(each)
        logs = torch.where(each > 0, each.clamp(min=torch.finfo(each.dtype).tiny).log(), never)
        return torch.cat([logs, never * torch.ones_like(logs[:1])])

    def _responsibilities(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        flat = x.reshape(-1, self.dim)
        logs = self._logs(flat, None if seen is None else seen.reshape(-1, self.dim))
        nowhere = (logs == -torch.inf).all(1, keepdim=True)
        shares = torch.where(nowhere, 0.0, logs.masked_fill(nowhere, 0).softmax(1))
        return shares.reshape(*x.shape[:-1], self.n_memories)

    def _score(self, x: Tensor) -> Tensor:
        force = torch.zeros_like(x)
        if self.numbers is None or x.shape[:-1].numel() == 0:
            return force + 0 * x
        curvature, pull, point, frame = self._bound(x)
        straight = (
            (curvature @ point[..., None])[..., 0] if curvature.ndim == 3 else curvature * point
        )
        found = ((pull - straight) / frame.unit).reshape(*x.shape[:-1], -1)
        return torch.cat([found, 0 * x[..., self.n_numbers :]], -1)

    def _step(self, x: Tensor, held: Tensor | None = None) -> Tensor:
        """Move the numbers to the minimum of the quadratic bound; categories stay."""
        from isthmus.memories.student_mixture import _minimum

        if self.numbers is None or x.shape[:-1].numel() == 0:
            return x.clone()
        curvature, pull, point, frame = self._bound(x)
        fixed = None if held is None else held[..., : self.n_numbers].reshape(point.shape)
        moved = _minimum(curvature, pull, point, fixed) * frame.unit + frame.centre
        nowhere = ~(curvature.flatten(1) != 0).any(1)
        moved = torch.where(nowhere[:, None], point * frame.unit + frame.centre, moved)
        state = torch.cat([moved.reshape(*x.shape[:-1], -1), x[..., self.n_numbers :]], -1)
        return state if held is None else torch.where(held, x, state)

    def _bound(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor, Any]:
        """Return curvatures and pulls of the quadratic bound, points in a frame, and the frame."""
        assert self.numbers is not None
        flat = x.reshape(-1, self.dim)
        frame, numbers = self.numbers._frame(), flat[:, : self.n_numbers]
        shares = self._responsibilities(flat).T  # (N, q)
        curvature, pull = self.numbers._pull(numbers, frame, self.numbers._constants(), shares)
        return curvature, pull, (numbers - frame.centre) / frame.unit, frame

    def _conditional_mean(self, x: Tensor, seen: Tensor) -> Tensor:
        """Put unknown numbers at their mean, and unknown categories at the most probable value."""
        filled, count = x.clone(), self.n_numbers
        flat, mask = x.reshape(-1, self.dim), seen.reshape(-1, self.dim)
        shares = self._responsibilities(flat, mask)
        if self.numbers is not None:
            numbers = self.numbers._mean_given(flat[:, :count], mask[:, :count], shares)
            filled[..., :count] = numbers.reshape(*x.shape[:-1], count)
        for place, each in enumerate(self.shares):
            best = (shares @ each).argmax(1).to(x.dtype).reshape(x.shape[:-1])
            at = count + place
            filled[..., at] = torch.where(seen[..., at], x[..., at], best)
        return filled

    def _values_given(self, x: Tensor, seen: Tensor, column: int) -> Tensor:
        """Return probabilities of the values of a category, given what is seen. (q, V)"""
        hidden = seen.clone()
        hidden[:, self.n_numbers + column] = False
        return self._responsibilities(x, hidden) @ self.shares[column]

    def _line_given(self, x: Tensor, seen: Tensor, column: int) -> LineAt:
        """Return a number given what is seen of rows (q, D + C), of one pattern of numbers."""
        assert self.numbers is not None
        numbers, seen = self.numbers, seen.clone()
        seen[:, column] = False
        known = seen[0, : self.n_numbers].nonzero()[:, 0].tolist()
        logs = self._logs(x, seen).log_softmax(1)
        line = numbers.marginal([*known, column])
        factor, d = line.scale_trils, len(known)
        if factor.ndim < 3:
            factor = torch.diag_embed(factor.reshape(len(factor) if factor.ndim else 1, -1).expand(
                self.n_memories, d + 1))  # fmt: skip
        away = x[:, None, known] - line.means[:, :d]  # (q, N, d)
        white = torch.linalg.solve_triangular(factor[:, :d, :d], away.permute(1, 2, 0), upper=False)
        centres = line.means[:, d, None] + (factor[:, d, None, :d] @ white)[:, 0]  # (N, q)
        dof = line.dof.expand(self.n_memories)
        ratio = (1 + white.square().sum(1) / dof[:, None]) / (1 + d / dof[:, None])
        return LineAt(logs, centres.T, (factor[:, d, d, None] * ratio.sqrt()).T, dof + d)

    def marginal(self, columns: Any) -> TableMixture:
        """Return the density of some columns alone: numbers, then categories, each in their order.

        Parameters
        ----------
        columns : sequence of int
            Indices of the columns to keep.
        """
        chosen, count = as_columns(columns, self.dim), self.n_numbers
        places = [place for place in chosen if place < count]
        numbers = None
        if places and self.numbers is not None:
            numbers = self.numbers.marginal(places)
        shares = [self.shares[place - count] for place in chosen if place >= count]
        logs = self.log_mixing_weights + self.log_normalizer()
        return self._alike(TableMixture.of(numbers, shares, logs))

    def condition(self, observed: Any) -> TableMixture:
        """Return the exact density of the unobserved columns, given the observed ones.

        Parameters
        ----------
        observed : array or Tensor (D + C,)
            Values of the observed columns, and NaN for the others, which keep their order.
        """
        x = self.as_input(observed, allow_nan=True)
        if x.ndim != 1:
            raise ShapeError(f"observed must be one point ({self.dim},), not {tuple(x.shape)}.")
        seen, count = ~x.isnan(), self.n_numbers
        if bool(seen.all()):
            raise InvalidInputError("observed has no NaN, so no column is left.")
        logs = self._logs(x.nan_to_num(nan=0.0)[None], seen[None])[0]
        if bool((logs == -torch.inf).all()):
            raise InvalidInputError("What is observed has probability 0.")
        free = (~seen).nonzero()[:, 0].tolist()
        numbers = None
        if self.numbers is not None and not bool(seen[:count].all()):
            numbers = self.numbers.condition(x[:count])
        shares = [self.shares[place - count] for place in free if place >= count]
        return self._alike(TableMixture.of(numbers, shares, logs))

    conditional = condition

    def _line(self, column: int) -> Line:
        if column >= self.n_numbers or self.numbers is None:
            raise self._missing("distribution function of a category", "It has probabilities")
        return self.numbers._line(column)

    @torch.no_grad()
    def _sample(self, n: int, seed: int | torch.Generator = 0) -> Tensor:
        """Choose a component for each draw, then its numbers and categories. -> (n, D + C)"""
        generator = generator_for(seed, self._template.device)
        chosen = draw_index(self.log_mixing_weights.exp(), n, generator)
        drawn = self._template.new_zeros(n, self.dim)
        if self.numbers is not None:
            drawn[:, : self.n_numbers] = self.numbers._draw_about(chosen, generator)
        for place, each in enumerate(self.shares):
            uniform = torch.rand(
                n, 1, generator=generator, dtype=torch.float64, device=drawn.device
            )
            total = each.double().cumsum(1)[chosen]
            codes = (total < uniform * total[:, -1:]).sum(1)
            drawn[:, self.n_numbers + place] = codes.clamp(max=each.shape[1] - 1).to(drawn)
        return drawn


def _prepared(numbers: StudentMixture) -> tuple[Any, Tensor]:
    return numbers._frame(), numbers._constants()


def _number_logs(numbers: StudentMixture, x: Tensor, prepared: tuple[Any, Tensor]) -> Tensor:
    """Return logarithms of weight times density of each component at points. (q, N)"""
    return numbers._terms(x, *prepared).logs.T


def _never(like: Tensor) -> float:
    """Return a logarithm of 0 whose products with 0 are 0."""
    return -1e300 if like.dtype == torch.float64 else -1e30


def _as_shares(value: Any, like: Tensor, place: int) -> Tensor:
    """Return probabilities of the values of a category as (N, V), normalised."""
    given = value if isinstance(value, Tensor) else as_numbers(value, f"shares[{place}]")
    shares = as_tensor(given, f"shares[{place}]").to(like)
    if shares.ndim != 2 or len(shares) != len(like) or not shares.shape[1]:
        raise ShapeError(
            f"shares[{place}] must be ({len(like)}, V), a row for each component, not "
            f"{tuple(shares.shape)}."
        )
    if is_transforming():
        return shares
    total = shares.sum(1, keepdim=True)
    if not (bool((shares >= 0).all()) and bool(((total - 1).abs() <= TOLERANCE).all())):
        raise InvalidInputError(
            f"shares[{place}] must hold probabilities: rows that are not negative and add up to 1."
        )
    return (shares / total).detach()
