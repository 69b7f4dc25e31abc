"""Errata of the clustering section: ClAM, its evidence lower bound, and new memories."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

import isthmus as ist
from isthmus.cli.parts.errata.erratum import Erratum
from isthmus.cluster import elbo_flow
from isthmus.errors import InvalidInputError

__all__ = ["clustering_errata"]

EXACT = 1e-9
STEPS = 3000
LOG_JOINT = (-1.0, -2.0, -3.0, -4.0)


def clustering_errata(seed: int) -> list[Erratum]:
    """E2 to E11, E27 and E29, each measured."""
    generator = torch.Generator().manual_seed(seed)
    return [
        sign_of_the_entropy(generator),
        the_extra_one(generator),
        flow_that_stalls(),
        fixed_points(),
        covariance_of_components(generator),
        factor_of_the_dynamics(generator),
        normaliser_of_the_new_cluster(),
        exponent_of_the_new_cluster(),
        pull_to_the_origin(generator),
        weights_below_zero(),
        loss_without_a_mask(generator),
        one_step_is_no_fixed_point(generator),
    ]


def normal(generator: torch.Generator, *shape: int) -> Tensor:
    """Standard normal numbers in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def logit_metric(q: Tensor) -> Tensor:
    """Return diag(q) - q q^T, the derivative of q = softmax(v): (K, K)."""
    return torch.diag(q) - torch.outer(q, q)


def sign_of_the_entropy(generator: torch.Generator) -> Erratum:
    """E2: with the printed sign, the energy's descent is not the printed dynamics."""
    log_joint = normal(generator, 5)
    logits = normal(generator, 5).requires_grad_()
    q = torch.softmax(logits, 0)
    entropy = -(q * q.log()).sum()
    expected = -(q * log_joint).sum()
    printed, corrected = (
        -torch.autograd.grad(expected + sign * entropy, logits, retain_graph=True)[0]
        for sign in (1, -1)
    )
    q = q.detach()
    dynamics = logit_metric(q) @ (log_joint - q.log() - 1)
    off_printed, off_corrected = (
        float((force - dynamics).abs().max()) for force in (printed, corrected)
    )
    end = _descend_printed_energy(log_joint, logits.detach())
    return Erratum(
        2,
        "wrong",
        "ClAM+ELBO's energy",
        "−Σ q log p(x, z) + H(q)",
        "−Σ q log p(x, z) − H(q), least at the posterior, where it is −log p(x)",
        f"The paper's own dynamics are the gradient of the corrected energy to "
        f"{off_corrected:.0e}, of the printed one off by {off_printed:.2f}. Descent on the printed "
        f"one ends with a probability of {end:.4f} for one memory.",
        {
            "gradient_off_corrected": off_corrected,
            "gradient_off_printed": off_printed,
            "largest_probability_after_descent_on_printed": end,
        },
        off_corrected < EXACT and off_printed > 0.01 and end > 0.99,
    )


def _descend_printed_energy(log_joint: Tensor, logits: Tensor) -> float:
    """Follow minus the gradient of -sum q log p + H(q); return the largest probability."""
    for _ in range(20_000):
        q = torch.softmax(logits, 0)
        logits = logits + 0.5 * logit_metric(q) @ (log_joint + q.log())
    return float(torch.softmax(logits, 0).max())


def the_extra_one(generator: torch.Generator) -> Erratum:
    """E3: the metric takes every constant to nothing."""
    q = torch.softmax(normal(generator, 6), 0)
    largest = float((logit_metric(q) @ torch.ones(6, dtype=torch.float64)).abs().max())
    return Erratum(
        3,
        "harmless",
        "ClAM+ELBO's dynamics",
        "(diag q − q qᵀ)(log p − log q − 1)",
        "(diag q − q qᵀ)(log p − log q): the 1 does nothing",
        f"(diag q − q qᵀ) 1 has no entry above {largest:.0e}.",
        {"largest_entry": largest},
        largest < EXACT,
    )


def flow_that_stalls() -> Erratum:
    """E4: descent is certain, arrival in any reasonable time is not."""
    joint = torch.tensor(LOG_JOINT, dtype=torch.float64)
    start = joint.new_zeros(2, len(joint))
    start[1, -1] = 20.0
    target = joint.expand_as(start)
    euclidean = elbo_flow(target, "euclidean", start=start, max_steps=STEPS)
    mirror = elbo_flow(target, "mirror", start=start, max_steps=STEPS)
    posterior = torch.softmax(joint, 0)
    left = float((euclidean.probabilities[1] - posterior).abs().max())
    slowest = int(mirror.steps.max())
    return Erratum(
        4,
        "loose",
        "ClAM+ELBO, “convergence is guaranteed”",
        "gradient flow of the logits",
        "true in infinite time: near a vertex the flow stalls. The mirror flow "
        "dv/dt = log p − log q has the same resting point and does not",
        f"From zero the printed flow takes {int(euclidean.steps[0])} steps; from a logit of 20 for "
        f"the wrong memory it is still {left:.2f} away after {STEPS}. The mirror flow takes "
        f"{slowest} at most.",
        {
            "printed_steps_from_zero": int(euclidean.steps[0]),
            "printed_distance_left_from_20": left,
            "mirror_steps": slowest,
        },
        not bool(euclidean.converged[1]) and bool(mirror.converged.all()),
    )


def fixed_points() -> Erratum:
    """E5: several resting points in the space of data, one in that of assignments."""
    memories = torch.tensor([[-3.0, 0.0], [3.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    mixture = ist.Mixture(memories, beta=1.0)
    rest = ist.retrieve(mixture, memories).state
    in_data = len(torch.unique(rest.round(decimals=4), dim=0))
    datum = torch.tensor([0.4, 0.7], dtype=torch.float64)
    joint = -(memories - datum).square().sum(1)
    starts = 3 * torch.eye(3, dtype=torch.float64)
    flow = elbo_flow(joint.expand(3, 3), "mirror", start=starts)
    in_assignments = len(torch.unique(flow.probabilities.round(decimals=4), dim=0))
    return Erratum(
        5,
        "wrong",
        "ClAM+ELBO “preserves the fixed points and their stability” of ClAM",
        "the same fixed points",
        "another state and other fixed points: one for each datum, its posterior",
        f"Three memories: ClAM rests at {in_data} places; the assignments of one datum rest at "
        f"{in_assignments}, whatever the start.",
        {"resting_points_of_clam": in_data, "resting_points_of_assignments": in_assignments},
        in_data == 3 and in_assignments == 1,
    )


def covariance_of_components(generator: torch.Generator) -> Erratum:
    """E6: only one covariance makes a Gaussian of exp(-beta d^2)."""
    beta, points = 1.3, normal(generator, 50, 3).numpy()
    log_term = -beta * np.square(points).sum(1)
    spread = {
        name: float(np.ptp(log_term - multivariate_normal(np.zeros(3), size).logpdf(points)))
        for name, size in (("printed", 2 / beta), ("corrected", 0.5 / beta))
    }
    return Erratum(
        6,
        "wrong",
        "covariance of ClAM's components",
        "Σ = 2 β⁻¹ I beside exp(−β d²)",
        "Σ = I / (2β)",
        "The log of exp(−β d²) over a Gaussian density is the same everywhere to "
        f"{spread['corrected']:.0e} with I/(2β); with 2 I/β it varies by "
        f"{spread['printed']:.1f} over 50 points.",
        {f"spread_of_log_ratio_{name}": value for name, value in spread.items()},
        spread["corrected"] < EXACT and spread["printed"] > 0.1,
    )


def factor_of_the_dynamics(generator: torch.Generator) -> Erratum:
    """E7: the printed force is half of the energy's."""
    means, x = normal(generator, 4, 3), normal(generator, 3)
    beta = 0.8
    shares = torch.softmax(-beta * (means - x).square().sum(1), 0)
    force = shares @ (means - x)
    slope = ist.Mixture(means, beta=beta).score(x)
    ratio = (slope / force).tolist()
    return Erratum(
        7,
        "loose",
        "ClAM's dynamics",
        "Σ (μ_k − x) softmax, called −∇E",
        "−½ ∇E; the 2 is in the time constant",
        f"−∇E over the printed force is {min(ratio):.6f} to {max(ratio):.6f} in all coordinates.",
        {"smallest_ratio": min(ratio), "largest_ratio": max(ratio)},
        max(abs(each - 2) for each in ratio) < EXACT,
    )


def inflation(dim: int, beta: float = 1.0, rho: float = 0.1) -> float:
    """By how much the printed energy favours a new cluster over the normalised one."""
    means = torch.zeros(1, dim, dtype=torch.float64)
    odds = []
    for normalized in (False, True):
        energy = ist.CRPMixture(means, [1.0], beta=beta, rho=rho, normalized=normalized)
        known, new = energy.responsibilities(torch.zeros(1, dim, dtype=torch.float64))[0]
        odds.append(float(new.log() - known.log()))
    return math.exp(odds[0] - odds[1])


def mass_of_the_new_cluster(normalized: bool) -> float:
    """The integral over a plane of the new cluster's term, over its weight and Z of a known one."""
    beta, rho, step = 1.0, 0.5, 0.05
    axis = torch.arange(-12, 12, step, dtype=torch.float64)
    points = torch.cartesian_prod(axis, axis)
    far = torch.full((1, 2), 1e3, dtype=torch.float64)  # a known memory that is out of the way
    energy = ist.CRPMixture(far, [1.0], beta=beta, rho=rho, alpha=1.0, normalized=normalized)
    term = torch.exp(-beta * energy.energy(points)).sum() * step**2
    return float(term) / (math.pi / beta)


def normaliser_of_the_new_cluster() -> Erratum:
    """E8: terms of different widths need their normalisers."""
    printed, corrected = mass_of_the_new_cluster(False), mass_of_the_new_cluster(True)
    plane, many = inflation(2), inflation(54)
    return Erratum(
        8,
        "wrong",
        "ClAM+CRP's energy",
        "exp(−κ |x|²)(α + K d) for the new cluster",
        "the same times (κ/β)^(D/2): its Gaussian is wider than the others",
        "At β = 1, ρ = 0.1 the print makes a new cluster likelier by a factor of "
        f"{plane:.0f} in 2 dimensions and of 10^{math.log10(many):.0f} in 54. In units of a known "
        f"cluster's, its mass on a plane is {corrected:.4f} corrected, {printed:.2f} printed "
        "(ρ = 0.5).",
        {
            "inflation_in_2_dimensions": plane,
            "log10_inflation_in_54_dimensions": math.log10(many),
            "mass_corrected": corrected,
            "mass_printed": printed,
        },
        abs(corrected - 1) < 1e-6 and abs(printed - 1) > 0.1,
    )


def exponent_of_the_new_cluster() -> Erratum:
    """E9: which covariances the printed exponent goes with."""
    beta, rho = 1.3, 0.2
    kappa = 1 / (1 / beta + 1 / rho)
    # Data are a mean plus noise, so covariances add; the exponent is half over the sum.
    stated, corrected = (0.5 / (factor / beta + factor / rho) for factor in (2.0, 0.5))
    return Erratum(
        9,
        "loose",
        "exponent of the new cluster",
        "(1/β + 1/ρ)⁻¹ with covariances 2 I/β and 2 I/ρ",
        "the same with I/(2β) and I/(2ρ)",
        f"At β = 1.3, ρ = 0.2 the printed exponent is {kappa:.4f}. The stated covariances give "
        f"{stated:.4f}, the corrected ones {corrected:.4f}.",
        {"printed": kappa, "by_stated_covariances": stated, "by_corrected": corrected},
        abs(corrected - kappa) < EXACT and abs(stated - kappa) > 0.01,
    )


def pull_to_the_origin(generator: torch.Generator) -> Erratum:
    """E10: where a datum flows does not tell whether it is new."""
    beta, rho = 1.0, 0.3
    means = torch.cat([torch.zeros(1, 2, dtype=torch.float64), 2 * normal(generator, 2, 2)])
    energy = ist.CRPMixture(means, [20.0, 5.0, 5.0], beta=beta, rho=rho, alpha=1.0)
    x = normal(generator, 2)
    shares = energy.responsibilities(x)
    known = shares[:-1] @ (means - x)
    kappa = 1 / (1 / beta + 1 / rho)
    off = {
        name: float((0.5 * energy.score(x) - known + factor * shares[-1] * x).abs().max())
        for name, factor in (("corrected", kappa / beta), ("full", 1.0))
    }
    near = torch.full((2,), 0.05, dtype=torch.float64)
    end = float(torch.linalg.vector_norm(ist.retrieve(energy, near).state))
    belongs = float(energy.responsibilities(near)[0])
    return Erratum(
        10,
        "wrong",
        "ClAM+CRP, “if a datum flows to the origin, we create a new memory”",
        "decide by where the datum comes to rest",
        "decide by the responsibility of the new cluster; its pull is scaled by κ/β",
        f"−½∇E is the sum of all pulls to {off['corrected']:.0e} with that factor, without it off "
        f"by {off['full']:.2f}. A datum of a cluster at the origin, its own with probability "
        f"{belongs:.2f}, rests {end:.2f} from the origin and would be called new.",
        {
            "force_off_corrected": off["corrected"],
            "force_off_without_factor": off["full"],
            "probability_of_known_cluster": belongs,
            "distance_from_origin_at_rest": end,
        },
        off["corrected"] < EXACT and off["full"] > 1e-3 and belongs > 0.5 and end < 0.5,
    )


def weights_below_zero() -> Erratum:
    """E11: n_k - d is a weight only while n_k > d."""
    count, discount, alpha = 0.3, 0.5, 1.0
    try:
        ist.CRPMixture([[0.0], [1.0]], [count, 3.0], discount=discount)
        refused = False
    except InvalidInputError:
        refused = True
    sizes = np.array([4.0, 2.0, 1.0])
    total = float((sizes - discount).sum() + alpha + discount * len(sizes))
    normaliser = float(sizes.sum()) + alpha
    return Erratum(
        11,
        "loose",
        "weights of the Chinese restaurant process",
        "n_k − d",
        "needs n_k > d, so empty and small soft clusters must go first",
        f"A soft count of {count} with d = {discount} gives the weight {count - discount:.1f}; "
        f"isthmus {'refuses it' if refused else 'takes it'}. Otherwise the weights are right: "
        f"those of 4, 2 and 1 add up to {total:g} = n − 1 + α.",
        {"weight": count - discount, "sum_of_weights": total, "normaliser": normaliser},
        count - discount < 0 and refused and abs(total - normaliser) < EXACT,
    )


def clam_loss(data: Tensor, memories: Tensor, steps: int, hidden: Tensor | None = None) -> Tensor:
    """ClAM's mean loss after some steps of rate 0.1: the printed one, or that of hidden entries."""
    moving = torch.ones_like(data) if hidden is None else hidden.to(data.dtype)
    x = data if hidden is None else torch.where(hidden, data.mean(0), data)
    for _ in range(steps):
        shares = torch.softmax(-0.5 * (x[:, None] - memories).square().sum(-1), 1)
        x = x + 0.1 * moving * (shares @ memories - x)
    return ((x - data).square() * moving).sum(1).mean()


def loss_without_a_mask(generator: torch.Generator) -> Erratum:
    """E27: a state that does not move reconstructs everything, and knows nothing."""
    data, memories = normal(generator, 200, 4), normal(generator, 3, 4).requires_grad_()
    hidden = torch.rand(200, 4, generator=generator) < 0.25
    still, still_masked = (
        float(clam_loss(data, memories, 0, mask).detach()) for mask in (None, hidden)
    )
    first, second = (
        torch.autograd.grad(clam_loss(data, memories, 10, mask), memories)[0].flatten()
        for mask in (None, hidden)
    )
    cosine = float(torch.cosine_similarity(first, second, dim=0))
    return Erratum(
        27,
        "wrong",
        "ClAM's loss",
        "Σ |x_n − x_n(T)|², all coordinates given",
        "ClAM's authors hide some coordinates, move only those and score only those",
        f"Dynamics that do nothing have the printed loss {still:g}, the least there is, whatever "
        f"the memories, and the masked loss {still_masked:.2f}. After 10 steps the gradients of "
        f"the two by the memories have a cosine of {cosine:.2f}. isthmus has both.",
        {
            "printed_loss_without_dynamics": still,
            "masked_loss_without_dynamics": still_masked,
            "cosine_of_gradients": cosine,
        },
        still == 0 and still_masked > 0.1 and cosine < 0.99,
    )


def one_step_is_no_fixed_point(generator: torch.Generator) -> Erratum:
    """E29: weights taken at x, not at x*."""
    memories, x = 1.5 * normal(generator, 4, 2), normal(generator, 2)
    mixture = ist.Mixture(memories, beta=0.5)
    guess = mixture.responsibilities(x) @ memories
    rest = ist.retrieve(mixture, x, tol=1e-13, max_steps=100_000).state
    off_guess, off_rest = (
        float(torch.linalg.vector_norm(mixture.step(state) - state)) for state in (guess, rest)
    )
    return Erratum(
        29,
        "wrong",
        "the workshop version and the poster: fixed points of ClAM",
        "x* = Σ p(z = k | x) μ_k is a fixed point",
        "x* = Σ p(z = k | x*) μ_k; the printed one is the first step of mean shift",
        f"One more update moves the printed point by {off_guess:.2g}, the true one by "
        f"{off_rest:.0e}.",
        {"printed_point_moves_by": off_guess, "fixed_point_moves_by": off_rest},
        off_guess > 1e-3 and off_rest < EXACT,
    )
