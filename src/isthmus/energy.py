"""Energy: the contract between memories, dynamics, learning and evaluation."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import wraps
from itertools import chain
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import torch
from torch import Tensor, nn

from isthmus.errors import (
    InvalidInputError,
    MissingOperationError,
    ShapeError,
    UnknownNormalizerError,
)
from isthmus.validation import as_mask, as_number, as_points, is_transforming

__all__ = ["ConditionalMean", "Energy", "FixedPoint", "WeightedSum"]

Derived = TypeVar("Derived", bound="Energy")
Method = TypeVar("Method", bound=Callable[..., Any])
# Methods whose first argument is points, and whose values are of the type of those points.
OF_POINTS = (
    "conditional_mean",
    "energy",
    "error",
    "log_prob",
    "recall",
    "responsibilities",
    "score",
    "step",
    "step_and_energy",
)


def as_arrays(values: Any) -> Any:
    """Return tensors, or a tuple of them, as NumPy arrays without a graph; None stays None."""
    if isinstance(values, tuple):
        return tuple(map(as_arrays, values))
    return values.numpy(force=True) if isinstance(values, Tensor) else values


def as_given(values: Any, given: Any) -> Any:
    """Return tensors as they are if `given` is a tensor, else as arrays."""
    return values if isinstance(given, Tensor) else as_arrays(values)


def draws_as_given(draws: Any, energy: Energy, init: Any) -> Any:
    """Return draws as `init` was given or, if it is None, as the energy was made."""
    arrays = energy.returns_arrays if init is None else not isinstance(init, Tensor)
    return as_arrays(draws) if arrays else draws


def follows_points(method: Method) -> Method:
    """Make a method of points take arrays as well, and then return arrays.

    Tensors are passed on as they are, so that autograd, ``torch.func`` and ``torch.compile`` see
    the method alone.
    """
    name = list(inspect.signature(method).parameters)[1]

    @wraps(method)
    def follow(self: Energy, *args: Any, **kwargs: Any) -> Any:
        if not args and name in kwargs:
            args = (kwargs.pop(name),)
        if not args or isinstance(args[0], Tensor):
            return method(self, *args, **kwargs)
        # Unknown coordinates are for methods that take a mask beside the points.
        points = self.as_input(args[0], allow_nan=bool(args[1:] or kwargs))
        with torch.no_grad():
            return as_arrays(method(self, points, *args[1:], **kwargs))

    return cast("Method", follow)


def _follows_memories(method: Callable[..., Any]) -> Callable[..., Any]:
    """Make a method that draws return arrays if the energy was made from arrays."""

    @wraps(method)
    def follow(self: Energy, *args: Any, **kwargs: Any) -> Any:
        return draws_as_given(method(self, *args, **kwargs), self, None)

    return follow


class Energy(nn.Module, ABC):
    r"""An energy function, which is a negative log-likelihood.

    Every energy states its inverse temperature :math:`\beta_E`, so that

    .. math:: p(x) = \exp(-\beta_E\, E(x)) / Z .

    The paper's introduction prints :math:`\exp(-E)/Z`; its energies with a factor
    :math:`1/\beta` need :math:`\beta_E = \beta` (erratum E28).

    A subclass only has to define :meth:`energy`: scores then come from autograd, and
    :func:`isthmus.retrieve` and :func:`isthmus.sample` work on it. It may also define a
    closed-form :meth:`score`, an :attr:`inverse_temperature` and a :meth:`log_normalizer`.

    Values come out as points went in: tensors for tensors, with their graph, and NumPy arrays for
    arrays, lists and frames. The methods of a subclass need not care, because they always see
    tensors: this class wraps them. Draws, which have no points to follow, are arrays if the energy
    was made from arrays (:attr:`returns_arrays`).

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> class Bowl(ist.Energy):
    ...     def energy(self, x):
    ...         return 0.5 * (x - 1).square().sum(-1)
    >>> ist.retrieve(Bowl(), torch.zeros(1, 2)).state
    tensor([[1., 1.]])
    >>> Bowl().energy([[0, 0], [1, 3]])
    array([1., 2.])
    """

    returns_arrays: bool = False
    """True if draws are NumPy arrays: those of memories, or of a context, given as arrays."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, method in list(vars(cls).items()):
            if not inspect.isfunction(method) or getattr(method, "__isabstractmethod__", False):
                continue
            if name in OF_POINTS and len(inspect.signature(method).parameters) > 1:
                setattr(cls, name, follows_points(method))
            elif name == "sample":
                setattr(cls, name, _follows_memories(method))

    @abstractmethod
    def energy(self, x: Any) -> Tensor:
        """Return the energy of each point. x: (..., D) -> (...)."""

    @property
    def dim(self) -> int | None:
        """The number of coordinates D that inputs must have, or None if any number is allowed."""
        return None

    @property
    def inverse_temperature(self) -> Tensor:
        """The factor between this energy and a negative log-density: a scalar tensor."""
        return torch.ones((), device="cpu")  # a CPU scalar mixes with any device

    def as_input(self, x: Any, *, allow_nan: bool = False) -> Tensor:
        """Return x as checked points of this energy's dtype, and arrays on its device."""
        like = next(chain(self.parameters(), self.buffers()), None)
        return as_points(x, "x", dim=self.dim, like=like, allow_nan=allow_nan)

    @follows_points
    def score(self, x: Any) -> Tensor:
        """Return the force -dE/dx, always of the energy, never of log p. (..., D) -> (..., D).

        The result carries a graph only where x or something in the energy requires a gradient.
        """
        x = self.as_input(x)
        if is_transforming():
            gradient: Tensor = torch.func.grad(lambda points: self.energy(points).sum())(x)
            return -gradient
        grad_enabled = torch.is_grad_enabled()
        with torch.enable_grad():
            leaf = x if x.requires_grad else x.detach().requires_grad_()
            total = self.energy(leaf).sum()
            keep_graph = grad_enabled and (x.requires_grad or _depends_on_others(total, leaf))
            (gradient,) = torch.autograd.grad(total, leaf, create_graph=keep_graph)
        return -gradient

    def log_normalizer(self) -> Tensor:
        """Return the log-normaliser log Z, a scalar tensor."""
        raise UnknownNormalizerError(
            f"{self._get_name()} has no closed-form normaliser, so its log_prob is unknown. "
            "Differences of -inverse_temperature * energy(x) are differences of log_prob; "
            "isthmus.sample does not need it; isthmus.with_normalizer estimates it."
        )

    @follows_points
    def log_prob(self, x: Any) -> Tensor:
        """Return the log-density of each point. x: (..., D) -> (...)."""
        log_normalizer = self.log_normalizer()
        return -self.inverse_temperature * self.energy(x) - log_normalizer

    def forward(self, x: Any) -> Tensor:
        """Return :meth:`energy` of x."""
        return self.energy(x)

    def __getattr__(self, name: str) -> Any:
        if name == "sample":
            raise MissingOperationError(
                f"{self._get_name()} has no exact draws. isthmus.sample(energy, n) draws by a "
                "Markov chain."
            )
        return super().__getattr__(name)

    def in_nats(self) -> WeightedSum:
        """Return this energy times its inverse temperature: the same density, in nats.

        The result has the inverse temperature 1, so that energies of any temperatures add:
        ``a.in_nats() + b.in_nats()``.
        """
        return WeightedSum.of([self], [1.0], tempered=True)

    def __add__(self, other: Any) -> WeightedSum:
        return self._combined(other, 1.0)

    def __radd__(self, other: Any) -> Energy:  # for the built-in sum, which starts at 0
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __sub__(self, other: Any) -> WeightedSum:
        return self._combined(other, -1.0)

    def __mul__(self, weight: Any) -> WeightedSum:
        if isinstance(weight, Energy):
            return NotImplemented
        return WeightedSum.of([self], [weight])

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> WeightedSum:
        if isinstance(divisor, Energy):
            return NotImplemented
        if not isinstance(divisor, Tensor) and not as_number(divisor, "A divisor of an energy"):
            raise InvalidInputError("An energy cannot be divided by zero.")
        return WeightedSum.of([self], [1 / divisor])

    def __neg__(self) -> WeightedSum:
        return WeightedSum.of([self], [-1.0])

    def _combined(self, other: Any, weight: float) -> WeightedSum:
        if not isinstance(other, Energy):
            return NotImplemented
        return WeightedSum.of([self, other], [1.0, weight])

    def _alike(self, other: Derived) -> Derived:
        """Return an energy derived from this one, whose draws are of the same type."""
        other.returns_arrays = self.returns_arrays
        return other

    def _curvature(self) -> Tensor | None:
        """Return c > 0 such that E(x) - c |x|^2 / 2 is concave, or None if none is known.

        A step along the score of length 1/c then never raises the energy.
        """
        return None

    def _log_product_normalizer(self, other: Energy) -> Tensor | None:
        """Return the log-normaliser of the product with another density, or None if unknown."""
        return None


def _depends_on_others(value: Tensor, leaf: Tensor) -> bool:
    """Return True if the graph of `value` reaches a tensor that requires a gradient beside leaf."""
    waiting, seen = [value.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if getattr(node, "variable", leaf) is not leaf:
            return True
        waiting.extend(following for following, _ in node.next_functions)
    return False


class WeightedSum(Energy):
    r"""A weighted sum of energies: a product of powers of their densities.

    .. math:: E(x) = \sum_i w_i E_i(x), \qquad p(x) \propto \prod_i p_i(x)^{w_i} .

    The operators ``a + b``, ``a - b``, ``2 * a``, ``a / 2`` and ``-a`` of energies return it. All
    terms must have the same inverse temperature, which is that of the sum; :meth:`in_nats` gives
    any energy the inverse temperature 1. A negative weight asks for what a term makes unlikely;
    the sum may then have no lower bound.

    The sum has a ``step`` where it is known never to raise the energy: of one term with a step,
    and of Gaussian memories and modern or sparse Hopfield networks with weights above zero, whose
    quadratic bounds add. Its ``log_prob`` is known for one term of weight 1, and for two round
    Gaussian memories of weight 1.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> left = ist.GaussianKDE(torch.tensor([[0.0], [4.0]]), sigma=1.0)
    >>> right = ist.GaussianKDE(torch.tensor([[4.0], [9.0]]), sigma=1.0)
    >>> both = left + right
    >>> both
    WeightedSum(1 * GaussianKDE(N=2, D=1, sigma=1, float32), 1 * GaussianKDE(N=2, D=1, ...))
    >>> ist.retrieve(both, torch.tensor([3.0])).state
    tensor([3.9993])
    >>> (0.5 * left).energy(torch.tensor([0.0])) == left.energy(torch.tensor([0.0])) / 2
    tensor(True)
    """

    weights: Tensor

    def __init__(self, terms: list[Energy], weights: Tensor, tempered: bool) -> None:
        super().__init__()
        self.terms = nn.ModuleList(terms)
        self.register_buffer("weights", weights)
        self.tempered = tempered
        self.returns_arrays = any(term.returns_arrays for term in terms)

    @classmethod
    def of(
        cls, energies: list[Energy], weights: list[float | Tensor], tempered: bool = False
    ) -> WeightedSum:
        """Return the sum of `energies` times `weights`, with sums among them taken apart.

        If `tempered`, each is also multiplied by its inverse temperature.
        """
        terms: list[Energy] = []
        factors: list[Tensor] = []
        for energy, weight in zip(energies, map(_as_weight, weights), strict=True):
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
        kinds = {float(term.inverse_temperature.detach()) for term in terms}
        if len(kinds) > 1 and not tempered:
            words = " and ".join(f"{kind:g}" for kind in sorted(kinds))
            raise InvalidInputError(
                f"Energies of the inverse temperatures {words} do not add to the energy of a "
                "product of densities. Add a.in_nats() + b.in_nats() instead."
            )
        stacked = torch.stack([factor.to(factors[0]) for factor in factors])
        steps = bool((stacked.detach() > 0).all()) and (
            all(term._curvature() is not None for term in terms)
            or (len(terms) == 1 and isinstance(terms[0], FixedPoint))
        )
        return (_SteppingSum if steps else WeightedSum)(terms, stacked, tempered)

    def __iter__(self) -> Iterator[Energy]:
        for term in self.terms:
            assert isinstance(term, Energy)
            yield term

    @property
    def dim(self) -> int | None:
        """The number of coordinates D, or None if no term fixes it."""
        return next((term.dim for term in self if term.dim is not None), None)

    @property
    def inverse_temperature(self) -> Tensor:
        """The inverse temperature of the terms, or 1 if they are in nats."""
        one = super().inverse_temperature
        return one if self.tempered else next(iter(self)).inverse_temperature

    def as_input(self, x: Any, *, allow_nan: bool = False) -> Tensor:
        """Return x as checked points of the dtype of the first term."""
        return next(iter(self)).as_input(x, allow_nan=allow_nan)

    def _factors(self) -> Iterator[tuple[Tensor, Energy]]:
        for weight, term in zip(self.weights, self, strict=True):
            yield (weight * term.inverse_temperature if self.tempered else weight), term

    def _total(self, values: Callable[[Energy], Tensor]) -> Tensor:
        parts = [(factor, values(term)) for factor, term in self._factors()]
        return torch.stack([factor.to(part) * part for factor, part in parts]).sum(0)

    def energy(self, x: Any) -> Tensor:
        """Return the weighted sum of the energies. x: (..., D) -> (...)."""
        x = self.as_input(x)
        return self._total(lambda term: term.energy(x).to(x.dtype))

    def score(self, x: Any) -> Tensor:
        """Return the weighted sum of the scores. x: (..., D) -> (..., D)."""
        x = self.as_input(x)
        return self._total(lambda term: term.score(x).to(x.dtype))

    def _curvature(self) -> Tensor | None:
        bounds = [(factor, term._curvature()) for factor, term in self._factors()]
        if any(bound is None or factor <= 0 for factor, bound in bounds):
            return None
        return torch.stack([f.to(b) * b for f, b in bounds if b is not None]).sum()

    def log_normalizer(self) -> Tensor:
        """Return log Z of one term, or of two round Gaussian memories, of weight 1."""
        terms, plain = [_plain(term) for term in self], bool((self.weights == 1).all())
        if plain and len(terms) == 1:
            return terms[0].log_normalizer()
        if plain and len(terms) == 2:
            found = terms[0]._log_product_normalizer(terms[1])
            if found is not None:
                return found
        return super().log_normalizer()

    def __repr__(self) -> str:
        terms = [f"{float(w):g} * {term!r}" for w, term in zip(self.weights, self, strict=True)]
        return f"WeightedSum({', '.join(terms)}{', in nats' if self.tempered else ''})"


class _SteppingSum(WeightedSum):
    """A sum with an update that never raises it."""

    def _get_name(self) -> str:
        return "WeightedSum"

    @property
    def step_descends(self) -> bool:
        """True if :meth:`step` never raises the energy."""
        return len(self.terms) > 1 or getattr(self.terms[0], "step_descends", True)

    def step(self, x: Any, observed: Any = None) -> Tensor:
        """Return the update of a single term, or the lowest point of the sum of quadratic bounds.

        x: (..., D) -> (..., D). Coordinates marked True in `observed` do not change.
        """
        x = self.as_input(x)
        first = next(iter(self))
        if len(self.terms) == 1 and isinstance(first, FixedPoint):
            return first.step(x, observed)
        curvature = self._curvature()
        assert curvature is not None
        moved = x + self.score(x) / curvature.to(x.dtype)
        return (
            moved if observed is None else torch.where(as_mask(observed, "observed", x), x, moved)
        )


def _plain(energy: Energy) -> Energy:
    """Return the only term of a sum of weight 1, or else the energy itself."""
    if isinstance(energy, WeightedSum) and len(energy.terms) == 1 and bool(energy.weights == 1):
        return _plain(next(iter(energy)))
    return energy


def _as_weight(value: Any) -> Tensor:
    """Return a finite number as a scalar tensor, with its graph if it is one."""
    if isinstance(value, Tensor):
        if value.ndim or not value.is_floating_point():
            raise ShapeError(
                f"The weight of an energy must be one number, not a tensor {tuple(value.shape)}."
            )
        as_number(value.detach(), "The weight of an energy")
        return value
    return torch.tensor(as_number(value, "The weight of an energy"), dtype=torch.float64)


@runtime_checkable
class FixedPoint(Protocol):
    """An energy with a closed-form update that never raises it."""

    def step(self, x: Any, observed: Tensor | None = None) -> Tensor:
        """Return one update of x, (..., D). Coordinates marked in `observed` do not change."""
        ...


@runtime_checkable
class ConditionalMean(Protocol):
    """An energy with a closed-form first guess of unknown coordinates."""

    def conditional_mean(self, x: Any, observed: Tensor) -> Tensor:
        """Replace the unobserved coordinates of x by their mean given the observed ones."""
        ...
