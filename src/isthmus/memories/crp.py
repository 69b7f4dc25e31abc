"""Chinese-restaurant-process mixture: known memories and the chance of a new one."""

from __future__ import annotations

import math
from typing import Any, final

import torch
from torch import Tensor

from isthmus.distribution import Line
from isthmus.errors import InvalidInputError
from isthmus.kernel.attention import Attention, attend_centred
from isthmus.kernel.logits import attention_logits
from isthmus.memories.base import (
    ComponentMeans,
    MarginalMemory,
    draw_index,
    generator_for,
    keep_observed,
)
from isthmus.validation import as_entries, as_flag, as_positive, is_transforming


@final
class CRPMixture(ComponentMeans, MarginalMemory):
    r"""ClAM+CRP's energy: memories with counts and an empty cluster, beta = 1 / (2 sigma^2).

    .. math::
        E(x) = -\frac1\beta \log\Bigl[ (\alpha + K d)(\kappa/\beta)^{D/2}
        e^{-\kappa \lVert x \rVert^2}
        + \sum_k (n_k - d)\, e^{-\beta \lVert \mu_k - x \rVert^2} \Bigr],
        \qquad \kappa = (1/\beta + 1/\rho)^{-1} .

    Components have covariance :math:`I/(2\beta)` and the prior on their means is
    :math:`\mathcal N(0, I/(2\rho))` (errata E6, E9). The factor :math:`(\kappa/\beta)^{D/2}`
    is missing in the paper's print (erratum E8); ``normalized=False`` gives the printed form.

    :meth:`responsibilities`, (..., K + 1), end with that of the new cluster. Create a new memory
    where it is the largest (erratum E10).

    Parameters
    ----------
    means : array or Tensor (K, D)
    counts : array or Tensor (K,)
        Number of data points of each memory; may be fractional. Each must exceed `discount`.
    beta, rho : float or scalar Tensor
        Concentration of a component about its mean, and of the means about the origin: 1 / (2 s^2)
        of the standard deviations s.
    alpha : float or scalar Tensor
        Concentration, above zero, or zero with a discount. Larger values form more new clusters.
    discount : float
        Pitman-Yor discount d in [0, 1).
    normalized : bool
        If True, the new cluster's term carries its normaliser.
    prior_mean : array or Tensor (D,), optional
        Centre of the prior on means; the origin if not given, as printed.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> crp = ist.CRPMixture(torch.tensor([[2.0], [-2.0]]), counts=[5.0, 3.0], rho=0.1)
    >>> crp.responsibilities(torch.tensor([[2.0], [9.0]])).round(decimals=4)  # last: new cluster
    tensor([[0.9598, 0.0000, 0.0402],
            [0.0000, 0.0000, 1.0000]])
    """

    def __init__(
        self,
        means: Any,
        counts: Any,
        beta: float | Tensor = 1.0,
        rho: float | Tensor = 1.0,
        alpha: float | Tensor = 1.0,
        discount: float = 0.0,
        normalized: bool = True,
        prior_mean: Any = None,
    ) -> None:
        super().__init__(means, "means")
        self.discount = float(as_positive(discount, "discount", self.memories, allow_zero=True))
        if self.discount >= 1:
            raise InvalidInputError(f"discount must be in [0, 1), not {discount!r}.")
        self.normalized = as_flag(normalized, "normalized")
        self._store("beta", as_positive(beta, "beta", self.memories))
        self._store("rho", as_positive(rho, "rho", self.memories))
        self._store(
            "alpha", as_positive(alpha, "alpha", self.memories, allow_zero=self.discount > 0)
        )
        self._store("counts", self._checked_counts(counts))
        if prior_mean is not None:
            dim = (self.dim,)
            prior_mean = as_entries(prior_mean, "prior_mean", self.memories, dim, positive=False)
        self._store("prior_mean", prior_mean)

    has_exact_draws = True
    rho: Tensor
    alpha: Tensor
    counts: Tensor
    prior_mean: Tensor | None

    def _checked_counts(self, value: Any) -> Tensor:
        if isinstance(value, Tensor) and value.dtype in (torch.int32, torch.int64):
            value = value.double()
        counts = as_entries(value, "counts", self.memories, (self.n_memories,))
        if not is_transforming() and not bool((counts > self.discount).all()):
            raise InvalidInputError(
                f"Every count must be above the discount {self.discount:g} "
                f"(smallest here: {float(counts.min()):g}). Drop memories that hold no data."
            )
        return counts

    @property
    def kappa(self) -> Tensor:
        """Concentration (1/beta + 1/rho)^-1 of the new cluster about the origin."""
        return 1 / (1 / self.beta + 1 / self.rho)

    @property
    def _log_new_mass(self) -> Tensor:
        return (self.alpha + self.n_memories * self.discount).log()

    @property
    def _log_new_weight(self) -> Tensor:
        """Log of the new cluster's share of Z, in units of (pi/beta)^(D/2)."""
        extra = 0 if self.normalized else 0.5 * self.dim
        return self._log_new_mass + extra * torch.log(self.beta / self.kappa)

    @property
    def _origin(self) -> Tensor:
        """The centre of the prior on means. (D,)."""
        return torch.zeros_like(self.memories[0]) if self.prior_mean is None else self.prior_mean

    @property
    def _log_counts(self) -> Tensor:
        """Logs of the discounted counts. (K,)."""
        return (self.counts - self.discount).log()

    def _log_new(self, x: Tensor, observed: Tensor | None = None) -> Tensor:
        """Return the logit of the new cluster, over observed coordinates if given. (...)."""
        away = x - self._origin.to(x.dtype)
        if observed is not None:
            away = torch.where(observed, away, torch.zeros_like(away))
        seen = self.dim if observed is None else observed.sum(-1).to(x.dtype)
        # The printed form lacks the normaliser; integrating coordinates out adds some of it.
        coordinates = seen if self.normalized else seen - self.dim
        constant = self._log_new_mass + 0.5 * coordinates * torch.log(self.kappa / self.beta)
        return constant - self.kappa * away.square().sum(-1)

    def _attend(self, x: Tensor, observed: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the log-sum-exp of all clusters, the share of the new one, and the known mean."""
        # The square of a float32 number can be beyond float32.
        wide = torch.float32 if x.device.type == "mps" else torch.float64
        weights, log_new = self._log_counts, self._log_new(x.to(wide), observed)
        known = attend_centred(x, self._keys(), self.beta, weights, "sqeuclidean", observed)
        # The second derivative of logaddexp overflows where one term is much larger.
        total = torch.logsumexp(torch.stack([known.logsumexp.to(wide), log_new]), 0)
        return total.to(x.dtype), (log_new - total).exp().to(x.dtype), known.mean

    def _energy(self, x: Tensor) -> Tensor:
        return -self._attend(x)[0] / self.beta

    def log_normalizer(self) -> Tensor:
        """Return log Z, log(sum of counts + alpha) + (D/2) log(pi / beta) if normalised."""
        log_scale = 0.5 * self.dim * torch.log(math.pi / self.beta)
        log_known = (self.counts - self.discount).sum().log()
        return torch.logsumexp(torch.stack([log_known, self._log_new_weight]), 0) + log_scale

    def _score(self, x: Tensor) -> Tensor:
        """Return -dE/dx = 2 sum_k r_k (mu_k - x) - 2 r_new (kappa/beta) x (erratum E10)."""
        _, new, mean = self._attend(x)
        pull = (1 - new)[..., None] * (mean - (x - self._keys().centre))
        push = (new * self.kappa / self.beta)[..., None] * (x - self._origin)
        force: Tensor = 2 * (pull - push)
        return force

    def _step(self, x: Tensor, held: Tensor | None = None) -> Tensor:
        r"""Return one update of mean shift for unequal variances; it never raises the energy."""
        _, new, mean = self._attend(x)
        known = self.beta * (1 - new)
        share = known / (known + self.kappa * new)
        mean = mean + self._keys().centre
        return keep_observed(torch.lerp(self._origin, mean, share[..., None]), x, held)

    def _attend_density(self, x: Tensor, seen: Tensor | None) -> Attention:
        unseen = 0 if seen is None else (~seen).sum(-1).to(x.dtype)
        log_scale = 0.5 * unseen * torch.log(math.pi / self.beta)
        total, new, mean = self._attend(x, seen)
        # The mean of the new cluster is that of the prior.
        mean = torch.lerp(mean, self._origin - self._keys().centre, new[..., None])
        return Attention(total - self.log_normalizer() + log_scale, mean)

    def _logits(self, x: Tensor, seen: Tensor | None) -> Tensor:
        weights, keys = self._log_counts, self._keys()
        known = attention_logits(x, keys, weights, self.beta, "sqeuclidean", seen)
        new = self._log_new(x.to(known.dtype), seen)
        return torch.cat([known, new[..., None]], -1)

    def _line(self, column: int) -> Line:
        log_weights = torch.cat([self._log_counts, self._log_new_weight.reshape(1)])
        centres = torch.cat([self.memories[:, column], self._origin[column].reshape(1)])
        widths = [self.sigma.expand(self.n_memories), (0.5 / self.kappa).sqrt().reshape(1)]
        return Line.of(torch.log_softmax(log_weights, 0), centres, torch.cat(widths))

    @torch.no_grad()
    def _sample(self, n: int, seed: int | torch.Generator = 0) -> Tensor:
        """Draw points of clusters; those of the new one are prior predictive. -> (n, D)"""
        generator = generator_for(seed, self.memories.device)
        weights = torch.softmax(torch.cat([self._log_counts, self._log_new_weight.reshape(1)]), 0)
        chosen = draw_index(weights, n, generator)
        centres = torch.cat([self.memories, self._origin.expand(1, self.dim)])[chosen]
        variance = torch.where(chosen == self.n_memories, 0.5 / self.kappa, self.variance)
        noise = torch.empty_like(centres).normal_(generator=generator)
        return centres + variance.sqrt()[:, None] * noise
