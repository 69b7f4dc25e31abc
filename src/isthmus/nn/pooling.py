"""HopfieldPooling and HopfieldLayer: associations with learned states, or learned patterns."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar, final

import torch
from torch import Tensor, nn

from isthmus.energy import Energy
from isthmus.errors import InvalidInputError, ShapeError
from isthmus.nn.hopfield import Hopfield
from isthmus.validation import as_count, as_flag, require_kind, require_values


class _Learned(nn.Module, ABC):
    """A Hopfield layer some of whose patterns are parameters, the first of them `parameter`."""

    parameter: ClassVar[str]
    pools: ClassVar[bool] = False
    """True if the outputs of all states of a bag are joined."""

    def __init__(
        self,
        input_size: int,
        hidden_size: int | None = None,
        output_size: int | None = None,
        *,
        quantity: int = 1,
        **options: Any,
    ) -> None:
        super().__init__()
        # Learned patterns have the width of the others, so that stored_size is no option.
        self.hopfield = Hopfield(input_size, hidden_size, output_size, stored_size=None, **options)
        self.quantity = as_count(quantity, "quantity")
        self.register_parameter(self.parameter, self._new_patterns())

    def _new_patterns(self) -> nn.Parameter:
        return nn.Parameter(torch.randn(self.quantity, self.hopfield.input_size))

    @abstractmethod
    def _patterns(self, x: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return stored, state and value patterns for an input."""

    def reset_parameters(self) -> None:
        """Draw new patterns and projections."""
        self.hopfield.reset_parameters()
        for weights in self.parameters(recurse=False):
            nn.init.normal_(weights)

    def forward(
        self,
        x: Any,
        stored_pattern_padding_mask: Tensor | None = None,
        association_mask: Tensor | None = None,
        need_weights: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return what states retrieve from patterns, and the weights if asked for.

        For pooling, x is bags of stored patterns (..., S, D), or a tuple (stored, value), and the
        output is (..., quantity * output_size). For a layer, x is states (..., L, D), and the
        output is (..., L, output_size). The other arguments are those of :meth:`Hopfield.forward`.
        """
        found: Tensor | tuple[Tensor, Tensor] = self.hopfield(
            self._patterns(x), stored_pattern_padding_mask, association_mask, need_weights
        )
        output, *weights = found if isinstance(found, tuple) else (found,)
        if self.pools:
            output = (output if self.hopfield.batch_first else output.transpose(0, 1)).flatten(-2)
        return (output, weights[0]) if weights else output

    def states_of(self, x: Any, head: int = 0) -> Tensor:
        """Return the states as points of :meth:`energy_of`. (..., states, hidden_size)."""
        return self.hopfield.states_of(self._patterns(x), head)

    def _expanded(self, patterns: Tensor, like: Tensor) -> Tensor:
        """Return patterns (P, D), one copy for each bag of `like`, without memory of their own."""
        require_kind(like, "x", Tensor)
        require_values(like, "x")
        if like.ndim < 2:
            raise ShapeError(f"x must have shape (..., patterns, D), not {tuple(like.shape)}.")
        if self.hopfield.batch_first:
            return patterns.expand(*like.shape[:-2], *patterns.shape)
        return patterns[:, None].expand(-1, like.shape[1], -1)


@final
class HopfieldPooling(_Learned):
    """Pool a bag of patterns: learned states retrieve from it.

    Options are those of :class:`Hopfield`, but for `stored_size`, and

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

    parameter, pools = "pooling_weights", True
    pooling_weights: Tensor

    def energy_of(self, x: Tensor | tuple[Tensor, Tensor], head: int = 0) -> Energy:
        """Return the energy of one bag, as :meth:`Hopfield.energy_of` does."""
        return self.hopfield.energy_of(self._patterns(x), head)

    def _patterns(self, x: Tensor | tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
        both = (x, x) if isinstance(x, Tensor) else x
        if not isinstance(both, tuple | list) or len(both) != 2:
            raise InvalidInputError("x must be a tensor, or a tuple of stored and values.")
        stored, values = both
        return stored, self._expanded(self.pooling_weights, stored), values


@final
class HopfieldLayer(_Learned):
    """Look up learned patterns: each state of the input retrieves from them.

    Options are those of :class:`Hopfield`, but for `stored_size`, and

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
    >>> layer(torch.randn(5, 10, 8)).shape, layer.energy_of().n_memories
    (torch.Size([5, 10, 3]), 20)
    """

    parameter = "lookup_weights"
    lookup_weights: Tensor

    def __init__(
        self,
        input_size: int,
        hidden_size: int | None = None,
        output_size: int | None = None,
        *,
        separate_targets: bool = False,
        **options: Any,
    ) -> None:
        super().__init__(input_size, hidden_size, output_size, **options)
        separate = as_flag(separate_targets, "separate_targets")
        self.target_weights = self._new_patterns() if separate else None

    def energy_of(self, x: Tensor | None = None, head: int = 0) -> Energy:
        """Return the energy of the learned patterns, the same for every input."""
        layer, patterns = self.hopfield, self.lookup_weights
        bag = patterns if layer.batch_first else patterns[:, None]
        state = bag.new_zeros((*bag.shape[:-1], layer.input_size))
        return layer.energy_of((bag, state, bag), head)

    def _patterns(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        stored = value = self._expanded(self.lookup_weights, x)
        if self.target_weights is not None:
            value = self._expanded(self.target_weights, x)
        return stored, x, value
