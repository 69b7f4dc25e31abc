"""Energy: the contract between memories, dynamics, learning and evaluation.

Public methods check their points once and call a private method of the same name, which trusts its
tensors: :meth:`Energy.score` calls ``_score``. Loops call the private ones.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial, wraps
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from torch import Tensor, nn

from isthmus.errors import (
    InvalidInputError,
    MissingOperationError,
    UnknownNormalizerError,
    UnsupportedOperationError,
)
from isthmus.validation import (
    as_count,
    as_mask,
    as_number,
    as_numbers,
    as_points,
    is_transforming,
    require_finite,
)

if TYPE_CHECKING:
    from isthmus.compose import WeightedSum
    from isthmus.distribution import EnergyDistribution, Line

__all__ = ["Energy", "WeightedSum"]

Derived = TypeVar("Derived", bound="Energy")


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


class Energy(nn.Module, ABC):
    r"""An energy function, which is a negative log-likelihood.

    Every energy states its inverse temperature :math:`\beta_E`, so that

    .. math:: p(x) = \exp(-\beta_E\, E(x)) / Z .

    The paper's introduction prints :math:`\exp(-E)/Z` (erratum E28).

    A subclass only has to define :meth:`energy`: scores then come from autograd, and
    :func:`isthmus.retrieve` and :func:`isthmus.sample` work on it. It may also define the other
    methods below; the attributes ``has_...`` say which of them an energy has. Methods that a
    subclass defines see checked tensors.

    Values come out as points went in: tensors for tensors, with their graph, and NumPy arrays for
    arrays, lists and frames. Draws are arrays if the energy was made from arrays.

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
    has_step: bool = False
    """True if there is a closed-form update, :meth:`step`."""
    step_descends: bool = True
    """True if :meth:`step` never raises the energy."""
    has_conditional_mean: bool = False
    """True if there is a closed-form guess of unknown coordinates, :meth:`conditional_mean`."""
    has_responsibilities: bool = False
    """True if the energy is made of memories whose shares are known: :meth:`responsibilities`."""
    has_exact_draws: bool = False
    """True if there are draws without a Markov chain, :meth:`sample`."""
    # True if energies (n,) of points (n, D) need not be tried out.
    _is_pointwise: bool = False
    # True if the step takes a mask of coordinates to hold.
    _step_holds: bool = True
    # True if the memories are elsewhere, on the workers of a cluster.
    _in_shards: bool = False
    # The classes that define a public method themselves, the last in line first, by its name.
    _owners: ClassVar[dict[str, list[type[Energy]]]] = {}

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make public methods that a subclass defines the private ones, which see tensors."""
        super().__init_subclass__(**kwargs)
        for name, (_, flag) in BORDERS.items():
            home = next(base for base in cls.__mro__ if name in vars(base))
            # Of a class that is no energy too, which an energy was mixed with.
            own: Any = None if home is not cls and issubclass(home, Energy) else vars(home)[name]
            count = len(inspect.signature(own).parameters) if inspect.isfunction(own) else 0
            if count > 1:
                setattr(cls, f"_{name}", own)
                setattr(cls, name, _public(name, own, cls))
                if flag is not None:
                    setattr(cls, flag, True)
                if flag == "has_step":
                    cls._step_holds = count > 2
        energies = [base for base in cls.__mro__ if issubclass(base, Energy)][:-1]
        cls._owners = {
            name: [base for base in energies if hasattr(vars(base).get(name), "__wrapped__")]
            for name in BORDERS
        }

    def _private(self, name: str) -> Callable[..., Any]:
        """Return the private method, or the one that ``super()`` in a subclass's own means."""
        owners = self._owners[name]
        return getattr(super(owners[-1], self) if owners else self, f"_{name}")

    @property
    def dim(self) -> int | None:
        """The number of coordinates D that inputs must have, or None if any number is allowed."""
        return None

    def _known_dim(self, advice: str = "Give the class a property dim.") -> int:
        if self.dim is None:
            name = type(self).__name__
            raise InvalidInputError(f"{name} has no number of coordinates. {advice}")
        return self.dim

    @property
    def inverse_temperature(self) -> Tensor:
        """The factor between this energy and a negative log-density: a scalar tensor."""
        return torch.ones((), device="cpu")  # a CPU scalar mixes with any device

    @property
    def _template(self) -> Tensor | None:
        """A tensor of the dtype and device of points, or None: never one of whole numbers."""
        own = chain(self.parameters(), self.buffers())
        return next((tensor for tensor in own if tensor.is_floating_point()), None)

    def as_input(self, x: Any, *, allow_nan: bool = False) -> Tensor:
        """Return x as checked points of this energy's dtype, and arrays on its device."""
        return as_points(x, "x", dim=self.dim, like=self._template, allow_nan=allow_nan)

    def _partial(self, x: Any, observed: Any) -> tuple[Tensor, Tensor]:
        """Return points with zeros where they are not observed, and the mask in their shape."""
        x = self.as_input(x, allow_nan=True)
        seen = as_mask(observed, "observed", x)
        filled = torch.where(seen, x, torch.zeros_like(x))
        require_finite(filled, "x", "A coordinate marked as observed is unknown.")
        return filled, seen

    def _answer(self, method: Callable[..., Any], x: Any, *arguments: Any) -> Any:
        """Return a private method of tensors: tensors if x is one, else arrays."""
        if isinstance(x, Tensor):
            return method(*arguments)
        with torch.no_grad():
            return as_arrays(method(*arguments))

    def _at(self, method: Callable[..., Any], x: Any, *rest: Any) -> Any:
        """Return a private method of checked points."""
        return self._answer(method, x, self.as_input(x), *rest)

    def _holding(self, method: Callable[..., Any], x: Any, observed: Any = None) -> Any:
        """Return a private method of checked points, whose observed coordinates are kept."""
        points = self.as_input(x)
        held = () if observed is None else (as_mask(observed, "observed", points),)
        return self._answer(method, x, points, *held)

    def _seeing(self, method: Callable[..., Any], x: Any, observed: Any = None) -> Any:
        """Return a private method of checked points, or of their observed coordinates alone."""
        points = (self.as_input(x),) if observed is None else self._partial(x, observed)
        return self._answer(method, x, *points)

    def energy(self, x: Any) -> Tensor:
        """Return the energy of each point. x: (..., D) -> (...)."""
        return self._at(self._private("energy"), x)

    def score(self, x: Any) -> Tensor:
        """Return the force -dE/dx, always of the energy, never of log p. (..., D) -> (..., D)."""
        return self._at(self._private("score"), x)

    def log_prob(self, x: Any, observed: Any = None) -> Tensor:
        """Return the log-density of points, or of `observed` coordinates. (..., D) -> (...)."""
        return self._seeing(self._private("log_prob"), x, observed)

    def step(self, x: Any, observed: Any = None) -> Tensor:
        """Return one closed-form update that keeps `observed` coordinates. (..., D) -> (..., D)."""
        return self._holding(self._private("step"), x, observed)

    def step_and_energy(self, x: Any, observed: Any = None) -> tuple[Tensor, Tensor]:
        """Return :meth:`step` and :meth:`energy` of each point in one pass: (..., D) and (...)."""
        return self._holding(self._private("step_and_energy"), x, observed)

    def responsibilities(self, x: Any, observed: Any = None) -> Tensor:
        """Return the posterior probability of each memory; zeros where the density is. (..., N).

        With a mask `observed` (..., D), given the marked coordinates alone.
        """
        return self._seeing(self._private("responsibilities"), x, observed)

    def conditional_mean(self, x: Any, observed: Any) -> Tensor:
        """Put unobserved coordinates, possibly NaN, at their mean given the others. (..., D)."""
        return self._answer(self._private("conditional_mean"), x, *self._partial(x, observed))

    def recall(self, x: Any, values: Any) -> Tensor:
        """Return the mean of `values` under the responsibilities at x: hetero-association.

        `values`, (N,) or (N, V), belong to the memories. With one-hot rows for labels, the result,
        (...) or (..., V), holds probabilities of the labels.

        >>> import torch, isthmus as ist
        >>> keys = torch.tensor([[0.0, 0.0], [4.0, 0.0]])
        >>> ist.GaussianKDE(keys, 1.0).recall(torch.tensor([3.0, 0.5]), [[1.0, 0.0], [0.0, 1.0]])
        tensor([0.0180, 0.9820])
        """
        return self._at(self._recall, x, values)

    def sample(self, n: int, seed: int | torch.Generator = 0) -> Tensor:
        """Draw exact samples, if :attr:`has_exact_draws`. -> (n, D)."""
        return self._drawing(self._private("sample"), n, seed)

    def as_distribution(self, validate_args: bool | None = None) -> EnergyDistribution:
        """Return a ``torch.distributions.Distribution``.

        The log-density and exact draws of the energy must be known; ``mean``, ``variance``,
        ``cdf`` and ``icdf`` need closed forms.

        >>> import torch, isthmus as ist
        >>> found = ist.GaussianKDE(torch.tensor([[0.0], [4.0]]), sigma=1.0).as_distribution()
        >>> found.mean, found.variance, found.cdf(torch.tensor([2.0]))
        (tensor([2.]), tensor([5.]), tensor(0.5000))
        """
        from isthmus.distribution import EnergyDistribution

        if not self.has_exact_draws:
            raise self._missing("exact draws", "isthmus.sample(energy, n) draws by a Markov chain")
        if type(self)._log_prob is Energy._log_prob:
            self.log_normalizer()
        return EnergyDistribution(self, validate_args=validate_args)

    def cdf(self, x: Any, column: int | None = None) -> Any:
        """Return the probability of values up to x (...) of one coordinate. -> (...)

        For kernel density estimators and mixtures with one coordinate, or the marginal of the
        coordinate `column`; without a gradient.

        >>> import isthmus as ist
        >>> mixture = ist.Mixture([[0.0, 1.0], [4.0, 1.0]], beta=0.5)
        >>> float(mixture.cdf(2.0, column=0))
        0.5
        >>> [round(float(end), 3) for end in mixture.interval(0.9, column=1)]
        [-0.645, 2.645]
        """
        return self._on_line("cdf", x, column)

    def ppf(self, q: Any, column: int | None = None) -> Any:
        """Return the quantiles of probabilities q (...), the inverse of :meth:`cdf`. -> (...)"""
        return self._on_line("ppf", q, column)

    def interval(self, level: float = 0.95, column: int | None = None) -> tuple[Any, Any]:
        """Return the ends of the central interval that holds the probability `level`."""
        level = as_number(level, "level", at_least=0, at_most=1)
        low, high = self.ppf([0.5 - level / 2, 0.5 + level / 2], column)
        return low, high

    def _on_line(self, method: str, values: Any, column: int | None) -> Any:
        """Return a function of one coordinate, as the values were given."""
        from isthmus.distribution import probabilities

        if column is None and self.dim != 1:
            raise InvalidInputError(f"The energy has {self.dim} coordinates; choose one: column=0.")
        place = 0 if column is None else column
        place = as_count(place, "column", at_least=0, at_most=(self.dim or 1) - 1)
        points = values.detach().cpu() if isinstance(values, Tensor) else values
        given = probabilities(values) if method == "ppf" else as_numbers(points, "x")
        found = getattr(self._line(place), method)(given.reshape(-1)).reshape(given.shape)
        if not isinstance(values, Tensor):
            return found[()]
        dtype = values.dtype if values.is_floating_point() else torch.get_default_dtype()
        return torch.as_tensor(found, device=values.device, dtype=dtype)

    def _line(self, column: int) -> Line:
        """Return one coordinate as a mixture on the line."""
        raise self._missing("closed-form distribution function", "Draw from it to estimate one")

    def _drawing(self, method: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return draws_as_given(method(*args, **kwargs), self, None)

    def forward(self, x: Any) -> Tensor:
        """Return :meth:`energy` of x."""
        return self.energy(x)

    @abstractmethod
    def _energy(self, x: Tensor) -> Tensor:
        """Return the energy of each point. x: (..., D) -> (...)."""

    def _score(self, x: Tensor) -> Tensor:
        if is_transforming():
            gradient: Tensor = torch.func.grad(lambda points: self._energy(points).sum())(x)
            return -gradient
        grad_enabled = torch.is_grad_enabled()
        with torch.enable_grad():
            leaf = x if x.requires_grad else x.detach().requires_grad_()
            total = self._energy(leaf).sum()
            keep_graph = grad_enabled and (x.requires_grad or _depends_on_others(total, leaf))
            (gradient,) = torch.autograd.grad(total, leaf, create_graph=keep_graph)
        return -gradient

    def log_normalizer(self) -> Tensor:
        """Return the log-normaliser log Z, a scalar tensor."""
        raise UnknownNormalizerError(
            f"{type(self).__name__} has no closed-form normaliser, so its log_prob is unknown. "
            "Differences of -inverse_temperature * energy(x) are differences of log_prob; "
            "isthmus.sample does not need it; isthmus.with_normalizer estimates it."
        )

    def _log_prob(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        if seen is not None:
            raise UnsupportedOperationError(
                f"{type(self).__name__} has no closed-form density of some coordinates alone."
            )
        log_normalizer = self.log_normalizer()
        return -self.inverse_temperature * self._energy(x) - log_normalizer

    def _step(self, x: Tensor, held: Tensor | None = None) -> Tensor:
        raise self._missing("closed-form step", "isthmus.retrieve(energy, x) follows its score")

    def _step_and_energy(self, x: Tensor, held: Tensor | None = None) -> tuple[Tensor, Tensor]:
        return (self._step(x) if held is None else self._step(x, held)), self._energy(x)

    def _responsibilities(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        raise self._missing("responsibilities", "Memories such as GaussianKDE have them")

    def _recall(self, x: Tensor, values: Any) -> Tensor:
        raise self._missing("responsibilities to weigh values by", "GaussianKDE has")

    def _conditional_mean(self, x: Tensor, seen: Tensor) -> Tensor:
        raise self._missing(
            "conditional_mean", "Pass how='mode' and init= to isthmus.complete instead"
        )

    def _sample(self, n: int, seed: int | torch.Generator = 0) -> Tensor:
        raise self._missing("exact draws", "isthmus.sample(energy, n) draws by a Markov chain")

    def _missing(self, what: str, instead: str) -> MissingOperationError:
        return MissingOperationError(f"{type(self).__name__} has no {what}. {instead}.")

    def _chain_starts(self, n: int, generator: torch.Generator) -> Tensor | None:
        """Return n points where chains may start, such as memories, or None. -> (n, D)"""
        return None

    def _recalled(self, x: Tensor) -> Tensor | None:
        """Return the memory with the largest share of each point (n, D), -1 for none; or None."""
        return None

    def _in_float64(self) -> Energy | None:
        """Return the same energy in float64, or None if that is not known."""
        return None

    def _is_far_off(self) -> bool:
        """Return True if the energy lies so far from the origin that its dtype blurs its steps."""
        return False

    def _reach(self) -> float:
        """Return a length in proportion to which updates have rounding errors, at least."""
        return 0.0

    def _length(self) -> float:
        """Return the length that tolerances are relative to: the width of kernels, if any."""
        return 1.0

    def _curvature(self) -> Tensor | None:
        """Return c > 0 such that E(x) - c |x|^2 / 2 is concave, or None; a step is -dE/dx / c."""
        return None

    def _log_product_normalizer(self, other: Energy) -> Tensor | None:
        """Return the log-normaliser of the product with another density, or None if unknown."""
        return None

    def _alike(self, other: Derived) -> Derived:
        """Return an energy derived from this one, whose draws are of the same type."""
        other.returns_arrays = self.returns_arrays
        return other

    def in_nats(self) -> WeightedSum:
        """Return this energy times its inverse temperature: the same density, in nats.

        Energies of any temperatures then add: ``a.in_nats() + b.in_nats()``.
        """
        return _weighted_sum([self], [1.0], tempered=True)

    def _plus(self, other: Any, weight: float) -> WeightedSum:
        both = isinstance(other, Energy)
        return _weighted_sum([self, other], [1.0, weight]) if both else NotImplemented

    def __add__(self, other: Any) -> WeightedSum:
        return self._plus(other, 1.0)

    def __radd__(self, other: Any) -> Energy:  # for the built-in sum, which starts at 0
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __sub__(self, other: Any) -> WeightedSum:
        return self._plus(other, -1.0)

    def __mul__(self, weight: Any) -> WeightedSum:
        return NotImplemented if isinstance(weight, Energy) else _weighted_sum([self], [weight])

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> WeightedSum:
        if isinstance(divisor, Energy):
            return NotImplemented
        if not isinstance(divisor, Tensor) and not as_number(divisor, "A divisor of an energy"):
            raise InvalidInputError("An energy cannot be divided by zero.")
        return _weighted_sum([self], [1 / divisor])

    def __neg__(self) -> WeightedSum:
        return _weighted_sum([self], [-1.0])


# How each public method checks its arguments, and what a class that defines it can do.
BORDERS: dict[str, tuple[Callable[..., Any], str | None]] = {
    "energy": (Energy._at, None),
    "score": (Energy._at, None),
    "log_prob": (Energy._seeing, None),
    "step": (Energy._holding, "has_step"),
    "step_and_energy": (Energy._holding, "has_step"),
    "responsibilities": (Energy._seeing, "has_responsibilities"),
    "conditional_mean": (Energy._seeing, "has_conditional_mean"),
    "sample": (Energy._drawing, "has_exact_draws"),
}


def _public(name: str, own: Callable[..., Any], owner: type[Energy]) -> Callable[..., Any]:
    """Return the public method of a class that defines it: called from outside, or by super()."""
    border = BORDERS[name][0]

    @wraps(own)
    def public(self: Energy, *args: Any, **kwargs: Any) -> Any:
        from_outside = self._owners[name][0] is owner
        # Not a bound method, which torch.compile would look up on the energy by its name.
        method = getattr(self, f"_{name}") if from_outside else partial(own, self)
        options = {key: kwargs.pop(key) for key in kwargs.keys() - {"x", "observed"}}
        return border(self, partial(method, **options), *args, **kwargs)

    return public


def _weighted_sum(
    energies: list[Energy], weights: list[Any], tempered: bool = False
) -> WeightedSum:
    from isthmus.compose import WeightedSum

    return WeightedSum.of(energies, weights, tempered)


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


def __getattr__(name: str) -> Any:
    if name != "WeightedSum":
        raise AttributeError(f"module 'isthmus.energy' has no attribute {name!r}")
    from isthmus.compose import WeightedSum

    return WeightedSum
