"""Figures of learned memories draw what the models say."""

import numpy as np
import pytest
import torch
from matplotlib.collections import LineCollection

import isthmus as ist
from isthmus.cluster import ClAMCRP
from isthmus.errors import InvalidInputError, ShapeError
from isthmus.figures.style import png_bytes
from isthmus.paper.figures.clustering import (
    _newness,
    _paled,
    clustering_tour,
    elbo_dynamics,
    elbo_trace,
    matrices,
    memory_creation,
)
from isthmus.paper.report.parts.clustering import blobs, dynamics_of_posteriors, inflation

MEANS = np.array([[-1.0, 0.5], [1.0, -0.5]])
COUNTS = np.array([8.0, 4.0])
CREATION = {"beta": 2.0, "rho": 0.2, "resolution": 41}
JOINT = torch.tensor([0.0, -1.0, -2.0], dtype=torch.float64)


def is_a_picture(figure: object) -> bool:
    return png_bytes(figure, dpi=40).startswith(b"\x89PNG")  # type: ignore[arg-type]


def test_a_panel_for_the_finite_mixture_and_one_for_each_alpha() -> None:
    figure = memory_creation(MEANS, COUNTS, alphas=[0.1, 5.0], **CREATION)
    titles = [axes.get_title("left") for axes in figure.axes]
    assert titles == ["Finite mixture (ClAM)", "CRP mixture, α = 0.1", "CRP mixture, α = 5"]
    assert is_a_picture(figure)


def test_only_panels_that_can_open_memories_are_hatched() -> None:
    figure = memory_creation(MEANS, COUNTS, alphas=[1.0], **CREATION)
    hatched = [
        any(isinstance(part, LineCollection) for part in axes.collections) for axes in figure.axes
    ]
    assert hatched == [False, True]


def test_no_hatching_where_no_datum_would_open_a_memory() -> None:
    figure = memory_creation(MEANS, COUNTS, alphas=[1e-200], reach=1.0, **CREATION)
    assert not any(isinstance(part, LineCollection) for part in figure.axes[1].collections)


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


def test_creation_asks_for_an_alpha() -> None:
    with pytest.raises(InvalidInputError, match="alphas is empty"):
        memory_creation(MEANS, COUNTS, alphas=[], **CREATION)


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


def test_dynamics_are_drawn_from_every_start() -> None:
    figure = elbo_dynamics([0.0, -1.0, -2.0], sizes=(0.0, 3.0), steps=20)
    mirror, euclidean = figure.axes
    assert len(euclidean.lines) == 2
    assert len(mirror.lines) == 3  # and the exact step
    assert is_a_picture(figure)


def test_dynamics_need_more_than_one_memory() -> None:
    with pytest.raises(ShapeError, match="log_joint"):
        elbo_dynamics([0.0])


def test_a_sure_row_has_its_memory_s_colour_and_an_unsure_one_is_paler() -> None:
    sure, unsure = _paled(np.array([[1.0, 0.0], [0.5, 0.5]]))
    assert np.allclose(sure, np.array([0x00, 0x72, 0xB2]) / 255)
    assert unsure.min() > sure.min()


def test_the_tour_marks_memories_gaps_and_strangers() -> None:
    points, _ = blobs(0)
    points[:5, 0] = np.nan
    model = ClAMCRP(random_state=0).fit(points)
    figure = clustering_tour(model, points, [[9.0, 9.0]], resolution=21)
    given, learned, novelty = figure.axes
    assert "5 of them" in given.texts[0].get_text() + given.texts[1].get_text()
    assert learned.get_title("left") == f"Learned: {model.n_clusters_} memories"
    assert novelty.texts[0].get_text() == "1.00"
    assert is_a_picture(figure)


def test_the_tour_is_on_a_plane() -> None:
    model = ClAMCRP(random_state=0).fit(blobs(0)[0])
    with pytest.raises(ShapeError, match="points and strangers"):
        clustering_tour(model, np.zeros((3, 3)), np.zeros((1, 3)))


@pytest.mark.parametrize("dim", [2, 13])
def test_the_printed_energy_inflates_the_new_cluster_as_the_erratum_says(dim: int) -> None:
    assert inflation(dim) == pytest.approx(11 ** (dim / 2))


def test_the_report_says_how_long_each_dynamic_takes() -> None:
    steps = dynamics_of_posteriors(0).numbers["steps_by_dynamics_and_logit"]
    assert set(steps["exact"].values()) == {1}
    assert max(steps["mirror"].values()) < 30
    assert steps["euclidean"]["20"] is None


def test_matrices_show_every_entry_with_its_sign() -> None:
    figure = matrices({"A": [[0.5, -0.25], [0.0, 1.0]]}, ["one", "two"])
    (axes,) = figure.axes
    assert [text.get_text() for text in axes.texts] == ["+0.500", "-0.250", "+0.000", "+1.000"]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["one", "two"]
    assert axes.get_title(loc="left") == "A"
