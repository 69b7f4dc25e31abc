"""Split a norm into its projection onto a sphere, a gain and a shift."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from isthmus.attention.hugging_face import is_rms_norm
from isthmus.errors import ShapeError, UnsupportedOperationError

__all__ = ["SUPPORTED", "Norm", "read_norm"]

SUPPORTED = (
    "Supported norms are nn.LayerNorm and nn.RMSNorm over the last axis, and the RMS norms of "
    "Hugging Face's Llama, Mistral and Qwen2. Supported attention is nn.MultiheadAttention, "
    "PreNormAttention, SALNAttention, and that of Hugging Face's GPT-2, Llama, Mistral and Qwen2. "
    "Supported blocks are nn.TransformerEncoderLayer and nn.TransformerDecoderLayer with "
    "norm_first=True, and the blocks of those four."
)


@dataclass(frozen=True, eq=False)
class Norm:
    """The parts of a norm: ``module(x) = gain * standardize(x) + shift``.

    Attributes
    ----------
    dim : int
        D, the number of coordinates.
    centred : bool
        True if the norm subtracts the mean, so that the sphere is orthogonal to the vector of ones.
    gain, shift : Tensor (D,)
        The paper's gamma and delta; ones and zeros where the norm has none.
    """

    module: nn.Module
    dim: int
    centred: bool
    gain: Tensor
    shift: Tensor

    def standardize(self, x: Tensor) -> Tensor:
        """Run the norm without gain and shift, rounded as the module itself rounds. (..., D)."""
        neutral = {
            name: torch.ones_like(weight) if name == "weight" else torch.zeros_like(weight)
            for name, weight in self.module.named_parameters()
        }
        standardized: Tensor = torch.func.functional_call(self.module, neutral, (x,))
        return standardized


def read_norm(module: Any, like: Tensor) -> Norm:
    """Return the parts of a norm, with gain and shift in the dtype and on the device of `like`."""
    if isinstance(module, nn.LayerNorm):
        centred = True
    elif isinstance(module, nn.RMSNorm) or is_rms_norm(module):
        centred = False
    else:
        raise UnsupportedOperationError(
            f"Attention is a mixture on a sphere only after a norm, and "
            f"{type(module).__name__} is not a supported norm. {SUPPORTED}"
        )
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    shape = tuple(getattr(module, "normalized_shape", weight.shape if weight is not None else ()))
    if len(shape) != 1:
        raise ShapeError(f"The norm is over the last {len(shape)} axes; it must be over one.")
    (dim,) = shape
    if dim < 1 + centred:
        raise ShapeError(f"A norm over {dim} coordinate{'s' * (dim != 1)} leaves no direction.")
    gain = like.new_ones(dim) if weight is None else weight.detach().to(like)
    shift = like.new_zeros(dim) if bias is None else bias.detach().to(like)
    return Norm(module, dim, centred, gain, shift)
