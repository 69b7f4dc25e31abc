"""Chinese-restaurant-process mixture: known memories and the chance of a new one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from isthmus.distribution import Line
from isthmus.errors import InvalidInputError
from isthmus.memories.base import ComponentMeans
from isthmus.memories.mixture import Mixture
from isthmus.validation import as_entries, as_flag, as_number, as_positive, is_transforming


@final
class CRPMixture(ComponentMeans):
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

    has_exact_draws = True
    has_responsibilities = True
    rho: Tensor
    alpha: Tensor
    counts: Tensor
    prior_mean: Tensor | None

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
        self.discount = as_number(discount, "discount", at_least=0, below=1)
        self.normalized = as_flag(normalized, "normalized")
        self._store("beta", as_positive(beta, "beta", self.memories))
        self._store("rho", as_positive(rho, "rho", self.memories))
        self._store(
            "alpha", as_positive(alpha, "alpha", self.memories, allow_zero=self.discount > 0)
        )
        if isinstance(counts, Tensor) and counts.dtype in (torch.int32, torch.int64):
            counts = counts.double()
        counts = as_entries(counts, "counts", self.memories, (self.n_memories,))
        if not is_transforming() and not bool((counts > self.discount).all()):
            raise InvalidInputError(
                f"Every count must be above the discount {self.discount:g} "
                f"(smallest here: {float(counts.min()):g}). Drop memories that hold no data."
            )
        self._store("counts", counts)
        if prior_mean is not None:
            dim = (self.dim,)
            prior_mean = as_entries(prior_mean, "prior_mean", self.memories, dim, positive=False)
        self._store("prior_mean", prior_mean)

    @property
    def kappa(self) -> Tensor:
        """Concentration (1/beta + 1/rho)^-1 of the new cluster about the origin."""
        return 1 / (1 / self.beta + 1 / self.rho)

    def _mixture(self) -> Mixture:
        """Return all clusters as Gaussians in float64, the new one last, about the prior's mean."""
        return self._kept("mixture", self._make_mixture)

    def predictive(self, masses: Any = None) -> Mixture:
        r"""Return the predictive mixture for a new datum, in which the means are not known exactly.

        The mean of a memory of :math:`n_k` data has a posterior of variance
        :math:`1/(2(\beta n_k + \rho))`, which adds to the :math:`1/(2\beta)` of its kernel
        (erratum E34). The last component is the new cluster.

        Parameters
        ----------
        masses : array or Tensor (K, D), optional
            Data of each memory in each coordinate, if some have gaps. Default: `counts`.
        """
        masses = self.counts[:, None].expand(-1, self.dim) if masses is None else masses
        shape = (self.n_memories, self.dim)
        masses = as_entries(masses, "masses", self.memories, shape, positive=False)
        return self._make_mixture(masses)

    def _make_mixture(self, masses: Tensor | None = None) -> Mixture:
        wide = torch.float32 if self.memories.device.type == "mps" else torch.float64
        means, beta, kappa = self.memories.to(wide), self.beta.to(wide), self.kappa.to(wide)
        origin = torch.zeros_like(means[0]) if self.prior_mean is None else self.prior_mean
        log_mass = (self.alpha + self.n_memories * self.discount).to(wide).log()
        if not self.normalized:
            log_mass = log_mass + 0.5 * self.dim * (beta / kappa).log()
        log_weights = torch.cat([(self.counts.to(wide) - self.discount).log(), log_mass[None]])
        known = (0.5 / beta).expand(self.n_memories)
        if masses is not None:  # and the variance of each mean
            known = 0.5 / beta + 0.5 / (beta * masses + self.rho.to(wide))
        spreads: Any = {"covariance": torch.cat([known, (0.5 / kappa).expand_as(known[:1])])}
        spreads["covariance_type"] = "spherical" if masses is None else "diag"
        centres = torch.cat([means, origin.to(wide)[None]])
        return Mixture(centres, 1.0, log_weights, **spreads)

    def _mixing_weights(self) -> Tensor:
        return self.counts - self.discount

    def _energy(self, x: Tensor) -> Tensor:
        mixture = self._mixture()
        scale = 0.5 * self.dim * (self.beta.to(mixture.memories) / math.pi).log()
        energy = (mixture._energy(x.to(mixture.memories)) + scale) / self.beta
        return energy.to(x.dtype)

    def log_normalizer(self) -> Tensor:
        """Return log Z, log(sum of counts + alpha) + (D/2) log(pi / beta) if normalised."""
        log_mass = self._mixture().log_total_weight.to(self.memories.dtype)
        return log_mass + 0.5 * self.dim * torch.log(math.pi / self.beta)

    def _log_prob(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        return self._exactly(self._mixture()._log_prob, x, seen)

    def _score(self, x: Tensor) -> Tensor:
        """Return -dE/dx = 2 sum_k r_k (mu_k - x) - 2 r_new (kappa/beta) x (erratum E10)."""
        return self._exactly(self._mixture()._score, x) / self.beta

    def _step(self, x: Tensor, held: Tensor | None = None) -> Tensor:
        return self._exactly(self._mixture()._step, x, held)

    def _responsibilities(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        return self._exactly(self._mixture()._responsibilities, x, seen)

    def _conditional_mean(self, x: Tensor, seen: Tensor) -> Tensor:
        return self._exactly(self._mixture()._conditional_mean, x, seen)

    def _exactly(self, method: Callable[..., Tensor], x: Tensor, *masks: Tensor | None) -> Tensor:
        """Return what the mixture answers in float64, in the dtype of x."""
        return method(x.to(self._mixture().memories), *masks).to(x.dtype)

    def _line(self, column: int) -> Line:
        return self._mixture()._line(column)

    @torch.no_grad()
    def _sample(self, n: int, seed: int | torch.Generator = 0) -> Tensor:
        return self._mixture()._sample(n, seed).to(self.memories)
