"""Gaussian memories whose kernels may be stretched, turned, and of different widths."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from isthmus.attend import Attention, Index
from isthmus.errors import InvalidInputError, ShapeError, UnsupportedOperationError
from isthmus.index.policy import IndexReport, Setting
from isthmus.logits import tensor_version
from isthmus.memories.base import GaussianMemory, keep_observed
from isthmus.memories.shape import Shape
from isthmus.validation import as_tensor, is_transforming, require_finite


class ShapedMemory(GaussianMemory):
    """A Gaussian memory that is round, or has the kernels that :meth:`_make_shape` describes."""

    covariance: Tensor | None
    """Covariance of the kernels, or None."""

    @property
    def is_round(self) -> bool:
        """True if all kernels have one variance in all directions."""
        return self.covariance is None

    @abstractmethod
    def _make_shape(self) -> Shape:
        """Return the shape of the kernels, of parameters as they are now."""

    def _shape(self) -> Shape | None:
        """Return the shape, kept until a parameter changes; None for round kernels."""
        if self.is_round:
            return None
        parts = [*self.parameters(), *self.buffers()]
        state = [(part, tensor_version(part)) for part in parts]
        kept: tuple[list[Any], Shape] | None = self.__dict__.get("_kept_shape")
        if kept is not None and _same(kept[0], state):
            return kept[1]
        shape = self._make_shape()
        if shape.precision is None:
            # The index is of the memories in the coordinates of the kernels.
            shape.pruning = self._pruning.moved(self._mapped_setting(), shape.mapped)
        if not (is_transforming() or any(part.requires_grad for part in parts)):
            self._kept_shape = (state, shape)
        return shape

    def _mapped_setting(self) -> Setting:
        return True if isinstance(self.index, Index) else self.index

    def _refuse_index(self, what: str) -> None:
        """Raise if an index was asked for that cannot serve kernels with `what`."""
        if self.index is not False and self.index != "auto":
            raise UnsupportedOperationError(
                f"An index needs kernels of one shape, but these have {what}. Pass index=False."
            )

    def index_report(self) -> IndexReport:
        """Return what was done with the last points: an index or all memories, and why."""
        shape = self._shape()
        if shape is None:
            return super().index_report()
        if shape.pruning is None:
            return IndexReport(repr(self.index), False, "each kernel has a width of its own")
        return shape.pruning.report

    def __getstate__(self) -> dict[str, Any]:
        state = super().__getstate__()
        state.pop("_kept_shape", None)
        return state

    @property
    def _log_scale(self) -> Tensor:
        shape = self._shape()
        return super()._log_scale if shape is None else shape.log_scale

    def _energy(self, x: Tensor) -> Tensor:
        if (shape := self._shape()) is None:
            return super()._energy(x)
        return self._energy_of(x, shape.pull(x).logsumexp)

    def _score(self, x: Tensor) -> Tensor:
        if (shape := self._shape()) is None:
            return super()._score(x)
        force: Tensor = shape.pull(x).force / self.inverse_temperature
        return force

    def _step_and_energy(self, x: Tensor, held: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Move to the mean of the memories, weighted by responsibility and precision.

        With coordinates held, that is the lowest point of the same quadratic bound on the energy.
        """
        if (shape := self._shape()) is None:
            return super()._step_and_energy(x, held)
        pull = shape.pull(x)
        energy = self._energy_of(x, pull.logsumexp)
        if held is None or pull.precision is None:
            return keep_observed(x + pull.move, x, held), energy
        moved = x + held_move(pull.precision, pull.move, ~held)
        return keep_observed(moved, x, held), energy

    def _attend_density(self, x: Tensor, seen: Tensor | None) -> Attention:
        if (shape := self._shape()) is None:
            return super()._attend_density(x, seen)
        if seen is None:
            pull = shape.pull(x)
            found = Attention(pull.logsumexp - shape.log_scale, x)
        elif shape.is_full:
            found = self._attend_patterns(x, seen)
        else:
            found = shape.marginal(x, seen)
        return Attention(found.logsumexp - self.log_total_weight, found.mean)

    def _logits(self, x: Tensor, seen: Tensor | None) -> Tensor:
        if (shape := self._shape()) is None:
            return super()._logits(x, seen)
        if seen is None:
            return shape.logits(x)
        if not shape.is_full:
            return shape.marginal_logits(x, seen)
        logits = x.new_zeros(math.prod(x.shape[:-1]), self.n_memories)
        for rows, known, points in _patterns(x, seen):
            if known.any():
                found = self.marginal(known)._logits(points[:, known], None).to(logits.dtype)
                logits = logits.index_put((rows,), found)
            elif self.log_weights is not None:
                logits = logits.index_put((rows,), self.log_weights.expand(len(rows), -1))
        return logits.reshape(*x.shape[:-1], -1)

    def _attend_patterns(self, x: Tensor, seen: Tensor) -> Attention:
        """Return :meth:`Shape.marginal` for full covariances: rows grouped by what is known."""
        centre, count = self._keys().centre, math.prod(x.shape[:-1])
        total = x.new_zeros(count)
        means = x.new_zeros(count, self.dim)
        for rows, known, points in _patterns(x, seen):
            found = self._attend_known(known, points)
            total = total.index_put((rows,), found.logsumexp)
            means = means.index_put((rows,), found.mean - centre)
        return Attention(total.reshape(x.shape[:-1]), means.reshape(x.shape))

    def _attend_known(self, known: Tensor, points: Tensor) -> Attention:
        """Return the log-sum-exp of the coordinates known, and means of all given them. (Q, D)"""
        if not known.any():
            mean = self.log_mixing_weights.exp().to(self.memories) @ self.memories
            return Attention(self.log_total_weight.expand(len(points)), mean.expand_as(points))
        marginal = self.marginal(known)
        shape = marginal._make_shape()
        slopes, _ = self._regression(known)
        at_zero = self._predicted(known, slopes, points.new_zeros(int(known.sum())))
        own = slopes.ndim == 3
        values = torch.cat([at_zero, slopes.flatten(1)], 1) if own else at_zero
        found = shape.pooled(points[:, known], values)
        unknown = self.dim - int(known.sum())
        mean = found.mean[:, :unknown]
        if own:
            slope = found.mean[:, unknown:].unflatten(1, slopes.shape[1:])
            mean = mean + (slope @ points[:, known, None])[..., 0]
        else:
            mean = mean + points[:, known] @ slopes.mT
        whole = points.index_put((torch.arange(len(points))[:, None], (~known).nonzero().T), mean)
        return Attention(found.logsumexp - shape.log_scale, whole)

    @abstractmethod
    def _covariances(self) -> Tensor:
        """Return the covariance (D, D) that the kernels share, up to factors, or own (N, D, D)."""

    def _regression(self, known: Tensor) -> tuple[Tensor, Tensor]:
        """Return slopes of unknown coordinates on known ones, and their covariance given these."""
        covariance = self._covariances()
        part = covariance[..., known, :][..., known]
        across = covariance[..., known, :][..., ~known]
        solved = torch.linalg.solve(part, across)
        rest = covariance[..., ~known, :][..., ~known] - solved.mT @ across
        return solved.mT, rest

    def _predicted(self, known: Tensor, slopes: Tensor, values: Tensor) -> Tensor:
        """Return the mean of the unknown coordinates for each memory. (N, U)"""
        apart = values - self.memories[:, known]
        return self.memories[:, ~known] + (slopes @ apart[..., None])[..., 0]

    @abstractmethod
    def _part(self, chosen: Tensor) -> dict[str, Any]:
        """Return the constructor's arguments for the kernels of coordinates, a mask or indices."""

    def marginal(self, columns: Any) -> Self:
        """Return the energy of some coordinates alone, in the given order: a memory of its kind.

        `columns` is a boolean mask (D,) or indices.

        >>> import torch, isthmus as ist
        >>> kde = ist.GaussianKDE(torch.randn(5, 3), covariance=torch.eye(3))
        >>> kde.marginal([2, 0])
        GaussianKDE(N=5, D=2, sigma=1, covariance=(2, 2), float32)
        """
        chosen = torch.tensor(as_columns(columns, self.dim), device=self.memories.device)
        return self._alike(type(self)(self.memories[:, chosen], **self._part(chosen)))

    def condition(self, x: Any, observed: Any = None) -> Self:
        """Return the energy of the unknown coordinates of one point, given the others.

        It is a memory of the same kind with fewer coordinates, whose weights are the
        responsibilities of the memories for what is known. ``conditional`` is another name of it.

        Parameters
        ----------
        x : array or Tensor (D,)
            May hold NaN where it is unknown.
        observed : bool array or Tensor (D,), optional
            Default: the coordinates that are not NaN.

        Examples
        --------
        >>> import torch, isthmus as ist
        >>> kde = ist.GaussianKDE(torch.tensor([[0.0, 0.0], [4.0, 9.0]]), sigma=1.0)
        >>> kde.condition(torch.tensor([3.9, float("nan")])).sample(2).shape
        torch.Size([2, 1])
        """
        point = self.as_input(x, allow_nan=True)
        if point.ndim != 1:
            raise ShapeError(f"x must be one point (D,), not {tuple(point.shape)}.")
        point, known = self._partial(point, ~torch.isnan(point) if observed is None else observed)
        if known.all():
            raise InvalidInputError("Every coordinate is known; there is nothing to condition.")
        log_weights = torch.log_softmax(self._logits(point, known), -1).to(point.dtype)
        parts = self._part(~known) | {"log_weights": log_weights}
        if not known.any():
            return self._alike(type(self)(self.memories, **parts))
        shape = self._shape()
        if shape is None or not shape.is_full:
            return self._alike(type(self)(self.memories[:, ~known], **parts))
        slopes, rest = self._regression(known)
        parts["covariance"] = 0.5 * (rest + rest.mT)
        if "sigma" in parts:
            parts["sigma"] = 1.0
        return self._alike(type(self)(self._predicted(known, slopes, point[known]), **parts))

    conditional = condition

    def _draw_about(self, chosen: Tensor, generator: torch.Generator) -> Tensor:
        shape = self._shape()
        if shape is None:
            return super()._draw_about(chosen, generator)
        noise = torch.empty_like(self.memories[chosen]).normal_(generator=generator)
        if (own := shape.precision) is not None:
            if own.ndim == 3:
                root = torch.linalg.cholesky(own)[chosen]
                noise = torch.linalg.solve_triangular(root.mT, noise[..., None], upper=True)[..., 0]
            else:
                noise = noise / (own if own.ndim == 2 else own[:, None])[chosen].sqrt()
        return self.memories[chosen] + shape.to_data(noise)

    def whitened(self) -> tuple[Self, Shape]:
        """Return a round memory of the same basins, and the map to its coordinates.

        Kernels must share one covariance, and memories have equal weights.
        """
        shape = self._shape()
        if shape is None or shape.precision is not None or self.log_weights is not None:
            raise UnsupportedOperationError(
                "This needs kernels of one covariance, without factors or weights."
            )
        return type(self)(shape.mapped), shape


def _same(before: list[Any], now: list[Any]) -> bool:
    """Return True if tensors and their versions are the same, and recorded."""
    return len(before) == len(now) and all(
        old[0] is new[0] and new[1] is not None and old[1] == new[1]
        for old, new in zip(before, now, strict=True)
    )


def _patterns(x: Tensor, seen: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield the rows with each pattern of known coordinates, the pattern (D,), and the points."""
    points, masks = x.reshape(-1, x.shape[-1]), seen.reshape(-1, x.shape[-1])
    patterns, which = torch.unique(masks, dim=0, return_inverse=True)
    for number, known in enumerate(patterns):
        rows = (which == number).nonzero()[:, 0]
        yield rows, known, points[rows]


def held_move(precision: Tensor, move: Tensor, free: Tensor) -> Tensor:
    """Return the move to the lowest point of the bound with only the coordinates `free`.

    `precision` (..., D, D) is the mean one, up to a factor for each point, which the move (..., D)
    of all coordinates tells.
    """
    force = (precision @ move[..., None])[..., 0].masked_fill(~free, 0)
    both = free[..., :, None] & free[..., None, :]
    identity = torch.eye(move.shape[-1], dtype=move.dtype, device=move.device)
    matrix = torch.where(both, precision, identity)
    return torch.linalg.solve(matrix, force[..., None])[..., 0]


def root_of(covariance: Tensor, name: str = "covariance") -> Tensor:
    """Return the lower Cholesky factor of covariances (..., D, D), in their dtype."""
    exact = covariance if covariance.device.type == "mps" else covariance.double()
    root, failed = torch.linalg.cholesky_ex(0.5 * (exact + exact.mT))
    if not is_transforming() and bool(failed.any()):
        raise InvalidInputError(
            f"{name} must be positive definite. Add a small multiple of the identity, or let "
            "isthmus.bandwidth.choose find one."
        )
    return root.to(covariance.dtype)


def as_spread(
    value: Any, name: str, memories: Tensor, *shapes: tuple[int, ...], positive: bool = True
) -> Tensor:
    """Return finite numbers, above zero if `positive`, in one of the shapes."""
    spread = as_tensor(value, name).to(memories)
    if tuple(spread.shape) not in shapes:
        allowed = " or ".join(str(shape) for shape in shapes)
        raise ShapeError(f"{name} must have the shape {allowed}, not {tuple(spread.shape)}.")
    require_finite(spread, name, "Pass finite numbers.")
    if positive and not is_transforming() and not bool((spread.detach() > 0).all()):
        raise InvalidInputError(f"{name} must be above zero; {float(spread.min()):g} is not.")
    return spread


def as_columns(columns: Any, dim: int) -> list[int]:
    """Return the indices of distinct coordinates, in their order, from a mask (D,) or indices."""
    try:
        chosen = np.asarray(columns.cpu() if isinstance(columns, Tensor) else columns)
        if chosen.dtype == bool and chosen.shape == (dim,):
            chosen = np.flatnonzero(chosen)
        if chosen.ndim == 1 and chosen.size and np.issubdtype(chosen.dtype, np.integer):
            places: list[int] = np.arange(dim)[chosen].tolist()
            if len(set(places)) == len(places):
                return places
    except (IndexError, ValueError, TypeError):
        pass
    raise InvalidInputError(
        f"columns must name at least one of the coordinates 0 to {dim - 1}, each once, or be a "
        f"mask of them, not {columns!r}."
    )
