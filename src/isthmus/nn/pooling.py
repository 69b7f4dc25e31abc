"""HopfieldPooling and HopfieldLayer: associations with learned states, or learned patterns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import final

import torch
from torch import Tensor, nn

from isthmus.energy import Energy
from isthmus.errors import InvalidInputError, ShapeError
from isthmus.nn.hopfield import Hopfield
from isthmus.validation import as_count, as_flag, require_kind, require_values


@final
class HopfieldPooling(nn.Module):
    """Pool a bag of patterns: learned states retrieve from it.

    Parameters are those of :class:`Hopfield`, and

    Parameters
    ----------
    quantity : int
        Number of states, each of which retrieves one output.

    Examples
    --------
    >>> import torch
    >>> from isthmus.nn import HopfieldPooling
    >>> pool = HopfieldPooling(8, output_size=3, num_heads=2, quantity=4)
    >>> bags = torch.randn(5, 10, 8)
    >>> padding = torch.arange(10) >= torch.tensor([[10], [3], [1], [7], [10]])  # ragged
    >>> pool(bags, padding).shape
    torch.Size([5, 12])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int | None = None,
        output_size: int | None = None,
        *,
        quantity: int = 1,
        num_heads: int = 1,
        beta: float | Sequence[float] | Tensor | None = None,
        learn_beta: bool = False,
        steps: int = 1,
        separation: str | float = "softmax",
        norm: bool = True,
        dropout: float = 0.0,
        batch_first: bool = True,
    ) -> None:
        super().__init__()
        self.hopfield = Hopfield(
            input_size,
            hidden_size,
            output_size,
            num_heads=num_heads,
            beta=beta,
            learn_beta=learn_beta,
            steps=steps,
            separation=separation,
            norm=norm,
            dropout=dropout,
            batch_first=batch_first,
        )
        self.quantity = as_count(quantity, "quantity")
        self.pooling_weights = nn.Parameter(torch.empty(self.quantity, self.hopfield.input_size))
        nn.init.normal_(self.pooling_weights)

    def reset_parameters(self) -> None:
        """Draw new states and projections."""
        self.hopfield.reset_parameters()
        nn.init.normal_(self.pooling_weights)

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        stored_pattern_padding_mask: Tensor | None = None,
        association_mask: Tensor | None = None,
        need_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return what the learned states retrieve from each bag.

        Parameters
        ----------
        x : Tensor (..., S, D), or a tuple
            Bags of patterns that are stored and value at once, or (stored, value) patterns.
        stored_pattern_padding_mask, association_mask, need_weights
            As in :meth:`Hopfield.forward`, where L is the quantity.

        Returns
        -------
        Tensor (..., quantity * output_size), or that and the weights
        """
        found = self.hopfield(
            self._with_states(x), stored_pattern_padding_mask, association_mask, need_weights
        )
        output, *weights = found if need_weights else (found,)
        pooled = (output if self.hopfield.batch_first else output.transpose(0, 1)).flatten(-2)
        return (pooled, *weights) if need_weights else pooled

    def energy_of(self, x: Tensor | tuple[Tensor, Tensor], head: int = 0) -> Energy:
        """Return the energy of one bag, as :meth:`Hopfield.energy_of` does."""
        return self.hopfield.energy_of(self._with_states(x), head)

    def states_of(self, x: Tensor | tuple[Tensor, Tensor], head: int = 0) -> Tensor:
        """Return the learned states as points of that energy. (..., quantity, hidden_size)."""
        return self.hopfield.states_of(self._with_states(x), head)

    def _with_states(self, x: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        both = (x, x) if isinstance(x, Tensor) else x
        if not isinstance(both, tuple | list) or len(both) != 2:
            raise InvalidInputError("x must be a tensor, or a tuple of stored and values.")
        stored, values = both
        return stored, expanded(self.pooling_weights, stored, self.hopfield.batch_first), values


@final
class HopfieldLayer(nn.Module):
    """Look up learned patterns: each state of the input retrieves from them.

    Parameters are those of :class:`Hopfield`, and

    Parameters
    ----------
    quantity : int
        Number of learned patterns.
    separate_targets : bool
        Learn values apart from the stored patterns; otherwise both are projections of one.

    Examples
    --------
    >>> import torch
    >>> from isthmus.nn import HopfieldLayer
    >>> layer = HopfieldLayer(8, output_size=3, quantity=20)
    >>> layer(torch.randn(5, 10, 8)).shape
    torch.Size([5, 10, 3])
    >>> layer.energy_of().n_memories
    20
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int | None = None,
        output_size: int | None = None,
        *,
        quantity: int = 1,
        separate_targets: bool = False,
        num_heads: int = 1,
        beta: float | Sequence[float] | Tensor | None = None,
        learn_beta: bool = False,
        steps: int = 1,
        separation: str | float = "softmax",
        norm: bool = True,
        dropout: float = 0.0,
        batch_first: bool = True,
    ) -> None:
        super().__init__()
        self.hopfield = Hopfield(
            input_size,
            hidden_size,
            output_size,
            num_heads=num_heads,
            beta=beta,
            learn_beta=learn_beta,
            steps=steps,
            separation=separation,
            norm=norm,
            dropout=dropout,
            batch_first=batch_first,
        )
        self.quantity = as_count(quantity, "quantity")
        shape = self.quantity, self.hopfield.stored_size
        self.lookup_weights = nn.Parameter(torch.empty(shape))
        separate = as_flag(separate_targets, "separate_targets")
        self.target_weights = nn.Parameter(torch.empty(shape)) if separate else None
        self._draw_patterns()

    def reset_parameters(self) -> None:
        """Draw new patterns and projections."""
        self.hopfield.reset_parameters()
        self._draw_patterns()

    def _draw_patterns(self) -> None:
        for weights in (self.lookup_weights, self.target_weights):
            if weights is not None:
                nn.init.normal_(weights)

    def forward(
        self,
        x: Tensor,
        stored_pattern_padding_mask: Tensor | None = None,
        association_mask: Tensor | None = None,
        need_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return what each state of the input retrieves from the learned patterns.

        Parameters
        ----------
        x : Tensor (..., L, D)
            State patterns.
        stored_pattern_padding_mask, association_mask, need_weights
            As in :meth:`Hopfield.forward`, where S is the quantity.

        Returns
        -------
        Tensor (..., L, output_size), or that and the weights
        """
        found: Tensor | tuple[Tensor, Tensor] = self.hopfield(
            self._with_patterns(x), stored_pattern_padding_mask, association_mask, need_weights
        )
        return found

    def energy_of(self, x: Tensor | None = None, head: int = 0) -> Energy:
        """Return the energy of the learned patterns; see :meth:`Hopfield.energy_of`.

        It is the same for every input.
        """
        return self.hopfield.energy_of(_one_bag(self.lookup_weights, self.hopfield), head)

    def states_of(self, x: Tensor, head: int = 0) -> Tensor:
        """Return the states of the input as points of :meth:`energy_of`. (..., L, hidden_size)."""
        return self.hopfield.states_of(self._with_patterns(x), head)

    def _with_patterns(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        stored = expanded(self.lookup_weights, x, self.hopfield.batch_first)
        if self.target_weights is None:
            return stored, x, stored
        return stored, x, expanded(self.target_weights, x, self.hopfield.batch_first)


def expanded(patterns: Tensor, like: Tensor, batch_first: bool) -> Tensor:
    """Return patterns (P, D), one copy for each bag of `like`, without memory of their own."""
    require_kind(like, "x", Tensor)
    require_values(like, "x")
    if like.ndim < 2 or (like.ndim != 3 and not batch_first):
        axes = "(..., patterns, D)" if batch_first else "(patterns, batch, D)"
        raise ShapeError(f"x must have shape {axes}, not {tuple(like.shape)}.")
    if batch_first:
        return patterns.expand(*like.shape[:-2], *patterns.shape)
    return patterns[:, None].expand(-1, like.shape[1], -1)


def _one_bag(patterns: Tensor, layer: Hopfield) -> tuple[Tensor, Tensor, Tensor]:
    bag = patterns if layer.batch_first else patterns[:, None]
    state = bag.new_zeros((*bag.shape[:-1], layer.input_size))
    return bag, state, bag
