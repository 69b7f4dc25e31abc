"""Hopfield: the association of states with stored patterns as a layer of a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, scaled_dot_product_attention

from isthmus.energy import Energy
from isthmus.errors import DtypeError, InvalidInputError, ShapeError
from isthmus.kernel.sparse import entmax
from isthmus.memories.modern import ModernHopfield
from isthmus.memories.sparse import SparseHopfield
from isthmus.validation import as_choice, as_count, as_entries, as_flag, as_number, is_transforming

Patterns = Tensor | tuple[Tensor, Tensor, Tensor]
"""Patterns that are stored, state and value at once, or a tuple of these three."""

SEPARATIONS = {"softmax": 1.0, "entmax": 1.5, "sparsemax": 2.0}


def merge_masks(
    padding: Tensor | None, association: Tensor | None, shape: tuple[int, ...]
) -> tuple[Tensor | None, Tensor | None]:
    """Return both masks as one, for weights of `shape` (..., H, L, S), and the states alive.

    `padding` is (..., S); `association` is (L, S), (..., L, S) or (..., H, L, S). Which states see
    any pattern is returned only while torch traces, when values cannot be read.
    """
    *batch, _, states, stored = shape
    hidden = None
    if padding is not None:
        _require_mask("stored_pattern_padding_mask", padding, [(*batch, stored)])
        hidden = padding[..., None, None, :]
    if association is not None:
        allowed = [(states, stored), (*batch, states, stored), shape]
        _require_mask("association_mask", association, allowed)
        if 2 < association.ndim < len(shape):
            association = association[..., None, :, :]
        hidden = association if hidden is None else hidden | association
    if hidden is None:
        return None, None
    empty = hidden.all(-1, keepdim=True)
    if is_transforming() or hidden.is_meta:
        return hidden & ~empty, ~empty
    if count := int(empty.sum()):
        raise InvalidInputError(
            f"{count} of {empty.numel()} bags or states see no stored pattern: all are masked. "
            "Leave out empty bags, or give them one pattern."
        )
    return hidden, None


def _require_mask(name: str, mask: Tensor, shapes: list[tuple[int, ...]]) -> None:
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        raise DtypeError(f"{name} must be a boolean tensor, True for a hidden pattern.")
    if tuple(mask.shape) not in shapes:
        words = " or ".join(str(tuple(shape)) for shape in dict.fromkeys(shapes))
        raise ShapeError(f"{name} must have shape {words}, not {tuple(mask.shape)}.")


def associated(
    queries: Tensor,
    stored: Tensor,
    values: Tensor,
    alpha: float,
    hidden: Tensor | None,
    drop: float = 0.0,
    need_weights: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Return the means (..., L, v) of values (..., S, v) at queries (..., L, d), and the weights.

    The weights (..., L, S) are at least in float32; they are left out where they are not needed.
    """
    queries = queries.to(stored.dtype)
    if alpha == 1 and not need_weights:
        seen = None if hidden is None else ~hidden
        return scaled_dot_product_attention(queries, stored, values, seen, drop, scale=1.0), None
    logits = queries @ stored.mT
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    if hidden is not None:
        logits = logits.masked_fill(hidden, -torch.inf)
    weights = entmax(logits, alpha)
    return dropout(weights, drop).to(values.dtype) @ values, weights


@final
class Hopfield(nn.Module):
    r"""Associate states with stored patterns, in the space of each head, and return values.

    State and stored patterns are normed and projected to :math:`\xi` and :math:`k_n` in each head.
    The state moves by :math:`\xi \leftarrow \sum_n \mathrm{sep}(\beta\, \xi \cdot k)_n k_n` for
    ``steps - 1`` steps, and the last step reads projected values :math:`v_n` in place of
    :math:`k_n`. With one step and softmax this is multi-head attention; every step lowers the
    energy that :meth:`energy_of` returns.

    Parameters
    ----------
    input_size : int
        Coordinates of a state pattern.
    hidden_size, output_size, stored_size : int, optional
        Coordinates of each head, of the output, and of stored and value patterns. Default:
        ``input_size // num_heads``, and ``input_size``.
    num_heads : int
    beta : float or (num_heads,), optional
        Inverse temperature. Default: ``1 / sqrt(hidden_size)``.
    learn_beta : bool
        Make log beta a parameter of each head. Otherwise beta is not in the ``state_dict``.
    steps : int
        Number of associations; 1 is attention.
    separation : {"softmax", "sparsemax", "entmax"} or float
        From logits to weights. A number is the alpha of entmax, from 1 (softmax) to 2 (sparsemax);
        "entmax" is 1.5. Above 1, patterns far from a state have weight zero.
    norm : bool
        Norm state, stored and value patterns, each by a LayerNorm of its own.
    dropout : float
        Dropout of the weights that read the values.
    batch_first : bool
        Inputs are (..., S, D), with any leading shape; else (S, B, D).

    Examples
    --------
    >>> import torch
    >>> from isthmus.nn import Hopfield
    >>> layer = Hopfield(8, num_heads=2, steps=3, separation="sparsemax")
    >>> bags = torch.randn(5, 10, 8)
    >>> layer(bags).shape
    torch.Size([5, 10, 8])
    >>> output, weights = layer((bags, bags[:, :3], bags), need_weights=True)
    >>> output.shape, weights.shape
    (torch.Size([5, 3, 8]), torch.Size([5, 2, 3, 10]))
    """

    beta_fixed: Tensor
    log_beta: nn.Parameter | None

    def __init__(
        self,
        input_size: int,
        hidden_size: int | None = None,
        output_size: int | None = None,
        *,
        num_heads: int = 1,
        stored_size: int | None = None,
        beta: float | Sequence[float] | Tensor | None = None,
        learn_beta: bool = False,
        steps: int = 1,
        separation: str | float = "softmax",
        norm: bool = True,
        dropout: float = 0.0,
        batch_first: bool = True,
    ) -> None:
        super().__init__()
        self.input_size = as_count(input_size, "input_size")
        self.num_heads = as_count(num_heads, "num_heads")
        if hidden_size is None and self.input_size % self.num_heads:
            raise ShapeError(
                f"input_size {input_size} is not a multiple of num_heads {num_heads}; "
                "pass hidden_size, the number of coordinates of each head."
            )
        sizes = {
            "hidden_size": (hidden_size, self.input_size // self.num_heads),
            "stored_size": (stored_size, self.input_size),
            "output_size": (output_size, self.input_size),
        }
        self.hidden_size, self.stored_size, self.output_size = (
            as_count(default if size is None else size, name)
            for name, (size, default) in sizes.items()
        )
        self.steps = as_count(steps, "steps")
        if isinstance(separation, str):
            separation = SEPARATIONS[as_choice(separation, "separation", SEPARATIONS)]
        self.alpha = as_number(separation, "separation", at_least=1, at_most=2)
        self.dropout = as_number(dropout, "dropout", at_least=0, below=1)
        self.batch_first = as_flag(batch_first, "batch_first")
        given = self.hidden_size**-0.5 if beta is None else beta
        numbers = as_entries(given, "beta", None, (self.num_heads,), (1,), ())
        found = torch.tensor(numbers.expand(self.num_heads).tolist())
        learned = as_flag(learn_beta, "learn_beta")
        self.register_parameter("log_beta", nn.Parameter(found.log()) if learned else None)
        self.register_buffer("beta_fixed", None if learned else found, persistent=False)
        kind = nn.LayerNorm if as_flag(norm, "norm") else nn.Identity
        self.norm_state = kind(self.input_size)
        self.norm_stored, self.norm_value = kind(self.stored_size), kind(self.stored_size)
        width = self.num_heads * self.hidden_size
        self.state_proj = nn.Linear(self.input_size, width)
        self.stored_proj = nn.Linear(self.stored_size, width)
        self.value_proj = nn.Linear(self.stored_size, width)
        self.out_proj = nn.Linear(width, self.output_size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw new projections; biases are zero, and norms are the identity."""
        for module in self.children():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()

    @property
    def beta(self) -> Tensor:
        """The inverse temperature of each head. (num_heads,)."""
        return self.beta_fixed if self.log_beta is None else self.log_beta.exp()

    def forward(
        self,
        x: Patterns,
        stored_pattern_padding_mask: Tensor | None = None,
        association_mask: Tensor | None = None,
        need_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return what the states retrieve, (..., L, output_size).

        Parameters
        ----------
        x : Tensor (..., S, D), or a tuple
            Patterns that are stored, state and value at once; or (stored, state, value) patterns
            of shapes (..., S, stored_size), (..., L, input_size) and (..., S, stored_size).
        stored_pattern_padding_mask : bool Tensor (..., S), optional
            True hides a stored pattern, which may then be anything, NaN included.
        association_mask : bool Tensor (L, S), (..., L, S) or (..., H, L, S), optional
            True hides a stored pattern from a state.
        need_weights : bool
            Return the weights (..., H, L, S) of the last step after the output.

        A state from which all patterns are hidden is an error; while torch traces, it retrieves
        zeros.
        """
        stored, state, value = self._read(x)
        shape = (*stored.shape[:-2], self.num_heads, state.shape[-2], stored.shape[-2])
        hidden, alive = merge_masks(stored_pattern_padding_mask, association_mask, shape)
        if stored_pattern_padding_mask is not None:
            padding = stored_pattern_padding_mask[..., None]
            stored, value = stored.masked_fill(padding, 0.0), value.masked_fill(padding, 0.0)
        states, patterns = self._states(state), self._stored(stored)
        values = self._split(self.value_proj(self.norm_value(value)))
        drop, scale = self.dropout if self.training else 0.0, self.beta[:, None, None]
        for _ in range(self.steps - 1):
            states, _ = associated(scale * states, patterns, patterns, self.alpha, hidden)
        wanted = as_flag(need_weights, "need_weights")
        found, weights = associated(
            scale * states, patterns, values, self.alpha, hidden, drop, wanted
        )
        if alive is not None:
            found, weights = found * alive, None if weights is None else weights * alive
        output: Tensor = self.out_proj(found.transpose(-3, -2).flatten(-2))
        output = output if self.batch_first else output.transpose(0, 1)
        return (output, weights) if wanted and weights is not None else output

    def energy_of(self, x: Patterns, head: int = 0) -> Energy:
        """Return the energy on which the states of one bag move, in the space of one head.

        It is a :class:`isthmus.ModernHopfield`, or a :class:`isthmus.SparseHopfield` of the
        separation's alpha. Its memories are the projected stored patterns, and keep their graph.
        Its ``step`` is one association, and its points are :meth:`states_of` the bag, x (S, D) or a
        tuple as in :meth:`forward`.
        """
        stored = self._stored(self._read(x)[0])[..., self._head(head), :, :]
        if stored.shape[:-2].numel() != 1:
            raise ShapeError(
                f"energy_of takes one bag, not {tuple(stored.shape[:-2])}; call it for each."
            )
        stored = stored.reshape(stored.shape[-2:])
        if self.alpha != 1:
            return SparseHopfield(stored, self.beta[head], alpha=self.alpha)
        return ModernHopfield(stored, self.beta[head])

    def states_of(self, x: Patterns, head: int = 0) -> Tensor:
        """Return the state patterns as points of :meth:`energy_of`. (..., L, hidden_size)."""
        return self._states(self._read(x)[1])[..., self._head(head), :, :]

    def _head(self, head: int) -> int:
        return as_count(head, "head", at_least=0, at_most=self.num_heads - 1)

    def _read(self, x: Patterns) -> tuple[Tensor, Tensor, Tensor]:
        """Return stored, state and value patterns, checked, with the batch first."""
        three = (x, x, x) if isinstance(x, Tensor) else x
        kinds = [type(each) for each in three] if isinstance(three, tuple | list) else []
        if len(kinds) != 3 or not all(issubclass(kind, Tensor) for kind in kinds):
            raise InvalidInputError(
                "x must be a tensor, or a tuple of tensors: stored, state and value patterns."
            )
        sizes = (self.stored_size, self.input_size, self.stored_size)
        for name, x, size in zip(("stored", "state", "value"), three, sizes, strict=True):
            own = self.beta.dtype
            if x.dtype != own and not torch.is_autocast_enabled(x.device.type):
                raise DtypeError(
                    f"{name} patterns are {x.dtype}, but the layer's parameters are {own}. "
                    f"Convert one of them, for example with .to({own})."
                )
            if x.ndim < 2 or x.shape[-1] != size or (x.ndim != 3 and not self.batch_first):
                axes = "..., patterns" if self.batch_first else "patterns, batch"
                raise ShapeError(
                    f"{name} patterns must have shape ({axes}, {size}), not {tuple(x.shape)}."
                )
        stored, state, value = three if self.batch_first else (x.transpose(0, 1) for x in three)
        if value.shape != stored.shape or state.shape[:-2] != stored.shape[:-2]:
            shapes = ", ".join(str(tuple(x.shape)) for x in three)
            raise ShapeError(f"stored, state and value patterns do not fit together: {shapes}.")
        if stored.shape[-2] == 0:
            raise InvalidInputError("The bag is empty: there is no stored pattern. Leave it out.")
        return stored, state, value

    def _states(self, state: Tensor) -> Tensor:
        return self._split(self.state_proj(self.norm_state(state)))

    def _stored(self, stored: Tensor) -> Tensor:
        return self._split(self.stored_proj(self.norm_stored(stored)))

    def _split(self, x: Tensor) -> Tensor:
        """(..., S, H * d) -> (..., H, S, d)."""
        return x.unflatten(-1, (self.num_heads, self.hidden_size)).transpose(-3, -2)

    def extra_repr(self) -> str:
        """Return the settings shown by repr."""
        shown = f"num_heads={self.num_heads}, hidden_size={self.hidden_size}, steps={self.steps}"
        return shown if self.alpha == 1 else f"{shown}, separation={self.alpha:g}"
