"""Energies made of others: affine maps, weighted sums, and what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from isthmus.distribution import Line
from isthmus.energy import Energy
from isthmus.errors import InvalidInputError, ShapeError, UnsupportedOperationError
from isthmus.validation import as_entries

__all__ = ["Affine", "WeightedSum", "Wrapper"]

FLAGS = [
    *("returns_arrays", "has_step", "step_descends", "_step_holds", "_is_pointwise"),
    *("has_conditional_mean", "has_responsibilities", "has_exact_draws"),
]


class Wrapper(Energy):
    """An energy of the points of another one, `inner`; it can do all that the other can.

    A subclass maps points by :meth:`to_inner` and back by :meth:`to_outer`.
    """

    inner: Energy

    def __init__(self, energy: Energy) -> None:
        super().__init__()
        if not isinstance(energy, Energy):
            raise UnsupportedOperationError(
                f"{type(self).__name__} needs an isthmus.Energy first, not a "
                f"{type(energy).__name__}."
            )
        self.inner = energy
        for flag in FLAGS:
            setattr(self, flag, getattr(energy, flag))

    @property
    def dim(self) -> int | None:
        """The number of coordinates D."""
        return self.inner.dim

    @property
    def inverse_temperature(self) -> Tensor:
        """That of the inner energy."""
        return self.inner.inverse_temperature

    @property
    def _template(self) -> Tensor | None:
        return self.inner._template

    def as_input(self, x: Any, *, allow_nan: bool = False) -> Tensor:
        """Return x as checked points of the inner energy's dtype."""
        return self.inner.as_input(x, allow_nan=allow_nan)

    def to_inner(self, y: Tensor) -> Tensor:
        """Return the point of the inner energy for each point y. (..., D) -> (..., D)"""
        return y

    def to_outer(self, x: Tensor) -> Tensor:
        """Return the point for each point x of the inner energy. (..., D) -> (..., D)"""
        return x

    def _energy(self, x: Tensor) -> Tensor:
        return self.inner._energy(self.to_inner(x))

    def _score(self, x: Tensor) -> Tensor:
        return self.inner._score(self.to_inner(x))

    def _step(self, x: Tensor, held: Tensor | None = None) -> Tensor:
        return self._step_and_energy(x, held)[0]

    def _step_and_energy(self, x: Tensor, held: Tensor | None = None) -> tuple[Tensor, Tensor]:
        moved, energy = self.inner._step_and_energy(self.to_inner(x), held)
        moved = self.to_outer(moved)
        return (moved if held is None else torch.where(held, x, moved)), energy

    def _responsibilities(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        if not self.has_responsibilities:
            return super()._responsibilities(x, seen)
        given = () if seen is None else (seen,)
        return self.inner._responsibilities(self.to_inner(x), *given)

    def _conditional_mean(self, x: Tensor, seen: Tensor) -> Tensor:
        if not self.has_conditional_mean:
            return super()._conditional_mean(x, seen)
        mean = self.to_outer(self.inner._conditional_mean(self.to_inner(x), seen))
        return torch.where(seen, x, mean)

    def _sample(self, n: int, seed: int | torch.Generator = 0) -> Tensor:
        if not self.has_exact_draws:
            return super()._sample(n, seed)
        return self.to_outer(self.inner._sample(n, seed))

    def _line(self, column: int) -> Line:
        return self.inner._line(column)

    def _chain_starts(self, n: int, generator: torch.Generator) -> Tensor | None:
        starts = self.inner._chain_starts(n, generator)
        return None if starts is None else self.to_outer(starts)

    def _reach(self) -> float:
        return self.inner._reach()

    def _length(self) -> float:
        return self.inner._length()

    def _is_far_off(self) -> bool:
        return self.inner._is_far_off()

    def _recalled(self, x: Tensor) -> Tensor | None:
        return self.inner._recalled(self.to_inner(x))

    def _recall(self, x: Tensor, values: Any) -> Tensor:
        if not self.has_responsibilities:
            return super()._recall(x, values)
        return self.inner._recall(self.to_inner(x), values)


class Affine(Wrapper):
    r"""The energy of :math:`y = A x + b`, where x has another energy.

    .. math:: E_y(y) = E(A^{-1} (y - b)), \qquad
        \log p_y(y) = \log p(A^{-1} (y - b)) - \log \lvert \det A \rvert .

    Use it to ask in the units of the data what was learned from standardised columns. Coordinates
    can be left out and completed with a `scale`; with a `matrix`, retrieval that holds some of
    them follows the score.

    Parameters
    ----------
    energy : Energy
        The energy of x.
    scale : float, array or Tensor (D,), optional
        A is diagonal: the factor of each coordinate, not zero. Default: 1.
    matrix : array or Tensor (D, D), optional
        A itself, invertible. Give a scale or a matrix, not both.
    shift : float, array or Tensor (D,), optional
        b. Default: 0.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> standard = ist.GaussianKDE(torch.tensor([[-1.0, 0.0], [1.0, 0.0]]), sigma=0.5)
    >>> metres = ist.Affine(standard, scale=[2.0, 10.0], shift=[5.0, 100.0])
    >>> ist.retrieve(metres, torch.tensor([6.0, 103.0])).state
    tensor([  6.9987, 100.0000])
    """

    matrix: Tensor | None
    scale: Tensor
    """The diagonal of A, if there is no matrix."""
    shift: Tensor

    def __init__(
        self, energy: Energy, scale: Any = None, *, matrix: Any = None, shift: Any = 0.0
    ) -> None:
        super().__init__(energy)
        if scale is not None and matrix is not None:
            raise InvalidInputError("Give a scale or a matrix, not both.")
        dim, like = energy._known_dim(), energy._template

        def part(value: Any, name: str, *shapes: tuple[int, ...]) -> Tensor:
            entries = as_entries(value, name, like, *shapes, positive=False)
            return entries.expand(shapes[-1]).clone()  # a copy, which load_state_dict can write to

        self.register_buffer("shift", part(shift, "shift", (), (dim,)))
        if matrix is None:
            scale = part(1.0 if scale is None else scale, "scale", (), (dim,))
            if bool((scale.detach() == 0).any()):
                raise InvalidInputError("scale has zeros, which no division undoes.")
        else:
            matrix = part(matrix, "matrix", (dim, dim))
            if int(torch.linalg.matrix_rank(matrix.detach().double())) < dim:
                raise InvalidInputError("matrix is singular, so that no y has one x. Change it.")
            self.has_conditional_mean = self._step_holds = False
        self.register_buffer("scale", scale)
        self.register_buffer("matrix", matrix)

    def to_inner(self, y: Tensor) -> Tensor:
        """Return x of each y. (..., D) -> (..., D)"""
        return self._solved(y - self.shift.to(y.dtype), self.matrix)

    def _solved(self, values: Tensor, matrix: Tensor | None) -> Tensor:
        """Return the inverse of a matrix, or of the scale, times values. (..., D) -> (..., D)"""
        if matrix is None:
            return values / self.scale.to(values.dtype)
        return torch.linalg.solve(matrix.to(values.dtype), values[..., None])[..., 0]

    def to_outer(self, x: Tensor) -> Tensor:
        """Return y of each x. (..., D) -> (..., D)"""
        matrix, shift = self.matrix, self.shift.to(x.dtype)
        return shift + (self.scale.to(x.dtype) * x if matrix is None else x @ matrix.to(x.dtype).mT)

    def _score(self, x: Tensor) -> Tensor:
        return self._solved(super()._score(x), None if self.matrix is None else self.matrix.mT)

    def _widths(self) -> Tensor:
        return self.scale.abs() if self.matrix is None else torch.linalg.svdvals(self.matrix)

    def _length(self) -> float:
        return float(self._widths().min()) * self.inner._length()

    def _reach(self) -> float:
        far = torch.linalg.vector_norm(self.shift)
        return float(self._widths().max()) * self.inner._reach() + float(far)

    def log_normalizer(self) -> Tensor:
        """Return log Z of the inner energy plus the logarithm of the absolute determinant of A."""
        if self.matrix is None:
            return self.inner.log_normalizer() + self.scale.abs().log().sum()
        return self.inner.log_normalizer() + torch.linalg.slogdet(self.matrix).logabsdet

    def _log_prob(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        if seen is None:
            return super()._log_prob(x)
        self._require_scale(seen)
        volume = torch.where(seen, self.scale.abs().log().to(x.dtype), 0.0).sum(-1)
        return self.inner._log_prob(self.to_inner(x), seen) - volume

    def _responsibilities(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        self._require_scale(seen)
        return super()._responsibilities(x, seen)

    def _line(self, column: int) -> Line:
        self._require_scale(self.shift)
        return self.inner._line(column).moved(float(self.scale[column]), float(self.shift[column]))

    def _require_scale(self, mask: Tensor | None) -> None:
        if mask is not None and self.matrix is not None:
            raise UnsupportedOperationError(
                "A matrix mixes the coordinates, so that none can be left out or held. Use a scale."
            )

    def _step_and_energy(self, x: Tensor, held: Tensor | None = None) -> tuple[Tensor, Tensor]:
        self._require_scale(held)
        return super()._step_and_energy(x, held)

    def _in_float64(self) -> Energy | None:
        inner = self.inner._in_float64()
        if inner is None:
            return None
        return Affine(inner, self.scale, matrix=self.matrix, shift=self.shift)

    def __repr__(self) -> str:
        return f"Affine({self.inner!r}, {'scale' if self.matrix is None else 'matrix'})"


class WeightedSum(Wrapper):
    r"""A weighted sum of energies: a product of powers of their densities.

    .. math:: E(x) = \sum_i w_i E_i(x), \qquad p(x) \propto \prod_i p_i(x)^{w_i} .

    The operators ``a + b``, ``a - b``, ``2 * a``, ``a / 2`` and ``-a`` of energies return it. All
    terms must have the same inverse temperature, which :meth:`in_nats` makes 1.

    The sum has a ``step`` where it is known never to raise the energy: of one term with a step,
    and of Gaussian memories and modern or sparse Hopfield networks with weights above zero. Its
    ``log_prob`` is known for one term, and for two round Gaussian memories, of weight 1.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> left = ist.GaussianKDE(torch.tensor([[0.0], [4.0]]), sigma=1.0)
    >>> right = ist.GaussianKDE(torch.tensor([[4.0], [9.0]]), sigma=1.0)
    >>> both = left + right
    >>> ist.retrieve(both, torch.tensor([3.0])).state
    tensor([3.9993])
    """

    weights: Tensor

    def __init__(self, terms: list[Energy], weights: Tensor, tempered: bool) -> None:
        Energy.__init__(self)
        self.terms = nn.ModuleList(terms)
        self.register_buffer("weights", weights)
        self.tempered = tempered
        alone, values = len(terms) == 1, weights.detach()
        positive, same = bool((values > 0).all()), alone and bool(values == 1)
        for flag in FLAGS:
            setattr(self, flag, getattr(terms[0], flag) and (same or not flag.startswith("has")))
        self.returns_arrays = any(term.returns_arrays for term in terms)
        self._is_pointwise = all(term._is_pointwise for term in terms)
        bounded = all(term._curvature() is not None for term in terms)
        self.has_step = positive and (bounded or (alone and terms[0].has_step))
        self.step_descends = not alone or terms[0].step_descends

    @classmethod
    def of(
        cls, energies: list[Energy], weights: list[float | Tensor], tempered: bool = False
    ) -> WeightedSum:
        """Return the sum of energies times weights, and of inverse temperatures if `tempered`."""
        terms: list[Energy] = []
        factors: list[Tensor] = []
        for energy, value in zip(energies, weights, strict=True):
            weight = as_entries(value, "The weight of an energy", None, (), positive=False)
            if isinstance(energy, WeightedSum) and not energy.tempered and not tempered:
                terms += list(energy)
                factors += [weight.to(each) * each for each in energy.weights]
            else:
                terms.append(energy)
                factors.append(weight)
        dims = sorted({term.dim for term in terms if term.dim is not None})
        if len(dims) > 1:
            raise ShapeError(
                f"Energies of {' and '.join(map(str, dims))} coordinates do not add: each must "
                "take the same points."
            )
        kinds = [torch.as_tensor(term.inverse_temperature).detach() for term in terms]
        coarse = max((kind.dtype for kind in kinds), key=lambda dtype: torch.finfo(dtype).eps)
        if not tempered and len({float(kind.to(coarse)) for kind in kinds}) > 1:
            words = " and ".join(f"{float(kind):g}" for kind in sorted(kinds))
            raise InvalidInputError(
                f"Energies of the inverse temperatures {words} do not add to the energy of a "
                "product of densities. Add a.in_nats() + b.in_nats() instead."
            )
        return cls(terms, torch.stack([factor.to(factors[0]) for factor in factors]), tempered)

    def __iter__(self) -> Iterator[Energy]:
        for term in self.terms:
            assert isinstance(term, Energy)
            yield term

    @property
    def inner(self) -> Energy:  # type: ignore[override]
        """The first term that has a dtype, else the first."""
        return next((term for term in self if term._template is not None), next(iter(self)))

    @property
    def _alone(self) -> bool:
        return len(self.terms) == 1

    @property
    def _is_same(self) -> bool:
        """True for one term of weight 1."""
        return self._alone and bool(self.weights == 1)

    @property
    def dim(self) -> int | None:
        """The number of coordinates D, or None if no term fixes it."""
        return next((term.dim for term in self if term.dim is not None), None)

    @property
    def inverse_temperature(self) -> Tensor:
        """The inverse temperature of the terms, or 1 if they are in nats."""
        one = Energy.inverse_temperature.fget(self)  # type: ignore[attr-defined]
        return one if self.tempered else self.inner.inverse_temperature

    def _factors(self) -> Iterator[tuple[Tensor, Energy]]:
        for weight, term in zip(self.weights, self, strict=True):
            yield (weight * term.inverse_temperature if self.tempered else weight), term

    def _total(self, x: Tensor, values: Callable[[Energy, Tensor], Tensor]) -> Tensor:
        parts = []
        for factor, term in self._factors():
            part = values(term, _cast(x, term)).to(x.dtype)
            parts.append(factor.to(part) * part)
        return torch.stack(parts).sum(0)

    def _energy(self, x: Tensor) -> Tensor:
        return self._total(x, lambda term, points: term._energy(points))

    def _score(self, x: Tensor) -> Tensor:
        return self._total(x, lambda term, points: term._score(points))

    def _step_and_energy(self, x: Tensor, held: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Move by the update of a single term, or to the lowest point of the quadratic bounds."""
        if not self.has_step:
            raise self._missing("closed-form step", "isthmus.retrieve(energy, x) follows its score")
        total, moved = self._curvature(), torch.zeros_like(x)
        energy = x.new_zeros(x.shape[:-1])
        for factor, term in self._factors():
            aim, height = term._step_and_energy(_cast(x, term), held)
            bound = term._curvature()
            share = 1.0 if total is None or bound is None else factor.to(total) * bound / total
            moved = moved + share * aim.to(x.dtype)
            energy = energy + factor.to(x.dtype) * height.to(x.dtype)
        return (moved if held is None else torch.where(held, x, moved)), energy

    def _curvature(self) -> Tensor | None:
        bounds = [(factor, term._curvature()) for factor, term in self._factors()]
        if any(bound is None or factor <= 0 for factor, bound in bounds):
            return None
        return torch.stack([f.to(b) * b for f, b in bounds if b is not None]).sum()

    def log_normalizer(self) -> Tensor:
        """Return log Z of one term, or of two round Gaussian memories, of weight 1."""
        if self._is_same:
            return self.inner.log_normalizer()
        if len(self.terms) == 2 and bool((self.weights == 1).all()):
            first, second = map(_plain, self)
            known = first._log_product_normalizer(second)
            if known is not None:
                return known
        return super().log_normalizer()

    def _log_prob(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        return self.inner._log_prob(x, seen) if self._is_same else super()._log_prob(x, seen)

    def _line(self, column: int) -> Line:
        return super()._line(column) if self._is_same else Energy._line(self, column)

    def _chain_starts(self, n: int, generator: torch.Generator) -> Tensor | None:
        found = [term._chain_starts(n, generator) for term in self]
        known = [starts for starts in found if starts is not None]
        if not known:
            return None
        device = generator.device
        which = torch.randint(len(known), (n,), generator=generator, device=device)
        rows = torch.arange(n, device=device)
        return torch.stack([starts.to(known[0]) for starts in known])[which, rows]

    def _recalled(self, x: Tensor) -> Tensor | None:
        return self.inner._recalled(x) if self._alone else None

    def _in_float64(self) -> Energy | None:
        terms = [term._in_float64() for term in self]
        known = [term for term in terms if term is not None]
        if len(known) < len(terms):
            return None
        return WeightedSum(known, self.weights, self.tempered)

    def __repr__(self) -> str:
        terms = [f"{float(w):g} * {term!r}" for w, term in zip(self.weights, self, strict=True)]
        return f"WeightedSum({', '.join(terms)}{', in nats' if self.tempered else ''})"


def held_move(precision: Tensor, move: Tensor, free: Tensor) -> Tensor:
    """Return the move to the lowest point of a quadratic bound along the coordinates `free`.

    The `precision` (..., D, D) is known up to a factor, which the move of all coordinates tells.
    """
    force = (precision @ move[..., None])[..., 0].masked_fill(~free, 0)
    both = free[..., :, None] & free[..., None, :]
    identity = torch.eye(move.shape[-1], dtype=move.dtype, device=move.device)
    matrix = torch.where(both, precision, identity)
    return torch.linalg.solve(matrix, force[..., None])[..., 0]


def _cast(x: Tensor, energy: Energy) -> Tensor:
    like = energy._template
    return x if like is None else x.to(like.dtype)


def _plain(energy: Energy) -> Energy:
    """Return the only term of a sum of weight 1, or else the energy itself."""
    return _plain(energy.inner) if isinstance(energy, WeightedSum) and energy._is_same else energy
