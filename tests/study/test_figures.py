"""Figures show the scores, the marks and the ranks of the comparisons."""

import numpy as np
from matplotlib.axes import Axes
from scipy.stats import gaussian_kde

from isthmus.paper.study.figures import _outline, study_figures
from isthmus.paper.study.methods import METRICS

# Fits of two methods on two datasets: with five fits, with one, with none that succeeded.
FITS = {
    ("iris", "a"): [0.2, 0.5, 0.4, 0.6, 0.9],
    ("iris", "b"): [0.4],
    ("zoo", "a"): [0.7] * 5,
    ("zoo", "b"): [None],
}
ROWS = [
    {"dataset": dataset, "method": method, "kind": "K given", "entry": entry, "seed": 0}
    | {"status": "timeout" if score is None else "ok", "finished": 0.0, "objective": -entry}
    | {"version": "1", "message": "", "seconds": 1.0, "parameters": str(entry)}
    | dict.fromkeys(METRICS, score)
    for (dataset, method), scores in FITS.items()
    for entry, score in enumerate(scores)
]


def marks(axes: Axes, marker: str) -> list[tuple[float, float]]:
    """Return the positions of the marks of one kind."""
    found = [line for line in axes.lines if line.get_marker() == marker]
    return [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in found]


def test_a_panel_for_each_dataset_and_metric_with_its_marks() -> None:
    figures = study_figures(ROWS)
    assert set(figures) == {
        "critical-difference",
        "scores",
        "violins-given-labelled",
        "violins-given-unlabelled",
    }
    iris, zoo = figures["violins-given-labelled"].axes[::4]
    assert marks(iris, "D") == [(0, 0.9), (1, 0.4)]
    assert marks(iris, "o") == [(0, 0.9), (1, 0.4)]
    assert [place for place, _ in marks(zoo, "x")] == [1]
    assert [text.get_text() for text in zoo.texts] == ["0/1"]
    table = figures["scores"].axes[0]
    assert [text.get_text() for text in table.texts][:4] == ["0.90", "0.40", "0.70", "none"]
    axes = figures["critical-difference"].axes[0]
    leaders = {float(line.get_xdata()[0]) for line in axes.lines if len(line.get_xdata()) == 3}
    assert leaders == {1.0, 2.0}


def test_the_outline_is_the_kernel_density_of_scipy() -> None:
    axes = study_figures(ROWS, ["violins-given-labelled"])["violins-given-labelled"].axes[0]
    values = np.random.default_rng(0).uniform(0.2, 0.9, 24)
    heights, widths = _outline(values, axes)
    # Scott's rule with the standard deviation of the sample, not of the population.
    peer = gaussian_kde(values, 24**-0.2 * values.std() / values.std(ddof=1))(heights)
    np.testing.assert_allclose(widths, peer / peer.max(), rtol=1e-9)
