"""Figures say what the numbers say, look after themselves, and are written whole or not at all."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import isthmus as ist
from isthmus.figures import completion, hero, landscapes_1d, landscapes_2d
from isthmus.figures.landscapes import ring
from isthmus.figures.style import png_bytes

LINE = torch.tensor([[-2.0], [0.5], [1.5]])
PLANE = torch.tensor([[-1.5, 0.5], [1.0, 1.0], [0.5, -1.5]])
IMAGES = torch.linspace(0, 1, 4 * 12).reshape(4, 12)
HALF = IMAGES.clone()
HALF[:, 6:] = torch.nan


def energies_on(memories: torch.Tensor) -> dict[str, ist.Energy]:
    return {
        "quadratic": ist.Hopfield(memories, states="continuous"),
        "smooth": ist.GaussianKDE(memories, sigma=0.4),
        "walled": ist.EpanechnikovKDE(memories, bandwidth=0.7),
        "growing": ist.CRPMixture(memories, [1.0, 2.0, 3.0], beta=3.0),
    }


KDE = ist.GaussianKDE(PLANE, sigma=0.4)


def draw_line() -> Figure:
    return landscapes_1d(energies_on(LINE), LINE, notes={"smooth": "Three valleys."})


def draw_plane() -> Figure:
    return landscapes_2d(energies_on(PLANE), PLANE, ring(8, 2.2), resolution=41)


def draw_completion() -> Figure:
    return completion(IMAGES, HALF, IMAGES, (4, 3))


FIGURES: list[Callable[[], Figure]] = [
    draw_line,
    draw_plane,
    draw_completion,
    lambda: hero(KDE, PLANE, ring(6, 2.0), KDE.sample(50), HALF[:2], IMAGES[:2], (4, 3)),
]


@pytest.mark.parametrize("draw", FIGURES)
def test_every_figure_is_finite_and_the_same_each_time(draw: Callable[[], Figure]) -> None:
    figure = draw()
    for axes in figure.axes:
        assert np.isfinite([*axes.get_xlim(), *axes.get_ylim()]).all()
    assert png_bytes(figure, dpi=40) == png_bytes(draw(), dpi=40)


def markers(figure: Figure, panel: int, marker: str) -> list[np.ndarray]:
    return [line.get_xydata() for line in figure.axes[panel].lines if line.get_marker() == marker]


def test_full_dots_on_a_line_are_where_retrieval_ends() -> None:
    figure = draw_line()
    energy = energies_on(LINE)["smooth"]
    starts, ends = markers(figure, 1, "o")
    found = ist.retrieve(energy, starts[:, :1].astype("float32"))
    np.testing.assert_allclose(ends[:, :1], found.state, atol=1e-5)
    np.testing.assert_allclose(ends[:, 1], found.energy, atol=1e-5)


@pytest.mark.parametrize(("draw", "memories"), [(draw_line, LINE), (draw_plane, PLANE)])
def test_queries_where_the_energy_is_infinite_are_crosses(
    draw: Callable[[], Figure], memories: torch.Tensor
) -> None:
    figure, dim = draw(), memories.shape[1]
    (crosses,) = markers(figure, 2, "x")
    (starts, _) = markers(figure, 2, "o")
    walled = energies_on(memories)["walled"]
    assert len(crosses) > 0
    assert np.isinf(walled.energy(crosses[:, :dim])).all()
    assert np.isfinite(walled.energy(starts[:, :dim])).all()


def test_unknown_pixels_are_blank_and_known_ones_are_shown() -> None:
    figure = draw_completion()
    given, returned = (figure.axes[row].images[0].get_array() for row in (0, 4))
    np.testing.assert_array_equal(given.mask, torch.isnan(HALF[0]).reshape(4, 3))
    np.testing.assert_array_equal(returned, IMAGES[0].reshape(4, 3))
