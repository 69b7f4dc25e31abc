"""DeepMemory: neuron layers and synapses as one energy, and the energy of some layers alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from itertools import accumulate
from typing import Any, final

import torch
from torch import Tensor, nn

from isthmus.deep.neurons import Neurons
from isthmus.deep.synapses import KINDS, Synapse
from isthmus.energy import Energy
from isthmus.errors import InvalidInputError
from isthmus.validation import as_count, require_kind

# Halvings of a step that would raise the energy, before the state is left as it is.
HALVINGS = 30


def lowered(
    energy: Callable[[Tensor], Tensor], x: Tensor, target: Tensor, height: Tensor
) -> tuple[Tensor, Tensor]:
    """Move states x (..., D) towards a target, by the largest share that does not raise the energy.

    The shares are 1, 1/2, 1/4, ... Return the states and their energies (...).
    """
    share, new, reached = torch.ones_like(height), target, energy(target)
    for _ in range(HALVINGS):
        worse = ~(reached <= height)
        if not bool(worse.any()):
            break
        share = torch.where(worse, share / 2, share)
        new = torch.lerp(x, target, share[..., None])
        reached = torch.where(worse, energy(new), reached)
    worse = ~(reached <= height)
    return torch.where(worse[..., None], x, new), torch.where(worse, height, reached)


def gradient_of(energy: Callable[[Tensor], Tensor], g: Tensor) -> Tensor:
    """Return the gradient of energies in activations, with a graph if gradients are on."""
    grad = torch.is_grad_enabled()
    with torch.enable_grad():
        g = g if grad and g.requires_grad else g.detach().requires_grad_()
        options: Any = {"create_graph": grad, "materialize_grads": True}
        (gradient,) = torch.autograd.grad(energy(g).sum(), g, **options)
    return gradient


@final
class DeepMemory(Energy):
    r"""A hierarchical associative memory: layers of neurons, joined by synapses in any graph.

    .. math:: E(x) = \sum_l \bigl[x_l \cdot g_l - L_l(x_l)\bigr] + \sum_s E_s(g), \qquad
        g_l = \partial L_l / \partial x_l

    (Krotov, 2021; Hoover et al., 2022). A point is the states of all layers, one after the other.
    A :meth:`step` updates the layers from the last to the first. Where its synapses are linear in
    each layer, a layer goes to its best state given the others, :math:`-\partial E_s / \partial
    g_l`; otherwise in that direction as far as the energy does not rise. Two layers, "identity" and
    "softmax", are a modern Hopfield network.

    Parameters
    ----------
    layers : dict of str to Neurons
    synapses : list of Dense, Convolution, Attention and Bias
        Copies are used.
    seed : int
        Seed of the weights.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> from isthmus.deep import DeepMemory, Dense, Neurons
    >>> layers = {"pixels": Neurons(64), "parts": Neurons((4, 8), "softmax"), "kind": Neurons(10)}
    >>> memory = DeepMemory(layers, [Dense("pixels", "parts"), Dense("parts", "kind")])
    >>> memory.dim
    106
    >>> found = ist.retrieve(memory, torch.randn(5, 106))
    >>> bool((found.energy <= memory.energy(torch.zeros(5, 106))).all())
    True
    """

    has_step = True
    _is_pointwise = True

    def __init__(
        self, layers: Mapping[str, Neurons], synapses: Sequence[Synapse], seed: int = 0
    ) -> None:
        super().__init__()
        self.layers = dict(layers)
        for each in self.layers.values():
            require_kind(each, "layers", Neurons)
        if not self.layers or not synapses:
            raise InvalidInputError("A deep memory needs layers and synapses.")
        synapses = [deepcopy(each) for each in synapses]
        for synapse in synapses:
            require_kind(synapse, "synapses", Synapse)
        joined = {name for synapse in synapses for name in synapse.layers}
        if joined != set(self.layers):
            raise InvalidInputError(
                f"Synapses join {sorted(joined)}, but the layers are {sorted(self.layers)}."
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(as_count(seed, "seed", at_least=0))
            for synapse in synapses:
                synapse.build(*(self.layers[name] for name in synapse.layers))
        self.synapses = nn.ModuleList(synapses)
        self.sizes = [each.size for each in self.layers.values()]
        ends = [0, *accumulate(self.sizes)]
        self.places = dict(zip(self.layers, map(slice, ends, ends[1:]), strict=True))

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name}: {each.size}" for name, each in self.layers.items())
        return f"DeepMemory({sizes}; {len(self.synapses)} synapses)"

    @property
    def dim(self) -> int:
        """Neurons of all layers."""
        return sum(self.sizes)

    def _settings(self) -> dict[str, Any]:
        named, synapses = self.layers.items(), self._synapses()
        layers = [[name, list(each.shape), each.lagrangian, each.beta] for name, each in named]
        kinds = [[type(each).__name__, list(each.layers), each.settings] for each in synapses]
        return {"layers": layers, "synapses": kinds}

    @classmethod
    def _restored(cls, settings: dict[str, Any]) -> DeepMemory:
        layers = {name: Neurons(*each) for name, *each in settings["layers"]}
        synapses = [KINDS[kind](*names, **more) for kind, names, more in settings["synapses"]]
        return cls(layers, synapses)

    def _synapses(self) -> list[Synapse]:
        return list(self.synapses)  # type: ignore[arg-type]

    def states(self, x: Tensor) -> dict[str, Tensor]:
        """Return points (..., D) as states (..., shape) of each layer."""
        parts = zip(self.layers.items(), x.split(self.sizes, dim=-1), strict=True)
        return {name: neurons.split(part) for (name, neurons), part in parts}

    def activations(self, x: Tensor) -> dict[str, Tensor]:
        """Return the activations (..., shape) of each layer at points (..., D)."""
        states = self.states(x)
        return {name: each.activation(states[name]) for name, each in self.layers.items()}

    def update(self, x: Any) -> Tensor:
        """Return -dE/dg at points (..., D), the direction in which states move. (..., D)"""
        return self._at(self._update, x)

    def _update(self, x: Tensor) -> Tensor:
        activations = self.activations(x)
        inputs = [self._input(name, activations).reshape(*x.shape[:-1], -1) for name in self.layers]
        return torch.cat(inputs, dim=-1) - x

    def _input(self, name: str, activations: dict[str, Tensor]) -> Tensor:
        """Return -dE_s/dg of one layer: (..., shape)."""
        own = [each for each in self._synapses() if name in each.layers]
        return -gradient_of(lambda g: _total(own, {**activations, name: g}), activations[name])

    def _energy(self, x: Tensor) -> Tensor:
        states, activations = self.states(x), self.activations(x)
        total = _total(self._synapses(), activations)
        for name, neurons in self.layers.items():
            total = total + neurons.energy(states[name], activations[name])
        return total

    def _step(self, x: Tensor, held: Tensor | None = None) -> Tensor:
        return self._sweep(x, held, list(self.layers))

    def _sweep(self, x: Tensor, held: Tensor | None, names: list[str]) -> Tensor:
        """Update layers, from the last to the first."""
        for name in reversed(names):
            neurons, where = self.layers[name], self.places[name]
            kept = None if held is None else held[..., where]
            if kept is not None and bool(kept.all()):
                continue
            best = self._input(name, self.activations(x)).reshape(*x.shape[:-1], neurons.size)
            if kept is not None:
                best = torch.where(kept, x[..., where], best)
            target = torch.cat([x[..., : where.start], best, x[..., where.stop :]], dim=-1)
            linear = all(each.is_linear for each in self._synapses() if name in each.layers)
            apart = kept is None or neurons.lagrangian in ("identity", "relu")
            if not (linear and apart):
                target = lowered(self._energy, x, target, self._energy(x))[0]
            x = target
        return x

    def over(self, *names: str, sweeps: int = 8) -> VisibleMemory:
        """Return the energy of some layers, with the others at rest given them."""
        return VisibleMemory(self, *names, sweeps=sweeps)


def _total(synapses: list[Synapse], activations: dict[str, Tensor]) -> Tensor:
    """Return the energy of synapses: (...)."""
    energies = [each.energy(*map(activations.__getitem__, each.layers)) for each in synapses]
    return torch.stack(energies).sum(0)


@final
class VisibleMemory(Energy):
    r"""The energy of some layers of a deep memory, the others at their lowest.

    .. math:: E(v) = \min_h E(v, h)

    :meth:`DeepMemory.over` returns it, for the names of the visible layers. The hidden layers start
    at zero and are swept at most `sweeps` times, or once if they are not joined to each other,
    which is exact.
    """

    has_step = True
    _is_pointwise = True

    def __init__(self, memory: DeepMemory, *names: str, sweeps: int = 8) -> None:
        super().__init__()
        require_kind(memory, "memory", DeepMemory)
        unknown = [name for name in names if name not in memory.layers]
        if unknown or not names or len(set(names)) < len(names):
            raise InvalidInputError(
                f"names must be different ones of {list(memory.layers)}, not {names}."
            )
        self.memory, self.names = memory, names
        self.sweeps = as_count(sweeps, "sweeps")
        self.hidden = [name for name in memory.layers if name not in names]
        joined = [sum(name in self.hidden for name in each.layers) for each in memory._synapses()]
        linear = all(each.is_linear for each in memory._synapses())
        self._rounds = 1 if linear and max(joined) < 2 else self.sweeps

    def __repr__(self) -> str:
        return f"VisibleMemory({', '.join(self.names)} of {self.memory!r})"

    @property
    def dim(self) -> int:
        """Neurons of the visible layers."""
        return sum(self.memory.layers[name].size for name in self.names)

    def _settings(self) -> dict[str, Any]:
        return {**self.memory._settings(), "visible": list(self.names), "sweeps": self.sweeps}

    @classmethod
    def _restored(cls, settings: dict[str, Any]) -> VisibleMemory:
        memory = DeepMemory._restored(settings)
        return cls(memory, *settings["visible"], sweeps=settings["sweeps"])

    def whole(self, v: Tensor) -> Tensor:
        """Return the states of all layers (..., D) for visible ones (..., V)."""
        x = self._spread(v, 0)
        for _ in range(self._rounds):
            x = self.memory._sweep(x, None, self.hidden)
        return x

    def _energy(self, x: Tensor) -> Tensor:
        return self.memory._energy(self.whole(x))

    def _step(self, x: Tensor, held: Tensor | None = None) -> Tensor:
        kept = None if held is None else self._spread(held, 1)
        moved = self.memory._sweep(self.whole(x), kept, list(self.names))
        new = torch.cat([moved[..., self.memory.places[name]] for name in self.names], dim=-1)
        if self._rounds == 1:
            return new
        # The hidden layers may rest elsewhere for the new states.
        return lowered(self._energy, x, new, self._energy(x))[0]

    def _spread(self, values: Tensor, other: int) -> Tensor:
        """Return values (..., V) of the visible layers with `other` for the hidden ones."""
        layers = self.memory.layers
        parts = values.split([layers[name].size for name in self.names], dim=-1)
        known = dict(zip(self.names, parts, strict=True))
        for name in self.hidden:
            known[name] = values.new_full((*values.shape[:-1], layers[name].size), other)
        return torch.cat([known[name] for name in layers], dim=-1)
