"""Turning what users pass into checked tensors, with errors that say what to do."""

from __future__ import annotations

import math
import operator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus.errors import DtypeError, InvalidInputError, ShapeError

__all__ = [
    "as_count",
    "as_log_weights",
    "as_mask",
    "as_points",
    "as_positive",
    "as_tensor",
    "is_transforming",
    "require_finite",
]

FLOATS = (torch.float32, torch.float64)


def is_transforming() -> bool:
    """Whether ``torch.func`` or ``torch.compile`` is tracing, so values cannot be looked at."""
    return torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None


def as_tensor(value: Any, name: str) -> Tensor:
    """Return `value` as a float32 or float64 tensor that shares memory where it can."""
    tensor: Tensor = value if isinstance(value, Tensor) else _from_array(value, name)
    if tensor.dtype not in FLOATS:
        raise _wrong_dtype(name, tensor.dtype)
    if tensor.layout != torch.strided:
        raise InvalidInputError(f"{name} is sparse. Convert it first, with .to_dense().")
    return tensor


def _wrong_dtype(name: str, dtype: object) -> DtypeError:
    kind = str(dtype).removeprefix("torch.")
    return DtypeError(
        f"{name} holds {kind} numbers; isthmus computes in float32 or float64. "
        "Convert first, for example with numpy.asarray(values, dtype=float) or .to(torch.float64)."
    )


def _from_array(value: Any, name: str) -> Tensor:
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ShapeError(f"{name} is not a rectangular array of numbers: {error}") from None
    if array.dtype.kind not in "fciub":
        raise DtypeError(
            f"{name} holds {array.dtype} values, not numbers. "
            "Leave out or encode text columns first."
        )
    if array.dtype.kind != "f" or array.dtype.itemsize not in (4, 8):
        raise _wrong_dtype(name, array.dtype)
    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    flags = native.flags
    if not (flags.writeable and flags.aligned) or any(stride < 0 for stride in native.strides):
        native = native.copy()
    return torch.from_numpy(native)


def require_finite(value: Tensor, name: str, advice: str) -> None:
    """Raise if `value` has a NaN or an infinity. One pass, no temporary of its size on success."""
    if is_transforming() or value.numel() == 0:
        return
    detached = value.detach()
    # A sum is finite unless an entry is not, or it overflows; only then is a closer look needed.
    if math.isfinite(detached.sum().item()) or bool(torch.isfinite(detached).all()):
        return
    bad = int((~torch.isfinite(detached)).sum())
    what = "NaN" if bool(torch.isnan(detached).any()) else "infinite"
    raise InvalidInputError(f"{name} has {bad} {what} value{'s' if bad > 1 else ''}. {advice}")


def as_points(
    value: Any,
    name: str,
    *,
    dim: int | None = None,
    like: Tensor | None = None,
    allow_nan: bool = False,
) -> Tensor:
    """Return `value` as points of shape ``(..., D)``.

    Parameters
    ----------
    dim : int, optional
        The number of coordinates that the points must have.
    like : Tensor, optional
        Points take this tensor's dtype; arrays also go to its device.
    allow_nan : bool
        Whether NaN marks an unknown coordinate rather than a mistake.
    """
    points = as_tensor(value, name)
    if points.ndim == 0:
        raise ShapeError(f"{name} is a single number; pass points of shape (..., D).")
    if dim is not None and points.shape[-1] != dim:
        raise ShapeError(
            f"{name} has {points.shape[-1]} coordinates in its last axis, but the energy lives in "
            f"{dim}. Its shape {tuple(points.shape)} should end in {dim}."
        )
    if like is not None:
        device = points.device if isinstance(value, Tensor) else like.device
        points = points.to(device=device, dtype=like.dtype)
    if not allow_nan:
        advice = "Remove such rows first."
        if name == "x":
            advice = "Remove such rows, or mark unknown values by NaN and use isthmus.complete."
        require_finite(points, name, advice)
    elif not is_transforming() and bool(torch.isinf(points).any()):
        raise InvalidInputError(f"{name} has infinite values. Mark unknown coordinates with NaN.")
    return points


def as_positive(value: Any, name: str, like: Tensor, *, allow_zero: bool = False) -> Tensor:
    """Return a positive, finite scalar as a 0-dimensional tensor; a tensor keeps its graph."""
    if isinstance(value, Tensor):
        if value.is_complex():
            raise InvalidInputError(f"{name} must be a positive number, not a complex one.")
        scalar = value.to(like)
    else:
        try:
            scalar = torch.as_tensor(float(value), dtype=like.dtype, device=like.device)
        except (TypeError, ValueError):
            raise InvalidInputError(f"{name} must be a positive number, not {value!r}.") from None
    if scalar.ndim != 0:
        raise ShapeError(f"{name} must be a single number, but has shape {tuple(scalar.shape)}.")
    if is_transforming():
        return scalar
    number = float(scalar.detach())
    if not math.isfinite(number) or number < 0 or (number == 0 and not allow_zero):
        bound = "at least zero" if allow_zero else "above zero"
        raise InvalidInputError(f"{name} must be finite and {bound}, not {number:g}.")
    return scalar


def as_count(value: Any, name: str, *, at_least: int = 1) -> int:
    """Return a whole number as an int; a float is refused even if it is whole."""
    try:
        count = at_least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = at_least - 1
    if count < at_least:
        raise InvalidInputError(
            f"{name} must be a whole number of at least {at_least}, not {value!r}."
        )
    return count


def as_log_weights(value: Any, name: str, memories: Tensor) -> Tensor:
    """Return a log-weight per memory, finite or ``-inf``, as a tensor of its own dtype. (N,)."""
    weights = as_tensor(value, name)
    if not isinstance(value, Tensor):
        weights = weights.to(memories)
    if weights.shape != memories.shape[:1]:
        raise ShapeError(
            f"{name} must be ({memories.shape[0]},), one per memory, not {tuple(weights.shape)}."
        )
    # The maximum is NaN if any entry is, and -inf only if all are.
    if not is_transforming() and not math.isfinite(weights.detach().max().item()):
        raise InvalidInputError(
            f"{name} must be finite or -inf (a memory left out), and not all -inf. "
            "They are logarithms: pass weights.log() if you have the weights."
        )
    return weights


def as_mask(value: Any, name: str, points: Tensor) -> Tensor:
    """Return `value` as a boolean mask in the shape and on the device of `points`."""
    if isinstance(value, Tensor):
        mask = value.to(points.device)
    else:
        array = np.asarray(value)
        if array.dtype != np.bool_:
            raise DtypeError(f"{name} must be a boolean mask, not {array.dtype}.")
        mask = torch.from_numpy(array.copy()).to(points.device)
    if mask.dtype != torch.bool:
        raise DtypeError(f"{name} must be a boolean mask, not {mask.dtype}.")
    try:
        return mask.expand(points.shape)
    except RuntimeError:
        raise ShapeError(
            f"{name} of shape {tuple(mask.shape)} does not broadcast to {tuple(points.shape)}."
        ) from None
