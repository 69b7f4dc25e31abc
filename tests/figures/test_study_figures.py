"""Figures of the study show the scores, the marks and the ranks that they were given."""

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from scipy.stats import gaussian_kde

from isthmus.errors import InvalidInputError
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


def test_a_violin_spans_its_fits() -> None:
    iris = grid_violins([COLUMN], DATASETS, ["a", "b"]).axes[0]
    low, high = iris.get_ylim()
    heights = iris.collections[0].get_paths()[0].vertices[:, 1]
    assert heights.min() == pytest.approx(0.2, abs=0.02 * (high - low))
    assert heights.max() == pytest.approx(0.9, abs=0.02 * (high - low))


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


def test_the_figure_shows_the_numbers_of_missing_fits() -> None:
    attempts = {("iris", "a"): 5, ("iris", "b"): 8, ("blood_wine_red", "b"): 3}
    column = MetricColumn("ARI", FITS, SELECTED, BEST, "shared", attempts)
    figure = grid_violins([column], DATASETS, ["a", "b"])
    iris, other = figure.axes
    assert [(text.get_text(), text.xy[0]) for text in iris.texts] == [("1/8", 1)]
    assert [(text.get_text(), text.xy[0]) for text in other.texts] == [("0/3", 1)]
    assert "n of m fits have a score" in [text.get_text() for text in figure.legends[0].get_texts()]
    figure.draw_without_rendering()
    low, high = (axes.get_window_extent() for axes in (other, iris))
    written = iris.texts[0].get_window_extent()
    assert low.y1 < written.y0 < written.y1 <= high.y0
    whole = grid_violins([COLUMN], DATASETS, ["a", "b"])
    assert not any(axes.texts for axes in whole.axes)
    assert len(whole.legends[0].get_texts()) == len(figure.legends[0].get_texts()) - 1


def test_the_legend_is_within_the_figure() -> None:
    names = ["ClAM+CRP+ELBO", "GaussianMeanShift", "BayesianGaussianMixture", "HDBSCAN", "DP", "K"]
    fits = {("iris", name): [0.5] for name in names}
    column = MetricColumn("ARI", fits, {}, {}, "shared", dict.fromkeys(fits, 8))
    figure = grid_violins([column], ["iris"], names)
    figure.draw_without_rendering()
    legend = figure.legends[0].get_window_extent()
    assert legend.x0 >= 0
    assert legend.x1 <= figure.bbox.x1


def test_the_outline_is_the_kernel_density_of_scipy() -> None:
    axes = grid_violins([COLUMN], DATASETS, ["a", "b"]).axes[0]
    values = np.random.default_rng(0).uniform(0.2, 0.9, 24)
    heights, widths = _outline(values, axes)
    # Scott's rule with the standard deviation of the sample, not of the population.
    peer = gaussian_kde(values, 24**-0.2 * values.std() / values.std(ddof=1))(heights)
    np.testing.assert_allclose(widths, peer / peer.max(), rtol=1e-9)


def test_on_a_logarithmic_axis_the_outline_is_that_of_the_logarithms() -> None:
    column = MetricColumn("CH", {("iris", "a"): [1.0, 10.0, 100.0]}, {}, {}, "log")
    axes = grid_violins([column], ["iris"], ["a"]).axes[0]
    heights, widths = _outline(np.array([1.0, 10.0, 100.0]), axes)
    np.testing.assert_allclose(widths, widths[::-1], rtol=1e-9)
    np.testing.assert_allclose(np.log(heights) + np.log(heights[::-1]), 2 * np.log(10))


def test_scores_at_or_below_zero_keep_the_axis_linear() -> None:
    column = MetricColumn("DB", {("iris", "a"): [0.0, 2.0]}, {}, {}, "log")
    assert grid_violins([column], ["iris"], ["a"]).axes[0].get_yscale() == "linear"


def test_a_dataset_without_any_score_is_drawn_as_such() -> None:
    for scale in ("shared", "own", "log"):
        column = MetricColumn("ARI", {}, {}, {}, scale)
        figure = grid_violins([column], ["iris"], ["a", "b"])
        assert len(marks(figure.axes[0], "x")) == 2
        assert png_bytes(figure, dpi=40)


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


@pytest.mark.parametrize("methods", [2, 6, 12])
def test_a_difference_wider_than_the_axis_is_written(methods: int) -> None:
    ranks = {f"method{place}": float(place) for place in range(1, methods + 1)}
    ranking = Ranking(ranks, methods + 1.5, [tuple(ranks)])
    figure = critical_difference_diagram({"Title": ranking})
    axes = figure.axes[0]
    ends = 0.06 * (methods - 1)
    assert max(float(max(line.get_xdata())) for line in axes.lines) <= methods + ends
    (words,) = [text for text in axes.texts if "critical difference" in text.get_text()]
    assert "no two methods can differ significantly" in words.get_text()
    figure.draw_without_rendering()
    assert words.get_window_extent().x1 <= figure.bbox.x1


@pytest.mark.parametrize("share", [0.2, 1.0])
def test_the_word_for_the_difference_is_within_the_figure(share: float) -> None:
    ranking = Ranking({f"m{place}": float(place) for place in range(1, 7)}, 5 * share)
    figure = critical_difference_diagram({"Title": ranking})
    (words,) = [text for text in figure.axes[0].texts if "critical" in text.get_text()]
    figure.draw_without_rendering()
    assert words.get_text() == f"critical difference {5 * share:.2f}"
    assert words.get_window_extent().x1 <= figure.bbox.x1


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


def test_nothing_to_draw_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="nothing to draw"):
        grid_violins([], DATASETS, ["a"])
    with pytest.raises(InvalidInputError, match="nothing to draw"):
        score_map({}, DATASETS)
    with pytest.raises(InvalidInputError, match="rankings is empty"):
        critical_difference_diagram({})
    with pytest.raises(InvalidInputError, match="One: .* two methods"):
        critical_difference_diagram({"One": Ranking({"a": 1.0}, 1.0)})
