"""Figures of in-context energies show the contexts, the densities and the numbers given."""

import matplotlib
import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from isthmus.figures import context_landscapes, nll_against_context
from isthmus.figures.incontext import _surprise, context_samples
from isthmus.figures.style import MEMORY, grid_points
from isthmus.incontext import ICLEBM, ICLEBMConfig
from isthmus.incontext.evaluation import Evaluation
from isthmus.incontext.priors import MixtureTasks, prior

SIZES = (0, 1, 4, 32)


def small() -> ICLEBM:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return ICLEBM(ICLEBMConfig(layers=1, heads=2, width=8, box=5.5))


def some_tasks() -> MixtureTasks:
    return prior("compact").draw(2, torch.Generator().manual_seed(3))


def some_evaluation() -> Evaluation:
    middle = {
        "model": [3.8, 3.6, 3.1, 2.4],
        "truth": [2.2, 2.2, 2.2, 2.2],
        "bayes": [3.8, 3.5, 3.0, 2.3],
        "kde-best": [np.nan, 3.9, 3.6, 2.5],
        "my-own": [3.9, 3.9, 373.0, 3.9],
    }
    noise = 0.05 * np.random.default_rng(0).normal(size=(len(middle), 4, 6))
    nll = dict(zip(middle, np.array([*middle.values()])[..., None] + noise, strict=True))
    nothing: dict[str, object] = {"order": np.zeros((4, 0)), "reference_error": {}}
    nothing |= {"normalizer_error": np.zeros((4, 6))}
    settings = {"prior": "a prior", "seed": 0, "points": 8, "contexts": SIZES, "temperature": 1.0}
    kl = nll["model"] - nll["truth"]
    return Evaluation(**settings, nll=nll, tempered=nll["model"], kl=kl, **nothing)


def draw_landscapes() -> Figure:
    return context_landscapes(small(), some_tasks(), (0, 2, 6), seed=1, resolution=21)


def test_each_context_is_the_beginning_of_the_next() -> None:
    axes = draw_landscapes().axes
    lines = [line for each in axes for line in each.lines if line.get_color() == MEMORY]
    assert [len(line.get_xdata()) for line in lines] == [0, 2, 6] * 2
    expected = some_tasks().sample(6, torch.Generator().manual_seed(1))
    for place, line in enumerate(lines):
        shown = line.get_xydata()
        np.testing.assert_array_equal(shown, expected[place // 3, : len(shown)])


def test_what_is_coloured_is_minus_the_log_of_a_density() -> None:
    energy = small().condition([[1.0, 1.0], [-2.0, 0.5]])
    points = grid_points(np.full(2, -5.5), np.full(2, 5.5), 45)[2]
    surprise = _surprise(energy, points, 5.5)
    assert np.exp(-surprise).sum() * (11 / 44) ** 2 == pytest.approx(1)
    difference = surprise - energy.energy(points)
    np.testing.assert_allclose(difference, difference[0, 0], atol=1e-5)


def test_draws_lie_over_the_density_of_their_context():
    contexts, drawn = torch.randn(2, 5, 2), torch.randn(2, 12, 2)
    figure = context_samples(small(), contexts, {"Model": ("draws", drawn)}, 21)
    for axes, *points in zip(figure.axes, drawn, contexts, strict=True):
        for line, expected in zip(axes.lines, points, strict=True):
            np.testing.assert_allclose(line.get_xydata(), expected, atol=1e-6)


def curve(axes: matplotlib.axes.Axes, label: str) -> np.ndarray:
    (line,) = [c.lines[0] for c in axes.containers if c.get_label() == label]
    return np.asarray(line.get_ydata(), dtype=float)


def test_curves_are_the_means_and_those_far_above_leave_the_panel() -> None:
    found = some_evaluation()
    left, right = nll_against_context(found).axes
    np.testing.assert_allclose(curve(left, "in-context model"), found.mean())
    np.testing.assert_allclose(curve(left, "KDE, best bandwidth"), found.mean("kde-best"))
    assert left.get_ylim()[1] < 5 < curve(left, "my-own").max()
    np.testing.assert_allclose(
        right.containers[0].lines[0].get_ydata(), found.difference("bayes")[0]
    )
