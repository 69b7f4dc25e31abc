"""The Bayes predictive of random Gaussian mixtures: the best possible model on average."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from isthmus.errors import InvalidInputError, ShapeError
from isthmus.incontext.priors import GaussianMixtures
from isthmus.validation import as_count, as_seed

# Tasks per block, so that their arrays stay in the cache.
TASKS_AT_ONCE = 8
NUMBERS_AT_ONCE = 2**20


class Reference(ABC):
    """A predictor of the next point from the points before it."""

    name: str
    """Its name in tables."""

    @abstractmethod
    def nested(self, sequence: Tensor, sizes: Sequence[int], points: Tensor) -> list[Tensor]:
        """Return log-densities (B, M) of points (B, M, D) for each context size, ascending.

        Contexts are that many leading points of the sequence (B, N, D). Results are float64, and
        NaN where the predictor is not defined.
        """

    def log_prob(self, context: Tensor, points: Tensor) -> Tensor:
        """Return the log-density of points (B, M, D) given contexts (B, n, D): (B, M)."""
        return self.nested(context, (context.shape[1],), points)[0]


def as_sequences(
    sequence: Tensor, sizes: Sequence[int], points: Tensor, dim: int | None = None
) -> tuple[Tensor, Tensor]:
    """Check that the shapes match, and return sequence and points in float64."""
    if sequence.ndim != 3 or points.ndim != 3 or sequence.shape[::2] != points.shape[::2]:
        raise ShapeError(
            f"Contexts must be (B, n, D) and points (B, M, D), with the same B and D; they are "
            f"{tuple(sequence.shape)} and {tuple(points.shape)}."
        )
    if dim is not None and points.shape[-1] != dim:
        raise ShapeError(f"The prior has {dim} coordinates, the points {points.shape[-1]}.")
    if list(sizes) != sorted(sizes) or (sizes and not 0 <= sizes[0] <= sizes[-1]):
        raise InvalidInputError(f"sizes must be ascending and not negative, not {list(sizes)}.")
    if sizes and sizes[-1] > sequence.shape[1]:
        raise InvalidInputError(
            f"sizes asks for a context of {sizes[-1]} points, but the sequences have "
            f"{sequence.shape[1]}."
        )
    return sequence.double(), points.double()


@dataclass(frozen=True)
class Prediction:
    """A Bayes predictive, and its Monte Carlo error.

    `error` is that of each context's mean negative log-likelihood: half the difference between two
    independent runs, zero where the sum over assignments is complete. `log_evidence` is the log
    marginal likelihood of the context.
    """

    log_prob: Tensor  # (B, M)
    error: Tensor  # (B,)
    log_evidence: Tensor  # (B,)


@final
class BayesPredictive(Reference):
    r"""The predictive density :math:`p(x \mid x_{1:n})` under a prior of Gaussian mixtures.

    The means are integrated out exactly and the widths by quadrature, which leaves a sum over
    the ways to assign n points to K components of equal weight:

    .. math:: p(x \mid x_{1:n}) = \sum_z p(z \mid x_{1:n})\,
        \frac1K \sum_k p(x \mid \{x_i : z_i = k\})

    While there are no more distinct partitions than `particles`, the sum is complete. After that,
    particles are a weighted sample, resampled and moved by Gibbs sweeps when their weights become
    uneven (resample-move, Chopin 2002), and visit modes in proportion to their evidence.

    Parameters
    ----------
    prior : GaussianMixtures
    particles, sweeps, nodes : int
        Particles in each of two independent runs, which are pooled by their evidence, Gibbs sweeps
        after each resampling, and quadrature nodes for the standard deviation.
    seed : int

    Examples
    --------
    >>> bayes = BayesPredictive(GaussianMixtures.paper())
    >>> context = torch.tensor([[[4.0, 4.0], [4.5, 4.0], [-3.0, 0.0]]])
    >>> points = torch.tensor([[[4.0, 4.5], [0.0, 4.5]]])
    >>> bayes.log_prob(context, points)
    tensor([[-2..., -6...]], dtype=torch.float64)
    """

    name = "bayes"

    def __init__(
        self,
        prior: GaussianMixtures,
        *,
        particles: int = 256,
        sweeps: int = 2,
        nodes: int = 24,
        seed: int = 0,
    ) -> None:
        if not isinstance(prior, GaussianMixtures):
            raise InvalidInputError(
                f"bayes is known for GaussianMixtures only, not for {type(prior).__name__}."
            )
        self.prior = prior
        self.particles = as_count(particles, "particles", at_least=2)
        self.sweeps = as_count(sweeps, "sweeps", at_least=0)
        self.seed = as_seed(seed)
        self.law = ClusterLaw(prior, as_count(nodes, "nodes"))

    def nested(self, sequence: Tensor, sizes: Sequence[int], points: Tensor) -> list[Tensor]:
        """Return log-densities of the same points given growing parts of a sequence."""
        return [each.log_prob for each in self.predictions(sequence, sizes, points)]

    def predictions(
        self, sequence: Tensor, sizes: Sequence[int], points: Tensor
    ) -> list[Prediction]:
        """Return the predictions of :meth:`nested` with Monte Carlo errors and evidence."""
        sequence, points = as_sequences(sequence, sizes, points, self.prior.dim)
        generator, parts = torch.Generator().manual_seed(self.seed), []
        for block, some in zip(
            sequence.split(TASKS_AT_ONCE), points.split(TASKS_AT_ONCE), strict=True
        ):
            # Rows 0 to B-1 are the first run, B to 2B-1 the second.
            state = Particles(self.law, torch.cat([block, block]), self.particles)
            found: list[tuple[Tensor, ...]] = []
            for size in range(max(sizes, default=0) + 1):
                if size > 0:
                    state.observe(size - 1, self.sweeps, generator)
                found += [self._predict(state, some, generator) for each in sizes if each == size]
            parts.append(found)
        return [
            Prediction(*map(torch.cat, zip(*tasks, strict=True)))
            for tasks in zip(*parts, strict=True)
        ]

    def _predict(
        self, state: Particles, points: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, ...]:
        tasks = len(points)
        log_density = self._log_mixtures(state, torch.cat([points, points]), generator)
        log_evidence = torch.logsumexp(state.log_weights, dim=-1)  # (2 B,)
        pair = (log_density + log_evidence[:, None]).view(2, tasks, -1)
        pooled_evidence = torch.logsumexp(log_evidence.view(2, tasks), dim=0)
        log_prob = torch.logsumexp(pair, dim=0) - pooled_evidence[:, None]
        means = log_density.view(2, tasks, -1).mean(-1)
        error = (means[0] - means[1]).abs() / 2
        return log_prob, error, pooled_evidence - math.log(2)

    def _log_mixtures(self, state: Particles, points: Tensor, generator: torch.Generator) -> Tensor:
        """Return the log of the weighted mean density. points: (R, M, D) -> (R, M)."""
        log_weights = state.log_weights.log_softmax(-1)[..., None, None]  # (R, P, 1, 1)
        if state.complete:
            log_nodes = state.log_nodes.log_softmax(-1)  # (R, P, K, J)
            stds = self.law.stds.expand(log_nodes.shape)
        else:
            stds = state.draw_stds(generator)[..., None]
            log_nodes = torch.zeros_like(stds)
        log_weights = log_weights + log_nodes - math.log(self.prior.components)
        log_weights = log_weights.expand(stds.shape).flatten(1)
        clusters = state.clusters[:, :, :, None]
        base, parts = self.law.log_likelihood(clusters, stds), []  # (R, P, K, J or 1)
        for x in _statistics(points).split(max(1, NUMBERS_AT_ONCE // stds.numel()), dim=1):
            joint = clusters[..., None, :] + x[:, None, None, None]  # (R, P, K, 1, M, D + 2)
            joint = self.law.log_likelihood(joint, stds[..., None])  # (R, P, K, J or 1, M)
            log_density = (joint - base[..., None]).flatten(1, 3)
            parts.append(torch.logsumexp(log_density + log_weights[..., None], dim=1))
        return torch.cat(parts, dim=1) if parts else points[..., 0]


def _statistics(x: Tensor) -> Tensor:
    """Return 1, x and its squared norm, which decide a likelihood. (..., D) -> (..., D + 2)."""
    return torch.cat([torch.ones_like(x[..., :1]), x, x.square().sum(-1, keepdim=True)], dim=-1)


class ClusterLaw:
    """Marginal distribution of the points of one component of unknown mean and width.

    The integral over the mean is analytic; that over the width is Gauss-Legendre quadrature with
    nodes `stds` (J,) and their `log_weights` (J,). Clusters (..., D + 2) are sums of statistics.
    """

    def __init__(self, prior: GaussianMixtures, nodes: int) -> None:
        self.prior = prior
        if prior.std_low == prior.std_high:
            nodes = 1
        unit, weights = np.polynomial.legendre.leggauss(nodes)
        middle, half = (prior.std_low + prior.std_high) / 2, (prior.std_high - prior.std_low) / 2
        self.stds = torch.from_numpy(middle + half * unit)
        self.log_weights = torch.from_numpy(np.log(weights / 2))

    def log_likelihood(self, clusters: Tensor, stds: Tensor) -> Tensor:
        r"""Return log :math:`\int p(\mu) \prod_i N(x_i; \mu, s^2 I)\, d\mu`, for stds (...)."""
        # An empty cluster gets the count 1 in denominators, and the result 0.
        counts, sums = clusters[..., 0], clusters[..., 1:-1]
        safe = counts.clamp(min=1)
        mean = sums / safe[..., None]
        scatter = clusters[..., -1] - sums.square().sum(-1) / safe
        variance = stds.square()
        log_noise = -scatter / (2 * variance) - self.prior.dim / 2 * (
            safe * (2 * math.pi * variance).log() - (2 * math.pi * variance / safe).log()
        )
        error = (variance / safe).sqrt()
        # A loop over few coordinates is several times faster than a sum over a short axis.
        log_mean = sum(self._log_mean(each, error) for each in mean.unbind(-1))
        return torch.where(counts > 0, log_noise + log_mean, 0.0)

    def over_nodes(self, clusters: Tensor) -> Tensor:
        """Return the log-likelihood plus the log-weight of each node: (..., J)."""
        return self.log_likelihood(clusters[..., None, :], self.stds) + self.log_weights

    def _log_mean(self, mean: Tensor, error: Tensor) -> Tensor:
        """Return the log-density of one coordinate of a mean observed with an `error`."""
        scale = self.prior.mean_scale
        if self.prior.mean_law == "normal":
            variance = scale**2 + error.square()
            return -mean.square() / (2 * variance) - (2 * math.pi * variance).log() / 2
        # Mirrored to the positive side, where both bounds lie in the accurate tail of erfc.
        upper, lower = (scale - mean.abs()) / error, (-scale - mean.abs()) / error
        return _log_mass(lower, upper) - math.log(2 * scale)

    def draw_means(self, clusters: Tensor, stds: Tensor, generator: torch.Generator) -> Tensor:
        """Draw each cluster's mean given its points and its width (...): (..., D)."""
        scale, counts = self.prior.mean_scale, clusters[..., :1]
        safe, empty = counts.clamp(min=1), counts == 0
        mean, error = clusters[..., 1:-1] / safe, stds[..., None] / safe.sqrt()
        if self.prior.mean_law == "normal":
            precision = torch.where(empty, 0.0, error**-2)
            variance = 1 / (scale**-2 + precision)
            noise = torch.randn(mean.shape, generator=generator, dtype=mean.dtype)
            return variance * precision * mean + variance.sqrt() * noise
        unit = torch.rand(mean.shape, generator=generator, dtype=mean.dtype)
        side = torch.where(mean < 0, -1.0, 1.0)
        upper, lower = (scale - mean.abs()) / error, (-scale - mean.abs()) / error
        low, high = torch.special.ndtr(lower), torch.special.ndtr(upper)
        # Beyond 37 standard deviations only the nearer bound survives rounding.
        normal = torch.special.ndtri(low + unit * (high - low)).clamp(lower, upper)
        return torch.where(empty, (2 * unit - 1) * scale, side * (mean.abs() + error * normal))


def _log_mass(lower: Tensor, upper: Tensor) -> Tensor:
    """Return the log of the standard normal mass between two bounds, the lower negative."""
    mass = (torch.erfc(-upper / math.sqrt(2)) - torch.erfc(-lower / math.sqrt(2))) / 2
    if mass.numel() == 0 or float(mass.min()) > 0:
        return mass.log()
    log_upper = torch.special.log_ndtr(upper)
    return log_upper + torch.log1p(-(torch.special.log_ndtr(lower) - log_upper).exp())


class Particles:
    """Assignments of the first n points of R sequences to K components: P weighted particles.

    While `complete`, there is one particle for each distinct partition; later, a fixed number.
    `labels` are (R, P, n), `clusters` (R, P, K, D + 2); `log_nodes` (R, P, K, J), log-likelihoods
    of clusters and widths plus the widths' log-weights. `log_weights` (R, P) add to the evidence.
    """

    def __init__(self, law: ClusterLaw, sequence: Tensor, limit: int) -> None:
        # One particle without assignments for each row of sequence (R, N, D).
        self.law, self.sequence, self.limit, self.complete = law, sequence, limit, True
        rows, _, dim = sequence.shape
        self.clusters = sequence.new_zeros(rows, 1, law.prior.components, dim + 2)
        self.labels = torch.zeros((rows, 1, 0), dtype=torch.long)
        self.log_weights = sequence.new_zeros(rows, 1)
        self.log_nodes = law.over_nodes(self.clusters)

    def observe(self, index: int, sweeps: int, generator: torch.Generator) -> None:
        """Assign the point at `index`, the first without a label."""
        if self.complete and int(self._ways()[0].count_nonzero()) > self.limit:
            self.complete = False
            self._resample(torch.ones(len(self.sequence), dtype=torch.bool), generator)
        x = _statistics(self.sequence[:, index, None, None])  # (R, 1, 1, D + 2)
        log_nodes = self.law.over_nodes(self.clusters + x)
        log_ratio = torch.logsumexp(log_nodes, -1) - torch.logsumexp(self.log_nodes, -1)
        ways = self._ways()
        # (R, P, K)
        log_choice = log_ratio + ways.double().log() - math.log(self.law.prior.components)
        if self.complete:
            # All rows have all partitions, so they have the same choices.
            parent, choice = ways[0].nonzero(as_tuple=True)
            self._copy(parent.expand(len(x), -1))
            self.log_weights = self.log_weights + log_choice[:, parent, choice]
            self._assign(choice.expand(len(x), -1), x, log_nodes[:, parent])
            return
        self.log_weights = self.log_weights + torch.logsumexp(log_choice, dim=-1)
        self._assign(_categorical(log_choice, generator), x, log_nodes)
        effective = self.log_weights.softmax(-1).square().sum(-1).reciprocal()
        uneven = effective < self.limit / 2
        if bool(uneven.any()):
            self._resample(uneven, generator)
            for _ in range(sweeps):
                self._sweep(uneven.nonzero()[:, 0], generator)

    def draw_stds(self, generator: torch.Generator) -> Tensor:
        """Draw the width of every cluster given its points. (R, P, K)."""
        return self.law.stds[_categorical(self.log_nodes, generator)]

    def _ways(self) -> Tensor:
        """Return the number of components that each choice stands for: (R, P, K)."""
        # Empty components are interchangeable: the first stands for all of them.
        empty = self.clusters[..., 0] == 0
        first = empty & (empty.cumsum(-1) == 1)
        return torch.where(first, empty.sum(-1, keepdim=True), (~empty).long())

    def _assign(self, choice: Tensor, x: Tensor, log_nodes: Tensor) -> None:
        """Add the statistics x of a point to the cluster `choice` (R, P) of each particle."""
        chosen = F.one_hot(choice, self.law.prior.components).bool()[..., None]  # (R, P, K, 1)
        self.clusters = torch.where(chosen, self.clusters + x, self.clusters)
        self.log_nodes = torch.where(chosen, log_nodes, self.log_nodes)
        self.labels = torch.cat([self.labels, choice[..., None]], dim=-1)

    def _copy(self, parent: Tensor) -> None:
        """Replace particle p of row r by a copy of particle parent[r, p]. (R, P)."""
        row = torch.arange(len(parent))[:, None]
        self.labels, self.log_nodes = self.labels[row, parent], self.log_nodes[row, parent]
        self.log_weights, self.clusters = self.log_weights[row, parent], self.clusters[row, parent]

    def _resample(self, uneven: Tensor, generator: torch.Generator) -> None:
        """Resample the marked rows systematically. (R,) bool."""
        weights = self.log_weights.softmax(-1)
        offset = torch.rand((len(weights), 1), generator=generator, dtype=weights.dtype)
        ladder = (torch.arange(self.limit) + offset) / self.limit
        parent = torch.searchsorted(weights.cumsum(-1), ladder).clamp(max=weights.shape[-1] - 1)
        parent = torch.where(uneven[:, None], parent, torch.arange(self.limit))
        level = torch.logsumexp(self.log_weights, -1, keepdim=True) - math.log(self.limit)
        self._copy(parent)
        self.log_weights = torch.where(uneven[:, None], level, self.log_weights)

    def _sweep(self, rows: Tensor, generator: torch.Generator) -> None:
        """Do a Gibbs sweep in some rows: draw widths, then means, then labels."""
        stds = self.law.stds[_categorical(self.log_nodes[rows], generator)]  # (r, P, K)
        means = self.law.draw_means(self.clusters[rows], stds, generator)  # (r, P, K, D)
        seen = self.sequence[rows, : self.labels.shape[-1]]  # (r, n, D)
        squares = sum(
            (seen[:, None, :, None, d] - means[:, :, None, :, d]).square()
            for d in range(seen.shape[-1])
        )  # (r, P, n, K)
        precision = stds.square().reciprocal()[:, :, None]
        log_choice = self.law.prior.dim / 2 * precision.log() - squares * precision / 2
        labels = _categorical(log_choice, generator)
        chosen = F.one_hot(labels, stds.shape[-1]).to(seen.dtype)  # (r, P, n, K)
        self.labels[rows] = labels
        self.clusters[rows] = torch.einsum("rpnk,rnf->rpkf", chosen, _statistics(seen))
        self.log_nodes[rows] = self.law.over_nodes(self.clusters[rows])


def _categorical(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Draw one index from each softmax over the last axis. (..., K) -> (...)."""
    levels = logits.softmax(-1).cumsum(-1)
    unit = torch.rand(logits.shape[:-1], generator=generator, dtype=logits.dtype)
    return (levels < unit[..., None]).sum(-1).clamp(max=logits.shape[-1] - 1)
