"""Figures of the study show the scores, the marks and the ranks that they were given."""

import numpy as np
from matplotlib.axes import Axes
from scipy.stats import gaussian_kde

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
    assert marks(iris, "D") == [(0, 0.5), (1, 0.4)]
    assert marks(iris, "o") == [(0, 0.9), (1, 0.4)]
    assert [place for place, _ in marks(other, "x")] == [1]


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
    leaders = {float(line.get_xdata()[0]) for line in axes.lines if len(line.get_xdata()) == 3}
    assert leaders == set(ranks.values())
    bars = [line for line in axes.lines if line.get_linewidth() == 4.5]
    for bar, (low, high) in zip(bars, ((1.3, 1.9), (1.9, 3.4)), strict=True):
        np.testing.assert_allclose(bar.get_xdata(), [low, high], atol=0.05)


def test_a_map_has_the_numbers() -> None:
    table = {("iris", "a"): 0.25, ("iris", "b"): 0.8, ("zoo", "a"): -0.001, ("zoo", "b"): np.nan}
    figure = score_map({"K given": table, "K unknown": {("iris", "c"): 0.5}}, ["iris", "zoo"])
    first, second = figure.axes
    assert [text.get_text() for text in first.texts] == ["0.25", "0.80", "0.00", "none"]
    assert [text.get_text() for text in second.texts] == ["0.50"]
