"""Figures of learned memories draw what the models say."""

import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection

import isthmus as ist
from isthmus.paper.figures.clustering import (
    _newness,
    elbo_trace,
    memory_creation,
)
from isthmus.paper.report.parts.clustering import dynamics_of_posteriors, inflation

MEANS = np.array([[-1.0, 0.5], [1.0, -0.5]])
COUNTS = np.array([8.0, 4.0])
CREATION = {"beta": 2.0, "rho": 0.2, "resolution": 41}
JOINT = torch.tensor([0.0, -1.0, -2.0], dtype=torch.float64)


def test_only_panels_that_can_open_memories_are_hatched() -> None:
    figure = memory_creation(MEANS, COUNTS, alphas=[1.0], **CREATION)
    hatched = [
        any(isinstance(part, LineCollection) for part in axes.collections) for axes in figure.axes
    ]
    assert hatched == [False, True]


def test_the_region_of_new_memories_is_where_their_responsibility_wins() -> None:
    energy = ist.CRPMixture(MEANS, COUNTS, beta=2.0, rho=0.2, alpha=3.0)
    x, y, odds = _newness(energy, 3.0, 15)
    shares = energy.responsibilities(np.stack([x, y], -1).reshape(-1, 2))
    assert np.array_equal((odds > 0).ravel(), shares.argmax(1) == len(MEANS))


def test_the_region_of_new_memories_grows_with_alpha() -> None:
    sizes = [
        (_newness(ist.CRPMixture(MEANS, COUNTS, beta=2.0, rho=0.2, alpha=alpha), 3.0, 41)[2] > 0)
        for alpha in (0.1, 1.0, 10.0)
    ]
    assert sizes[0].sum() < sizes[1].sum() < sizes[2].sum()


def test_the_exact_step_has_no_error_left() -> None:
    start = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 20.0]], dtype=torch.float64)
    errors = elbo_trace(JOINT, "exact", start, steps=1)
    assert errors.shape == (2, 2)
    assert errors[1].max() < 1e-15


def test_the_mirror_flow_halves_the_error_at_the_end_and_never_stalls() -> None:
    start = torch.tensor([[0.0, 0.0, 20.0]], dtype=torch.float64)
    errors = elbo_trace(JOINT, "mirror", start, steps=30)[:, 0]
    assert (errors[20:] / errors[19:-1]).sub(0.5).abs().max() < 1e-3


def test_the_euclidean_flow_stalls_from_a_large_logit() -> None:
    start = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 20.0]], dtype=torch.float64)
    errors = elbo_trace(JOINT, "euclidean", start, steps=300)
    assert errors[-1, 0] < 1e-6
    assert errors[-1, 1] == pytest.approx(float(errors[0, 1]), abs=1e-3)


@pytest.mark.parametrize("dim", [2, 13])
def test_the_printed_energy_inflates_the_new_cluster_as_the_erratum_says(dim: int) -> None:
    assert inflation(dim) == pytest.approx(11 ** (dim / 2))


def test_the_report_says_how_long_each_dynamic_takes() -> None:
    steps = dynamics_of_posteriors(0).numbers["steps_by_dynamics_and_logit"]
    assert set(steps["exact"].values()) == {1}
    assert max(steps["mirror"].values()) < 30
    assert steps["euclidean"]["20"] is None
