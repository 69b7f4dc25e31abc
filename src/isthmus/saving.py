"""save and load: any energy of the package in one safetensors file, without pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from isthmus import memories
from isthmus.compose import Affine, WeightedSum
from isthmus.deep import DeepMemory, EnergyTransformerBlock, NeuralEnergy, VisibleMemory
from isthmus.energy import Energy
from isthmus.errors import UnsupportedOperationError
from isthmus.index.index import Index
from isthmus.io.archive import decoded, read_archive, write_described
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
TABLE_PARTS = ("means", "shares", "scale_trils", "dof", "log_weights")
AFFINE_PARTS, INTEGRAL_PARTS = ("scale", "matrix", "shift"), ("value", "error", "effective_samples")


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
    write_described(target, FORMAT, energy, _encoded)


def load(path: str | Path) -> Energy:
    """Read an energy that :func:`save` wrote: frozen, on the CPU, equal to the last bit.

    Other and altered files are refused, and no code in a file is ever run.
    """
    metadata, arrays = read_archive(as_path(path, "path"), (FORMAT,))
    with reading(path, "energy", "This version of isthmus cannot read it."):
        energy: Energy = decoded(metadata["content"], arrays, _decoded)
        return energy


def _parts(energy: Energy) -> dict[str, Any]:
    """Return what a file holds of an energy: its kind, energies, tensors and plain settings."""
    kind = type(energy).__name__
    if isinstance(energy, memories.TableMixture):
        parts = {name: getattr(energy, name) for name in TABLE_PARTS}
        return {"kind": kind, "arrays": energy.returns_arrays, **parts}
    if type(energy) in (*KINDS.values(), *NETWORKS.values()):
        state, settings = energy.state_dict(), cast(Any, energy)._settings()
        arrays = energy.returns_arrays
        rule = getattr(energy, "_sigma_rule", None)  # that chose the bandwidth of a GaussianKDE
        parts = {"kind": kind, "state": state, "arrays": arrays, "settings": settings}
        return parts if rule is None else parts | {"rule": rule}
    if isinstance(energy, Affine):
        parts = {name: getattr(energy, name) for name in AFFINE_PARTS}
        return {"kind": kind, "inner": energy.inner, "parts": parts}
    if isinstance(energy, WeightedSum):
        terms = {"terms": list(energy), "weights": energy.weights}
        return {"kind": kind, "tempered": energy.tempered, **terms}
    if isinstance(energy, NormalizedEnergy):
        return {"kind": kind, "inner": energy.inner, **vars(energy.normalizer)}
    raise UnsupportedOperationError(
        f"{kind} cannot be saved as an energy. Models of isthmus.incontext have save_pretrained; "
        "for an energy of your own, save its state_dict()."
    )


def _encoded(value: Any) -> Any:
    if isinstance(value, Energy):
        return _parts(value)
    if isinstance(value, nn.ParameterList):
        return list(value)
    if isinstance(value, Index):
        return True  # built anew; an index has a file of its own
    raise UnsupportedOperationError(
        f"The setting {value!r} cannot be saved. Save the energy without it."
    )


def _decoded(parts: dict[str, Any]) -> Any:
    """Rebuild an energy; other mappings stay."""
    if "kind" not in parts:
        return parts
    kind: str = parts["kind"]
    state, settings = parts.get("state", {}), parts.get("settings", {})
    if kind == "Affine":
        return Affine(parts["inner"], **{name: parts["parts"][name] for name in AFFINE_PARTS})
    if kind == "WeightedSum":
        return WeightedSum.of(parts["terms"], list(parts["weights"]), bool(parts["tempered"]))
    if kind == "NormalizedEnergy":
        found = LogIntegral(*(parts[name] for name in INTEGRAL_PARTS))
        return NormalizedEnergy(parts["inner"], found)
    if kind in NETWORKS:
        if settings.get("depth", 0) > len(state):  # making them could take for ever
            raise ValueError("its settings name more layers than it has")
        with torch.device("meta"):  # no memory, whatever width the settings name
            network: Energy = NETWORKS[kind]._restored(settings)
        network.load_state_dict(state, assign=True)
        return network.eval().requires_grad_(False)
    energy: Energy
    if kind == "TableMixture":
        energy = memories.TableMixture(**{name: parts[name] for name in TABLE_PARTS})
        # Sums of 1 are not scaled to 1 again, which would change the last bit.
        stored = {f"shares_{place}": each for place, each in enumerate(parts["shares"])}
        energy.load_state_dict(stored, strict=False)
    else:
        energy = KINDS[kind](state["memories"], **settings)
        if isinstance(energy, memories.GaussianKDE):
            energy._sigma_rule = parts.get("rule")
        energy.load_state_dict(state)
    energy.returns_arrays = bool(parts["arrays"])
    return energy
