"""Figures of learned memories and of the report draw what the models say."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.patches import Wedge

import isthmus as ist
from isthmus.paper.figures import (
    draw_new_region,
    four_models,
)


def angles(axes) -> dict[str, float]:
    """Degrees of each colour in the one pie of the axes; its rim is not filled."""
    wedges = [patch for patch in axes.patches if isinstance(patch, Wedge)]
    return {
        str(wedge.get_facecolor()): wedge.theta2 - wedge.theta1
        for wedge in wedges
        if wedge.get_facecolor()[3] > 0
    }


def test_pies_are_posteriors() -> None:
    # Half-way between two memories with counts 3 and 1, and no room for others on the left.
    means, counts = [[-1.0, 0.0], [1.0, 0.0]], [3.0, 1.0]
    finite = ist.Mixture(means, beta=2.0, log_weights=np.log(counts))
    growing = ist.CRPMixture(means, counts, beta=2.0, rho=0.2, alpha=1.0)
    datum = torch.tensor([[0.0, 0.5]], dtype=torch.float64)
    figure = four_models(finite, growing, datum, 3.0)
    left, right = figure.axes[2:]
    assert sorted(angles(left).values()) == pytest.approx([90, 270], abs=0.01)
    # On the right the new cluster has its share by Bayes' rule.
    kappa = 1 / (1 / 2.0 + 1 / 0.2)
    new = kappa / 2.0 * np.exp(-kappa * 0.25)
    known = 4 * np.exp(-2.0 * 1.25)
    shares = angles(right)
    assert len(shares) == 3
    assert list(shares.values())[-1] == pytest.approx(360 * new / (new + known), abs=0.01)


MEANS = np.array([[-1.0, 0.5], [1.0, -0.5]])
COUNTS = np.array([8.0, 4.0])


def test_the_region_of_new_memories_is_where_their_responsibility_wins() -> None:
    axis, shares = np.linspace(-3, 3, 201), []
    points = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    for alpha in (0.1, 1.0, 10.0):
        energy = ist.CRPMixture(MEANS, COUNTS, beta=2.0, rho=0.2, alpha=alpha)
        new = energy.responsibilities(points).argmax(1) == len(MEANS)
        shares.append(draw_new_region(Figure().subplots(), energy, 3.0))
        assert shares[-1] == pytest.approx(new.mean())
    assert shares == sorted(shares)
