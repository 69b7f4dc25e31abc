"""VMFMixture, by which a head of attention clusters its queries, and the coupling of its keys."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from isthmus.attention.inspection import safe_softmax
from isthmus.errors import OutsideSupportError, ShapeError
from isthmus.printing import aligned
from isthmus.special import log_vmf_normalizer
from isthmus.validation import as_points, require_kind

# Points this close to the sphere count as on it, for rounding.
SLACK = 1e-4


@dataclass(frozen=True, eq=False, repr=False)
class VMFMixture:
    r"""Mixtures of von Mises-Fisher distributions, one for each sequence and head.

    Every key i is a component about a direction :math:`m_i`; the query, on the unit sphere, is
    the point to be clustered:

    .. math:: p(u) = \sum_i \pi_i\, C_p(\kappa_i)\, e^{\kappa_i m_i \cdot u}, \qquad
        \pi_i \propto w_i / C_p(\kappa_i),

    so that :math:`\log w_i + \kappa_i m_i \cdot u` is attention's logit and the posterior over
    components its weights. Shapes are of B sequences, H heads, S queries, T keys and D coordinates.
    **An axis of length S comes before T where each query has a mixture of its own**: in all fields
    with rotary positions, and in :attr:`log_mixing` with a mask that differs between queries.

    Attributes
    ----------
    concentration, log_weight : Tensor (B, H, T)
        :math:`\kappa_i`, for a query at distance 1 from the centre, and :math:`\log w_i`, not
        normalised and without any mask.
    coordinates : Tensor (B, H, T, c)
        The directions :math:`m_i` in the head's own `basis`, or zeros where kappa is zero.
    query_direction, query_radius : Tensor (B, S, D), (B, S), or (B, H, S, D), (B, H, S)
        Unit vectors u, and distances from the centre, close to one. With an axis of heads where
        these norm their queries.
    centred : bool
        True if the sphere is orthogonal to the vector of ones, as for LayerNorm.
    basis : Tensor (H, D, c), optional
        Orthonormal columns. Without it, coordinates are the directions themselves.
    mask : Tensor, optional
        Added to the logits; broadcasts to (B, H, S, T).

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from isthmus.attention import vmf_view
    >>> _ = torch.manual_seed(0)
    >>> norm, attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)
    >>> view = vmf_view(norm, attention, torch.randn(1, 5, 8))
    >>> view
    VMFMixture(2 heads, 5 components, 5 queries, on a sphere in 7 dimensions)
    """

    concentration: Tensor
    coordinates: Tensor
    log_weight: Tensor
    query_direction: Tensor
    query_radius: Tensor
    centred: bool
    basis: Tensor | None = None
    mask: Tensor | None = None

    @property
    def dim(self) -> int:
        """D, the number of coordinates."""
        return self.query_direction.shape[-1]

    @property
    def sphere_dim(self) -> int:
        """The dimension p of the space that the sphere lies in: D, or D - 1 across the ones."""
        return self.dim - self.centred

    @property
    def is_shared(self) -> bool:
        """True if all queries of a head have the same mixture."""
        same_mask = self.mask is None or self.mask.shape[-2] == 1
        return self.concentration.ndim == 3 and same_mask

    @property
    def mean_direction(self) -> Tensor:
        """Unit vectors m on the sphere, arbitrary where kappa is zero. (B, H, T, D)."""
        directions = self.coordinates
        if self.basis is not None:
            basis = self.basis if directions.ndim == 4 else self.basis[:, None]
            # A basis times a unit vector has unit length up to rounding.
            directions = normalize(directions @ basis.mT, dim=-1)
        somewhere = directions.new_zeros(self.dim)
        somewhere[0] = 1
        if self.centred:
            somewhere[:2] = somewhere.new_tensor([1, -1]) / math.sqrt(2)
        return torch.where(self.concentration[..., None] > 0, directions, somewhere)

    @property
    def log_mixing(self) -> Tensor:
        """Log of the mixing proportions pi, which sum to one over visible keys. (B, H, T)."""
        unnormalized = self._log_masses()
        total = torch.logsumexp(unnormalized, -1, keepdim=True)
        log_mixing = unnormalized - total.masked_fill(total == -torch.inf, 0)
        return log_mixing[..., 0, :] if self.is_shared else log_mixing

    def log_normalizer(self) -> Tensor:
        """Log of the integral of sum_i w_i exp(kappa_i m_i . u) over the sphere. (B, H[, S])."""
        total = torch.logsumexp(self._log_masses(), -1)
        return total[..., 0] if self.is_shared else total

    def logits(self, points: Tensor | None = None) -> Tensor:
        """Return the attention logits, masks included. (B, H, S, T).

        `points` (Q, D), (B, Q, D) or (B, H, Q, D) replace the queries of the layer, as they are.
        Where each query has its own mixture, point q is evaluated under the mixture of query q.
        """
        if points is None:
            points = self.query_direction * self.query_radius[..., None]
        points = self._as_points(points)
        if self.basis is not None:
            points = points @ self.basis
        if self.coordinates.ndim == 4:
            cosine = points @ self.coordinates.mT
        else:
            cosine = (points[..., None, :] @ self.coordinates.mT)[..., 0, :]
        found = self._per_query(self.concentration) * cosine + self._per_query(self.log_weight)
        return found if self.mask is None else found + self.mask

    def responsibilities(self, points: Tensor | None = None) -> Tensor:
        """Posterior probability of each component: the attention weights. (B, H, S, T).

        A query that sees no key has zeros. See :meth:`logits` for `points`.
        """
        return safe_softmax(self.logits(points))

    def log_prob(self, points: Tensor | None = None) -> Tensor:
        """Log-density on the unit sphere, by area. (B, H, S).

        `points` are on the sphere, by default the directions of the queries; see :meth:`logits`.
        """
        points = self._as_points(self.query_direction if points is None else points)
        off = (torch.linalg.vector_norm(points, dim=-1) - 1).abs()
        if self.centred:
            off = off + points.sum(-1).abs() / math.sqrt(self.dim)
        if bool((off > SLACK).any()):
            across = ", with coordinates that sum to zero" * self.centred
            raise OutsideSupportError(
                f"{int((off > SLACK).sum())} of the points are not on the sphere, so they have no "
                f"density. Pass unit vectors{across}."
            )
        log_normalizer = self.log_normalizer()
        log_normalizer = log_normalizer[..., None] if self.is_shared else log_normalizer
        found = torch.logsumexp(self.logits(points), -1)
        return torch.where(log_normalizer == -torch.inf, -torch.inf, found - log_normalizer)

    def _per_query(self, values: Tensor) -> Tensor:
        """(B, H, [S,] T) -> (B, H, 1 or S, T)."""
        return values[..., None, :] if values.ndim == 3 else values

    def _log_masses(self) -> Tensor:
        """log(w_i / C_p(kappa_i)), with the mask. (B, H, 1 or S, T)."""
        masses = self.log_weight - log_vmf_normalizer(self.sphere_dim, self.concentration)
        masses = self._per_query(masses)
        return masses if self.mask is None else masses + self.mask

    def _as_points(self, points: Tensor) -> Tensor:
        """(..., Q, D) -> (B or 1, H or 1, Q, D)."""
        points = as_points(points, "points", like=self.query_direction)
        if points.shape[-1] != self.dim or not 2 <= points.ndim <= 4:
            raise ShapeError(
                f"points must end in (Q, {self.dim}), after (B) or (B, H) or nothing, "
                f"not {tuple(points.shape)}."
            )
        n_queries = self.query_direction.shape[-2]
        if not self.is_shared and points.shape[-2] not in (1, n_queries):
            raise ShapeError(
                f"Each of the {n_queries} queries has a mixture of its own: pass {n_queries} "
                f"points, one for each, or one for all, not {points.shape[-2]}."
            )
        if points.ndim == 3:
            return points[:, None]
        return points if points.ndim == 4 else points[None, None]

    def __repr__(self) -> str:
        batch, n_queries = self.query_direction.shape[0], self.query_direction.shape[-2]
        _, n_heads, *_, n_keys = self.concentration.shape
        return (
            f"VMFMixture({f'{batch} sequences, ' if batch > 1 else ''}{n_heads} heads, {n_keys} "
            f"components, {n_queries} queries, on a sphere in {self.sphere_dim} dimensions)"
        )


@dataclass(frozen=True, eq=False, repr=False)
class Entanglement:
    """Covariation of concentration and weight across the keys of each head.

    All statistics are computed within sequences; NaN where a quantity does not vary.

    Attributes
    ----------
    correlation, mixing_correlation : Tensor (H,)
        Of kappa with the log-weight log w, and with the log of the true mixing proportion w / C.
    slope : Tensor (H,)
        Nats of log-weight for each unit of kappa, by least squares.
    mean_concentration, concentration_spread, weight_spread : Tensor (H,)
        The mean of kappa, and the standard deviations of kappa and of log w.
    n_keys : int
        The number of keys per head.
    """

    correlation: Tensor
    mixing_correlation: Tensor
    slope: Tensor
    mean_concentration: Tensor
    concentration_spread: Tensor
    weight_spread: Tensor
    n_keys: int

    def __str__(self) -> str:
        columns = {
            "log w": self.correlation,
            "mixing": self.mixing_correlation,
            "mean kappa": self.mean_concentration,
            "spread kappa": self.concentration_spread,
            "spread log w": self.weight_spread,
        }
        table = [["", *columns]]
        for head, values in enumerate(zip(*columns.values(), strict=True)):
            cells = [f"{v:.2f}" if place < 2 else f"{v:.3g}" for place, v in enumerate(values)]
            table.append([str(head), *(cell.replace("nan", "-") for cell in cells)])
        title = "keys; correlation of their concentration kappa with log-weight log w, and mixing"
        return "\n".join([f"{self.n_keys} {title}", *aligned(table)])

    __repr__ = __str__


def entanglement(mixture: VMFMixture) -> Entanglement:
    r"""Report how concentration and mixing weight co-vary across keys, per head.

    Each key controls both its component's concentration :math:`\kappa_i` and its weight
    :math:`\log w_i = k_i \cdot \delta`. Keys that no query sees are left out.

    >>> import torch
    >>> from isthmus.attention import PreNormAttention, entanglement, vmf_view
    >>> layer = PreNormAttention(16, 2, batch_first=True)
    >>> report = entanglement(vmf_view(layer, torch.randn(8, 10, 16)))
    >>> report.n_keys, report.correlation.shape
    (80, torch.Size([2]))
    """
    require_kind(mixture, "mixture", VMFMixture)
    kappa, log_weight = mixture.concentration.double(), mixture.log_weight.double()
    log_mass = log_weight - log_vmf_normalizer(mixture.sphere_dim, kappa)
    seen = torch.ones_like(kappa)
    if mixture.mask is not None:  # components that some query sees
        visible = mixture.mask > -torch.inf
        seen = (visible.any(-2) if kappa.ndim == 3 else visible).expand(kappa.shape).double()
    values = torch.stack([kappa, log_weight, log_mass])
    about = (values * seen).sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp(min=1)
    deviations = ((values - about) * seen).movedim(2, 0).flatten(2)  # (H, 3, n)
    total = seen.transpose(0, 1).flatten(1).sum(1)
    covariance = deviations @ deviations.mT / total[:, None, None]  # (H, 3, 3)
    mean = (kappa * seen).transpose(0, 1).flatten(1).sum(1) / total
    # Smaller variances are rounding errors.
    floor = 64 * torch.finfo(mixture.concentration.dtype).eps ** 2 * (1 + mean.square())
    variance = covariance.diagonal(dim1=1, dim2=2)
    variance = variance.masked_fill(variance <= floor[:, None], 0)
    spread = variance.sqrt()

    def ratio(top: Tensor, bottom: Tensor) -> Tensor:
        return torch.where(bottom > 0, top / bottom, torch.nan)

    return Entanglement(
        correlation=ratio(covariance[:, 0, 1], spread[:, 0] * spread[:, 1]),
        mixing_correlation=ratio(covariance[:, 0, 2], spread[:, 0] * spread[:, 2]),
        slope=ratio(covariance[:, 0, 1], variance[:, 0]),
        mean_concentration=mean,
        concentration_spread=spread[:, 0],
        weight_spread=spread[:, 1],
        n_keys=int(total[0]),
    )
