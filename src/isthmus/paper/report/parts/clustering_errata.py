"""The errata about learned memories."""

from __future__ import annotations

import math

import numpy as np
import torch
from scipy.stats import multivariate_normal
from torch import Tensor

import isthmus as ist
from isthmus.cluster import elbo_flow
from isthmus.paper.report.parts.errata import EXACT, Check, erratum, grid, largest_gap, normal

MEANS = [[-1.6, 1.2], [1.7, 0.9], [0.2, -1.7]]
BETA = 2.5
# Log-joints of one datum with four memories; flows start with a logit for the least likely one.
LOG_JOINT = torch.tensor([-1.0, -2.0, -3.0, -4.0], dtype=torch.float64)
STEPS = 3000


def logit_metric(q: Tensor) -> Tensor:
    """Return diag(q) - q q^T, the derivative of q = softmax(v): (K, K)."""
    return torch.diag(q) - torch.outer(q, q)


def starts_of_flows(sizes: tuple[float, ...]) -> tuple[Tensor, Tensor]:
    """Return log-joints, and logits of these sizes for the least likely memory: both (S, K)."""
    start = torch.zeros(len(sizes), len(LOG_JOINT), dtype=torch.float64)
    start[:, -1] = torch.tensor(sizes)
    return LOG_JOINT.expand_as(start), start


def bayes_rule(points: Tensor, weights: list[float], alpha: float = 0, rho: float = 1) -> Tensor:
    """Return the posteriors of Gaussians of variance 1 / (2 beta), and of a new one with weight."""
    components = [(*pair, 0.5 / BETA) for pair in zip(weights, MEANS, strict=True)]
    if alpha:
        components.append((alpha, [0.0, 0.0], 0.5 / BETA + 0.5 / rho))
    joint = [w * multivariate_normal(mean, v).pdf(points) for w, mean, v in components]
    return torch.from_numpy(np.stack(joint, 1) / np.sum(joint, 0)[:, None])


@erratum("E2")
def sign_of_the_entropy(generator: torch.Generator) -> Check:
    """Compare the paper's dynamics with descent on the energy with either sign."""
    log_joint, logits = normal(generator, 5), normal(generator, 5)

    q = torch.softmax(logits, 0)
    force = logit_metric(q) @ (log_joint - 1 - q.log())

    def energy(v: Tensor, sign: float) -> Tensor:
        q = torch.softmax(v, 0)
        return -(q * log_joint).sum() - sign * (q * q.log()).sum()

    printed, corrected = (
        largest_gap(-torch.func.grad(energy)(logits, sign), force) for sign in (1, -1)
    )
    numbers = {"gradient_off_corrected": corrected, "gradient_off_printed": printed}
    return numbers, corrected < EXACT and printed > 0.01


@erratum("E4")
def flow_that_stalls(generator: torch.Generator) -> Check:
    """Compare the printed flow and the mirror flow, from zero and from near a vertex."""
    target, start = starts_of_flows((0.0, 20.0))
    printed = elbo_flow(target, "euclidean", start=start, max_steps=STEPS)
    mirror = elbo_flow(target, "mirror", start=start, max_steps=STEPS)
    left = largest_gap(printed.probabilities[1], torch.softmax(LOG_JOINT, 0))
    return {
        "printed_steps_from_zero": int(printed.steps[0]),
        "printed_distance_left_from_20": left,
        "mirror_steps": int(mirror.steps.max()),
        "limit": STEPS,
    }, not bool(printed.converged[1]) and bool(mirror.converged.all())


@erratum("E5")
def fixed_points(generator: torch.Generator) -> Check:
    """Count the fixed points in the space of data and in that of assignments."""
    memories = torch.tensor([[-3.0, 0.0], [3.0, 0.0], [0.0, 4.0]], dtype=torch.float64)
    rest = ist.retrieve(ist.Mixture(memories, beta=1.0), memories).state
    joint = -(memories - torch.tensor([0.4, 0.7], dtype=torch.float64)).square().sum(1)
    starts = 3 * torch.eye(3, dtype=torch.float64)
    ends = elbo_flow(joint.expand(3, 3), "mirror", start=starts).probabilities
    data, states = (len(torch.unique(each.round(decimals=4), dim=0)) for each in (rest, ends))
    numbers = {"resting_points_of_clam": data, "resting_points_of_assignments": states}
    return numbers, data == 3 and states == 1


def mass_of_the_new_cluster(normalized: bool) -> float:
    """Integrate the new cluster's term over a plane, in units of a known cluster's mass."""
    points, area = grid(12, 0.05, 2)
    far = torch.full((1, 2), 1e3, dtype=torch.float64)  # a known memory without influence
    energy = ist.CRPMixture(far, [1.0], beta=1.0, rho=0.5, alpha=1.0, normalized=normalized)
    return float(torch.exp(-energy.energy(points)).sum() * area) / math.pi


@erratum("E8")
def normaliser_of_the_new_cluster(generator: torch.Generator) -> Check:
    """Measure the new cluster's mass with and without its normaliser."""
    printed, corrected = map(mass_of_the_new_cluster, (False, True))
    numbers = {"mass_corrected": corrected, "mass_printed": printed}
    return numbers, abs(corrected - 1) < 1e-6 and abs(printed - 1) > 0.1


@erratum("E10")
def pull_to_the_origin(generator: torch.Generator) -> Check:
    """Show that a point of a known cluster at the origin would be called new."""
    means = torch.cat([torch.zeros(1, 2, dtype=torch.float64), 2 * normal(generator, 2, 2)])
    energy = ist.CRPMixture(means, [20.0, 5.0, 5.0], beta=1.0, rho=0.3, alpha=1.0)
    near = torch.full((2,), 0.05, dtype=torch.float64)
    end = float(torch.linalg.vector_norm(ist.retrieve(energy, near).state))
    belongs = float(energy.responsibilities(near)[0])
    numbers = {"probability_of_known_cluster": belongs, "distance_from_origin_at_rest": end}
    return numbers, belongs > 0.5 and end < 0.5


def clam_loss(data: Tensor, memories: Tensor, steps: int) -> Tensor:
    """Return ClAM's mean loss, as printed, after steps of rate 0.1."""
    x = data
    for _ in range(steps):
        shares = torch.softmax(-0.5 * (x[:, None] - memories).square().sum(-1), 1)
        x = x + 0.1 * (shares @ memories - x)
    return (x - data).square().sum(1).mean()
