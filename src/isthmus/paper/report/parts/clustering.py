"""Learned memories: four models, creation, posteriors, a tour, and the errata about them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.integrate import solve_ivp
from scipy.special import softmax
from scipy.stats import multivariate_normal
from sklearn.metrics import adjusted_rand_score
from torch import Tensor

import isthmus as ist
from isthmus.cluster import ClAMCRP, elbo_energy, elbo_flow
from isthmus.errors import InvalidInputError
from isthmus.figures.landscapes import ring
from isthmus.paper.figures import clustering as figures
from isthmus.paper.report.claims import judged
from isthmus.paper.report.parts.errata import (
    EXACT,
    Check,
    corrected_by,
    erratum,
    grid,
    largest_gap,
    normal,
)
from isthmus.paper.report.section import Section, listed

MEANS = [[-1.6, 1.2], [1.7, 0.9], [0.2, -1.7]]
COUNTS, EQUAL = [30.0, 20.0, 10.0], [1.0, 1.0, 1.0]
BETA, RHO, REACH = 2.5, 0.12, 4.2
ALPHAS = (0.03, 30.0)
FLOW_ALPHAS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
FLOW_SIDE, FAR, SHIFT = 40, 1e6, 37.0
GEM_STEPS = 200
SEATED, REPEATS, DISCOUNTS = 200, 400, (0.0, 0.3, 0.6, 0.9)
# Steps of the gradient flow with their number: small ones first, where basins part.
FLOW_STEPS = ((0.1, 100), (0.2, 100), (0.4, 100), (0.8, 100), (1.6, 300))
SCHEME_POINTS, SCHEME_ALPHA = 16, 3.0
POSTERIOR_TOLERANCE, LARGEST_RISE = 1e-8, 1e-12
GROWTH = (1e-300, 1e-6, 1.0, 30.0)
SIZES = (0.0, 5.0, 10.0, 20.0)
CENTRES = [[-4.2, -0.2], [-0.6, 4.0], [0.8, -3.4], [4.0, -1.0]]
STRANGERS = [[-5.0, 4.6], [4.6, 4.4], [-4.4, -4.8], [2.4, -2.2]]
UNKNOWN_SHARE = 0.1
# A datum between all memories, whose assignment is in doubt.
DATUM = (-0.1, 0.1)
LOG_JOINT, STEPS = (-1.0, -2.0, -3.0, -4.0), 3000
# The flow has converged at this distance; it is given up after this time.
NEAR, LONGEST_TIME = 1e-3, 1e12


def memories_of_the_paper(alpha: float, normalized: bool = True) -> ist.CRPMixture:
    """Return the three memories of the figures as a Chinese-restaurant mixture."""
    return ist.CRPMixture(MEANS, COUNTS, beta=BETA, rho=RHO, alpha=alpha, normalized=normalized)


def four_models(seed: int, full: bool = False) -> Section:
    """Draw the four models on the same memories and data, and check what each returns."""
    generator = torch.Generator().manual_seed(seed)
    data = 1.6 * normal(generator, SCHEME_POINTS, 2)
    growing = memories_of_the_paper(SCHEME_ALPHA)
    finite, equal = (
        ist.Mixture(MEANS, beta=BETA, log_weights=np.log(weights)) for weights in (COUNTS, EQUAL)
    )
    off = max(
        largest_gap(
            elbo_flow(energy.responsibilities(data).log(), "mirror", tol=1e-9).probabilities,
            bayes_rule(data, COUNTS, alpha),
        )
        for energy, alpha in ((finite, 0.0), (growing, SCHEME_ALPHA))
    )
    created = int((growing.responsibilities(data).argmax(1) == len(MEANS)).sum())
    nearest = torch.cdist(ist.retrieve(finite, data).state, finite.means).argmin(1)
    agree = float((nearest == finite.responsibilities(data).argmax(1)).double().mean())
    losses = losses_of_both_algorithms(seed)
    (own, likelihood), (own_em, likelihood_em) = losses["ClAM"], losses["EM"]
    falls = _falls(likelihood)
    weighted, uniform = (
        largest_gap(energy.responsibilities(data), bayes_rule(data, weights))
        for energy, weights in ((finite, COUNTS), (equal, EQUAL))
    )
    directions, points = (
        torch.nn.functional.normalize(normal(generator, count, 3), dim=1) for count in (4, 10)
    )
    spherical = largest_gap(
        ist.VonMisesFisherMixture(directions, beta=3.0).responsibilities(points),
        torch.softmax(3.0 * points @ directions.T, 1),
    )
    return Section(
        f"Three memories and {len(data)} data points. Above, a point moves down the energy to a "
        "memory. Below, its assignment converges to the posterior, drawn as a pie. Left, memories "
        f"are fixed; right, a Chinese restaurant process adds some: {created} points create one "
        f"(hatched, green). Label and most probable memory agree for {agree:.0%} of the points.",
        figures.four_models(finite, growing, data, REACH),
        {
            "data": len(data),
            "largest_difference_from_posterior": off,
            "data_that_open_a_memory": created,
            "share_where_label_and_posterior_agree": agree,
            "first_and_last_loss_by_algorithm": {
                name: {"ClAM's loss": first[:: GEM_STEPS - 1], "-log p": second[:: GEM_STEPS - 1]}
                for name, (first, second) in losses.items()
            },
        },
        (
            judged(
                "crp-elbo",
                f"With and without new memories, assignments converge to within {off:.0e} of the "
                f"posterior by Bayes' rule; {created} of {len(data)} points create a memory.",
                as_printed=off <= POSTERIOR_TOLERANCE and created > 0,
            ),
            judged(
                "generalised-em",
                f"EM never raises -log p ({likelihood_em[0]:.3f} to {likelihood_em[-1]:.3f}), and "
                f"takes ClAM's loss from {own_em[0]:.3f} to {own_em[-1]:.3f}. Descent on ClAM's "
                f"loss takes it from {own[0]:.3f} to {own[-1]:.3f}, and -log p from "
                f"{likelihood[0]:.3f} to {likelihood[-1]:.3f}, "
                f"{'falling' if falls else 'not falling'} at every step. The objectives differ: "
                "only ClAM+ELBO is a generalised EM.",
                as_printed=own[-1] < own[0] and falls,
                corrected=own[-1] < own[0] and _falls(likelihood_em),
            ),
            judged(
                "weighted-and-spherical",
                f"Assignments with weights are those of Bayes' rule to {weighted:.0e} (equal "
                f"weights: {uniform:.0e}), and on a sphere those of `VonMisesFisherMixture` are "
                f"the softmax of beta times cosines to {spherical:.0e}.",
                as_printed=max(uniform, weighted, spherical) < EXACT,
            ),
        ),
    )


def _falls(values: Sequence[float]) -> bool:
    return all(after <= before + 1e-12 for before, after in pairwise(values))


def bayes_rule(points: Tensor, weights: Sequence[float], alpha: float = 0.0) -> Tensor:
    """Return the posteriors of Gaussians of variance 1 / (2 beta), and of a new one with weight."""
    components = [(*pair, 0.5 / BETA) for pair in zip(weights, MEANS, strict=True)]
    if alpha:
        components.append((alpha, [0.0, 0.0], 0.5 / BETA + 0.5 / RHO))
    joint = torch.from_numpy(
        np.stack([w * multivariate_normal(mean, v).pdf(points) for w, mean, v in components], 1)
    )
    return joint / joint.sum(1, keepdim=True)


def losses_of_both_algorithms(seed: int) -> dict[str, tuple[list[float], list[float]]]:
    """Return ClAM's loss and -log p along descent on the former and along EM, from one start.

    Both have memories of equal weight and beta = 1/2, and ten steps of dynamics at rate 0.1.
    """
    data = torch.from_numpy(blobs(seed)[0][::4].copy())
    data = (data - data.mean(0)) / data.std()
    start = data[torch.randperm(len(data), generator=torch.Generator().manual_seed(seed))[:4]]
    found: dict[str, tuple[list[float], list[float]]] = {"ClAM": ([], []), "EM": ([], [])}
    for name, (own, likelihood) in found.items():
        means = start
        for _ in range(GEM_STEPS):
            means = means.detach().requires_grad_()
            loss = clam_loss(data, means, 10)
            logits = -0.5 * torch.cdist(data, means).square().detach()
            own.append(float(loss.detach()))
            likelihood.append(-float(torch.logsumexp(logits, 1).mean()))
            if name == "ClAM":
                means = means - torch.autograd.grad(loss, means)[0]
            else:
                shares = torch.softmax(logits, 1)
                means = shares.T @ data / shares.sum(0)[:, None]
    return found


def memory_creation(seed: int, full: bool = False) -> Section:
    """Draw where data create memories, and count memories as alpha grows."""
    points, _ = blobs(seed)
    settings: dict[str, Any] = {"beta": 0.6, "min_cluster_size": 0, "random_state": seed}
    counts = {f"{a:g}": ClAMCRP(alpha=a, **settings).fit(points).n_clusters_ for a in GROWTH}
    memories = list(counts.values())
    origin = pull_to_the_origin(torch.Generator().manual_seed(seed))
    shares = {
        name: {alpha: flow_to_the_origin(alpha, normalized) for alpha in FLOW_ALPHAS}
        for name, normalized in (("as printed", False), ("corrected", True))
    }
    ends = {
        f"{name}, {dynamics}": {alpha: each[place] for alpha, each in by_alpha.items()}
        for name, by_alpha in shares.items()
        for place, dynamics in ((1, "flow"), (2, "retrieve"))
    }
    flowing = [*ends["as printed, flow"].values()]
    wrong = sum(each[3] for by_alpha in shares.values() for each in by_alpha.values())
    (new_30, flow_30, update_30, _), (new_300, flow_300, *_) = (
        shares["as printed"][alpha] for alpha in (30.0, 300.0)
    )
    masses = [mass_of_the_first(discount, seed) for discount in DISCOUNTS]
    theory = [d + (1 - d) * (SEATED + 1) / 2 for d in DISCOUNTS]
    off = [abs(mean - t) / error for (mean, error), t in zip(masses, theory, strict=True)]
    at_hull, inside = finite_basins()
    findings = (
        judged(
            "alpha-creates",
            f"Fitted to the {len(points)} points of the tour below with beta fixed, ClAMCRP keeps "
            f"{listed(memories)} memories at alpha = {listed(counts)}.",
            as_printed=memories == sorted(memories) and memories[-1] > memories[0],
        ),
        judged(
            "discount",
            f"After {SEATED} data with alpha = 1, the first memory has the mean mass "
            f"{listed((mean for mean, _ in masses), '.1f')} at d = {listed(DISCOUNTS, 'g')}; "
            f"theory, d + (1 - d)(n + alpha)/(1 + alpha), gives {listed(theory, '.1f')}. alpha is "
            "in that rate, too, and d also makes new memories more frequent.",
            as_printed=max(off) < 4,
        ),
        corrected_by("crp-likelihood", normaliser_of_the_new_cluster(torch.Generator())),
        judged(
            "origin-is-new",
            f"{wrong} of {2 * len(FLOW_ALPHAS) * FLOW_SIDE**2:,} starts in the square flow to the "
            "origin, by either energy, without the new memory being their most probable one, "
            f"unless a cluster lies there. {origin.shown} (E10) Not every datum that is new flows "
            f"there: with the printed energy and alpha = 30, {flow_30 / new_30:.0%} of those "
            f"do by gradient flow and {update_30 / new_30:.0%} by `retrieve`, which has other "
            f"basins here; at 300, {flow_300 / new_300:.0%}. The posterior decides.",
            as_printed=not origin.confirmed and wrong == 0,
            corrected=wrong == 0,
        ),
        judged(
            "alpha-attracts",
            f"By the flow of the printed energy, the share of the square that ends there is "
            f"{listed(flowing, '.0%')} at alpha = {listed(FLOW_ALPHAS, 'g')}.",
            as_printed=flowing == sorted(flowing) and flowing[-1] > flowing[0],
        ),
        judged(
            "unbounded-basins",
            f"Each of the three memories is reached from {FAR:.0e} away "
            f"({listed(at_hull, '.0%')} of the directions). A fourth memory between them is "
            f"reached from {inside:.0%}: only corners of the convex hull have unbounded basins.",
            as_printed=min(at_hull) > 0,
        ),
    )
    return Section(
        "Three memories as a finite mixture and as (corrected) Chinese-restaurant mixtures, which "
        "reserve probability for a memory that does not exist yet. A point creates it where its "
        "responsibility is largest (hatched), sooner at a larger alpha. Last, the share of the "
        "square that ends at the origin, with the energy as printed and corrected (E8), by the "
        "paper's gradient flow and by `retrieve`.",
        figures.memory_creation(
            ist.Mixture(MEANS, beta=BETA, log_weights=np.log(COUNTS)),
            [memories_of_the_paper(alpha) for alpha in ALPHAS],
            REACH,
            ends,
        ),
        {
            "memories_found_by_alpha": counts,
            "new_cluster_as_printed_too_likely_by_D": {dim: inflation(dim) for dim in (2, 13, 54)},
            "share_that_is_new_by_energy_and_alpha": {
                name: {alpha: each[0] for alpha, each in by_alpha.items()}
                for name, by_alpha in shares.items()
            },
            "share_that_ends_at_the_origin_by_dynamics_and_alpha": {
                name.replace("retrieve", "`retrieve`"): by_alpha for name, by_alpha in ends.items()
            },
            "starts_that_flow_to_the_origin_and_are_not_new": wrong,
        },
        findings,
    )


def flow_to_the_origin(alpha: float, normalized: bool) -> tuple[float, float, float, int]:
    """Return shares of the square: where a new memory wins, and what ends at the origin.

    The second is by gradient flow, the third by `retrieve`; last, the number of starts that either
    takes to the origin although a known memory is more probable.
    """
    energy = memories_of_the_paper(alpha, normalized)
    axis = REACH * (2 * torch.arange(FLOW_SIDE, dtype=torch.float64) + 1 - FLOW_SIDE) / FLOW_SIDE
    points = torch.cartesian_prod(axis, axis)
    new = energy.responsibilities(points).argmax(1) == len(MEANS)
    rest = points
    for size, count in FLOW_STEPS:
        for _ in range(count):
            rest = rest + 0.5 * size * energy.score(rest)
    flow, update = (
        torch.linalg.vector_norm(ends, dim=1) < torch.cdist(ends, energy.means).amin(1)
        for ends in (rest, ist.retrieve(energy, points, max_steps=20_000).state)
    )
    first, second, third = (float(each.double().mean()) for each in (new, flow, update))
    return first, second, third, int(((flow | update) & ~new).sum())


def mass_of_the_first(discount: float, seed: int) -> tuple[float, float]:
    """Return the mean mass of the first memory in draws with alpha = 1, and its standard error."""
    uniform = np.random.default_rng(seed).random((SEATED, REPEATS))
    mass = np.ones(REPEATS)
    for n in range(1, SEATED):
        mass += uniform[n] < (mass - discount) / (n + 1)
    return float(mass.mean()), float(mass.std(ddof=1) / math.sqrt(REPEATS))


def finite_basins() -> tuple[list[float], float]:
    """Return the share of far directions that reach each memory, and a fourth between them."""
    starts = torch.as_tensor(ring(360, FAR, turn=0.1))
    inside = torch.tensor([*MEANS, np.mean(MEANS, 0).tolist()], dtype=torch.float64)
    shares = []
    for means in (inside[:-1], inside):
        ends = ist.retrieve(ist.Mixture(means, beta=BETA), starts).state
        shares.append(torch.bincount(torch.cdist(ends, means).argmin(1), minlength=len(means)))
    return (shares[0] / len(starts)).tolist(), float(shares[1][-1] / len(starts))


def elbo_dynamics(seed: int, full: bool = False) -> Section:
    """Draw how the three dynamics of ClAM+ELBO approach the posterior. Nothing is random."""
    target, start = starts_of_flows(SIZES)
    steps: dict[str, dict[str, int | None]] = {}
    for dynamics in ("exact", "mirror", "euclidean"):
        flow = elbo_flow(target, dynamics, start=start, max_steps=STEPS)
        steps[dynamics] = {
            f"{size:g}": int(taken) if reached else None
            for size, taken, reached in zip(SIZES, flow.steps, flow.converged, strict=True)
        }
    euclidean = steps["euclidean"]
    stalled = [size for size, taken in euclidean.items() if taken is None]
    path = figures.elbo_path(target, "euclidean", start, 300)
    rise = float(elbo_energy(path, target).diff(dim=0).max().clamp(min=0))
    times = {f"{size:g}": time_of_the_flow(size) for size in SIZES}
    slope = math.log(times["20"] / times["10"]) / 10
    shifted = largest_gap(elbo_energy(start + SHIFT, target), elbo_energy(start, target))
    sign, places = (
        check(torch.Generator().manual_seed(seed)) for check in (sign_of_the_entropy, fixed_points)
    )
    return Section(
        "In ClAM+ELBO the state of a point is a vector of assignment logits, which converge to the "
        "posterior. The exact step reaches it at once, the mirror flow in a few steps. The paper's "
        "Euclidean flow stalls where one probability is nearly 1: it needs "
        f"{euclidean['0']} steps from zero and {euclidean['5']} from a logit of 5 for the least "
        f"probable memory, and has not converged after {STEPS} from {listed(stalled)}.",
        figures.elbo_dynamics(target, start, STEPS),
        {
            "steps_by_dynamics_and_logit": steps,
            "time_of_the_printed_flow_by_logit": times,
            "growth_of_the_log_time_per_unit_of_logit": slope,
            "largest_energy_rise_of_the_printed_flow": rise,
        },
        (
            corrected_by("posterior", sign),
            judged(
                "symmetry",
                f"Adding {SHIFT:g} changes it by at most {shifted:.0e}.",
                as_printed=shifted < EXACT,
            ),
            judged(
                "convergence",
                f"The energy rises by at most {rise:.0e} in a step, and the flow comes within "
                f"{NEAR:g} of the posterior from every start, in times of "
                f"{listed(times.values(), '.2g')} from logits of {listed(times)}. That can be "
                f"long: the logarithm of the time grows by {slope:.2f} for each unit of the "
                "starting logit s, as exp(s)/s does. The mirror flow, with the same fixed point, "
                f"takes at most {max(filter(None, steps['mirror'].values()))} unit steps (E4).",
                as_printed=all(map(math.isfinite, times.values())) and rise <= LARGEST_RISE,
            ),
            judged("fixed-points", f"{places.shown} (E5)", as_printed=not places.confirmed),
        ),
    )


def time_of_the_flow(logit: float) -> float:
    """Return the time in which the printed flow comes near the posterior; infinite if it does not.

    It starts from this logit for the least likely memory, and zero for the others.
    """
    joint = torch.tensor(LOG_JOINT, dtype=torch.float64)

    def force(_: float, v: NDArray[Any]) -> NDArray[Any]:
        return flow(torch.from_numpy(v), joint).numpy()

    def distance(_: float, v: NDArray[Any]) -> float:
        return float(np.abs(softmax(v) - softmax(LOG_JOINT)).max() - NEAR)

    distance.terminal = True  # type: ignore[attr-defined]
    start, tolerance = [*np.zeros(len(LOG_JOINT) - 1), logit], {"rtol": 1e-8, "atol": 1e-10}
    found = solve_ivp(force, (0, LONGEST_TIME), start, "LSODA", events=distance, **tolerance)
    return float(found.t_events[0][0]) if len(found.t_events[0]) else math.inf


def starts_of_flows(sizes: Sequence[float]) -> tuple[Tensor, Tensor]:
    """Return log-joints, and logits of these sizes for the least likely memory: both (S, K)."""
    target = torch.tensor([LOG_JOINT] * len(sizes), dtype=torch.float64)
    start = torch.zeros_like(target)
    start[:, -1] = torch.tensor(sizes)
    return target, start


def blobs(seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Draw four round clusters in a plane, two of which overlap: (320, 2) and labels (320,)."""
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(len(CENTRES)), 80)
    return np.array(CENTRES)[labels] + generator.normal(scale=0.95, size=(320, 2)), labels


def clustering_tour(seed: int, full: bool = False) -> Section:
    """Fit points with missing values; draw memories, posteriors and novelty."""
    points, labels = blobs(seed)
    generator = np.random.default_rng([seed, 1])
    gaps = np.zeros(points.shape, dtype=bool)
    hidden = generator.permutation(len(points))[: round(UNKNOWN_SHARE * len(points))]
    gaps[hidden, generator.integers(2, size=len(hidden))] = True
    given = np.where(gaps, np.nan, points)
    model = ClAMCRP(random_state=seed).fit(given)
    strangers = np.array(STRANGERS)
    guesses = (
        model.complete(given, how="mode"),
        np.asarray(model.energy_.conditional_mean(given, ~gaps)),
        np.broadcast_to(np.nanmean(given, axis=0), points.shape),
    )
    completed, mean, filled = (
        float(np.sqrt(np.mean(np.square(guess - points)[gaps]))) for guess in guesses
    )
    agreement = float(adjusted_rand_score(labels, model.labels_))
    novelty = float(model.novelty(given).mean())
    return Section(
        f"ClAMCRP, given only the rows, finds {model.n_clusters_} memories (adjusted Rand index "
        f"{agreement:.2f} with the {len(CENTRES)} clusters of the data), although {gaps.sum()} "
        "values are missing. It fills a gap from one memory: the root mean square error is "
        f"{completed:.2f}, that of the posterior mean {mean:.2f}, and that of the column mean "
        f"{filled:.2f}. Crosses on the right are unseen points with the probability that each "
        f"belongs to no known memory; the mean over the fitted rows is {novelty:.3f}.",
        figures.clustering_tour(model, given, strangers),
        {
            "memories_found": model.n_clusters_,
            "adjusted_rand_index": agreement,
            "values_unknown": int(gaps.sum()),
            "rms_error_of_completion": completed,
            "rms_error_of_conditional_mean": mean,
            "rms_error_of_filling_with_means": filled,
            "novelty_by_stranger": model.novelty(strangers).tolist(),
            "mean_novelty_of_known_rows": novelty,
        },
    )


def logit_metric(q: Tensor) -> Tensor:
    """Return diag(q) - q q^T, the derivative of q = softmax(v): (K, K)."""
    return torch.diag(q) - torch.outer(q, q)


def flow(v: Tensor, log_joint: Tensor) -> Tensor:
    """Return the printed dv/dt, (diag q - q q^T)(log p - log q), of assignment logits v. (K,)"""
    return logit_metric(torch.softmax(v, 0)) @ (log_joint - torch.log_softmax(v, 0))


def engrams(seed: int, full: bool = False) -> Section:
    """Compare the printed interactions with how the flow responds to evidence and to its state."""
    energy = ist.CRPMixture(MEANS, COUNTS, beta=0.5, rho=0.1, alpha=6.0)
    log_joint = energy.responsibilities(torch.tensor(DATUM, dtype=torch.float64)).log()
    printed = logit_metric(log_joint.exp())
    # Derivatives at the posterior, v = log p, where the flow rests.
    to_state, to_evidence = torch.func.jacrev(flow, (0, 1))(log_joint, log_joint)
    own = printed.diagonal()
    competing = bool((own > 0).all() and (printed - own.diag() <= 0).all())
    names = [*(f"memory {number}" for number in range(1, len(MEANS) + 1)), "new"]
    by_evidence, by_state, reversed_sign = (
        largest_gap(*pair)
        for pair in ((to_evidence, printed), (to_state, printed), (to_state, -printed))
    )
    corrected = competing and by_evidence <= EXACT
    interactions = judged(
        "interactions",
        f"So they respond to evidence, to {by_evidence:.0e}. To each other's states they respond "
        f"with the opposite sign, to {reversed_sign:.0e}: near the posterior a memory inhibits "
        "itself and excites the others.",
        as_printed=corrected and by_state <= EXACT,
        corrected=corrected,
    )
    return Section(
        "How the assignment of one datum, in doubt between three memories and a new one, moves "
        "under the paper's flow of its logits v, dv/dt = (diag q - q qᵀ)(log p - log q), "
        "linearised at the posterior q. Left, the response to evidence log p; right, to the logits "
        "themselves, of the opposite sign, or the posterior would not be stable.",
        figures.matrices(
            {"Response to evidence": to_evidence, "Response to the state": to_state}, names
        ),
        {
            "posterior": dict(zip(names, log_joint.exp().tolist(), strict=True)),
            "response_to_evidence_off": by_evidence,
            "response_to_states_off": by_state,
            "response_to_states_off_with_the_sign_changed": reversed_sign,
        },
        (interactions,),
    )


@erratum("E2")
def sign_of_the_entropy(generator: torch.Generator) -> Check:
    """Compare the paper's dynamics with descent on the energy with either sign."""
    log_joint = normal(generator, 5)
    logits = normal(generator, 5).requires_grad_()
    q = torch.softmax(logits, 0)
    entropy, expected = -(q * q.log()).sum(), -(q * log_joint).sum()
    forces = [
        -torch.autograd.grad(expected + sign * entropy, logits, retain_graph=True)[0]
        for sign in (1, -1)
    ]
    q = q.detach()
    dynamics = logit_metric(q) @ (log_joint - q.log() - 1)
    printed, corrected = (largest_gap(force, dynamics) for force in forces)
    moving = logits.detach()
    for _ in range(20_000):  # descent on the printed energy, -sum q log p + H(q)
        q = torch.softmax(moving, 0)
        moving = moving + 0.5 * logit_metric(q) @ (log_joint + q.log())
    end = float(torch.softmax(moving, 0).max())
    return (
        {
            "gradient_off_corrected": corrected,
            "gradient_off_printed": printed,
            "largest_probability_after_descent_on_printed": end,
        },
        corrected < EXACT and printed > 0.01 and end > 0.99,
        f"The paper's own dynamics are the gradient of the corrected energy to {corrected:.0e}, "
        f"and differ from that of the printed one by {printed:.2f}. Descent on the printed one "
        f"ends with a probability of {end:.4f} for one memory.",
    )


@erratum("E3")
def the_extra_one(generator: torch.Generator) -> Check:
    """Show that the metric maps constants to zero."""
    q = torch.softmax(normal(generator, 6), 0)
    largest = float((logit_metric(q) @ torch.ones(6, dtype=torch.float64)).abs().max())
    shown = f"No entry of (diag q − q qᵀ) 1 exceeds {largest:.0e}."
    return {"largest_entry": largest}, largest < EXACT, shown


@erratum("E4")
def flow_that_stalls(generator: torch.Generator) -> Check:
    """Compare the printed flow and the mirror flow, from zero and from near a vertex."""
    target, start = starts_of_flows((0.0, 20.0))
    euclidean, mirror = (
        elbo_flow(target, dynamics, start=start, max_steps=STEPS)
        for dynamics in ("euclidean", "mirror")
    )
    left = largest_gap(euclidean.probabilities[1], torch.softmax(target[1], 0))
    first, most = int(euclidean.steps[0]), int(mirror.steps.max())
    return (
        {
            "printed_steps_from_zero": first,
            "printed_distance_left_from_20": left,
            "mirror_steps": most,
            "limit": STEPS,
        },
        not bool(euclidean.converged[1]) and bool(mirror.converged.all()),
        f"From zero the printed flow takes {first} steps; from a logit of 20 for the wrong memory "
        f"it is still {left:.2f} away after {STEPS}. The mirror flow takes at most {most}.",
    )


@erratum("E5")
def fixed_points(generator: torch.Generator) -> Check:
    """Count the fixed points in the space of data and in that of assignments."""
    memories = torch.tensor([[-3.0, 0.0], [3.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    rest = ist.retrieve(ist.Mixture(memories, beta=1.0), memories).state
    joint = -(memories - torch.tensor([0.4, 0.7], dtype=torch.float64)).square().sum(1)
    starts = 3 * torch.eye(3, dtype=torch.float64)
    ends = elbo_flow(joint.expand(3, 3), "mirror", start=starts).probabilities
    data, states = (len(torch.unique(each.round(decimals=4), dim=0)) for each in (rest, ends))
    return (
        {"resting_points_of_clam": data, "resting_points_of_assignments": states},
        data == 3 and states == 1,
        f"With three memories, ClAM has {data} fixed points; the assignments of one data point "
        f"have {states}, from any start.",
    )


@erratum("E6")
def covariance_of_components(generator: torch.Generator) -> Check:
    """Find the covariance that makes a Gaussian of exp(-beta d^2)."""
    beta, points = 1.3, normal(generator, 50, 3).numpy()
    log_term = -beta * np.square(points).sum(1)
    printed, corrected = (
        float(np.ptp(log_term - multivariate_normal(np.zeros(3), size).logpdf(points)))
        for size in (2 / beta, 0.5 / beta)
    )
    return (
        {"spread_of_log_ratio_printed": printed, "spread_of_log_ratio_corrected": corrected},
        corrected < EXACT and printed > 0.1,
        f"The log-ratio of exp(−β d²) to a Gaussian density is constant to {corrected:.0e} with "
        f"I/(2β); with 2 I/β it varies by {printed:.1f} over 50 points.",
    )


@erratum("E7")
def factor_of_the_dynamics(generator: torch.Generator) -> Check:
    """Compare the printed force with the energy's."""
    means, x, beta = normal(generator, 4, 3), normal(generator, 3), 0.8
    shares = torch.softmax(-beta * (means - x).square().sum(1), 0)
    ratio = (ist.Mixture(means, beta=beta).score(x) / (shares @ (means - x))).tolist()
    return (
        {"smallest_ratio": min(ratio), "largest_ratio": max(ratio)},
        max(abs(each - 2) for each in ratio) < EXACT,
        f"The ratio of −∇E to the printed force is {min(ratio):.6f} to {max(ratio):.6f} in all "
        "coordinates.",
    )


def inflation(dim: int, beta: float = 1.0, rho: float = 0.1) -> float:
    """Return the factor by which the printed energy favours a new cluster."""
    origin = torch.zeros(1, dim, dtype=torch.float64)
    odds = []
    for normalized in (False, True):
        energy = ist.CRPMixture(origin, [1.0], beta=beta, rho=rho, normalized=normalized)
        known, new = energy.responsibilities(origin)[0]
        odds.append(float(new.log() - known.log()))
    return math.exp(odds[0] - odds[1])


def mass_of_the_new_cluster(normalized: bool) -> float:
    """Integrate the new cluster's term over a plane, in units of a known cluster's mass."""
    points, area = grid(12, 0.05, 2)
    far = torch.full((1, 2), 1e3, dtype=torch.float64)  # a known memory without influence
    energy = ist.CRPMixture(far, [1.0], beta=1.0, rho=0.5, alpha=1.0, normalized=normalized)
    return float(torch.exp(-energy.energy(points)).sum() * area) / math.pi


@erratum("E8")
def normaliser_of_the_new_cluster(generator: torch.Generator) -> Check:
    """Measure the new cluster's mass with and without its normaliser."""
    printed, corrected = mass_of_the_new_cluster(False), mass_of_the_new_cluster(True)
    plane, many = inflation(2), math.log10(inflation(54))
    return (
        {
            "inflation_in_2_dimensions": plane,
            "log10_inflation_in_54_dimensions": many,
            "mass_corrected": corrected,
            "mass_printed": printed,
        },
        abs(corrected - 1) < 1e-6 and abs(printed - 1) > 0.1,
        f"At β = 1, ρ = 0.1 the printed form makes a new cluster more likely by a factor of "
        f"{plane:.0f} in 2 dimensions and of 10^{many:.0f} in 54. In units of a known cluster's "
        f"mass, its mass on a plane is {corrected:.4f} corrected and {printed:.2f} as printed "
        "(ρ = 0.5).",
    )


@erratum("E9")
def exponent_of_the_new_cluster(generator: torch.Generator) -> Check:
    """Compute the exponent for the stated and for the corrected covariances."""
    beta, rho = 1.3, 0.2
    kappa = 1 / (1 / beta + 1 / rho)
    # A data point is a mean plus noise, so covariances add; the exponent is half over the sum.
    stated, corrected = (0.5 / (factor / beta + factor / rho) for factor in (2.0, 0.5))
    return (
        {"printed": kappa, "by_stated_covariances": stated, "by_corrected": corrected},
        abs(corrected - kappa) < EXACT and abs(stated - kappa) > 0.01,
        f"At β = 1.3, ρ = 0.2 the printed exponent is {kappa:.4f}. The stated covariances give "
        f"{stated:.4f}, the corrected ones {corrected:.4f}.",
    )


@erratum("E10")
def pull_to_the_origin(generator: torch.Generator) -> Check:
    """Show that a point of a known cluster at the origin would be called new."""
    beta, rho = 1.0, 0.3
    means = torch.cat([torch.zeros(1, 2, dtype=torch.float64), 2 * normal(generator, 2, 2)])
    energy = ist.CRPMixture(means, [20.0, 5.0, 5.0], beta=beta, rho=rho, alpha=1.0)
    x = normal(generator, 2)
    shares = energy.responsibilities(x)
    new_pull = 0.5 * energy.score(x) - shares[:-1] @ (means - x)
    kappa = 1 / (1 / beta + 1 / rho)
    corrected, full = (
        largest_gap(new_pull, -factor * shares[-1] * x) for factor in (kappa / beta, 1.0)
    )
    near = torch.full((2,), 0.05, dtype=torch.float64)
    end = float(torch.linalg.vector_norm(ist.retrieve(energy, near).state))
    belongs = float(energy.responsibilities(near)[0])
    return (
        {
            "force_off_corrected": corrected,
            "force_off_without_factor": full,
            "probability_of_known_cluster": belongs,
            "distance_from_origin_at_rest": end,
        },
        corrected < EXACT and full > 1e-3 and belongs > 0.5 and end < 0.5,
        f"−½∇E is the sum of all pulls to {corrected:.0e} with that factor, and off by {full:.2f} "
        "without it. A point of a cluster at the origin, which belongs to it with probability "
        f"{belongs:.2f}, ends {end:.2f} from the origin and would be called new.",
    )


@erratum("E11")
def weights_below_zero(generator: torch.Generator) -> Check:
    """Check that a count below the discount is refused, and that weights sum up otherwise."""
    count, discount, alpha = 0.3, 0.5, 1.0
    try:
        ist.CRPMixture([[0.0], [1.0]], [count, 3.0], discount=discount)
        reaction = "accepts"
    except InvalidInputError:
        reaction = "refuses"
    sizes = np.array([4.0, 2.0, 1.0])
    total = float((sizes - discount).sum() + alpha + discount * len(sizes))
    normaliser = float(sizes.sum()) + alpha
    return (
        {
            "weight": count - discount,
            "reaction": reaction,
            "sum_of_weights": total,
            "normaliser": normaliser,
        },
        count < discount and reaction == "refuses" and abs(total - normaliser) < EXACT,
        f"A soft count of 0.3 with d = 0.5 gives the weight {count - discount:.1f}; isthmus "
        f"{reaction} it. Otherwise the weights are right: those of counts 4, 2 and 1 sum to "
        f"{total:g} = n − 1 + α.",
    )


def clam_loss(data: Tensor, memories: Tensor, steps: int, hidden: Tensor | None = None) -> Tensor:
    """Return ClAM's mean loss after steps of rate 0.1, as printed or of hidden entries only."""
    moving = torch.ones_like(data) if hidden is None else hidden.to(data.dtype)
    x = data if hidden is None else torch.where(hidden, data.mean(0), data)
    for _ in range(steps):
        shares = torch.softmax(-0.5 * (x[:, None] - memories).square().sum(-1), 1)
        x = x + 0.1 * moving * (shares @ memories - x)
    return ((x - data).square() * moving).sum(1).mean()


@erratum("E27")
def loss_without_a_mask(generator: torch.Generator) -> Check:
    """Compare the printed loss with the masked one, without and with dynamics."""
    data, memories = normal(generator, 200, 4), normal(generator, 3, 4).requires_grad_()
    masks = (None, torch.rand(200, 4, generator=generator) < 0.25)
    still, still_masked = (float(clam_loss(data, memories, 0, mask).detach()) for mask in masks)
    first, second = (
        torch.autograd.grad(clam_loss(data, memories, 10, mask), memories)[0].flatten()
        for mask in masks
    )
    cosine = float(torch.cosine_similarity(first, second, dim=0))
    return (
        {
            "printed_loss_without_dynamics": still,
            "masked_loss_without_dynamics": still_masked,
            "cosine_of_gradients": cosine,
        },
        still == 0 and still_masked > 0.1 and cosine < 0.99,
        f"Dynamics that do nothing have the printed loss {still:g}, its minimum for any memories, "
        f"and the masked loss {still_masked:.2f}. After 10 steps the gradients of the two with "
        f"respect to the memories have a cosine of {cosine:.2f}. isthmus has both.",
    )


@erratum("E29")
def one_step_is_no_fixed_point(generator: torch.Generator) -> Check:
    """Update the printed and the true fixed point once more."""
    memories, x = 1.5 * normal(generator, 4, 2), normal(generator, 2)
    mixture = ist.Mixture(memories, beta=0.5)
    guess = mixture.responsibilities(x) @ memories
    rest = ist.retrieve(mixture, x, tol=1e-13, max_steps=100_000).state
    off_guess, off_rest = (
        float(torch.linalg.vector_norm(mixture.step(state) - state)) for state in (guess, rest)
    )
    return (
        {"printed_point_moves_by": off_guess, "fixed_point_moves_by": off_rest},
        off_guess > 1e-3 and off_rest < EXACT,
        f"One more update moves the printed point by {off_guess:.2g}, the true one by "
        f"{off_rest:.0e}.",
    )


@erratum("E31")
def posterior_of_clam(generator: torch.Generator) -> Check:
    """Compare the softmax of ClAM's dynamics with Bayes' rule."""
    points = 2 * normal(torch.Generator().manual_seed(0), 20, 2)
    shares = ist.Mixture(MEANS, beta=BETA).responsibilities(points)
    gap = largest_gap(shares, bayes_rule(points, EQUAL))
    shown = f"The softmax of −β |μ_k − x|² is the posterior by Bayes' rule to {gap:.0e}."
    return {"difference_from_posterior": gap}, gap < EXACT, shown


def log_losses_of_novelty(seed: int, dim: int = 10) -> tuple[float, float]:
    """Return the log loss of "this datum is new" with means plugged in, and by the predictive.

    Partitions of 40 data are drawn from a Chinese restaurant process with alpha = 1, and 20 more
    data for each.
    """
    rng, beta, rho = np.random.default_rng(seed), 0.5, 0.1
    losses = []
    for _ in range(300):
        counts = [1.0]
        for n in range(1, 40):
            table = int(np.searchsorted(np.cumsum(counts), rng.random() * (n + 1)))
            counts[table : table + 1] = [counts[table] + 1 if table < len(counts) else 1.0]
        n_k = np.array([*counts, 0.0])[:, None]
        centres = rng.normal(scale=math.sqrt(0.5 / rho), size=(20, len(n_k), dim))
        noise = rng.normal(scale=math.sqrt(0.5 / beta), size=(2, *centres.shape))
        posterior = beta * (n_k * centres + np.sqrt(n_k) * noise[0]) / (beta * n_k + rho)
        weights = np.array([*counts, 1.0])
        tables = rng.choice(len(weights), 20, p=weights / weights.sum())
        data = (centres + noise[1])[np.arange(20), tables]
        squared = np.square(data[:, None] - posterior).sum(-1)
        exact = (0.5 / beta + 0.5 / (beta * n_k + rho))[:, 0]
        plugged = np.where(n_k[:, 0] > 0, 0.5 / beta, exact)
        for variance in (plugged, exact):
            logits = np.log(weights) - 0.5 * squared / variance - 0.5 * dim * np.log(variance)
            new = np.clip(softmax(logits, 1)[:, -1], 1e-15, 1 - 1e-15)
            losses.append(-np.log(np.where(tables == len(counts), new, 1 - new)).mean())
    return float(np.mean(losses[::2])), float(np.mean(losses[1::2]))


@erratum("E34")
def predictive_of_known_clusters(generator: torch.Generator) -> Check:
    """Compare the log losses of novelty with and without the uncertainty of the means."""
    plugged, exact = log_losses_of_novelty(generator.initial_seed())
    return (
        {"log_loss_plugged_in": plugged, "log_loss_predictive": exact},
        exact < plugged,
        f"On 6,000 draws of the process in 10 dimensions, the log loss of novelty is {plugged:.3f} "
        f"with means plugged in (as `novelty` does) and {exact:.3f} with the exact predictive.",
    )
