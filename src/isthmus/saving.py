"""save and load: any energy of the package in one safetensors file, without pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from isthmus import memories
from isthmus.compose import Affine, WeightedSum
from isthmus.deep import DeepMemory, EnergyTransformerBlock, NeuralEnergy, VisibleMemory
from isthmus.energy import Energy
from isthmus.errors import UnsupportedOperationError
from isthmus.index.index import Index
from isthmus.io.archive import Arrays, read_archive, write_archive
from isthmus.io.files import check_writable
from isthmus.io.reading import reading
from isthmus.memories.base import Memory
from isthmus.normalizer import LogIntegral, NormalizedEnergy
from isthmus.validation import as_path

__all__ = ["load", "save"]

FORMAT = "isthmus-energy-1"
# The only classes that a file may name, beside those below.
KINDS: dict[str, type[Memory]] = {
    name: kind
    for name, kind in vars(memories).items()
    if isinstance(kind, type) and issubclass(kind, Memory) and not kind.__abstractmethods__
}
NETWORKS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (DeepMemory, EnergyTransformerBlock, NeuralEnergy, VisibleMemory)
}


def save(energy: Energy, path: str | Path) -> None:
    """Write an energy to a safetensors file, with a digest that :func:`load` checks.

    All memories and networks, and sums, affine maps and normalised energies of the package can be
    saved; of energies of your own, save the ``state_dict``.

    Examples
    --------
    >>> import tempfile, torch, isthmus as ist
    >>> path = tempfile.mkdtemp() + "/memory.safetensors"
    >>> ist.save(ist.GaussianKDE(torch.eye(3), sigma=0.5), path)
    >>> ist.load(path)
    GaussianKDE(N=3, D=3, sigma=0.5, float32)
    """
    target = check_writable(as_path(path, "path"), "path")
    writer = _Writer()
    content = json.dumps(writer.describe(energy), sort_keys=True)
    write_archive(target, FORMAT, content, writer.arrays)


def load(path: str | Path) -> Energy:
    """Read an energy that :func:`save` wrote: frozen, on the CPU, equal to the last bit.

    Other and altered files are refused, and no code in a file is ever run.
    """
    metadata, arrays = read_archive(as_path(path, "path"), (FORMAT,))
    with reading(path, "energy", "This version of isthmus cannot read it."):
        return _read(json.loads(metadata["content"]), arrays)


class _Writer:
    """Turns energies into JSON; tensors become arrays under a name, each once."""

    def __init__(self) -> None:
        self.arrays: Arrays = {}
        self._names: dict[tuple[Any, ...], str] = {}

    def describe(self, energy: Energy) -> dict[str, Any]:
        """Return the description of an energy."""
        kind = type(energy)
        if isinstance(energy, memories.TableMixture):
            inner = energy.numbers
            return {
                "kind": "TableMixture",
                "numbers": None if inner is None else self.describe(inner),
                "shares": [self.value("shares", each) for each in energy.shares],
                "log_weights": self.value("log_weights", energy.log_weights),
                "arrays": energy.returns_arrays,
            }
        if kind in (*KINDS.values(), *NETWORKS.values()):
            state, settings = energy.state_dict(), cast(Any, energy)._settings()
            if kind in KINDS.values():
                settings = {name: self.value(name, each) for name, each in settings.items()}
            return {
                "kind": kind.__name__,
                "state": {name: self.value(name, each) for name, each in state.items()},
                "arrays": energy.returns_arrays,
                "settings": settings,
            }
        if isinstance(energy, Affine):
            parts = {name: self.value(name, getattr(energy, name)) for name in AFFINE_PARTS}
            return {"kind": "Affine", "inner": self.describe(energy.inner), "parts": parts}
        if isinstance(energy, WeightedSum):
            terms = [self.describe(term) for term in energy]
            weights = self.value("weights", energy.weights)
            return {
                "kind": "WeightedSum",
                "terms": terms,
                "weights": weights,
                "tempered": energy.tempered,
            }
        if isinstance(energy, NormalizedEnergy):
            found = energy.normalizer
            parts = {name: self.value(name, getattr(found, name)) for name in INTEGRAL_PARTS}
            return {"kind": "NormalizedEnergy", "inner": self.describe(energy.inner)} | parts
        raise UnsupportedOperationError(
            f"{type(energy).__name__} cannot be saved as an energy. Models of isthmus.incontext "
            "have save_pretrained; for an energy of your own, save its state_dict()."
        )

    def value(self, name: str, value: Any) -> Any:
        """Return a value as JSON, with tensors by name."""
        if isinstance(value, Tensor):
            array = value.detach().cpu().contiguous()
            key = value.data_ptr(), value.dtype, value.shape, value.stride()
            if key not in self._names or not value.numel():
                self._names[key] = f"{name}.{len(self.arrays)}"
                self.arrays[self._names[key]] = array.numpy()
            return {"tensor": self._names[key]}
        if isinstance(value, Index):
            return True  # built anew; an index has a file of its own
        if value is None or isinstance(value, str | bool | int | float):
            return value
        raise UnsupportedOperationError(
            f"The setting {name}={value!r} cannot be saved. Save the energy without it."
        )


AFFINE_PARTS, INTEGRAL_PARTS = ("scale", "matrix", "shift"), ("value", "error", "effective_samples")


def _read(tree: dict[str, Any], arrays: Arrays) -> Energy:
    """Rebuild an energy from its description."""

    def value(entry: Any) -> Any:
        if not isinstance(entry, dict):
            return entry
        return torch.from_numpy(np.array(arrays[entry["tensor"]]))

    kind = tree["kind"]
    if kind == "TableMixture":
        shares = [value(each) for each in tree["shares"]]
        if tree["numbers"] is None:
            means = shares[0].new_zeros(len(shares[0]), 0)
            mixture = memories.TableMixture(means, shares, log_weights=value(tree["log_weights"]))
        else:
            numbers = cast(memories.StudentMixture, _read(tree["numbers"], arrays))
            mixture = memories.TableMixture(numbers.means, shares, **numbers._settings())
        mixture.returns_arrays = bool(tree["arrays"])
        return mixture
    if kind == "Affine":
        parts = {name: value(tree["parts"][name]) for name in AFFINE_PARTS}
        return Affine(_read(tree["inner"], arrays), **parts)
    if kind == "WeightedSum":
        terms = [_read(term, arrays) for term in tree["terms"]]
        return WeightedSum.of(terms, list(value(tree["weights"])), tempered=bool(tree["tempered"]))
    if kind == "NormalizedEnergy":
        found = LogIntegral(*(value(tree[name]) for name in INTEGRAL_PARTS))
        return NormalizedEnergy(_read(tree["inner"], arrays), found)
    state = {name: value(entry) for name, entry in tree["state"].items()}
    if kind in NETWORKS:
        if tree["settings"].get("depth", 0) > len(state):  # making them could take for ever
            raise ValueError("its settings name more layers than it has")
        with torch.device("meta"):  # no memory, whatever width the settings name
            network: Energy = NETWORKS[kind]._restored(tree["settings"])
        network.load_state_dict(state, assign=True)
        return network.eval().requires_grad_(False)
    settings = {name: value(entry) for name, entry in tree["settings"].items()}
    energy = KINDS[kind](state["memories"], **settings)
    energy.returns_arrays = bool(tree["arrays"])
    energy.load_state_dict(state)
    return energy
