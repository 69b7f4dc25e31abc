"""Figures of capacity show what the numbers say."""

from typing import get_args

import numpy as np

from isthmus.capacity import capacity_bound, certify, sweep
from isthmus.figures import (
    basins_merging,
    capacity_bounds,
    certificate_plot,
    retrieval_sweep,
)
from isthmus.paper.counts import CapacityKind


def test_basins_are_counted_in_each_panel() -> None:
    figure = basins_merging([[-1.0], [1.0], [7.0]], [0.4, 1.6])
    assert [axes.texts[0].get_text() for axes in figure.axes] == [
        "3 patterns, 3 basins",
        "3 patterns, 2 basins",
    ]


def test_a_sweep_has_a_line_per_dimension() -> None:
    found = sweep([2, 3], [4, 40], seeds=2, n_particles=4, max_patterns=3, progress=False)
    left, _ = retrieval_sweep(found).axes
    assert [line.get_label() for line in left.lines] == ["D = 2", "D = 3"]
    np.testing.assert_allclose(left.lines[0].get_ydata(), found.table()[0])


def test_bounds_are_all_there_and_so_is_what_was_measured() -> None:
    everything, close_up = capacity_bounds(
        [2, 5, 9], {"random": {3: 6.0}, "spread": {3: 24.0}}
    ).axes
    handles, labels = close_up.get_legend_handles_labels()
    assert labels == ["random", "spread"]
    assert close_up.get_legend().get_title().get_text() == ""
    np.testing.assert_allclose(handles[-1].get_ydata(), 24**0.5)  # N^(1/(D-1))
    assert [float(handle.get_xdata()[0]) for handle in handles] == [3, 3]  # where they belong
    # More can be stored than keep half of their weight, so this line is no ceiling.
    assert any("less than half" in text.get_text() for text in close_up.texts)
    names = dict(zip(*reversed(everything.get_legend_handles_labels()), strict=True))
    assert len(names) == len(close_up.lines) - 2 == 4
    assert not any("ceiling" in name for name in names)
    for kind in get_args(CapacityKind):
        drawn = next(handle for name, handle in names.items() if name.startswith(kind))
        expected = [capacity_bound(dim, kind=kind, log=True) for dim in (2, 5, 9)]
        np.testing.assert_allclose(drawn.get_ydata(), np.array(expected) / np.log(10))


def test_a_certificate_is_drawn_by_what_is_known() -> None:
    X = np.array([[0.0, 0.0], [6.0, 0.0], [6.1, 0.0]])
    figure = certificate_plot(certify(X), X)
    labels = figure.axes[0].get_legend_handles_labels()[1]
    assert labels == ["stored, proved: 1", "not stored: 2"]
    assert figure.axes[0].get_aspect() == 1  # balls are round
    wide = np.random.default_rng(0).normal(size=(20, 3)) * [1000, 1, 1]
    assert certificate_plot(certify(wide), wide).axes[0].get_aspect() == "auto"
