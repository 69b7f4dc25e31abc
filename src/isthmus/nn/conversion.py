"""convert_state_dict: checkpoints of the hopfield-layers package for the layers here."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from isthmus.errors import InvalidInputError, UnsupportedOperationError
from isthmus.validation import require_kind

CORE = "association_core."
NORMS = {
    "norm_state_pattern": "norm_state",
    "norm_stored_pattern": "norm_stored",
    "norm_pattern_projection": "norm_value",
}
PATTERNS = ("pooling_weights", "lookup_weights", "target_weights")
UNSUPPORTED = {
    "bias_k": "concat_bias_pattern=True",
    "bias_v": "concat_bias_pattern=True",
    "p_norm_weight": "normalize_hopfield_space_affine=True",
}


def convert_state_dict(state_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
    r"""Return a checkpoint of the hopfield-layers package as one for the layers here.

    The outputs are equal: build the layer with the same sizes, heads, ``beta=scaling``,
    ``steps=update_steps_max + 1`` and ``norm=False`` if the checkpoint has no norms, then call
    ``load_state_dict``. In a checkpoint of a whole network every layer is found by its names, and
    all other entries are kept.

    Layers with ``normalize_hopfield_space``, ``concat_bias_pattern``, static patterns, a
    ``pattern_size`` of their own, or ``pattern_projection_as_connected`` have no equivalent.

    Parameters
    ----------
    state_dict : mapping of str to Tensor
        ``state_dict()`` of ``hflayers.Hopfield``, ``HopfieldPooling``, ``HopfieldLayer``, or of a
        module that contains them.

    Examples
    --------
    >>> import torch
    >>> from isthmus.nn import HopfieldPooling, convert_state_dict
    >>> core = "hopfield.association_core."
    >>> theirs = {core + "in_proj_weight": torch.randn(12, 4)}
    >>> theirs[core + "in_proj_bias"] = torch.zeros(12)
    >>> theirs |= {core + "out_proj.weight": torch.eye(4), core + "out_proj.bias": torch.zeros(4)}
    >>> theirs["pooling_weights"] = torch.randn(1, 1, 4)
    >>> HopfieldPooling(4, norm=False).load_state_dict(convert_state_dict(theirs))
    <All keys matched successfully>
    """
    require_kind(state_dict, "state_dict", Mapping)
    prefixes = sorted({key.partition(CORE)[0] for key in state_dict if CORE in key})
    if not prefixes:
        raise InvalidInputError(
            "The checkpoint has no layer of the hopfield-layers package: no name in it contains "
            f"'{CORE}'."
        )
    rest = dict(state_dict)
    found: dict[str, Tensor] = {}
    for prefix in prefixes:
        own = {key: rest.pop(key) for key in list(rest) if _belongs(key, prefix)}
        layer = {key.removeprefix(prefix): value for key, value in own.items()}
        found |= {f"{prefix}{key}": value for key, value in _converted(layer).items()}
        outer = prefix.removesuffix("hopfield.")
        for name in PATTERNS:
            if outer != prefix and f"{outer}{name}" in rest:
                weights = rest.pop(f"{outer}{name}")
                found[f"{outer}{name}"] = weights.reshape(-1, weights.shape[-1])
    return rest | found


def _belongs(key: str, prefix: str) -> bool:
    first = key.removeprefix(prefix).partition(".")[0]
    return key.startswith(prefix) and (first in NORMS or first == CORE.rstrip("."))


def _converted(layer: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the entries of one Hopfield layer under the names of ours."""
    core = {key.removeprefix(CORE): value for key, value in layer.items() if key.startswith(CORE)}
    for name, setting in UNSUPPORTED.items():
        if name in core:
            raise UnsupportedOperationError(
                f"The checkpoint was made with {setting}, which isthmus.nn.Hopfield does not have."
            )
    state, stored, value = _projections(core)
    width = len(state)
    biases = core.get("in_proj_bias", state.new_zeros(3 * width))
    out = core.get("out_proj.weight", torch.eye(width).to(state))
    widths = {len(stored), len(value), len(biases) / 3, out.shape[1]}
    if widths != {width} or value.shape[1] != stored.shape[1]:
        raise UnsupportedOperationError(
            "State, stored and value patterns have projections of different widths: the checkpoint "
            "was made with static patterns, pattern_size or pattern_projection_as_connected, which "
            "isthmus.nn.Hopfield does not have."
        )
    found = {"out_proj.weight": out}
    found["out_proj.bias"] = core.get("out_proj.bias", out.new_zeros(len(out)))
    projections = {"state_proj": state, "stored_proj": stored, "value_proj": value}
    for (name, weight), bias in zip(projections.items(), biases.chunk(3), strict=True):
        found |= {f"{name}.weight": weight, f"{name}.bias": bias}
    return found | _norms(layer)


def _projections(core: dict[str, Tensor]) -> list[Tensor]:
    """Return the weights that project state, stored and value patterns."""
    if "in_proj_weight" in core:
        return list(core["in_proj_weight"].tensor_split(3))
    names = [f"{name}_proj_weight" for name in "qkv"]
    if any(name not in core for name in names):
        raise UnsupportedOperationError(
            "The checkpoint has static patterns, which are not projected. isthmus.ModernHopfield "
            "retrieves without projections."
        )
    return [core[name] for name in names]


def _norms(layer: dict[str, Tensor]) -> dict[str, Tensor]:
    found = {
        key.replace(name, ours, 1): value
        for name, ours in NORMS.items()
        for key, value in layer.items()
        if key.startswith(f"{name}.")
    }
    if len(found) not in (0, 2 * len(NORMS)):
        raise UnsupportedOperationError(
            "The checkpoint norms some of state, stored and value patterns only; "
            "isthmus.nn.Hopfield norms all of them or none."
        )
    return found
