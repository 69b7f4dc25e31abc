"""Figures of capacity show what the numbers say."""

import numpy as np
import pytest

from isthmus.capacity import certify, sweep
from isthmus.errors import ShapeError
from isthmus.figures import basins_merging, capacity_bounds, certificate_plot, retrieval_sweep
from isthmus.figures.files import png_bytes


def test_basins_are_counted_in_each_panel() -> None:
    figure = basins_merging([[-1.0], [1.0], [7.0]], [0.4, 1.6])
    assert [axes.texts[0].get_text() for axes in figure.axes] == [
        "3 patterns, 3 basins",
        "3 patterns, 2 basins",
    ]


def test_a_sweep_has_a_line_per_dimension_and_the_marks_of_theory() -> None:
    found = sweep([2, 3], [4, 40], seeds=2, n_particles=4, max_patterns=3, progress=False)
    left, _ = retrieval_sweep(found).axes
    lines = [line for line in left.lines if line.get_label().startswith("D = ")]
    assert [line.get_label() for line in lines] == ["D = 2", "D = 3"]
    np.testing.assert_allclose(lines[0].get_ydata(), found.table()[0])
    assert len(left.lines) > 2


def test_bounds_are_all_there_and_so_is_what_was_measured() -> None:
    axes = capacity_bounds([2, 5, 9], {"measured": {3: 6.0}}).axes[0]
    labels = axes.get_legend_handles_labels()[1]
    assert len(labels) == 6
    assert labels[-1] == "measured"


def test_a_certificate_is_drawn_by_what_is_known() -> None:
    X = np.array([[0.0, 0.0], [6.0, 0.0], [6.1, 0.0]])
    figure = certificate_plot(certify(X), X)
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert labels == ["stored, proved: 1", "not stored: 2"]
    assert png_bytes(figure, dpi=40) == png_bytes(certificate_plot(certify(X), X), dpi=40)
    with pytest.raises(ShapeError):
        certificate_plot(certify(X), X[:2])
