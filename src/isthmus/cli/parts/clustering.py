"""Learned memories: where new ones open, how posteriors are reached, and a tour on a plane."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

import isthmus as ist
from isthmus.cli.parts.errata.clustering import (
    fixed_points,
    inflation,
    normaliser_of_the_new_cluster,
    pull_to_the_origin,
    sign_of_the_entropy,
)
from isthmus.cli.parts.verdicts import finding
from isthmus.cluster import ClAMCRP, elbo_energy, elbo_flow
from isthmus.figures import Finding, Section
from isthmus.figures.clustering import clustering_tour, elbo_dynamics, memory_creation
from isthmus.figures.schematic import four_models

__all__ = [
    "creation_of_memories",
    "dynamics_of_posteriors",
    "four_models_at_once",
    "tour_of_clustering",
]

MEANS = [[-1.6, 1.2], [1.7, 0.9], [0.2, -1.7]]
COUNTS = [30.0, 20.0, 10.0]
BETA, RHO = 2.5, 0.12
ALPHAS = (0.03, 30.0)
SCHEME_POINTS, SCHEME_ALPHA, SCHEME_REACH = 16, 3.0, 4.2
POSTERIOR_TOLERANCE = 1e-8
GROWTH = (1e-300, 1e-6, 1.0, 30.0)

LOG_JOINT = [-1.0, -2.0, -3.0, -4.0]
SIZES = (0.0, 5.0, 10.0, 20.0)
STEPS = 3000

CENTRES = [[-4.2, -0.2], [-0.6, 4.0], [0.8, -3.4], [4.0, -1.0]]
STRANGERS = [[-5.0, 4.6], [4.6, 4.4], [-4.4, -4.8], [2.4, -2.2]]
UNKNOWN_SHARE = 0.1
GOOD_INDEX = 0.8
LARGEST_RISE = 1e-12


def four_models_at_once(seed: int, full: bool = False) -> Section:
    """Draw the four models on the same memories and data, and check what each returns."""
    generator = torch.Generator().manual_seed(seed)
    data = 1.6 * torch.randn(SCHEME_POINTS, 2, generator=generator, dtype=torch.float64)
    means = torch.tensor(MEANS, dtype=torch.float64)
    finite = ist.Mixture(means, beta=BETA, log_weights=np.log(COUNTS))
    growing = ist.CRPMixture(means, COUNTS, beta=BETA, rho=RHO, alpha=SCHEME_ALPHA)
    off = max(posterior_gap(energy, data) for energy in (finite, growing))
    new = growing.responsibilities(data)
    opened = int((new.argmax(1) == len(MEANS)).sum())
    rest = ist.retrieve(finite, data).state
    nearest = torch.cdist(rest, means).argmin(1)
    agree = float((nearest == finite.responsibilities(data).argmax(1)).double().mean())
    numbers = {
        "data": len(data),
        "largest_difference_from_posterior": off,
        "data_that_open_a_memory": opened,
        "share_where_label_and_posterior_agree": agree,
    }
    caption = (
        f"Three memories and {len(data)} data. Above, a datum rolls down the energy; what it "
        "returns is the memory it comes to. Below, it stays, and its assignment flows to the "
        "posterior, a pie. Left, memories are given; right, a Chinese-restaurant process keeps "
        f"room for new ones, and {opened} of the data open one (hatched, green). The label "
        f"and the likeliest memory agree for {agree:.0%} of the data."
    )
    claim = finding(
        "ClAM+CRP+ELBO is a memory that creates memories and computes posteriors.",
        f"With and without room for new memories, assignments come to rest within {off:.0e} of "
        f"the posterior by Bayes' rule; {opened} of {len(data)} data open a memory.",
        as_printed=off <= POSTERIOR_TOLERANCE and opened > 0,
    )
    figure = four_models(
        MEANS, COUNTS, data, beta=BETA, rho=RHO, alpha=SCHEME_ALPHA, reach=SCHEME_REACH
    )
    return Section(caption, figure, numbers, (claim,))


def posterior_gap(energy: ist.Mixture | ist.CRPMixture, data: Tensor) -> float:
    """How far assignments come to rest from Bayes' rule, which is written out here."""
    squared = torch.cdist(data, energy.means).square()
    terms = torch.tensor(COUNTS, dtype=torch.float64).log() - BETA * squared
    if isinstance(energy, ist.CRPMixture):
        kappa = 1 / (1 / BETA + 1 / RHO)
        new = math.log(SCHEME_ALPHA * kappa / BETA) - kappa * data.square().sum(1, keepdim=True)
        terms = torch.cat([terms, new], 1)
    rule = torch.softmax(terms, 1)
    joint = energy.responsibilities(data).clamp(min=1e-300).log()
    flow = elbo_flow(joint, "mirror", tol=1e-9)
    return float((flow.probabilities - rule).abs().max())


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
        "memories_found_by_alpha": found,
        "new_cluster_as_printed_too_likely_by_D": {str(dim): inflation(dim) for dim in (2, 13, 54)},
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
    return Section(caption, figure, numbers, _creation(found, seed))


def _creation(found: dict[str, int], seed: int) -> tuple[Finding, ...]:
    """What the paper says of new memories."""
    generator = torch.Generator().manual_seed(seed)
    energy, origin = normaliser_of_the_new_cluster(), pull_to_the_origin(generator)
    counts = list(found.values())
    grows = counts == sorted(counts) and counts[-1] > counts[0]
    return (
        finding(
            "A larger alpha makes new memories more likely.",
            f"ClAMCRP kept {', '.join(map(str, counts))} memories as alpha went through "
            f"{', '.join(found)}.",
            as_printed=grows,
        ),
        finding(
            "ClAM+CRP's energy is the negative log-likelihood of a Chinese-restaurant mixture.",
            f"{energy.shown} (E8)",
            as_printed=not energy.confirmed,
            corrected=bool(energy.confirmed),
        ),
        finding(
            "A datum that flows to the origin needs a new memory.",
            f"{origin.shown} (E10)",
            as_printed=not origin.confirmed,
            corrected=bool(origin.confirmed),
        ),
    )


def dynamics_of_posteriors(seed: int, full: bool = False) -> Section:
    """Draw how the three dynamics of ClAM+ELBO approach the posterior. Nothing is random."""
    joint = torch.tensor(LOG_JOINT, dtype=torch.float64)
    start = joint.new_zeros(len(SIZES), len(joint))
    start[:, -1] = torch.tensor(SIZES, dtype=torch.float64)
    target = joint.expand_as(start)
    steps: dict[str, dict[str, int | None]] = {}
    for dynamics in ("exact", "mirror", "euclidean"):
        flow = elbo_flow(target, dynamics, start=start, max_steps=STEPS)
        steps[dynamics] = {
            f"{size:g}": int(taken) if reached else None
            for size, taken, reached in zip(SIZES, flow.steps, flow.converged, strict=True)
        }
    euclidean = steps["euclidean"]
    mirror = [taken for taken in steps["mirror"].values() if taken is not None]
    stalled = [size for size, taken in euclidean.items() if taken is None]
    rise = rise_of_the_printed_flow(joint, start)
    numbers: dict[str, Any] = {
        "steps_by_dynamics_and_logit": steps,
        "largest_energy_rise_of_the_printed_flow": rise,
    }
    caption = (
        "In ClAM+ELBO the state of a datum is a vector of assignment logits, and they flow to the "
        "posterior. All three dynamics have that one resting point. The exact step is there at "
        f"once, the mirror flow after {max(mirror)} steps at most (to 1e-6, of size "
        f"0.5). The paper's Euclidean flow needs {euclidean['0']} steps from zero, "
        f"{euclidean['5']} from a logit of 5 for the least probable memory, and has not arrived "
        f"after {STEPS} from {' and '.join(stalled)}: where one probability is nearly 1, hardly "
        "anything moves, and for a time that grows exponentially with the logit."
    )
    figure = elbo_dynamics(LOG_JOINT, SIZES, steps=STEPS)
    arrived = sum(taken is not None for taken in euclidean.values())
    sign, places = sign_of_the_entropy(torch.Generator().manual_seed(seed)), fixed_points()
    findings = (
        finding(
            "ClAM+ELBO computes cluster posteriors as the minimum of its energy.",
            f"{sign.shown} (E2)",
            as_printed=not sign.confirmed,
            corrected=bool(sign.confirmed),
        ),
        finding(
            "The dynamics of ClAM+ELBO never raise its energy, so they are sure to converge.",
            f"The energy rose by {rise:.0e} at most. But only "
            f"{arrived} of {len(SIZES)} starts arrived within {STEPS} steps; by the mirror flow "
            f"all of them, in {max(mirror)} at most (E4).",
            as_printed=arrived == len(SIZES),
            corrected=len(mirror) == len(SIZES) and rise <= LARGEST_RISE,
        ),
        finding(
            "ClAM+ELBO preserves ClAM's fixed points and their stability.",
            f"{places.shown} (E5)",
            as_printed=not places.confirmed,
        ),
    )
    return Section(caption, figure, numbers, findings)


def rise_of_the_printed_flow(joint: Tensor, start: Tensor) -> float:
    """The most that minus the ELBO rises in any of the first 300 steps from any start."""
    target, logits, worst = joint.expand_as(start), start, 0.0
    for _ in range(300):
        moved = elbo_flow(target, "euclidean", start=logits, tol=0.0, max_steps=1).logits
        rise = elbo_energy(moved, target) - elbo_energy(logits, target)
        worst, logits = max(worst, float(rise.max())), moved
    return worst


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
    numbers: dict[str, Any] = {
        "memories_found": model.n_clusters_,
        "adjusted_rand_index": float(adjusted_rand_score(labels, model.labels_)),
        "values_unknown": int(gaps.sum()),
        "rms_error_of_completion": error(model.complete(given)),
        "rms_error_of_conditional_mean": error(expected),
        "rms_error_of_filling_with_means": error(
            np.broadcast_to(np.nanmean(given, axis=0), points.shape)
        ),
        "novelty_by_stranger": [float(chance) for chance in model.novelty(strangers)],
        "mean_novelty_of_known_rows": float(model.novelty(given).mean()),
    }
    caption = (
        f"ClAMCRP, told nothing but the rows, found {model.n_clusters_} memories "
        f"(adjusted Rand index {numbers['adjusted_rand_index']:.2f} with the "
        f"{len(CENTRES)} clusters that were drawn), although {gaps.sum()} values were unknown. It "
        "fills a gap from one memory, also where the other coordinate fits two of them: the root "
        f"mean square error is {numbers['rms_error_of_completion']:.2f}, that of the posterior "
        f"mean {numbers['rms_error_of_conditional_mean']:.2f}, and that of the mean of the column "
        f"{numbers['rms_error_of_filling_with_means']:.2f}. Crosses on the right are data it never "
        "saw, with the probability that each belongs to no known memory; "
        f"the mean over its own rows is {numbers['mean_novelty_of_known_rows']:.3f}."
    )
    score = numbers["adjusted_rand_index"]
    claim = finding(
        "With Bayesian nonparametrics a memory learns how many clusters the data need.",
        f"{model.n_clusters_} memories for {len(CENTRES)} clusters that were drawn, adjusted Rand "
        f"index {score:.2f} ({GOOD_INDEX:g} would do).",
        as_printed=model.n_clusters_ == len(CENTRES) and score >= GOOD_INDEX,
    )
    return Section(caption, clustering_tour(model, given, strangers), numbers, (claim,))
