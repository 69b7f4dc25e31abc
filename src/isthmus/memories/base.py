"""Base classes of memories: those that can be swapped, weighted, and known in part."""

from __future__ import annotations

import inspect
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor, nn

from isthmus.energy import Energy
from isthmus.errors import InvalidInputError, OutsideSupportError, ShapeError
from isthmus.index.index import Index
from isthmus.kernel.attention import MAX_OFF_CENTRE, Attention
from isthmus.kernel.logits import Keys
from isthmus.validation import (
    as_count,
    as_log_weights,
    as_points,
    as_seed,
    as_tensor,
    is_transforming,
    require_finite,
    require_range,
)

# Settings with an entry for each memory.
PER_MEMORY = ("counts", "factors", "log_weights", "scale_trils", "dof")

# Weights of memories that are held at once to recall values.
MOST_WEIGHTS = 2**24

# More numbers than any memory holds.
MOST_DRAWS = 2**40

Made = TypeVar("Made")


def generator_for(seed: int | torch.Generator, device: torch.device) -> torch.Generator:
    """Return a new random stream for `seed`; a generator is returned as it is."""
    if isinstance(seed, torch.Generator):
        return seed
    return torch.Generator(device=device).manual_seed(as_seed(seed))


class Memory(Energy):
    """An energy made of rows of memories, which can be swapped.

    Tensors that require a gradient stay in their graph, so that memories may come out of a
    network. Everything else is copied into a frozen parameter: ``memory.requires_grad_()`` makes it
    learnable. Memories are checked when they are stored, and their statistics kept until they
    change; changes through ``.data`` or a numpy view go unnoticed.
    """

    translation_invariant: ClassVar[bool] = False
    """True if moving memories and points together leaves the energy unchanged."""

    has_step = True
    has_conditional_mean = True
    _is_pointwise = True

    memories: Tensor

    def __init__(self, memories: Any, name: str = "memories") -> None:
        super().__init__()
        stored = as_points(memories, name)
        if stored.ndim != 2:
            raise ShapeError(
                f"{name} must be a table of shape (N, D), not {tuple(stored.shape)}. A single "
                "memory is a table of one row; torch.func.vmap maps over a batch of tables."
            )
        if 0 in stored.shape:
            raise InvalidInputError(
                f"{name} is empty (shape {tuple(stored.shape)}); pass at least one memory."
            )
        self._store("memories", stored)
        self.returns_arrays = not isinstance(memories, Tensor)

    def _store(self, name: str, value: Tensor | None) -> None:
        if value is None or isinstance(value, nn.Parameter):
            self.register_parameter(name, value)
        elif value.requires_grad or is_transforming():
            self.register_buffer(name, value)
        else:
            copy = value.clone(memory_format=torch.contiguous_format)
            self.register_parameter(name, nn.Parameter(copy, requires_grad=False))

    def _keys(self) -> Keys:
        """Return the memories as the kernel takes them, with statistics that are kept."""
        return self._kept("keys", lambda: Keys.of(self.memories))

    def __getstate__(self) -> dict[str, Any]:
        # Copies and pickles compute their own.
        return {name: value for name, value in self.__dict__.items() if name != "_made"}

    def _kept(self, name: str, make: Callable[[], Made]) -> Made:
        """Return what `make` computes from the parameters, kept until one of them changes."""
        if is_transforming():
            return make()
        state: list[Any] = []
        for part in chain(self._parameters.values(), self._buffers.values()):
            if part is not None:
                if part.requires_grad or part.is_inference():
                    return make()
                # The tensor is kept too, so that no other has its address.
                state += (id(part), part.data_ptr(), part._version)
        made: dict[str, Any] = self.__dict__.setdefault("_made", {})
        if name not in made or made[name][0] != state:
            own = [*self._parameters.values(), *self._buffers.values()]
            made[name] = state, own, make()
        value: Made = made[name][2]
        return value

    def _answer(self, method: Callable[..., Any], x: Any, *arguments: Any) -> Any:
        answer = super()._answer(method, x, *arguments)
        for part in answer if isinstance(answer, tuple) else (answer,):
            if not is_transforming() and math.isnan(part.sum().item()):
                what = "A product or squared distance of x and memories"
                require_range(torch.as_tensor(part), what, infinite=True)
        return answer

    @property
    def dim(self) -> int:
        """The number of coordinates D."""
        return self.memories.shape[1]

    @property
    def n_memories(self) -> int:
        """The number of memories N."""
        return self.memories.shape[0]

    @property
    def _template(self) -> Tensor:
        return self.memories

    def _settings(self) -> dict[str, Any]:
        """Return the constructor's arguments after the memories, from attributes of their names."""
        names = list(inspect.signature(type(self)).parameters)[1:]
        return {name: getattr(self, name) for name in names}

    def _is_per_memory(self, name: str, value: Tensor) -> bool:
        """Return True if a setting has an entry for each memory."""
        return name in PER_MEMORY and value.ndim > 0

    def _rebuilt(self, memories: Any, index: Tensor | None = None) -> Self:
        settings = self._settings()
        for name, value in settings.items():
            if isinstance(value, Tensor):
                each = index is not None and self._is_per_memory(name, value)
                chosen = value[index] if each else value
                # What is being learned is shared, and the rest copied.
                settings[name] = chosen if chosen.requires_grad else chosen.detach()
            elif isinstance(value, Index):
                settings[name] = True
        return self._alike(type(self)(memories, **settings))

    def with_memories(self, memories: Any) -> Self:
        """Return a new energy with other memories, and weights if their number is the same."""
        return self._rebuilt(memories)

    def subset(self, index: Any) -> Self:
        """Return a new energy with only the memories at `index`, and their weights or counts."""
        try:
            index = torch.as_tensor(index, device=self.memories.device)
            index = index if index.numel() else index.long()
            chosen = self.memories[index]
        except (LookupError, TypeError, ValueError, RuntimeError) as error:
            raise InvalidInputError(f"index must choose among the memories: {error}.") from None
        if index.ndim != 1 or not len(chosen):
            raise InvalidInputError(
                f"index must choose at least one of the {self.n_memories} memories, by a list or "
                f"a mask, not {index.tolist()}."
            )
        return self._rebuilt(chosen, index)

    def _recall(self, x: Tensor, values: Any) -> Tensor:
        if not self.has_responsibilities:
            return super()._recall(x, values)
        stored = as_tensor(values, "values").to(self.memories)
        if stored.ndim not in (1, 2) or len(stored) != self.n_memories:
            raise ShapeError(
                f"values must be ({self.n_memories},) or ({self.n_memories}, V), one for each "
                f"memory, not {tuple(stored.shape)}."
            )
        require_finite(stored, "values", "Remove such rows and their memories.")
        table = stored if stored.ndim == 2 else stored[:, None]
        means = []
        for shares in self._shares(x):
            weights = shares[:, : self.n_memories]  # without that of a new cluster
            total = weights.sum(-1, keepdim=True)
            means.append(weights / torch.where(total > 0, total, 1.0) @ table)
        return torch.cat([table[:0], *means]).reshape(*x.shape[:-1], *stored.shape[1:])

    def _shares(self, x: Tensor) -> Iterator[Tensor]:
        """Yield the responsibilities for blocks of points (rows, D)."""
        for block in x.reshape(-1, self.dim).split(max(MOST_WEIGHTS // self.n_memories, 1)):
            yield self._responsibilities(block)

    @torch.no_grad()
    def _recalled(self, x: Tensor) -> Tensor | None:
        if not self.has_responsibilities:
            return None
        best = [shares.max(-1) for shares in self._shares(x)]
        found = [
            torch.where((share > 0) & (place < self.n_memories), place, -1) for share, place in best
        ]
        return torch.cat([torch.zeros(0, dtype=torch.int64, device=x.device), *found])

    def _chain_starts(self, n: int, generator: torch.Generator) -> Tensor:
        weights = self._mixing_weights().detach()
        return self.memories.detach()[draw_index(weights, n, generator)]

    def _mixing_weights(self) -> Tensor:
        """Return weights of the memories, up to a factor. (N,)"""
        return torch.ones(self.n_memories, device=self.memories.device)

    def _is_far_off(self) -> bool:
        if self.memories.dtype == torch.float64 or self.memories.device.type == "mps":
            return False
        keys = self._keys()
        return bool(keys.off_centre > MAX_OFF_CENTRE * keys.radius)

    def _reach(self) -> float:
        keys = self._keys()
        return keys.radius + keys.off_centre

    def _length(self) -> float:
        if (curvature := self._curvature()) is not None:
            return float(curvature * self.inverse_temperature) ** -0.5
        return self._keys().radius or 1.0

    def _in_float64(self) -> Self:
        if self.memories.dtype == torch.float64:
            return self
        return self.moved(self.memories.detach().double())

    def moved(self, memories: Tensor) -> Self:
        """Return :meth:`with_memories` of these after a shift or a linear map of all of them."""
        return self.with_memories(memories)

    def __repr__(self) -> str:
        parts = [f"N={self.n_memories}", f"D={self.dim}"]
        parameters = inspect.signature(type(self)).parameters
        for name, value in self._settings().items():
            if isinstance(value, Tensor) and value.ndim == 0:
                parts.append(f"{name}={value.item():.4g}")
            elif name == "log_weights" and value is not None:
                parts.append("weighted=True")
            elif isinstance(value, Tensor) and name in ("sigma", "covariance", "factors"):
                parts.append(f"{name}={tuple(value.shape)}")
            elif not isinstance(value, Tensor) and value != parameters[name].default:
                parts.append(f"{name}={value}")
        parts.append(str(self.memories.dtype).removeprefix("torch."))
        return f"{type(self).__name__}({', '.join(parts)})"


def keep_observed(new: Tensor, x: Tensor, observed: Tensor | None) -> Tensor:
    """Return `new`, but with the observed coordinates of `x`."""
    return new if observed is None else torch.where(observed, x, new)


def unit_rows(rows: Tensor) -> Tensor:
    """Return rows at unit length; rows of zeros stay zero. (..., D)."""
    # Dividing by the largest entry first keeps the squares of tiny or huge entries in range.
    scale = rows.detach().abs().amax(-1, keepdim=True)
    return nn.functional.normalize(rows / torch.where(scale > 0, scale, 1.0), dim=-1)


class AtBeta(Energy):
    """An energy whose inverse temperature is its parameter beta."""

    beta: Tensor

    @property
    def inverse_temperature(self) -> Tensor:
        """The parameter beta."""
        return self.beta


class ComponentMeans(AtBeta, Memory):
    """Memories that are means of round components with covariance I / (2 beta)."""

    @property
    def means(self) -> Tensor:
        """The memories, by the name that mixtures use. (K, D)."""
        return self.memories

    @property
    def variance(self) -> Tensor:
        """Variance 1/(2 beta) of a component along each axis."""
        return 0.5 / self.beta

    @property
    def sigma(self) -> Tensor:
        """The standard deviation of a component along each axis."""
        return self.variance.sqrt()


class WeightedMemory(Memory):
    """A memory whose density is a mixture with a component about each memory."""

    has_exact_draws = True
    log_weights: Tensor | None
    """Log-weights log w of the memories, (N,), or None if every w is 1."""

    def __init__(self, memories: Any, name: str = "memories", log_weights: Any = None) -> None:
        super().__init__(memories, name)
        if log_weights is not None:
            log_weights = as_log_weights(log_weights, "log_weights", self.memories)
            log_weights = log_weights.to(self.memories)
        self._store("log_weights", log_weights)

    @property
    def log_mixing_weights(self) -> Tensor:
        """Normalised log-weights log(w / W). (N,)."""
        if self.log_weights is None:
            return self.memories.new_full((self.n_memories,), -math.log(self.n_memories))
        return torch.log_softmax(self.log_weights, 0)

    @property
    def log_total_weight(self) -> Tensor:
        """Log of the total weight W: a scalar tensor."""
        if self.log_weights is None:
            return self.memories.new_tensor(math.log(self.n_memories))
        return torch.logsumexp(self.log_weights, 0)

    def _mixing_weights(self) -> Tensor:
        return self.log_mixing_weights.exp()

    @torch.no_grad()
    def _sample(self, n: int, seed: int | torch.Generator = 0) -> Tensor:
        generator = generator_for(seed, self.memories.device)
        chosen = draw_index(self.log_mixing_weights.exp(), n, generator)
        return self._draw_about(chosen, generator)

    @abstractmethod
    def _draw_about(self, chosen: Tensor, generator: torch.Generator) -> Tensor:
        """Draw a point from the kernel of each chosen memory. (n,) -> (n, D)."""


class MarginalMemory(WeightedMemory):
    """A mixture whose density of any coordinates is known, and their mean given the others."""

    has_responsibilities = True

    @abstractmethod
    def _attend_density(self, x: Tensor, seen: Tensor | None) -> Attention:
        """Return the log-density of observed coordinates, and the mean about the centre."""

    @abstractmethod
    def _logits(self, x: Tensor, seen: Tensor | None) -> Tensor:
        """Return the log-joint of each memory, up to a term per point. (..., N)."""

    def _log_prob(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        return self._attend_density(x, seen).logsumexp

    def _responsibilities(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        logits = self._logits(x, seen)
        nowhere = (logits == -torch.inf).all(-1, keepdim=True)
        shares = torch.softmax(logits.masked_fill(nowhere, 0), -1)
        return require_range(shares.masked_fill(nowhere, 0).to(x.dtype), "A logit")

    def _conditional_mean(self, x: Tensor, seen: Tensor) -> Tensor:
        found = self._attend_density(x, seen)
        rows = 0 if is_transforming() else int((~(found.logsumexp > -torch.inf)).sum())
        if rows:
            raise OutsideSupportError(
                f"{rows} of {found.logsumexp.numel()} rows have no memory within reach of their "
                "observed coordinates. Raise the bandwidth, or use GaussianKDE, whose kernel "
                "reaches everywhere."
            )
        return torch.where(seen, x, found.mean + self._keys().centre)


def draw_index(weights: Tensor, n: int, generator: torch.Generator) -> Tensor:
    """Draw n indices in proportion to any number of `weights`."""
    n = as_count(n, "n", at_least=0, at_most=MOST_DRAWS)
    total = weights.double().cumsum(0)
    where = torch.rand(n, generator=generator, dtype=torch.float64, device=weights.device)
    chosen = torch.searchsorted(total, where * total[-1], right=True)
    return chosen.clamp(max=weights.shape[0] - 1)
