"""Learned memories: when new ones are created, how posteriors are reached, and a tour."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

import isthmus as ist
from isthmus.cluster import ClAMCRP, elbo_energy, elbo_flow
from isthmus.figures.clustering import clustering_tour, elbo_dynamics, four_models, memory_creation
from isthmus.report.parts.errata.clustering import (
    LOG_JOINT,
    STEPS,
    fixed_points,
    inflation,
    normaliser_of_the_new_cluster,
    pull_to_the_origin,
    sign_of_the_entropy,
)
from isthmus.report.registry import compose
from isthmus.report.section import Section

MEANS = [[-1.6, 1.2], [1.7, 0.9], [0.2, -1.7]]
COUNTS = [30.0, 20.0, 10.0]
BETA, RHO, REACH = 2.5, 0.12, 4.2
ALPHAS = (0.03, 30.0)
SCHEME_POINTS, SCHEME_ALPHA = 16, 3.0
POSTERIOR_TOLERANCE = 1e-8
GROWTH = (1e-300, 1e-6, 1.0, 30.0)
SIZES = (0.0, 5.0, 10.0, 20.0)
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
    created = int((growing.responsibilities(data).argmax(1) == len(MEANS)).sum())
    nearest = torch.cdist(ist.retrieve(finite, data).state, means).argmin(1)
    agree = float((nearest == finite.responsibilities(data).argmax(1)).double().mean())
    numbers = {
        "data": len(data),
        "largest_difference_from_posterior": off,
        "data_that_open_a_memory": created,
        "share_where_label_and_posterior_agree": agree,
    }
    figure = four_models(MEANS, COUNTS, data, beta=BETA, rho=RHO, alpha=SCHEME_ALPHA, reach=REACH)
    checks = {"posterior": off <= POSTERIOR_TOLERANCE and created > 0}
    return compose("four-models", figure, numbers, checks)


def posterior_gap(energy: ist.Mixture | ist.CRPMixture, data: Tensor) -> float:
    """Return the largest difference of converged assignments from Bayes' rule, written out."""
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
    """Draw where data create memories, and count memories as alpha grows."""
    points, _ = blobs(seed)
    found = {
        f"{alpha:g}": ClAMCRP(alpha=alpha, beta=0.6, min_cluster_size=0, random_state=seed)
        .fit(points)
        .n_clusters_
        for alpha in GROWTH
    }
    counts = list(found.values())
    generator = torch.Generator().manual_seed(seed)
    normaliser, origin = normaliser_of_the_new_cluster(generator), pull_to_the_origin(generator)
    factors = {dim: inflation(dim) for dim in (2, 13, 54)}
    return compose(
        "memory-creation",
        memory_creation(MEANS, COUNTS, beta=BETA, rho=RHO, alphas=ALPHAS, reach=REACH),
        {"memories_found_by_alpha": found, "new_cluster_as_printed_too_likely_by_D": factors},
        {
            "alpha": counts == sorted(counts) and counts[-1] > counts[0],
            "energy": normaliser.check,
            "origin": origin.check,
        },
        points=len(points),
        kept=", ".join(f"{count} at alpha {alpha}" for alpha, count in found.items()),
        plane=factors[2],
        many=math.log10(factors[54]),
        counts=", ".join(map(str, counts)),
        alphas=", ".join(found),
        normaliser=normaliser,
        origin=origin,
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
    arrived = len(SIZES) - len(stalled)
    rise = rise_of_the_printed_flow(joint, start)
    sign, places = (
        check(torch.Generator().manual_seed(seed)) for check in (sign_of_the_entropy, fixed_points)
    )
    return compose(
        "elbo-dynamics",
        elbo_dynamics(LOG_JOINT, SIZES, steps=STEPS),
        {
            "steps_by_dynamics_and_logit": steps,
            "largest_energy_rise_of_the_printed_flow": rise,
        },
        {
            "minimum": sign.check,
            "converge": (
                arrived == len(SIZES),
                len(mirror) == len(SIZES) and rise <= LARGEST_RISE,
            ),
            "preserve": not places.confirmed,
        },
        mirror=max(mirror),
        from_zero=euclidean["0"],
        from_five=euclidean["5"],
        limit=STEPS,
        stalled=" and ".join(stalled),
        arrived=arrived,
        starts=len(SIZES),
        sign=sign,
        places=places,
    )


def rise_of_the_printed_flow(joint: Tensor, start: Tensor) -> float:
    """Return the largest rise of minus the ELBO in the first 300 steps from any start."""
    target, logits, worst = joint.expand_as(start), start, 0.0
    for _ in range(300):
        moved = elbo_flow(target, "euclidean", start=logits, tol=0.0, max_steps=1).logits
        rise = elbo_energy(moved, target) - elbo_energy(logits, target)
        worst, logits = max(worst, float(rise.max())), moved
    return worst


def blobs(seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Draw four round clusters in a plane, two of which overlap: (320, 2) and labels (320,)."""
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(CENTRES)), 80)
    return np.array(CENTRES)[labels] + generator.normal(scale=0.95, size=(320, 2)), labels


def tour_of_clustering(seed: int, full: bool = False) -> Section:
    """Fit points with missing values; draw memories, posteriors and novelty."""
    points, labels = blobs(seed)
    generator = np.random.default_rng([seed, 1])
    gaps = np.zeros(points.shape, dtype=bool)
    hidden = generator.permutation(len(points))[: round(UNKNOWN_SHARE * len(points))]
    gaps[hidden, generator.integers(2, size=len(hidden))] = True
    given = np.where(gaps, np.nan, points)
    model = ClAMCRP(random_state=seed).fit(given)
    strangers = np.array(STRANGERS)

    def error(guess: NDArray[Any]) -> float:
        return float(np.sqrt(np.mean(np.square(guess - points)[gaps])))

    score = float(adjusted_rand_score(labels, model.labels_))
    expected = model.energy_.conditional_mean(given, ~gaps).numpy()
    means = np.broadcast_to(np.nanmean(given, axis=0), points.shape)
    numbers = {
        "memories_found": model.n_clusters_,
        "adjusted_rand_index": score,
        "values_unknown": int(gaps.sum()),
        "rms_error_of_completion": error(model.complete(given)),
        "rms_error_of_conditional_mean": error(expected),
        "rms_error_of_filling_with_means": error(means),
        "novelty_by_stranger": model.novelty(strangers).tolist(),
        "mean_novelty_of_known_rows": float(model.novelty(given).mean()),
    }
    return compose(
        "clustering-tour",
        clustering_tour(model, given, strangers),
        numbers,
        {"count": model.n_clusters_ == len(CENTRES) and score >= GOOD_INDEX},
        clusters=len(CENTRES),
        good=GOOD_INDEX,
    )
