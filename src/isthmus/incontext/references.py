"""Reference predictors, from the Bayes predictive of random Gaussian mixtures to common estimators.

Each returns log-densities (B, M) of points (B, M, D) given contexts (B, n, D).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from isthmus.errors import InvalidInputError, ShapeError
from isthmus.incontext.priors import GaussianMixtures
from isthmus.validation import as_choice, as_count, as_number, as_seed

# Tasks per block, and numbers at once, so that their arrays stay in the cache.
TASKS_AT_ONCE, NUMBERS_AT_ONCE = 8, 2**20
# Bandwidths tried for the best one: bounds, as shares of the spread of the points, and number.
SHARES = (0.01, 3.0, 25)


class Reference:
    """A predictor of the next point from the points before it."""

    name: str
    """Its name in tables."""

    def nested(self, sequence: Tensor, sizes: Sequence[int], points: Tensor) -> list[Tensor]:
        """Return log-densities (B, M) of points (B, M, D) for each context size, ascending.

        Contexts are that many leading points of the sequence (B, N, D). Results are float64, and
        NaN where the predictor is not defined.
        """
        sequence, points = self._checked(sequence, sizes, points)
        return [self._given(sequence[:, :size], points) for size in sizes]

    def log_prob(self, context: Tensor, points: Tensor) -> Tensor:
        """Return the log-density of points (B, M, D) given contexts (B, n, D): (B, M)."""
        return self.nested(context, (context.shape[1],), points)[0]

    def _given(self, context: Tensor, points: Tensor) -> Tensor:
        """Return log-densities of points given contexts, both in float64."""
        raise NotImplementedError

    @staticmethod
    def _checked(sequence: Tensor, sizes: Sequence[int], points: Tensor) -> tuple[Tensor, Tensor]:
        if sequence.ndim != 3 or points.ndim != 3 or sequence.shape[::2] != points.shape[::2]:
            raise ShapeError(
                f"Contexts must be (B, n, D) and points (B, M, D), with the same B and D; they are "
                f"{tuple(sequence.shape)} and {tuple(points.shape)}."
            )
        length = sequence.shape[1]
        if list(sizes) != sorted(sizes) or not all(0 <= size <= length for size in sizes):
            raise InvalidInputError(f"sizes must ascend from 0 to {length}, not {list(sizes)}.")
        return sequence.double(), points.double()


@final
class KernelDensity(Reference):
    r"""The mean of Gaussians around the points of the context; NaN if there are none.

    Parameters
    ----------
    bandwidth : float, "best" or "silverman"
        "best" is the one bandwidth with the lowest mean negative log-likelihood *on the points
        asked for*, over all tasks of the batch, which no estimate could know. "silverman" is
        Silverman's rule for each coordinate of each context, which needs two points.

    >>> context = torch.tensor([[[0.0], [2.0]]])
    >>> KernelDensity(1.0).log_prob(context, torch.tensor([[[1.0]]]))
    tensor([[-1.4189]], dtype=torch.float64)
    """

    def __init__(self, bandwidth: float | Literal["best", "silverman"]) -> None:
        if isinstance(bandwidth, str):
            as_choice(bandwidth, "bandwidth, unless it is a number,", ("best", "silverman"))
        else:
            as_number(bandwidth, "bandwidth", above=0)
        self.bandwidth = bandwidth
        self.name = f"kde-{bandwidth}" if isinstance(bandwidth, str) else f"kde-{bandwidth:g}"

    def _given(self, context: Tensor, points: Tensor) -> Tensor:
        size, dim = context.shape[1:]
        if size < (2 if self.bandwidth == "silverman" else 1):
            return torch.full_like(points[..., 0], torch.nan)
        direct = "donot_use_mm_for_euclid_dist"

        def density(widths: Any) -> Tensor:
            """Return log-densities by kernels of a width, or of one for each coordinate."""
            widths = torch.as_tensor(widths, dtype=context.dtype).expand(len(context), 1, dim)
            distances = torch.cdist(points / widths, context / widths, compute_mode=direct)
            constant = dim / 2 * math.log(2 * math.pi) + math.log(size) + widths.log().sum(-1)
            return torch.logsumexp(-0.5 * distances.square(), dim=-1) - constant

        if self.bandwidth == "silverman":
            rule = (4 / ((dim + 2) * size)) ** (1 / (dim + 4))
            return density(rule * context.std(1, keepdim=True))
        if self.bandwidth != "best":
            return density(self.bandwidth)
        from scipy.optimize import brute

        spread = float(torch.cdist(points, context).square().mean().sqrt())
        low, high, count = SHARES
        best = brute(
            lambda log_share: -float(density(spread * math.exp(log_share.item())).mean()),
            ((math.log(low), math.log(high)),),
            Ns=int(count),
        )
        return density(spread * math.exp(best.item()))


@final
class FittedMixture(Reference):
    """scikit-learn's spherical mixture, fitted to each context; NaN if n < K.

    Parameters
    ----------
    components : int
        K
    regularizer : float
        Added to the variances (``reg_covar``).
    starts, seed : int
        Number of starts, of which the most likely fit is kept, and their seed.
    """

    def __init__(
        self, components: int, *, regularizer: float = 1e-3, starts: int = 3, seed: int = 0
    ) -> None:
        self.components = as_count(components, "components")
        self.starts, self.seed = as_count(starts, "starts"), as_seed(seed)
        self.regularizer = as_number(regularizer, "regularizer", above=0)
        self.name = f"em-{regularizer:g}"

    def _given(self, context: Tensor, points: Tensor) -> Tensor:
        pairs = zip(context.numpy(force=True), points.numpy(force=True), strict=True)
        return torch.from_numpy(np.stack([self._fit(*each) for each in pairs]))

    def _fit(self, context: np.ndarray, points: np.ndarray) -> np.ndarray:
        """Return the log-density of points (M, D) under the mixture fitted to (n, D)."""
        # Imported here: it takes a second, and few runs need it.
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.mixture import GaussianMixture

        if len(context) < max(self.components, 2):
            return np.full(len(points), np.nan)
        options = {"reg_covar": self.regularizer, "n_init": self.starts, "random_state": self.seed}
        fit = GaussianMixture(self.components, covariance_type="spherical", **options)
        with warnings.catch_warnings():
            # Few points, or equal ones, make some fits stop early; they count as they are.
            warnings.simplefilter("ignore", ConvergenceWarning)
            return fit.fit(context).score_samples(points)


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
        self.prior, self.seed = prior, as_seed(seed)
        self.particles = as_count(particles, "particles", at_least=2)
        self.sweeps = as_count(sweeps, "sweeps", at_least=0)
        self.law = ClusterLaw(prior, as_count(nodes, "nodes"))

    def nested(self, sequence: Tensor, sizes: Sequence[int], points: Tensor) -> list[Tensor]:
        """Return log-densities of the same points given growing parts of a sequence."""
        return [each.log_prob for each in self.predictions(sequence, sizes, points)]

    def predictions(
        self, sequence: Tensor, sizes: Sequence[int], points: Tensor
    ) -> list[Prediction]:
        """Return the predictions of :meth:`nested` with Monte Carlo errors and evidence."""
        sequence, points = self._checked(sequence, sizes, points)
        if points.shape[-1] != self.prior.dim:
            raise ShapeError(f"The prior has {self.prior.dim} coordinates, not {points.shape[-1]}.")
        generator, parts = torch.Generator().manual_seed(self.seed), []
        for block, some in zip(
            sequence.split(TASKS_AT_ONCE), points.split(TASKS_AT_ONCE), strict=True
        ):
            # Rows 0 to B-1 are the first run, B to 2B-1 the second.
            state = Particles(self.law, torch.cat([block, block]), self.particles, generator)
            found: list[tuple[Tensor, ...]] = []
            for size in range(max(sizes, default=0) + 1):
                if size > 0:
                    state.observe(size - 1, self.sweeps)
                if size not in sizes:
                    continue
                # Of both runs, which are pooled by their evidence.
                log_density = state.log_mixtures(torch.cat([some, some])).unflatten(0, (2, -1))
                log_evidence = state.log_weights.logsumexp(-1).unflatten(0, (2, -1))  # (2, B)
                pooled = log_evidence.logsumexp(0)
                log_prob = (log_density + log_evidence[..., None]).logsumexp(0) - pooled[:, None]
                error = (log_density[0].mean(-1) - log_density[1].mean(-1)).abs() / 2
                found += [(log_prob, error, pooled - math.log(2))] * list(sizes).count(size)
            parts.append(found)
        return [
            Prediction(*map(torch.cat, zip(*tasks, strict=True)))
            for tasks in zip(*parts, strict=True)
        ]


def _statistics(x: Tensor) -> Tensor:
    """Return 1, x and its squared norm, which decide a likelihood. (..., D) -> (..., D + 2)."""
    return torch.cat([torch.ones_like(x[..., :1]), x, x.square().sum(-1, keepdim=True)], dim=-1)


class ClusterLaw:
    """Marginal distribution of a component, by quadrature over widths and exactly over means."""

    def __init__(self, prior: GaussianMixtures, nodes: int) -> None:
        self.prior = prior
        unit, weights = np.polynomial.legendre.leggauss(
            1 if prior.std_low == prior.std_high else nodes
        )
        middle, half = (prior.std_low + prior.std_high) / 2, (prior.std_high - prior.std_low) / 2
        self.stds = torch.from_numpy(middle + half * unit)  # nodes of the quadrature (J,)
        self.log_weights = torch.from_numpy(np.log(weights / 2))  # (J,)

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
        lower, upper = self._bounds(mean, error)
        mass = (torch.erfc(-upper / math.sqrt(2)) - torch.erfc(-lower / math.sqrt(2))) / 2
        if mass.numel() and float(mass.min()) == 0:
            log_upper = torch.special.log_ndtr(upper)
            log_mass = log_upper + torch.log1p(-(torch.special.log_ndtr(lower) - log_upper).exp())
        else:
            log_mass = mass.log()
        return log_mass - math.log(2 * scale)

    def _bounds(self, mean: Tensor, error: Tensor) -> tuple[Tensor, Tensor]:
        """Return the bounds of a uniform mean, in errors, mirrored to the accurate tail of erfc."""
        scale = self.prior.mean_scale
        return (-scale - mean.abs()) / error, (scale - mean.abs()) / error

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
        lower, upper = self._bounds(mean, error)
        low, high = torch.special.ndtr(lower), torch.special.ndtr(upper)
        # Beyond 37 standard deviations only the nearer bound survives rounding.
        normal = torch.special.ndtri(low + unit * (high - low)).clamp(lower, upper)
        side = torch.where(mean < 0, -1.0, 1.0)
        return torch.where(empty, (2 * unit - 1) * scale, side * (mean.abs() + error * normal))


class Particles:
    """Assignments of the first n points of R sequences to K components: P weighted particles."""

    def __init__(
        self, law: ClusterLaw, sequence: Tensor, limit: int, generator: torch.Generator
    ) -> None:
        # One particle without assignments for each row of sequence (R, N, D).
        self.law, self.sequence, self.limit, self.generator = law, sequence, limit, generator
        # True while there is one particle for each distinct partition; later, a fixed number.
        self.complete, (rows, _, dim) = True, sequence.shape
        # Sums of statistics (R, P, K, D + 2), log-likelihoods with each width (R, P, K, J), and
        # log-weights (R, P), which add to the evidence.
        self.clusters = sequence.new_zeros(rows, 1, law.prior.components, dim + 2)
        self.log_nodes = law.over_nodes(self.clusters)
        self.log_weights = sequence.new_zeros(rows, 1)

    def observe(self, index: int, sweeps: int) -> None:
        """Assign the point at `index`, the first that is not assigned."""
        if self.complete and int(self._ways()[0].count_nonzero()) > self.limit:
            self.complete = False
            self._resample(torch.ones(len(self.sequence), dtype=torch.bool))
        x = _statistics(self.sequence[:, index, None, None])  # (R, 1, 1, D + 2)
        log_nodes, ways = self.law.over_nodes(self.clusters + x), self._ways()
        log_ratio = log_nodes.logsumexp(-1) - self.log_nodes.logsumexp(-1)
        log_choice = log_ratio + ways.double().log() - math.log(ways.shape[-1])  # (R, P, K)
        if self.complete:
            # All rows have all partitions, so they have the same choices.
            parent, choice = ways[0].nonzero(as_tuple=True)
            self._copy(parent.expand(len(x), -1))
            self.log_weights = self.log_weights + log_choice[:, parent, choice]
            self._assign(choice.expand(len(x), -1), x, log_nodes[:, parent])
            return
        self.log_weights = self.log_weights + log_choice.logsumexp(-1)
        self._assign(self._draw(log_choice), x, log_nodes)
        effective = self.log_weights.softmax(-1).square().sum(-1).reciprocal()
        uneven = effective < self.limit / 2
        if bool(uneven.any()):
            self._resample(uneven)
            for _ in range(sweeps):
                self._sweep(uneven.nonzero()[:, 0], index + 1)

    def log_mixtures(self, points: Tensor) -> Tensor:
        """Return the log of the weighted mean density. points: (R, M, D) -> (R, M)."""
        log_weights = self.log_weights.log_softmax(-1)[..., None, None]  # (R, P, 1, 1)
        if self.complete:
            log_nodes = self.log_nodes.log_softmax(-1)  # (R, P, K, J)
            stds = self.law.stds.expand(log_nodes.shape)
        else:  # a width for each cluster, drawn given its points
            stds = self.law.stds[self._draw(self.log_nodes)][..., None]
            log_nodes = torch.zeros_like(stds)
        log_weights = log_weights + log_nodes - math.log(self.law.prior.components)
        log_weights = log_weights.expand(stds.shape).flatten(1)
        clusters = self.clusters[:, :, :, None]
        base, parts = self.law.log_likelihood(clusters, stds), []  # (R, P, K, J or 1)
        for x in _statistics(points).split(max(1, NUMBERS_AT_ONCE // stds.numel()), dim=1):
            joint = clusters[..., None, :] + x[:, None, None, None]  # (R, P, K, 1, M, D + 2)
            joint = self.law.log_likelihood(joint, stds[..., None])  # (R, P, K, J or 1, M)
            log_density = (joint - base[..., None]).flatten(1, 3)
            parts.append(torch.logsumexp(log_density + log_weights[..., None], dim=1))
        return torch.cat(parts, dim=1)

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

    def _copy(self, parent: Tensor) -> None:
        """Replace particle p of row r by a copy of particle parent[r, p]. (R, P)."""
        row = torch.arange(len(parent))[:, None]
        for name in ("clusters", "log_nodes", "log_weights"):
            setattr(self, name, getattr(self, name)[row, parent])

    def _resample(self, uneven: Tensor) -> None:
        """Resample the marked rows systematically. (R,) bool."""
        weights = self.log_weights.softmax(-1)
        offset = torch.rand((len(weights), 1), generator=self.generator, dtype=weights.dtype)
        ladder = (torch.arange(self.limit) + offset) / self.limit
        parent = torch.searchsorted(weights.cumsum(-1), ladder).clamp(max=weights.shape[-1] - 1)
        parent = torch.where(uneven[:, None], parent, torch.arange(self.limit))
        level = torch.logsumexp(self.log_weights, -1, keepdim=True) - math.log(self.limit)
        self._copy(parent)
        self.log_weights = torch.where(uneven[:, None], level, self.log_weights)

    def _sweep(self, rows: Tensor, size: int) -> None:
        """Do a Gibbs sweep in some rows: draw widths, then means, then assignments."""
        stds = self.law.stds[self._draw(self.log_nodes[rows])]  # (r, P, K)
        means = self.law.draw_means(self.clusters[rows], stds, self.generator)  # (r, P, K, D)
        seen = self.sequence[rows, :size]  # (r, n, D)
        away = (seen[:, None, :, None] - means[:, :, None]).square()  # (r, P, n, K, D)
        squares = sum(away.unbind(-1))
        precision = stds.square().reciprocal()[:, :, None]
        labels = self._draw(self.law.prior.dim / 2 * precision.log() - squares * precision / 2)
        chosen = F.one_hot(labels, stds.shape[-1]).to(seen.dtype)  # (r, P, n, K)
        self.clusters[rows] = torch.einsum("rpnk,rnf->rpkf", chosen, _statistics(seen))
        self.log_nodes[rows] = self.law.over_nodes(self.clusters[rows])

    def _draw(self, logits: Tensor) -> Tensor:
        """Draw one index from each softmax over the last axis. (..., K) -> (...)."""
        levels = logits.softmax(-1).cumsum(-1)
        unit = torch.rand(logits.shape[:-1], generator=self.generator, dtype=logits.dtype)
        return (levels < unit[..., None]).sum(-1).clamp(max=logits.shape[-1] - 1)


REFERENCES: dict[str, Callable[[Any], Reference]] = {
    "bayes": BayesPredictive,
    "kde-best": lambda prior: KernelDensity("best"),
    "kde-silverman": lambda prior: KernelDensity("silverman"),
    "em-0.001": lambda prior: FittedMixture(prior.components, regularizer=1e-3),
    "em-0.1": lambda prior: FittedMixture(prior.components, regularizer=0.1),
}
"""The references that :func:`reference` returns by name, each as a function of a prior."""


def reference(name: str, prior: Any) -> Reference:
    """Return the reference of that name in :data:`REFERENCES`, for tasks of a prior."""
    make = REFERENCES[as_choice(name, "reference", REFERENCES)]
    if name not in known_references(prior):
        raise InvalidInputError(
            f"The reference {name} is known for GaussianMixtures only, not for "
            f"{type(prior).__name__}. Leave it out, or pass a FittedMixture."
        )
    return make(prior)


def known_references(prior: Any) -> tuple[str, ...]:
    """Return the names of all references that exist for a prior."""
    if isinstance(prior, GaussianMixtures):
        return tuple(REFERENCES)
    return ("kde-best", "kde-silverman")
