"""Figures of the study show the scores, the marks and the ranks that they were given."""

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from scipy.stats import gaussian_kde

from isthmus.figures.style import png_bytes
from isthmus.paper.figures.study import (
    MetricColumn,
    Ranking,
    _outline,
    critical_difference_diagram,
    grid_violins,
    score_map,
)

FITS = {
    ("iris", "a"): [0.2, 0.4, 0.5, 0.6, 0.9],
    ("iris", "b"): [0.4],
    ("blood_wine_red", "a"): [0.7, 0.7, 0.7, 0.7, 0.7],
}
SELECTED = {("iris", "a"): 0.5, ("iris", "b"): 0.4, ("blood_wine_red", "a"): 0.7}
BEST = {("iris", "a"): 0.9, ("iris", "b"): 0.4, ("blood_wine_red", "a"): 0.7}
COLUMN = MetricColumn("ARI", FITS, SELECTED, BEST)
DATASETS = ["iris", "blood_wine_red"]


def marks(axes: Axes, marker: str) -> list[tuple[float, float]]:
    """Return the positions of the marks of one kind."""
    found = [line for line in axes.lines if line.get_marker() == marker]
    return [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in found]


def test_a_panel_for_each_dataset_and_metric_with_its_marks() -> None:
    own = MetricColumn("CH", {k: [100 * x for x in v] for k, v in FITS.items()}, {}, {}, "log")
    figure = grid_violins([COLUMN, own], DATASETS, ["a", "b"])
    assert len(figure.axes) == 4
    iris, other = figure.axes[0], figure.axes[2]
    assert iris.get_title("left") == "ARI"
    assert other.get_ylabel() == "blood\nwine red"
    assert marks(iris, "D") == [(0, 0.5), (1, 0.4)]
    assert marks(iris, "o") == [(0, 0.9), (1, 0.4)]
    assert [place for place, _ in marks(other, "x")] == [1]
    assert iris.get_ylim() == other.get_ylim()
    assert figure.axes[1].get_yscale() == "log"
    assert figure.axes[1].get_ylim() != figure.axes[3].get_ylim()
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert words[:2] == ["a", "b"]
    assert "selected without labels" in words
    assert png_bytes(figure, dpi=40).startswith(b"\x89PNG")


@pytest.mark.parametrize(("count", "dots"), [(1, True), (2, True), (4, True), (5, False)])
def test_few_fits_are_dots_and_no_violin(count: int, dots: bool) -> None:
    cell, fits = ("iris", "a"), np.linspace(0.1, 0.9, count).tolist()
    figure = grid_violins([MetricColumn("ARI", {cell: fits}, {}, {})], ["iris"], ["a"])
    (drawn,) = figure.axes[0].collections
    assert isinstance(drawn, PathCollection) == dots
    if dots:
        np.testing.assert_allclose(drawn.get_offsets(), [(0, each) for each in fits])
    words = [text.get_text() for text in figure.legends[0].get_texts()]
    assert ("one fit, if fewer than 5" in words) == dots


def test_the_outline_is_the_kernel_density_of_scipy() -> None:
    axes = grid_violins([COLUMN], DATASETS, ["a", "b"]).axes[0]
    values = np.random.default_rng(0).uniform(0.2, 0.9, 24)
    heights, widths = _outline(values, axes)
    # Scott's rule with the standard deviation of the sample, not of the population.
    peer = gaussian_kde(values, 24**-0.2 * values.std() / values.std(ddof=1))(heights)
    np.testing.assert_allclose(widths, peer / peer.max(), rtol=1e-9)


def test_the_diagram_has_its_methods_where_their_ranks_are() -> None:
    ranks = {"worst": 3.4, "best": 1.3, "good": 1.9, "fair": 3.0}
    ranking = Ranking(ranks, 1.2, [("best", "good"), ("good", "fair", "worst")], "Note.", ["good"])
    figure = critical_difference_diagram({"Title": ranking})
    axes = figure.axes[0]
    assert axes.get_title("left") == "Title"
    leaders = {float(line.get_xdata()[0]) for line in axes.lines if len(line.get_xdata()) == 3}
    assert leaders == set(ranks.values())
    bars = [line for line in axes.lines if line.get_linewidth() == 4.5]
    for bar, (low, high) in zip(bars, ((1.3, 1.9), (1.9, 3.4)), strict=True):
        np.testing.assert_allclose(bar.get_xdata(), [low, high], atol=0.05)
    words = [text.get_text() for text in axes.texts]
    for expected in ("best  1.30", "good  1.90", "3.00  fair", "3.40  worst", "Note."):
        assert expected in words
    assert "critical difference 1.20" in words
    heavy = [text.get_text() for text in axes.texts if text.get_fontweight() == "bold"]
    assert heavy == ["good  1.90"]
    assert png_bytes(figure, dpi=40).startswith(b"\x89PNG")


def test_a_map_has_the_numbers_and_the_best_in_bold() -> None:
    table = {("iris", "a"): 0.25, ("iris", "b"): 0.8, ("zoo", "a"): -0.001, ("zoo", "b"): np.nan}
    figure = score_map({"K given": table, "K unknown": {("iris", "c"): 0.5}}, ["iris", "zoo"])
    first, second = figure.axes
    words = {text.get_text(): text.get_fontweight() for text in first.texts}
    expected = {"0.25": "normal", "0.80": "bold", "0.00": "bold", "none": "normal"}
    assert words == expected
    assert [text.get_text() for text in second.texts] == ["0.50"]
    assert [label.get_text() for label in first.get_yticklabels()] == ["iris", "zoo"]
    assert png_bytes(figure, dpi=40).startswith(b"\x89PNG")
