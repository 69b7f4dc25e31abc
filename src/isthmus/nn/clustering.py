"""ClAMLoss: clusters of encoded points, learned through the dynamics of retrieval."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import final

import torch
from sklearn.cluster import KMeans
from torch import Tensor, nn

from isthmus.errors import InvalidInputError, ShapeError
from isthmus.memories.mixture import Mixture
from isthmus.validation import as_count, as_flag, as_number, as_points, require_kind


@final
class ClAMLoss(nn.Module):
    r"""The loss of deep clustering with associative memories, and the memories that it learns.

    Encoded points z move on the energy of :class:`isthmus.Mixture` towards the memories,

    .. math:: z \leftarrow z + \eta \Bigl(\sum_k
        \mathrm{softmax}_k(-\beta \lVert z - \mu_k \rVert^2)\, \mu_k - z\Bigr) ,

    and the loss compares where they arrive with where they came from (Saha et al., 2023). Given
    the inputs x and a decoder, it compares the decoded points with x instead; this keeps the
    encoder from mapping everything to one point (Saha et al., 2024).

    Parameters
    ----------
    n_clusters : int
    dim : int
        Coordinates of an encoded point.
    beta : float, optional
        Inverse temperature. Default: :meth:`start_at` chooses it, :math:`1/(2 s^2)` for the mean
        squared distance :math:`s^2` of a coordinate from the nearest memory; 1 until then.
    steps : int
    rate : float, optional
        :math:`\eta`, above 0 and at most 1. Default: 1 % of the way to a single memory is left
        after all steps.
    learn_beta : bool
        Learn log beta as well.

    Examples
    --------
    >>> import torch
    >>> from isthmus.nn import ClAMLoss
    >>> z = torch.cat([torch.randn(50, 2) - 4, torch.randn(50, 2) + 4])
    >>> clam = ClAMLoss(2, 2).start_at(z)
    >>> clam(z).backward()
    >>> clam.memories.grad.shape
    torch.Size([2, 2])
    >>> labels = clam.predict(z)
    >>> bool((labels[:50] == labels[0]).all()), bool((labels[50:] != labels[0]).all())
    (True, True)
    """

    def __init__(
        self,
        n_clusters: int,
        dim: int,
        *,
        beta: float | None = None,
        steps: int = 10,
        rate: float | None = None,
        learn_beta: bool = False,
    ) -> None:
        super().__init__()
        count, size = as_count(n_clusters, "n_clusters"), as_count(dim, "dim")
        self.steps = as_count(steps, "steps")
        default = 1 - 0.01 ** (1 / self.steps)
        self.rate = default if rate is None else as_number(rate, "rate", above=0, at_most=1)
        self.memories = nn.Parameter(torch.randn(count, size))
        self._chooses_beta = beta is None
        first = 1.0 if beta is None else as_number(beta, "beta", above=0)
        self.log_beta = nn.Parameter(
            torch.tensor(first).log(), requires_grad=as_flag(learn_beta, "learn_beta")
        )

    @property
    def energy(self) -> Mixture:
        """The energy on which points move; it shares the memories of this module."""
        return Mixture(self.memories, self.log_beta.exp())

    @torch.no_grad()
    def start_at(self, z: Tensor, seed: int = 0) -> ClAMLoss:
        """Put the memories at the k-means of points (N, dim); choose beta if it was not given."""
        points = as_points(z, "z", dim=self.memories.shape[1])
        if points.ndim != 2 or len(points) < len(self.memories):
            raise ShapeError(
                f"z must have shape (N, dim) with at least {len(self.memories)} rows, "
                f"not {tuple(points.shape)}."
            )
        rows = points.double().cpu().numpy()
        found = KMeans(len(self.memories), n_init=3, random_state=seed).fit(rows)
        self.memories.copy_(torch.from_numpy(found.cluster_centers_))
        if self._chooses_beta and found.inertia_ > 0:
            self.log_beta.fill_(math.log(rows.size / (2 * found.inertia_)))
        return self

    def retrieve(self, z: Tensor) -> Tensor:
        """Return where encoded points arrive after all steps. (..., dim) -> (..., dim)."""
        energy, z = self.energy, as_points(z, "z", dim=self.memories.shape[1], like=self.memories)
        for _ in range(self.steps):
            z = torch.lerp(z, energy.step(z), self.rate)
        return z

    def forward(
        self, z: Tensor, x: Tensor | None = None, decoder: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Return the mean squared distance between points and what they retrieve, a scalar.

        With the inputs x (..., D) of encoded points z (..., dim) and a `decoder` from (..., dim) to
        (..., D), it is the distance between x and the decoded points.
        """
        require_kind(z, "z", Tensor)
        if (x is None) != (decoder is None):
            raise InvalidInputError("Pass x and decoder together, or neither.")
        if z.numel() == 0:
            raise ShapeError(f"z of shape {tuple(z.shape)} has no points, so no mean loss.")
        found = self.retrieve(z)
        if x is None or decoder is None:
            return (found - z).square().sum(-1).mean()
        decoded = decoder(found)
        if decoded.shape != x.shape:
            raise ShapeError(f"decoder returns {tuple(decoded.shape)}, but x is {tuple(x.shape)}.")
        return (decoded - x).square().sum(-1).mean()

    @torch.no_grad()
    def predict(self, z: Tensor) -> Tensor:
        """Return the cluster of each encoded point: the memory nearest to where it arrives."""
        return self.energy.responsibilities(self.retrieve(z)).argmax(-1)

    def extra_repr(self) -> str:
        """Return the settings shown by repr."""
        count, dim = self.memories.shape
        return f"{count}, {dim}, steps={self.steps}, rate={self.rate:.3g}"
