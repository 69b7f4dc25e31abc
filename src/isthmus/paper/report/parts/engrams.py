"""Interactions of memories in ClAM+CRP+ELBO, read as engrams."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import isthmus as ist
from isthmus.paper.figures.clustering import matrices
from isthmus.paper.report.parts.clustering import COUNTS, MEANS, logit_metric
from isthmus.paper.report.parts.errata import EXACT, largest_gap
from isthmus.paper.report.registry import compose
from isthmus.paper.report.section import Section

# A datum between all memories, whose assignment is in doubt.
DATUM = (-0.1, 0.1)


def flow(v: Tensor, log_joint: Tensor) -> Tensor:
    """Return the printed dv/dt, (diag q - q q^T)(log p - log q), of assignment logits v. (K,)"""
    return logit_metric(torch.softmax(v, 0)) @ (log_joint - torch.log_softmax(v, 0))


def interactions_of_memories(seed: int, full: bool = False) -> Section:
    """Compare the printed interactions with how the flow responds to evidence and to its state."""
    energy = ist.CRPMixture(MEANS, COUNTS, beta=0.5, rho=0.1, alpha=6.0)
    log_joint = energy.responsibilities(torch.tensor(DATUM, dtype=torch.float64)).log()
    printed = logit_metric(log_joint.exp())
    # Derivatives at the posterior, v = log p, where the flow rests.
    to_state, to_evidence = torch.func.jacrev(flow, (0, 1))(log_joint, log_joint)
    own = printed.diagonal()
    competing = bool((own > 0).all() and (printed - own.diag() <= 0).all())
    names = [*(f"memory {number}" for number in range(1, len(MEANS) + 1)), "new"]
    numbers: dict[str, Any] = {
        "posterior": dict(zip(names, log_joint.exp().tolist(), strict=True)),
        "response_to_evidence_off": largest_gap(to_evidence, printed),
        "response_to_states_off": largest_gap(to_state, printed),
        "response_to_states_off_with_the_sign_changed": largest_gap(to_state, -printed),
    }
    corrected = competing and numbers["response_to_evidence_off"] <= EXACT
    checks = {"engrams": (corrected and numbers["response_to_states_off"] <= EXACT, corrected)}
    panels = {"Response to evidence": to_evidence, "Response to the state": to_state}
    return compose("engrams", matrices(panels, names), numbers, checks)
