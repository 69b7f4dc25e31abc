"""Basins and how they merge."""

import numpy as np
import pytest
from scipy.stats import t as student_t

from isthmus.capacity import basins
from isthmus.errors import IsthmusError
from isthmus.memories import StudentMixture


def test_modes_on_a_line_only_ever_merge() -> None:
    X = np.random.default_rng(0).normal(size=(20, 1)) * 3
    counts = [basins(X, sigma, tol=1e-4).n_basins for sigma in np.geomspace(0.05, 5, 8)]
    assert (np.diff(counts) <= 0).all()
    assert counts[0] > counts[-1] >= 1


@pytest.mark.parametrize(("unit", "shape"), [(1.0, "round"), (1e-4, "diagonal"), (1e5, "full")])
def test_basins_on_a_student_mixture_are_those_of_its_update(unit, shape):
    rng = np.random.default_rng(0)
    means, width, dof = 3 * rng.normal(size=12), rng.uniform(0.1, 0.8, 12), rng.uniform(2, 30, 12)
    scales = {"round": width, "diagonal": width[:, None], "full": width[:, None, None]}[shape]
    mixture = StudentMixture(unit * means[:, None], unit * scales, dof=dof)
    X = rng.uniform(-6, 6, 80)
    found = basins(mixture, starts=unit * X[:, None])
    state = X.copy()
    for _ in range(3000):  # the mean of the centres, weighted by precision and responsibility
        density = student_t.pdf(state[:, None], dof, means, width)
        precision = (dof + 1) / (dof * width**2 + (state[:, None] - means) ** 2)
        weight = density * precision
        state = (weight * means).sum(1) / weight.sum(1)
    line = np.linspace(-12, 12, 40_001)
    height = student_t.pdf(line[:, None], dof, means, width).sum(1)
    peaks = line[1:-1][(height[1:-1] > height[:-2]) & (height[1:-1] > height[2:])]
    assert found.converged.all()
    assert abs(found.fixed_points / unit - peaks).min(1).max() < 1e-3
    np.testing.assert_allclose(found.fixed_points[found.labels, 0] / unit, state, atol=1e-3)
    assert found.n_basins == len(np.unique(state.round(2))) > 3
    assert (np.diff(np.bincount(found.labels)) <= 0).all()
    assert str(found).startswith(f"{found.n_basins} basins for 80 patterns; the largest")


def test_other_energies_need_starts_of_their_dimension() -> None:
    mixture = StudentMixture([[0.0, 0.0], [5.0, 0.0]], [1.0, 1.0])
    for starts in (np.zeros((3, 1)), np.empty((0, 2))):
        with pytest.raises(IsthmusError, match="coordinates|starts"):
            basins(mixture, starts=starts)
