"""The part of the report on what a memory does at each bandwidth."""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from isthmus import capacity
from isthmus.figures import phase_plot
from isthmus.paper.phases import all_thresholds
from isthmus.paper.report.section import Section

ROWS = 600


def phases(seed: int, full: bool = False) -> Section:
    """Draw the phases of a memory of digits, and compare the lines of theory with simulations."""
    digits = load_digits().data
    rows = np.random.default_rng(seed).permutation(len(digits))[: None if full else ROWS]
    found, thresholds = capacity.phases(digits[rows], seed=seed), all_thresholds(seed)
    worst = max(abs(each.ratio - 1) for each in thresholds)
    return Section(
        f"Beyond the paper. What a Gaussian KDE of {len(rows):,} pictures of digits does at each "
        "bandwidth: it "
        f"{', '.join(name for name, _, _ in found.regions)}. The full line marks the bandwidth at "
        "which pictures are most likely given the others, the dashed one the noise at which draws "
        "are predicted to collapse to pictures. On the right, the lines of theory for random "
        "patterns (docs/capacity-proofs.md, section 15). Simulations, extrapolated to many "
        f"dimensions, differ from their thresholds by at most {worst:.1%}.",
        phase_plot(found),
        {
            "regions": {name: [low, high] for name, low, high in found.regions},
            "predicted_and_measured_by_threshold": {
                each.name: [each.predicted, each.measured] for each in thresholds
            },
        },
    )
