"""The mixture of von Mises-Fisher distributions: a memory of directions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, final

import torch
from torch import Tensor, nn

from isthmus.errors import InvalidInputError, OutsideSupportError, ShapeError
from isthmus.kernel.attention import attend_centred
from isthmus.kernel.logits import Keys, attention_logits
from isthmus.memories.base import AtBeta, WeightedMemory, unit_rows
from isthmus.special import log_vmf_normalizer, sample_vmf, vmf_mean_length
from isthmus.validation import as_points, as_positive, is_transforming

# Observed coordinates may be longer than 1 by this much, for rounding.
LENGTH_SLACK = 1e-4


@final
class VonMisesFisherMixture(AtBeta, WeightedMemory):
    r"""A finite mixture of von Mises-Fisher distributions with the concentration beta.

    .. math:: E(x) = -\frac1\beta \log \sum_k w_k \exp(\beta\, \mu_k \cdot x),
        \qquad \lVert x \rVert = \lVert \mu_k \rVert = 1 .

    This is the modern Hopfield energy on the unit sphere. **Points should be unit vectors**, and
    are not rescaled. :meth:`log_prob` is a density with respect to area. Use :meth:`sample`, which
    is exact; :func:`isthmus.sample` would leave the sphere.

    Parameters
    ----------
    directions : array or Tensor (K, D)
        Rows are divided by their length; D is at least 2. A ``torch.nn.Parameter`` is stored as
        it is, to be learned; only its directions are used.
    beta : float or scalar Tensor
        The concentration.
    log_weights : array or Tensor (K,), optional
        log w; need not be normalised, and ``-inf`` leaves a component out. Without it every
        :math:`w_k` is 1.

    Examples
    --------
    >>> import torch
    >>> from isthmus.memories.vmf import VonMisesFisherMixture
    >>> mixture = VonMisesFisherMixture(torch.tensor([[3.0, 0.0], [0.0, 1.0]]), beta=4.0)
    >>> mixture.step(torch.tensor([0.8, 0.6]))
    tensor([0.9122, 0.4099])
    """

    has_responsibilities = True

    def __init__(
        self, directions: Any, beta: float | Tensor = 1.0, log_weights: Any = None
    ) -> None:
        given = as_points(directions, "directions")
        if not is_transforming() and not bool(given.detach().any(-1).all()):
            raise InvalidInputError(
                "directions has rows that are all zero and so have no direction. Leave them out."
            )
        keep = isinstance(given, nn.Parameter) or given.numel() == 0
        rows = given if keep else unit_rows(given)
        super().__init__(rows, "directions", log_weights)
        self.returns_arrays = not isinstance(directions, Tensor)
        if self.dim < 2:
            raise ShapeError("directions must have at least two coordinates, D >= 2, not 1.")
        self._store("beta", as_positive(beta, "beta", self.memories))

    @property
    def directions(self) -> Tensor:
        """The memories at unit length, also while they are being learned. (K, D)."""
        return unit_rows(self.memories)

    def log_normalizer(self) -> Tensor:
        """Return the log-normaliser log Z = log_total_weight - log C_D(beta), a scalar tensor."""
        return self.log_total_weight - log_vmf_normalizer(self.dim, self.beta)

    def _keys(self) -> Keys:
        return self._kept("keys", lambda: Keys(self.directions))

    def _energy(self, x: Tensor) -> Tensor:
        found = attend_centred(x, self._keys(), self.beta, self.log_weights, "dot")
        return -found.logsumexp / self.beta

    def _score(self, x: Tensor) -> Tensor:
        keys = self._keys()
        found = attend_centred(x, keys, self.beta, self.log_weights, "dot")
        return found.mean + keys.centre

    def _step(self, x: Tensor, held: Tensor | None = None) -> Tensor:
        force = self._score(x)
        if held is None:
            return torch.where(force.any(-1, keepdim=True), unit_rows(force), x)
        force = force.masked_fill(held, 0)
        moved = _length_left(x.masked_fill(~held, 0)) * unit_rows(force)
        return torch.where(held | ~force.any(-1, keepdim=True), x, moved)

    def _responsibilities(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        same = x.dtype == self.memories.dtype
        keys = self._keys() if same else self.directions.to(x.dtype)
        bias = None if self.log_weights is None else self.log_weights.to(x.dtype)
        logits = attention_logits(x, keys, bias, self.beta.to(x.dtype), "dot")
        if seen is not None:
            kappa, _ = self._free_parts(x, seen)
            for one, rows in _counted(seen):
                logits[rows] -= log_vmf_normalizer(one, kappa[rows])
        return torch.softmax(logits, -1).to(x.dtype)

    def _free_parts(self, x: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Return concentrations given what is seen, and lengths of directions, both (..., K).

        The free coordinates are von Mises-Fisher on a sphere of the length that is left.
        """
        squares = (~seen).to(x.dtype) @ self.directions.to(x.dtype).square().mT
        lengths = squares.clamp(min=torch.finfo(squares.dtype).tiny).sqrt()
        return self.beta.to(x.dtype) * _length_left(x) * lengths, lengths

    def _conditional_mean(self, x: Tensor, seen: Tensor) -> Tensor:
        too_long = torch.linalg.vector_norm(x.detach(), dim=-1) > 1 + LENGTH_SLACK
        if outside := int((too_long & ~seen.all(-1)).sum()):
            raise OutsideSupportError(
                f"{outside} of {too_long.numel()} rows have observed coordinates that are longer "
                "than 1, so no unit vector has them. Scale the data to unit length first."
            )
        exact = x.double()
        kappa, lengths = self._free_parts(exact, seen)
        along = torch.zeros_like(kappa)
        for one, rows in _counted(seen):
            along[rows] = vmf_mean_length(one, kappa[rows]) / lengths[rows]
        shares = self._responsibilities(exact, seen)
        mean = _length_left(exact) * ((shares * along) @ self.directions.double())
        return torch.where(seen, x, mean.to(x.dtype))

    def _draw_about(self, chosen: Tensor, generator: torch.Generator) -> Tensor:
        return sample_vmf(self.directions[chosen], self.beta, generator)


def _counted(seen: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Yield each number of free coordinates with the rows (...) that have it, but none for 0."""
    free = (~seen).sum(-1)
    for count in set(free.flatten().tolist()) - {0}:
        yield count, free == count


def _length_left(held: Tensor) -> Tensor:
    """Return the length of the unknown coordinates, here zero, of a unit vector. (..., 1)."""
    square = 1 - held.square().sum(-1, keepdim=True)
    # The inner choice keeps the derivative finite at zero.
    root = torch.where(square > 0, square, 1.0).sqrt()
    return torch.where(square > 0, root, 0.0)
