"""Figures say what the numbers say, look after themselves, and are written whole or not at all."""

import io
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from matplotlib.image import imread

import isthmus as ist
from isthmus.errors import InvalidInputError, ShapeError
from isthmus.figures import (
    completion,
    hero,
    landscapes_1d,
    landscapes_2d,
    samples_against_density,
    save,
    write_atomically,
)
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


def draw_line() -> Figure:
    return landscapes_1d(energies_on(LINE), LINE, notes={"smooth": "Three valleys."})


def draw_plane() -> Figure:
    queries = ring(8, 2.2)
    return landscapes_2d(energies_on(PLANE), PLANE, queries, resolution=41)


def draw_completion() -> Figure:
    return completion(IMAGES, HALF, IMAGES, (4, 3), title="Halves")


def draw_samples() -> Figure:
    energy = ist.GaussianKDE(PLANE, sigma=0.4)
    draws = {name: energy.sample(50, seed=seed) for seed, name in enumerate(["first", "second"])}
    return samples_against_density(energy, draws, resolution=41)


def draw_hero() -> Figure:
    energy = ist.GaussianKDE(PLANE, sigma=0.4)
    return hero(energy, PLANE, ring(6, 2.0), energy.sample(40), HALF[:2], IMAGES[:2], (4, 3))


FIGURES: list[Callable[[], Figure]] = [
    draw_line,
    draw_plane,
    draw_completion,
    draw_samples,
    draw_hero,
]
WITH_AXES = [draw_line, draw_plane, draw_samples]


@pytest.fixture(autouse=True)
def _nothing_global() -> Iterator[None]:
    settings = dict(matplotlib.rcParams)
    yield
    assert plt.get_fignums() == []
    assert dict(matplotlib.rcParams) == settings


@pytest.mark.parametrize("draw", FIGURES)
def test_every_figure_is_finite_and_the_same_each_time(draw: Callable[[], Figure]) -> None:
    figure = draw()
    assert isinstance(figure, Figure)
    for axes in figure.axes:
        assert np.isfinite([*axes.get_xlim(), *axes.get_ylim()]).all()
    assert png_bytes(figure, dpi=40) == png_bytes(draw(), dpi=40)


@pytest.mark.parametrize("draw", WITH_AXES)
def test_outer_axes_are_labelled_and_every_panel_has_a_title(draw: Callable[[], Figure]) -> None:
    axes = draw().axes
    assert axes[0].get_ylabel()
    assert axes[-1].get_xlabel()
    assert all(each.get_title(loc="left") for each in axes)


@pytest.mark.parametrize("draw", FIGURES)
def test_nothing_is_drawn_beyond_the_edge_of_the_paper(draw: Callable[[], Figure]) -> None:
    figure = draw()
    figure.draw_without_rendering()
    width, height = figure.get_size_inches() * figure.dpi
    for axes in figure.axes:
        texts = [axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label, *axes.texts]
        for text in filter(lambda each: each.get_text() and each.get_visible(), texts):
            box = text.get_window_extent()
            assert min(box.x0, box.y0) >= 0, text
            assert box.x1 <= width, text
            assert box.y1 <= height, text


def test_an_energy_has_a_unit_where_it_is_minus_a_log_density() -> None:
    # The quadratic energy has no density, and that of growing memories has the factor 1 / beta.
    labels = [axes.get_ylabel() for axes in draw_line().axes]
    assert labels == ["energy", "energy (nats)", "energy (nats)", "energy"]


def test_the_planes_of_the_whole_idea_name_their_axes() -> None:
    assert [(axes.get_xlabel(), axes.get_ylabel()) for axes in draw_hero().axes[:2]] == [
        ("x₁", "x₂")
    ] * 2


def markers(figure: Figure, panel: int, marker: str) -> list[np.ndarray]:
    return [line.get_xydata() for line in figure.axes[panel].lines if line.get_marker() == marker]


def test_full_dots_on_a_line_are_where_retrieval_ends() -> None:
    figure = draw_line()
    energy = energies_on(LINE)["smooth"]
    starts, ends = markers(figure, 1, "o")
    found = ist.retrieve(energy, starts[:, :1].astype("float32"))
    np.testing.assert_allclose(ends[:, :1], found.state, atol=1e-5)
    np.testing.assert_allclose(ends[:, 1], found.energy, atol=1e-5)


def test_full_dots_on_a_plane_are_where_retrieval_ends() -> None:
    energy = energies_on(PLANE)["growing"]
    starts, ends = markers(draw_plane(), 3, "o")
    np.testing.assert_allclose(
        ends, ist.retrieve(energy, starts.astype("float32")).state, atol=1e-5
    )


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


def test_every_draw_is_a_dot() -> None:
    (dots,) = markers(draw_samples(), 1, "o")
    expected = ist.GaussianKDE(PLANE, sigma=0.4).sample(50, seed=1)
    np.testing.assert_array_equal(dots, expected)


def test_figures_refuse_what_they_cannot_draw() -> None:
    with pytest.raises(InvalidInputError, match="at least one"):
        landscapes_1d({}, LINE)
    with pytest.raises(InvalidInputError, match="at least one"):
        landscapes_2d({}, PLANE, PLANE)
    with pytest.raises(InvalidInputError, match="at least one"):
        samples_against_density(ist.GaussianKDE(PLANE), {})
    with pytest.raises(InvalidInputError, match="infinite everywhere"):
        landscapes_2d({"dust": ist.EpanechnikovKDE(PLANE, 1e-6)}, PLANE, PLANE, resolution=10)
    with pytest.raises(ShapeError, match="12"):
        completion(IMAGES, HALF[:, :5], IMAGES, (4, 3))
    with pytest.raises(ShapeError, match="as many"):
        completion(IMAGES, HALF[:2], IMAGES, (4, 3))


def test_a_single_memory_and_a_single_panel_are_enough() -> None:
    one = ist.GaussianKDE(torch.zeros(1, 1), sigma=1.0)
    assert len(landscapes_1d({"one": one}, torch.zeros(1, 1)).axes) == 1


def test_saved_figures_are_twice_as_wide_as_a_column(tmp_path: Path) -> None:
    path = save(draw_completion(), tmp_path / "figure.png")
    assert imread(io.BytesIO(path.read_bytes())).shape[1] == 1600


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_atomically(tmp_path / "page.html", "old")

    def full(source: object, target: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, "new")
    assert [each.name for each in path.parent.iterdir()] == ["page.html"]
    assert path.read_text() == "old"
