"""Affine: an energy in other units, or in turned and sheared coordinates."""

from __future__ import annotations

from typing import Any, Self

import torch
from torch import Tensor

from isthmus.energy import ConditionalMean, Energy, FixedPoint
from isthmus.errors import InvalidInputError, ShapeError, UnsupportedOperationError
from isthmus.validation import as_mask, as_tensor, require_finite

__all__ = ["Affine"]


class Affine(Energy):
    r"""The energy of :math:`y = A x + b`, where x has another energy.

    .. math:: E_y(y) = E(A^{-1} (y - b)), \qquad
        \log p_y(y) = \log p(A^{-1} (y - b)) - \log \lvert \det A \rvert .

    Use it to ask in the units of the data what was learned from standardised columns. Score,
    ``step``, ``sample`` and :meth:`log_prob` are those of the inner energy, carried along.
    Coordinates can be held in a step, and completed, with a `scale`; with a `matrix` they can
    be held if the inner energy is a round Gaussian memory or a modern or sparse Hopfield network.

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
    >>> metres.sample(3, seed=0).shape
    torch.Size([3, 2])
    """

    matrix: Tensor | None
    scale: Tensor | None
    shift: Tensor

    def __new__(cls, energy: Energy | None = None, *args: Any, **kwargs: Any) -> Self:
        """Return an instance with a step if `energy` has one."""
        # Only energies with a step may have the method: FixedPoint is told by it.
        moves = cls is Affine and isinstance(energy, FixedPoint)
        return super().__new__(_SteppingAffine if moves else cls)  # type: ignore[return-value]

    def __init__(
        self, energy: Energy, scale: Any = None, *, matrix: Any = None, shift: Any = 0.0
    ) -> None:
        super().__init__()
        if not isinstance(energy, Energy):
            raise UnsupportedOperationError(
                f"Affine needs an isthmus.Energy first, not a {type(energy).__name__}."
            )
        if scale is not None and matrix is not None:
            raise InvalidInputError("Give a scale or a matrix, not both.")
        if energy.dim is None:
            raise InvalidInputError(
                f"{type(energy).__name__} has no number of coordinates. Give the class a "
                "property dim."
            )
        self.inner, self.returns_arrays = energy, energy.returns_arrays
        dim = energy.dim
        like = next((each for each in energy.state_dict().values()), torch.zeros(()))
        self.register_buffer("shift", _as_part(shift, "shift", dim, like).expand(dim))
        scaled = None if matrix is not None else 1.0 if scale is None else scale
        if scaled is not None:
            scaled = _as_part(scaled, "scale", dim, like).expand(dim)
            if bool((scaled.detach() == 0).any()):
                raise InvalidInputError("scale has zeros, which no division undoes.")
        self.register_buffer("scale", scaled)
        if matrix is not None:
            matrix = as_tensor(matrix, "matrix").to(like)
            if tuple(matrix.shape) != (dim, dim):
                raise ShapeError(
                    f"matrix must have the shape {(dim, dim)}, not {tuple(matrix.shape)}."
                )
            require_finite(matrix, "matrix", "Pass finite numbers.")
            if int(torch.linalg.matrix_rank(matrix.detach().double())) < dim:
                raise InvalidInputError("matrix is singular, so that no y has one x. Change it.")
        self.register_buffer("matrix", matrix)

    @property
    def dim(self) -> int:
        """The number of coordinates D."""
        return len(self.shift)

    @property
    def inverse_temperature(self) -> Tensor:
        """That of the inner energy."""
        return self.inner.inverse_temperature

    def as_input(self, x: Any, *, allow_nan: bool = False) -> Tensor:
        """Return x as checked points of the inner energy's dtype."""
        return self.inner.as_input(x, allow_nan=allow_nan)

    def to_inner(self, y: Tensor) -> Tensor:
        """Return x of each y. (..., D) -> (..., D)"""
        centred = y - self.shift.to(y.dtype)
        if self.matrix is None:
            assert self.scale is not None
            return centred / self.scale.to(y.dtype)
        return torch.linalg.solve(self.matrix.to(y.dtype), centred[..., None])[..., 0]

    def to_outer(self, x: Tensor) -> Tensor:
        """Return y of each x. (..., D) -> (..., D)"""
        if self.matrix is None:
            assert self.scale is not None
            return self.scale.to(x.dtype) * x + self.shift.to(x.dtype)
        return x @ self.matrix.to(x.dtype).mT + self.shift.to(x.dtype)

    def energy(self, x: Any) -> Tensor:
        """Return the energy of each point. x: (..., D) -> (...)."""
        return self.inner.energy(self.to_inner(self.as_input(x)))

    def score(self, x: Any) -> Tensor:
        """Return the force -dE/dx. x: (..., D) -> (..., D)."""
        x = self.as_input(x)
        force = self.inner.score(self.to_inner(x))
        if self.matrix is None:
            assert self.scale is not None
            return force / self.scale.to(force.dtype)
        return torch.linalg.solve(self.matrix.mT.to(force.dtype), force[..., None])[..., 0]

    def log_normalizer(self) -> Tensor:
        """Return log Z of the inner energy plus the logarithm of the absolute determinant of A."""
        if self.matrix is None:
            assert self.scale is not None
            volume = self.scale.abs().log().sum()
        else:
            volume = torch.linalg.slogdet(self.matrix).logabsdet
        return self.inner.log_normalizer() + volume

    def sample(self, n: int, seed: int | torch.Generator = 0) -> Tensor:
        """Draw exact samples, if the inner energy has them. -> (n, D)."""
        draw = getattr(self.inner, "sample", None)
        if draw is None:
            raise UnsupportedOperationError(
                f"{type(self.inner).__name__} has no exact samples. Use isthmus.sample."
            )
        return self.to_outer(torch.as_tensor(draw(n, seed)))

    def __repr__(self) -> str:
        return f"Affine({self.inner!r}, {'scale' if self.matrix is None else 'matrix'})"


class _SteppingAffine(Affine):
    """An affine map of an energy with a closed-form update."""

    inner: Any

    @property
    def step_descends(self) -> bool:
        """True if :meth:`step` never raises the energy."""
        return getattr(self.inner, "step_descends", True)

    def step(self, x: Any, observed: Any = None) -> Tensor:
        """Return the update of the inner energy, carried along. x: (..., D) -> (..., D).

        Coordinates marked True in `observed` do not change.
        """
        x = self.as_input(x)
        if observed is None or self.matrix is None:
            moved = self.to_outer(self.inner.step(self.to_inner(x), observed))
            return moved if observed is None else _held(moved, x, as_mask(observed, "observed", x))
        held = as_mask(observed, "observed", x)
        if self.inner._curvature() is None:
            raise UnsupportedOperationError(
                f"A coordinate cannot be held while {type(self.inner).__name__} is sheared by a "
                "matrix. Use a scale, or hold none."
            )
        # The lowest point, given what is held, of the quadratic bound about the free update.
        target = self.to_outer(self.inner.step(self.to_inner(x)))
        inverse = torch.linalg.inv(self.matrix.to(x.dtype))
        precision, free = inverse.mT @ inverse, ~held
        away = torch.where(held, x - target, 0.0)
        pull = -(away @ precision).masked_fill(held, 0)
        both = free[..., :, None] & free[..., None, :]
        solvable = torch.where(both, precision, torch.eye(self.dim).to(precision))
        moved = target + torch.linalg.solve(solvable, pull[..., None])[..., 0]
        return _held(moved, x, held)

    def conditional_mean(self, x: Any, observed: Any) -> Tensor:
        """Put unobserved coordinates at their mean given the observed ones, if A is diagonal."""
        x = self.as_input(x, allow_nan=True)
        if self.matrix is not None or not isinstance(self.inner, ConditionalMean):
            raise UnsupportedOperationError(
                "Conditional means are known for a scale, and an inner energy that has them. "
                "Pass how='mode' and init to isthmus.complete."
            )
        seen = as_mask(observed, "observed", x)
        inner = self.to_inner(torch.where(seen, x, self.shift.to(x.dtype)))
        mean = self.to_outer(self.inner.conditional_mean(inner, seen))
        return torch.where(seen, x, mean)


def _held(moved: Tensor, x: Tensor, held: Tensor) -> Tensor:
    return torch.where(held, x, moved)


def _as_part(value: Any, name: str, dim: int, like: Tensor) -> Tensor:
    """Return one number, or one for each coordinate, as finite numbers of the dtype of `like`."""
    part = as_tensor(value, name).to(like)
    if tuple(part.shape) not in ((), (dim,)):
        raise ShapeError(f"{name} must be a number or ({dim},), not {tuple(part.shape)}.")
    require_finite(part, name, "Pass finite numbers.")
    return part
