"""Errata of the clustering section: ClAM, its evidence lower bound, and new memories."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

import isthmus as ist
from isthmus.cluster import elbo_flow
from isthmus.errors import InvalidInputError
from isthmus.report.parts.errata.erratum import Check, erratum, normal

EXACT = 1e-9
STEPS = 3000
LOG_JOINT = (-1.0, -2.0, -3.0, -4.0)


def logit_metric(q: Tensor) -> Tensor:
    """Return diag(q) - q q^T, the derivative of q = softmax(v): (K, K)."""
    return torch.diag(q) - torch.outer(q, q)


@erratum("E2")
def sign_of_the_entropy(generator: torch.Generator) -> Check:
    """Compare the paper's dynamics with descent on the energy with either sign."""
    log_joint = normal(generator, 5)
    logits = normal(generator, 5).requires_grad_()
    q = torch.softmax(logits, 0)
    entropy = -(q * q.log()).sum()
    expected = -(q * log_joint).sum()
    forces = [
        -torch.autograd.grad(expected + sign * entropy, logits, retain_graph=True)[0]
        for sign in (1, -1)
    ]
    q = q.detach()
    dynamics = logit_metric(q) @ (log_joint - q.log() - 1)
    printed, corrected = (float((force - dynamics).abs().max()) for force in forces)
    end = _descend_printed_energy(log_joint, logits.detach())
    return Check(
        {
            "gradient_off_corrected": corrected,
            "gradient_off_printed": printed,
            "largest_probability_after_descent_on_printed": end,
        },
        corrected < EXACT and printed > 0.01 and end > 0.99,
    )


def _descend_printed_energy(log_joint: Tensor, logits: Tensor) -> float:
    """Descend on -sum q log p + H(q) and return the largest probability."""
    for _ in range(20_000):
        q = torch.softmax(logits, 0)
        logits = logits + 0.5 * logit_metric(q) @ (log_joint + q.log())
    return float(torch.softmax(logits, 0).max())


@erratum("E3")
def the_extra_one(generator: torch.Generator) -> Check:
    """Show that the metric maps constants to zero."""
    q = torch.softmax(normal(generator, 6), 0)
    largest = float((logit_metric(q) @ torch.ones(6, dtype=torch.float64)).abs().max())
    return Check({"largest_entry": largest}, largest < EXACT)


@erratum("E4")
def flow_that_stalls(generator: torch.Generator) -> Check:
    """Compare the printed flow and the mirror flow, from zero and from near a vertex."""
    joint = torch.tensor(LOG_JOINT, dtype=torch.float64)
    start = joint.new_zeros(2, len(joint))
    start[1, -1] = 20.0
    target = joint.expand_as(start)
    euclidean, mirror = (
        elbo_flow(target, dynamics, start=start, max_steps=STEPS)
        for dynamics in ("euclidean", "mirror")
    )
    left = float((euclidean.probabilities[1] - torch.softmax(joint, 0)).abs().max())
    return Check(
        {
            "printed_steps_from_zero": int(euclidean.steps[0]),
            "printed_distance_left_from_20": left,
            "mirror_steps": int(mirror.steps.max()),
        },
        not bool(euclidean.converged[1]) and bool(mirror.converged.all()),
        {"limit": STEPS},
    )


@erratum("E5")
def fixed_points(generator: torch.Generator) -> Check:
    """Count the fixed points in the space of data and in that of assignments."""
    memories = torch.tensor([[-3.0, 0.0], [3.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    rest = ist.retrieve(ist.Mixture(memories, beta=1.0), memories).state
    in_data = len(torch.unique(rest.round(decimals=4), dim=0))
    point = torch.tensor([0.4, 0.7], dtype=torch.float64)
    joint = -(memories - point).square().sum(1)
    starts = 3 * torch.eye(3, dtype=torch.float64)
    flow = elbo_flow(joint.expand(3, 3), "mirror", start=starts)
    in_assignments = len(torch.unique(flow.probabilities.round(decimals=4), dim=0))
    return Check(
        {"resting_points_of_clam": in_data, "resting_points_of_assignments": in_assignments},
        in_data == 3 and in_assignments == 1,
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
    return Check(
        {"spread_of_log_ratio_printed": printed, "spread_of_log_ratio_corrected": corrected},
        corrected < EXACT and printed > 0.1,
    )


@erratum("E7")
def factor_of_the_dynamics(generator: torch.Generator) -> Check:
    """Compare the printed force with the energy's."""
    means, x = normal(generator, 4, 3), normal(generator, 3)
    beta = 0.8
    shares = torch.softmax(-beta * (means - x).square().sum(1), 0)
    ratio = (ist.Mixture(means, beta=beta).score(x) / (shares @ (means - x))).tolist()
    return Check(
        {"smallest_ratio": min(ratio), "largest_ratio": max(ratio)},
        max(abs(each - 2) for each in ratio) < EXACT,
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
    beta, rho, step = 1.0, 0.5, 0.05
    axis = torch.arange(-12, 12, step, dtype=torch.float64)
    points = torch.cartesian_prod(axis, axis)
    far = torch.full((1, 2), 1e3, dtype=torch.float64)  # a known memory without influence
    energy = ist.CRPMixture(far, [1.0], beta=beta, rho=rho, alpha=1.0, normalized=normalized)
    term = torch.exp(-beta * energy.energy(points)).sum() * step**2
    return float(term) / (math.pi / beta)


@erratum("E8")
def normaliser_of_the_new_cluster(generator: torch.Generator) -> Check:
    """Measure the new cluster's mass with and without its normaliser."""
    printed, corrected = mass_of_the_new_cluster(False), mass_of_the_new_cluster(True)
    return Check(
        {
            "inflation_in_2_dimensions": inflation(2),
            "log10_inflation_in_54_dimensions": math.log10(inflation(54)),
            "mass_corrected": corrected,
            "mass_printed": printed,
        },
        abs(corrected - 1) < 1e-6 and abs(printed - 1) > 0.1,
    )


@erratum("E9")
def exponent_of_the_new_cluster(generator: torch.Generator) -> Check:
    """Compute the exponent for the stated and for the corrected covariances."""
    beta, rho = 1.3, 0.2
    kappa = 1 / (1 / beta + 1 / rho)
    # A data point is a mean plus noise, so covariances add; the exponent is half over the sum.
    stated, corrected = (0.5 / (factor / beta + factor / rho) for factor in (2.0, 0.5))
    return Check(
        {"printed": kappa, "by_stated_covariances": stated, "by_corrected": corrected},
        abs(corrected - kappa) < EXACT and abs(stated - kappa) > 0.01,
    )


@erratum("E10")
def pull_to_the_origin(generator: torch.Generator) -> Check:
    """Show that a point of a known cluster at the origin would be called new."""
    beta, rho = 1.0, 0.3
    means = torch.cat([torch.zeros(1, 2, dtype=torch.float64), 2 * normal(generator, 2, 2)])
    energy = ist.CRPMixture(means, [20.0, 5.0, 5.0], beta=beta, rho=rho, alpha=1.0)
    x = normal(generator, 2)
    shares = energy.responsibilities(x)
    known = shares[:-1] @ (means - x)
    kappa = 1 / (1 / beta + 1 / rho)
    corrected, full = (
        float((0.5 * energy.score(x) - known + factor * shares[-1] * x).abs().max())
        for factor in (kappa / beta, 1.0)
    )
    near = torch.full((2,), 0.05, dtype=torch.float64)
    end = float(torch.linalg.vector_norm(ist.retrieve(energy, near).state))
    belongs = float(energy.responsibilities(near)[0])
    return Check(
        {
            "force_off_corrected": corrected,
            "force_off_without_factor": full,
            "probability_of_known_cluster": belongs,
            "distance_from_origin_at_rest": end,
        },
        corrected < EXACT and full > 1e-3 and belongs > 0.5 and end < 0.5,
    )


@erratum("E11")
def weights_below_zero(generator: torch.Generator) -> Check:
    """Check that a count below the discount is refused, and that weights sum up otherwise."""
    count, discount, alpha = 0.3, 0.5, 1.0
    try:
        ist.CRPMixture([[0.0], [1.0]], [count, 3.0], discount=discount)
        refused = False
    except InvalidInputError:
        refused = True
    sizes = np.array([4.0, 2.0, 1.0])
    total = float((sizes - discount).sum() + alpha + discount * len(sizes))
    normaliser = float(sizes.sum()) + alpha
    return Check(
        {"weight": count - discount, "sum_of_weights": total, "normaliser": normaliser},
        count - discount < 0 and refused and abs(total - normaliser) < EXACT,
        {"reaction": "refuses" if refused else "accepts"},
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
    hidden = torch.rand(200, 4, generator=generator) < 0.25
    still, still_masked = (
        float(clam_loss(data, memories, 0, mask).detach()) for mask in (None, hidden)
    )
    first, second = (
        torch.autograd.grad(clam_loss(data, memories, 10, mask), memories)[0].flatten()
        for mask in (None, hidden)
    )
    cosine = float(torch.cosine_similarity(first, second, dim=0))
    return Check(
        {
            "printed_loss_without_dynamics": still,
            "masked_loss_without_dynamics": still_masked,
            "cosine_of_gradients": cosine,
        },
        still == 0 and still_masked > 0.1 and cosine < 0.99,
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
    return Check(
        {"printed_point_moves_by": off_guess, "fixed_point_moves_by": off_rest},
        off_guess > 1e-3 and off_rest < EXACT,
    )
