"""Statistics of the coupling between the concentration and the weight of attention keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.attention.mixture import VMFMixture
from isthmus.special import log_vmf_normalizer


@dataclass(frozen=True, eq=False, repr=False)
class Entanglement:
    """Covariation of concentration and weight across the keys of each head.

    All statistics are computed within sequences, since a softmax ignores a constant shared by all
    keys. They are NaN where a quantity does not vary: for instance, without the norm's shift and
    without a query bias all log-weights are zero.

    Attributes
    ----------
    correlation : Tensor (H,)
        Of the concentration kappa with the log-weight log w, from -1 to 1.
    mixing_correlation : Tensor (H,)
        Of kappa with the log of the true mixing proportion, w / C(kappa).
    slope : Tensor (H,)
        Nats of log-weight for each unit of kappa, by least squares.
    mean_concentration : Tensor (H,)
    concentration_spread, weight_spread : Tensor (H,)
        Standard deviations of kappa and of log w, both in nats of the logit.
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
        lines = [
            f"{self.n_keys} keys; correlation of their concentration kappa with log-weight log w, "
            "and with log-mixing",
            "head   log w  mixing   mean kappa  spread kappa  spread log w",
        ]
        lines += [
            f"{head:>4} {_number(self.correlation[head], 7)} "
            f"{_number(self.mixing_correlation[head], 7)} "
            f"{float(self.mean_concentration[head]):12.3g} "
            f"{float(self.concentration_spread[head]):13.3g} "
            f"{float(self.weight_spread[head]):13.3g}"
            for head in range(len(self.correlation))
        ]
        return "\n".join(lines)

    __repr__ = __str__


def entanglement(mixture: VMFMixture) -> Entanglement:
    r"""Report how concentration and mixing weight co-vary across keys, per head.

    The paper says that each key controls both its component's concentration
    :math:`\kappa_i` and its weight :math:`\log w_i = k_i \cdot \delta`. This function
    measures how strongly the two are coupled in a given layer, on given data.

    Parameters
    ----------
    mixture : VMFMixture
        From :func:`isthmus.attention.vmf_view`, of as many sequences as one likes. Keys that
        no query sees are left out.

    Returns
    -------
    Entanglement

    Examples
    --------
    >>> import torch
    >>> from isthmus.attention import PreNormAttention, entanglement, vmf_view
    >>> layer = PreNormAttention(16, 2, batch_first=True)
    >>> report = entanglement(vmf_view(layer, torch.randn(8, 10, 16)))
    >>> report.n_keys, report.correlation.shape
    (80, torch.Size([2]))
    """
    kappa, log_weight = mixture.concentration.double(), mixture.log_weight.double()
    log_mass = log_weight - log_vmf_normalizer(mixture.sphere_dim, kappa)
    seen = _seen(mixture)
    share = seen.double()
    kappa_dev, weight_dev, mass_dev = (
        _deviations(values, share) for values in (kappa, log_weight, log_mass)
    )
    total = _per_head(share)
    kappa_var, weight_var, mass_var = (
        _per_head(dev.square()) / total for dev in (kappa_dev, weight_dev, mass_dev)
    )
    covariance = _per_head(kappa_dev * weight_dev) / total
    with_mass = _per_head(kappa_dev * mass_dev) / total
    mean = _per_head(kappa * share) / total
    # Smaller variances are rounding errors.
    floor = torch.finfo(mixture.concentration.dtype).eps ** 2 * (1 + mean.square())
    kappa_var, weight_var, mass_var = (
        var.masked_fill(var <= 64 * floor, 0) for var in (kappa_var, weight_var, mass_var)
    )
    return Entanglement(
        correlation=_ratio(covariance, (kappa_var * weight_var).sqrt()),
        mixing_correlation=_ratio(with_mass, (kappa_var * mass_var).sqrt()),
        slope=_ratio(covariance, kappa_var),
        mean_concentration=mean,
        concentration_spread=kappa_var.sqrt(),
        weight_spread=weight_var.sqrt(),
        n_keys=int(seen[:, 0].sum()),
    )


def _seen(mixture: VMFMixture) -> Tensor:
    """Return a mask of the components that some query sees, in the shape of the concentrations."""
    shape = mixture.concentration.shape
    if mixture.mask is None:
        return torch.ones(shape, dtype=torch.bool, device=mixture.concentration.device)
    visible = mixture.mask > -torch.inf
    if len(shape) == 3:
        visible = visible.any(-2)
    return visible.expand(shape)


def _deviations(values: Tensor, share: Tensor) -> Tensor:
    """Return deviations from the mean of each sequence; zero for hidden keys."""
    count = share.sum(-1, keepdim=True).clamp(min=1)
    return (values - (values * share).sum(-1, keepdim=True) / count) * share


def _per_head(values: Tensor) -> Tensor:
    """Sum over all but the heads. (B, H, ...) -> (H,)."""
    return values.transpose(0, 1).flatten(1).sum(1)


def _ratio(top: Tensor, bottom: Tensor) -> Tensor:
    return torch.where(bottom > 0, top / bottom, torch.nan)


def _number(value: Tensor, width: int) -> str:
    number = float(value)
    return f"{number:{width}.2f}" if number == number else f"{'-':>{width}}"
