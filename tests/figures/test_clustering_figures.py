"""Figures of learned memories draw what the models say."""

import numpy as np
import pytest
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

import isthmus as ist
from isthmus.paper.figures.clustering import draw_new_region, memory_creation

MEANS = np.array([[-1.0, 0.5], [1.0, -0.5]])
COUNTS = np.array([8.0, 4.0])


def test_only_panels_that_can_open_memories_are_hatched() -> None:
    growing = ist.CRPMixture(MEANS, COUNTS, beta=2.0, rho=0.2, alpha=1.0)
    figure = memory_creation(ist.Mixture(MEANS, beta=2.0), [growing], 3.0, {"a": {1.0: 0.5}})
    hatched = [
        any(isinstance(part, LineCollection) for part in axes.collections) for axes in figure.axes
    ]
    assert hatched == [False, True, False]


def test_the_region_of_new_memories_is_where_their_responsibility_wins() -> None:
    axis, shares = np.linspace(-3, 3, 201), []
    points = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 2)
    for alpha in (0.1, 1.0, 10.0):
        energy = ist.CRPMixture(MEANS, COUNTS, beta=2.0, rho=0.2, alpha=alpha)
        new = energy.responsibilities(points).argmax(1) == len(MEANS)
        shares.append(draw_new_region(Figure().subplots(), energy, 3.0))
        assert shares[-1] == pytest.approx(new.mean())
    assert shares == sorted(shares)
