"""Checks of arguments: every value that a user passes is checked here, once.

The scalar checks do not import torch, so that the command line can use them before any work.
"""

from __future__ import annotations

import math
import operator
import sys
from collections.abc import Iterable
from datetime import date, timedelta
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from isthmus.errors import DtypeError, InvalidInputError, ShapeError

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

# Squares of larger numbers, or their sums, may overflow in double precision.
LARGEST_SQUARED = 1e150


def as_count(value: Any, name: str, *, at_least: int = 1, at_most: int | None = None) -> int:
    """Return a whole number as an int.

    Integers of Python and NumPy and whole floats such as ``1e6`` are accepted; booleans are not.
    """
    bound = f"of at least {at_least}" if at_most is None else f"from {at_least} to {at_most}"
    limit = math.inf if at_most is None else at_most
    expected = f"{name} must be a whole number {bound}, not {value!r}."
    number = _as_float(value, expected)
    if not number.is_integer() or not at_least <= number <= limit:
        raise InvalidInputError(expected)
    return int(value.item() if hasattr(value, "item") else value)  # int of a uint64 tensor fails


def as_seed(value: Any, most: int = 2**63 - 1) -> int:
    """Return a seed of a random stream as an int; those of NumPy's old generator are smaller."""
    return as_count(value, "seed", at_least=0, at_most=most)


def as_number(
    value: Any,
    name: str,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> float:
    """Return a finite number within the given bounds as a float; with `above=0`, squarable."""
    bounds = [
        ("above", above, operator.gt),
        ("at least", at_least, operator.ge),
        ("below", below, operator.lt),
        ("at most", at_most, operator.le),
    ]
    given = [(word, bound, holds) for word, bound, holds in bounds if bound is not None]
    words = " and ".join(f"{word} {bound:g}" for word, bound, _ in given)
    expected = f"{name} must be a finite number{' ' * bool(words)}{words}, not {value!r}."
    number = _as_float(value, expected)
    if not math.isfinite(number) or not all(holds(number, bound) for _, bound, holds in given):
        raise InvalidInputError(expected)
    if above == 0 and not 1 / LARGEST_SQUARED <= number <= LARGEST_SQUARED:
        raise InvalidInputError(
            f"{name} is {number:g}, whose square is beyond double precision. Rescale the data."
        )
    return number


def _as_float(value: Any, expected: str) -> float:
    # Text, truth values, dates and complex numbers, arrays and tensors with axes.
    kind = str(getattr(value, "dtype", type(value).__name__)).removeprefix("torch.")
    odd = kind.startswith(("str", "bytes", "bool", "complex", "<U", "|S", "datetime", "timedelta"))
    if odd or getattr(value, "ndim", 0) > 0 or getattr(value, "is_sparse", False):
        raise DtypeError(expected)
    try:
        return float(value)
    except OverflowError:
        raise InvalidInputError(expected) from None
    except (TypeError, ValueError, RuntimeError, np.ma.MaskError):
        raise DtypeError(expected) from None


def as_choice(value: Any, name: str, choices: Iterable[str]) -> str:
    """Return `value` if it is one of the words."""
    choices = tuple(choices)
    if not isinstance(value, str) or value not in choices:
        words = ", ".join(map(repr, choices))
        raise InvalidInputError(f"{name} must be one of {words}, not {value!r}.")
    return value


def as_names(value: Any, name: str) -> tuple[str, ...]:
    """Return names as a tuple of str. A single str is refused, whose letters are no names."""
    try:
        if not isinstance(value, str | bytes):
            return tuple(map(str, value))
    except (TypeError, RuntimeError):
        pass
    raise DtypeError(f"{name} must be a sequence of names, such as ['a', 'b'], not {value!r}.")


def as_path(value: Any, name: str) -> Path:
    """Return the path of a file or a directory."""
    if not isinstance(value, str | PathLike):
        raise DtypeError(f"{name} must be a path, not {value!r}.")
    return Path(value)


def require_kind(value: Any, name: str, kind: type) -> None:
    """Raise unless `value` is of a class."""
    if not isinstance(value, kind):
        raise DtypeError(f"{name} must be of {kind.__name__}, not of {type(value).__name__}.")


def as_flag(value: Any, name: str) -> bool:
    """Return True or False as a bool."""
    if not isinstance(value, bool | np.bool_):
        raise InvalidInputError(f"{name} must be True or False, not {value!r}.")
    return bool(value)


def unmasked(values: Any) -> Any:
    """Return a masked array as floats, with NaN where it is masked; anything else as it is.

    So are frames of pandas with nullable columns, whose unknown cells become NaN.
    """
    pandas = sys.modules.get("pandas")
    if pandas is not None and isinstance(values, pandas.DataFrame):
        if all(isinstance(kind, np.dtype) for kind in values.dtypes):
            return values
        numbers = all(kind.kind in "iuf" for kind in values.dtypes)
        return values.to_numpy(np.float64 if numbers else object, na_value=np.nan)
    if not isinstance(values, np.ma.MaskedArray):
        return values
    return np.ma.filled(values.astype(np.result_type(values.dtype, np.float32)), np.nan)


def rectangular(values: Any, name: str) -> NDArray[Any]:
    """Return any values as an array, with NaN where they are masked."""
    if callable(getattr(values, "toarray", None)):  # which NumPy would take for a single object
        raise InvalidInputError(f"{name} is sparse. Convert it first, with .toarray().")
    try:
        if hasattr(values, "detach"):
            values = values.detach().resolve_conj().resolve_neg().cpu()
            values = values.double() if values.is_floating_point() else values
        return np.asarray(unmasked(values))
    except (ValueError, TypeError, RuntimeError) as error:
        raise ShapeError(f"{name} is not a rectangular array of numbers: {error}") from None


def as_numbers(values: Any, name: str) -> NDArray[np.float64]:
    """Return numbers of any kind as a float64 array (...), with NaN where they are masked.

    Text and dates are refused also where they could be read as numbers, and so are complex numbers.
    """
    array = rectangular(values, name)
    wrong = DtypeError(f"{name} must hold numbers only, not text, dates or complex numbers.")
    if holds_text(array) or array.dtype.kind not in "Ofiub":
        raise wrong
    try:
        return array.astype(np.float64)
    except (TypeError, ValueError, OverflowError):
        raise wrong from None


def holds_text(array: NDArray[Any]) -> bool:
    """Return True if an array holds text, dates, durations or records."""
    if array.dtype.kind != "O":
        return array.dtype.kind in "USTmMV"
    others = (str, bytes, date, timedelta, np.datetime64, np.timedelta64)
    return any(isinstance(cell, others) for cell in array.flat)


def as_array(values: Any, name: str) -> NDArray[np.float64]:
    """Return `values` as a float64 array (...) without NaN; infinities are allowed."""
    array = as_numbers(values, name)
    if bool(np.isnan(array).any()):
        raise InvalidInputError(f"{name} must not contain NaN.")
    return array


def is_transforming() -> bool:
    """Return True while ``torch.func`` or ``torch.compile`` traces, so values are not readable."""
    import torch

    return torch.compiler.is_compiling() or torch._C._functorch.peek_interpreter_stack() is not None


def as_tensor(value: Any, name: str) -> Tensor:
    """Return `value` as a float32 or float64 tensor that shares memory where possible.

    Whole numbers become float64, and those of a tensor torch's default dtype.
    """
    import torch

    tensor: Tensor = value if isinstance(value, torch.Tensor) else _from_array(value, name)
    require_values(tensor, name)
    if tensor.dtype in (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8):
        tensor = tensor.to(torch.get_default_dtype())
    if tensor.dtype not in (torch.float32, torch.float64):
        raise _wrong_dtype(name, tensor.dtype)
    return tensor.resolve_neg() if tensor.is_neg() else tensor  # NumPy reads no negative bit


def require_values(tensor: Tensor, name: str) -> None:
    """Raise if a tensor has no values, is sparse, or has rows of different lengths."""
    import torch

    if tensor.is_nested:
        raise ShapeError(f"{name} is a nested tensor. Pass one whose rows have the same length.")
    if tensor.is_meta and not is_transforming():
        raise InvalidInputError(f"{name} is on the device meta, so it has no values.")
    if tensor.layout != torch.strided:
        raise InvalidInputError(f"{name} is sparse. Convert it first, with .to_dense().")


def _wrong_dtype(name: str, dtype: object) -> DtypeError:
    kind = str(dtype).removeprefix("torch.")
    return DtypeError(f"{name} holds {kind} numbers. Convert it to float32 or float64 first.")


def _from_array(value: Any, name: str) -> Tensor:
    array = rectangular(value, name)
    if array.dtype.kind not in "fciub":
        raise DtypeError(
            f"{name} holds {array.dtype} values, not numbers. "
            "Leave out or encode text columns first."
        )
    if array.dtype.kind in "iu":
        array = array.astype(np.float64)
    if array.dtype.kind != "f" or array.dtype.itemsize not in (4, 8):
        raise _wrong_dtype(name, array.dtype)
    import torch

    native = array.astype(array.dtype.newbyteorder("="), copy=False)
    flags = native.flags
    if not (flags.writeable and flags.aligned) or any(stride < 0 for stride in native.strides):
        native = native.copy()
    return torch.from_numpy(native)


def require_finite(value: Tensor, name: str, advice: str) -> None:
    """Raise if `value` contains NaN or infinities. Makes one pass and no temporary on success."""
    if is_transforming() or value.numel() == 0:
        return
    import torch

    detached = value.detach()
    # A sum is finite unless an entry is not, or it overflows; only then is a closer look needed.
    if math.isfinite(detached.sum().item()) or bool(torch.isfinite(detached).all()):
        return
    bad = int((~torch.isfinite(detached)).sum())
    what = "NaN" if bool(torch.isnan(detached).any()) else "infinite"
    raise InvalidInputError(f"{name} has {bad} {what} value{'s' if bad > 1 else ''}. {advice}")


def require_squarable(points: Tensor, name: str) -> None:
    """Raise if the squared lengths of points overflow in double precision; NaN is ignored."""
    import torch

    if is_transforming() or points.dtype != torch.float64 or points.numel() == 0:
        return
    known = points.detach()
    if math.isfinite(torch.linalg.vector_norm(known).item()):
        return
    largest = float(known.nan_to_num().abs().max())
    if largest > LARGEST_SQUARED:
        raise InvalidInputError(
            f"{name} has values of {largest:.3g}, whose squares overflow. Rescale the data."
        )


def require_range(result: Tensor, what: str, *, infinite: bool = False) -> Tensor:
    """Return a result; raise if it is not finite, or NaN where `infinite`: numbers overflowed."""
    import torch

    wrong = result.detach().isnan() if infinite else ~torch.isfinite(result.detach())
    if not is_transforming() and bool(wrong.any()):
        kind = str(result.dtype).removeprefix("torch.")
        raise InvalidInputError(f"{what} is beyond the range of {kind}. Rescale the data.")
    return result


def as_points(
    value: Any,
    name: str,
    *,
    dim: int | None = None,
    like: Tensor | None = None,
    allow_nan: bool = False,
) -> Tensor:
    """Return `value` as points of shape ``(..., D)``, with `dim` coordinates if given.

    Points take the dtype of `like`, and arrays also go to its device. With `allow_nan`, NaN marks
    an unknown coordinate.
    """
    import torch

    points = as_tensor(value, name)
    if points.ndim == 0:
        raise ShapeError(f"{name} is a single number; pass points of shape (..., D).")
    if dim is not None and points.shape[-1] != dim:
        raise ShapeError(
            f"{name} has {points.shape[-1]} coordinates in its last axis, but the energy has "
            f"{dim}. Its shape {tuple(points.shape)} should end in {dim}."
        )
    if like is not None:
        device = points.device if isinstance(value, torch.Tensor) else like.device
        points = points.to(device=device, dtype=like.dtype)
    if not allow_nan:
        require_finite(points, name, "Remove such rows, or fill unknown ones (isthmus.complete).")
    elif not is_transforming() and bool(torch.isinf(points).any()):
        raise InvalidInputError(f"{name} has infinite values. Mark unknown coordinates with NaN.")
    return points


def as_positive(value: Any, name: str, like: Tensor, *, allow_zero: bool = False) -> Tensor:
    """Return a positive, finite scalar as a 0-dimensional tensor; a tensor keeps its graph."""
    import torch

    if not hasattr(value, "dtype"):
        number = _as_float(value, f"{name} must be a positive number, not {value!r}.")
        value = torch.as_tensor(number, dtype=like.dtype, device=like.device)
    scalar = as_entries(value, name, like, (), positive=not allow_zero)
    if allow_zero and not is_transforming() and float(scalar) < 0:
        raise InvalidInputError(f"{name} must be at least zero, not {float(scalar):g}.")
    return scalar


def as_entries(
    value: Any, name: str, like: Tensor | None, *shapes: tuple[int, ...], positive: bool = True
) -> Tensor:
    """Return finite numbers, above zero if `positive`, in one of the shapes, as `like` has them."""
    entries = as_tensor(value, name)
    entries = entries if like is None else entries.to(like)
    if tuple(entries.shape) not in shapes:
        allowed = "have the shape " + " or ".join(map(str, shapes)) if shapes[-1] else "be a number"
        raise ShapeError(f"{name} must {allowed}, not of shape {tuple(entries.shape)}.")
    require_finite(entries, name, "Pass finite numbers.")
    if positive and not is_transforming() and not bool((entries.detach() > 0).all()):
        raise InvalidInputError(f"{name} must be above zero; {float(entries.min()):g} is not.")
    return entries


def as_log_weights(value: Any, name: str, memories: Tensor) -> Tensor:
    """Return a log-weight per memory, finite or ``-inf``, as a tensor of its own dtype. (N,)."""
    import torch

    weights = as_tensor(value, name)
    if not isinstance(value, torch.Tensor):
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
    import torch

    if isinstance(value, torch.Tensor):
        require_values(value, name)
        mask: Any = value
    else:
        try:
            array = np.array(np.ma.filled(value, False))  # what is masked is not observed
        except (ValueError, TypeError, RuntimeError) as error:
            raise ShapeError(f"{name} is not a rectangular mask: {error}") from None
        mask = torch.from_numpy(array) if array.dtype == np.bool_ else array
    if mask.dtype != torch.bool:
        raise DtypeError(f"{name} must be a boolean mask, not {mask.dtype}.")
    try:
        expanded: Tensor = mask.to(points.device).expand(points.shape)
    except RuntimeError:
        raise ShapeError(
            f"{name} of shape {tuple(mask.shape)} does not broadcast to {tuple(points.shape)}."
        ) from None
    return expanded
