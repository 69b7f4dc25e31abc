"""Learned memories: where new ones open, how posteriors are reached, and a tour on a plane."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score

from isthmus.cluster import ClAMCRP, elbo_flow
from isthmus.figures import Section
from isthmus.figures.clustering import clustering_tour, elbo_dynamics, memory_creation
from isthmus.memories.crp import CRPMixture

__all__ = ["creation_of_memories", "dynamics_of_posteriors", "tour_of_clustering"]

MEANS = [[-1.6, 1.2], [1.7, 0.9], [0.2, -1.7]]
COUNTS = [30.0, 20.0, 10.0]
BETA, RHO = 2.5, 0.12
ALPHAS = (0.03, 30.0)
GROWTH = (1e-300, 1e-6, 1.0, 30.0)

LOG_JOINT = [-1.0, -2.0, -3.0, -4.0]
SIZES = (0.0, 5.0, 10.0, 20.0)
STEPS = 3000

CENTRES = [[-4.2, -0.2], [-0.6, 4.0], [0.8, -3.4], [4.0, -1.0]]
STRANGERS = [[-5.0, 4.6], [4.6, 4.4], [-4.4, -4.8], [2.4, -2.2]]
UNKNOWN_SHARE = 0.1


def creation_of_memories(seed: int, full: bool = False) -> Section:
    """Draw where data open memories, and count those opened as alpha grows."""
    figure = memory_creation(MEANS, COUNTS, beta=BETA, rho=RHO, alphas=ALPHAS, reach=4.2)
    points, _ = blobs(seed)
    found = {
        f"{alpha:g}": ClAMCRP(alpha=alpha, beta=0.6, min_cluster_size=0, random_state=seed)
        .fit(points)
        .n_clusters_
        for alpha in GROWTH
    }
    numbers = {
        "memories_found_for_alpha": found,
        "printed_energy_inflates_new_cluster_by": {str(dim): inflation(dim) for dim in (2, 13, 54)},
    }
    caption = (
        "Three memories as a finite mixture (left), and as Chinese-restaurant mixtures that keep "
        "a place for a memory nobody has opened yet. A datum opens it where its responsibility is "
        "the largest, hatched, which is decided by the posterior and not by flowing to the "
        f"origin. The larger alpha, the sooner: fitted to the {len(points)} points of the tour "
        "below, beta held, ClAMCRP kept "
        + ", ".join(f"{count} at alpha {alpha}" for alpha, count in found.items())
        + ". Without the normaliser that the paper's print leaves out, the new cluster's term "
        "would be too large by a factor of "
        f"{inflation(2):.0f} in 2 dimensions and of 10^{math.log10(inflation(54)):.0f} in 54."
    )
    return Section("Room for a new memory", caption, figure, numbers)


def inflation(dim: int, beta: float = 1.0, rho: float = 0.1) -> float:
    """By how much the printed energy favours a new cluster over the normalised one."""
    means = torch.zeros(1, dim, dtype=torch.float64)
    odds = []
    for normalized in (False, True):
        energy = CRPMixture(means, [1.0], beta=beta, rho=rho, normalized=normalized)
        known, new = energy.responsibilities(torch.zeros(1, dim, dtype=torch.float64))[0]
        odds.append(float(new.log() - known.log()))
    return math.exp(odds[0] - odds[1])


def dynamics_of_posteriors(seed: int, full: bool = False) -> Section:
    """Draw how the three dynamics of ClAM+ELBO approach the posterior. Nothing is random."""
    joint = torch.tensor(LOG_JOINT, dtype=torch.float64)
    start = joint.new_zeros(len(SIZES), len(joint))
    start[:, -1] = torch.tensor(SIZES, dtype=torch.float64)
    target = joint.expand_as(start)
    numbers: dict[str, Any] = {}
    for dynamics in ("exact", "mirror", "euclidean"):
        flow = elbo_flow(target, dynamics, start=start, max_steps=STEPS)
        numbers[f"steps_{dynamics}"] = {
            f"{size:g}": int(steps) if reached else None
            for size, steps, reached in zip(SIZES, flow.steps, flow.converged, strict=True)
        }
    mirror, euclidean = numbers["steps_mirror"], numbers["steps_euclidean"]
    stalled = [size for size, steps in euclidean.items() if steps is None]
    caption = (
        "In ClAM+ELBO the state of a datum is a vector of assignment logits, and they flow to the "
        "posterior. All three dynamics have that one resting point. The exact step is there at "
        f"once, the mirror flow after {max(mirror.values())} steps at most (to 1e-6, of size "
        f"0.5). The paper's Euclidean flow needs {euclidean['0']} steps from zero, "
        f"{euclidean['5']} from a logit of 5 for the least probable memory, and has not arrived "
        f"after {STEPS} from {' and '.join(stalled)}: where one probability is nearly 1, hardly "
        "anything moves, and for a time that grows exponentially with the logit."
    )
    figure = elbo_dynamics(LOG_JOINT, SIZES, steps=STEPS)
    return Section("Three ways to a posterior", caption, figure, numbers)


def blobs(seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Four round clusters on a plane, two of which overlap: (320, 2) and labels (320,)."""
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(CENTRES)), 80)
    return np.array(CENTRES)[labels] + generator.normal(scale=0.95, size=(320, 2)), labels


def tour_of_clustering(seed: int, full: bool = False) -> Section:
    """Fit points with gaps; show memories, posteriors and what would be new."""
    points, labels = blobs(seed)
    generator = np.random.default_rng([seed, 1])
    gaps = np.zeros(points.shape, dtype=bool)
    hidden = generator.permutation(len(points))[: round(UNKNOWN_SHARE * len(points))]
    gaps[hidden, generator.integers(2, size=len(hidden))] = True
    given = np.where(gaps, np.nan, points)
    model = ClAMCRP(random_state=seed).fit(given)
    expected = model.energy_.conditional_mean(given, ~gaps).numpy()

    def error(guess: NDArray[Any]) -> float:
        return float(np.sqrt(np.mean(np.square(guess - points)[gaps])))

    strangers = np.array(STRANGERS)
    numbers = {
        "memories_found": model.n_clusters_,
        "adjusted_rand_index": float(adjusted_rand_score(labels, model.labels_)),
        "values_unknown": int(gaps.sum()),
        "error_completed": error(model.complete(given)),
        "error_conditional_mean": error(expected),
        "error_mean_filling": error(np.broadcast_to(np.nanmean(given, axis=0), points.shape)),
        "novelty_of_strangers": [float(chance) for chance in model.novelty(strangers)],
        "mean_novelty_of_known_rows": float(model.novelty(given).mean()),
    }
    caption = (
        f"ClAMCRP, told nothing but the rows, found {model.n_clusters_} memories "
        f"(adjusted Rand index {numbers['adjusted_rand_index']:.2f} with the "
        f"{len(CENTRES)} clusters that were drawn), although {gaps.sum()} values were unknown. It "
        "fills a gap from one memory, also where the other coordinate fits two of them: the root "
        f"mean square error is {numbers['error_completed']:.2f}, that of the posterior mean "
        f"{numbers['error_conditional_mean']:.2f}, and that of the mean of the column "
        f"{numbers['error_mean_filling']:.2f}. Crosses on the right are data it never saw, with "
        "the probability that each belongs to no known memory; "
        f"the mean over its own rows is {numbers['mean_novelty_of_known_rows']:.3f}."
    )
    return Section(
        "A tour of clustering", caption, clustering_tour(model, given, strangers), numbers
    )
