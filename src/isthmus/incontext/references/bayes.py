"""The Bayes predictive of random Gaussian mixtures: the best possible model on average."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from isthmus.errors import InvalidInputError
from isthmus.incontext.priors import GaussianMixtures
from isthmus.incontext.references.base import Reference, as_sequences
from isthmus.incontext.references.clusters import ClusterLaw, SufficientStatistics
from isthmus.incontext.references.particles import Particles
from isthmus.validation import as_count

__all__ = ["BayesPredictive", "Prediction"]

# Tasks per block, so that their arrays stay in the cache.
TASKS_AT_ONCE = 8
NUMBERS_AT_ONCE = 2**20
NAMES = ("log_prob", "error", "log_evidence")


@dataclass(frozen=True)
class Prediction:
    """A Bayes predictive, and its Monte Carlo error.

    Attributes
    ----------
    log_prob : Tensor (B, M)
    error : Tensor (B,)
        Monte Carlo error of each context's mean negative log-likelihood: half the difference
        between two runs that share no random number. Zero where the sum over assignments is
        complete.
    log_evidence : Tensor (B,)
        Log marginal likelihood of the context.
    """

    log_prob: Tensor
    error: Tensor
    log_evidence: Tensor


@final
class BayesPredictive(Reference):
    r"""The predictive density :math:`p(x \mid x_{1:n})` under a prior of Gaussian mixtures.

    The means are integrated out exactly and the widths by quadrature, which leaves a sum over
    the ways to assign n points to K components of equal weight:

    .. math:: p(x \mid x_{1:n}) = \sum_z p(z \mid x_{1:n})\,
        \frac1K \sum_k p(x \mid \{x_i : z_i = k\})

    While there are no more distinct partitions than `particles`, the sum is complete. After that,
    the particles are a weighted sample: each draws the component of every new point and is
    weighted by its predictive density of that point; when the weights become uneven, the
    particles of that task are resampled and moved by Gibbs sweeps (resample-move, Chopin 2002).
    Unlike chains from a few starts, particles visit separate modes of the posterior in proportion
    to their evidence.

    Parameters
    ----------
    prior : GaussianMixtures
    particles : int
        Particles in each of two independent runs, which are pooled by their evidence.
    sweeps : int
        Gibbs sweeps after each resampling.
    nodes : int
        Quadrature nodes for the standard deviation.
    seed : int

    Examples
    --------
    >>> import torch
    >>> from isthmus.incontext.priors import GaussianMixtures
    >>> from isthmus.incontext.references import BayesPredictive
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
                "The Bayes predictive is known for GaussianMixtures only, not for "
                f"{type(prior).__name__}."
            )
        self.prior = prior
        self.particles = as_count(particles, "particles", at_least=2)
        self.sweeps = as_count(sweeps, "sweeps", at_least=0)
        self.seed = as_count(seed, "seed", at_least=0)
        self.law = ClusterLaw(prior, as_count(nodes, "nodes"))

    def nested(self, sequence: Tensor, sizes: Sequence[int], points: Tensor) -> list[Tensor]:
        """Return log-densities of the same points given growing parts of a sequence."""
        return [each.log_prob for each in self.predictions(sequence, sizes, points)]

    def predictions(
        self, sequence: Tensor, sizes: Sequence[int], points: Tensor
    ) -> list[Prediction]:
        """Return the predictions of :meth:`nested` with Monte Carlo errors and evidence."""
        sequence, points = as_sequences(sequence, sizes, points, self.prior.dim)
        generator = torch.Generator().manual_seed(self.seed)
        parts = [
            self._few(block, sizes, some, generator)
            for block, some in zip(
                sequence.split(TASKS_AT_ONCE), points.split(TASKS_AT_ONCE), strict=True
            )
        ]
        return [
            Prediction(*(torch.cat([getattr(part[i], name) for part in parts]) for name in NAMES))
            for i in range(len(sizes))
        ]

    def _few(
        self, sequence: Tensor, sizes: Sequence[int], points: Tensor, generator: torch.Generator
    ) -> list[Prediction]:
        """Predict for a few tasks. Rows 0 to B-1 are the first run, B to 2B-1 the second."""
        found = []
        state = Particles.empty(self.law, torch.cat([sequence, sequence]), self.particles)
        for size in range(max(sizes, default=0) + 1):
            if size > 0:
                state.observe(size - 1, self.sweeps, generator)
            found += [self._predict(state, points, generator) for wanted in sizes if wanted == size]
        return found

    def _predict(self, state: Particles, points: Tensor, generator: torch.Generator) -> Prediction:
        tasks = len(points)
        log_density = self._log_mixtures(state, torch.cat([points, points]), generator)
        log_evidence = torch.logsumexp(state.log_weights, dim=-1)  # (2 B,)
        pair = (log_density + log_evidence[:, None]).view(2, tasks, -1)
        pooled_evidence = torch.logsumexp(log_evidence.view(2, tasks), dim=0)
        log_prob = torch.logsumexp(pair, dim=0) - pooled_evidence[:, None]
        means = log_density.view(2, tasks, -1).mean(-1)
        error = (means[0] - means[1]).abs() / 2
        return Prediction(log_prob, error, pooled_evidence - math.log(2))

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
        cluster = SufficientStatistics(*(part.unsqueeze(3) for part in state.clusters))
        base = self.law.log_likelihood(cluster, stds)  # (R, P, K, J or 1)
        cluster, parts = cluster.unsqueeze(), []
        for x in points.split(max(1, NUMBERS_AT_ONCE // stds.numel()), dim=1):
            joint = self.law.log_likelihood(
                cluster.plus(x[:, None, None, None]), stds[..., None]
            )  # (R, P, K, J or 1, M)
            log_density = (joint - base[..., None]).flatten(1, 3)
            parts.append(torch.logsumexp(log_density + log_weights[..., None], dim=1))
        return torch.cat(parts, dim=1) if parts else points[..., 0]
