"""Figures of learned memories draw what the models say."""

import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure

import isthmus as ist
from isthmus.cluster.elbo import Dynamics
from isthmus.paper.figures.clustering import (
    _draw_new_region,
    elbo_path,
    memory_creation,
    posterior_error,
)
from isthmus.paper.report.parts.clustering import elbo_dynamics, inflation

MEANS = np.array([[-1.0, 0.5], [1.0, -0.5]])
COUNTS = np.array([8.0, 4.0])
JOINT = torch.tensor([[0.0, -1.0, -2.0]] * 2, dtype=torch.float64)
START = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 20.0]], dtype=torch.float64)


def errors_of(dynamics: Dynamics, steps: int) -> torch.Tensor:
    """Return the errors after each step from a small and from a large logit."""
    return posterior_error(JOINT, elbo_path(JOINT, dynamics, START, steps))


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
        shares.append(_draw_new_region(Figure().subplots(), energy, 3.0))
        assert shares[-1] == pytest.approx(new.mean())
    assert shares == sorted(shares)


def test_the_exact_step_has_no_error_left() -> None:
    errors = errors_of("exact", 1)
    assert errors.shape == (2, 2)
    assert errors[1].max() < 1e-15


def test_the_mirror_flow_halves_the_error_at_the_end_and_never_stalls() -> None:
    errors = errors_of("mirror", 30)[:, 1]
    assert (errors[20:] / errors[19:-1]).sub(0.5).abs().max() < 1e-3


def test_the_euclidean_flow_stalls_from_a_large_logit() -> None:
    errors = errors_of("euclidean", 300)
    assert errors[-1, 0] < 1e-6
    assert errors[-1, 1] == pytest.approx(float(errors[0, 1]), abs=1e-3)


@pytest.mark.parametrize("dim", [2, 13])
def test_the_printed_energy_inflates_the_new_cluster_as_the_erratum_says(dim: int) -> None:
    assert inflation(dim) == pytest.approx(11 ** (dim / 2))


def test_the_report_says_how_long_each_dynamic_takes() -> None:
    steps = elbo_dynamics(0).numbers["steps_by_dynamics_and_logit"]
    assert set(steps["exact"].values()) == {1}
    assert max(steps["mirror"].values()) < 30
    assert steps["euclidean"]["20"] is None
