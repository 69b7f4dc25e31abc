"""Verdicts follow from scores alone, selection from objectives alone; figures show both."""

import itertools
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from scipy import stats

from isthmus.io.files import shipped
from isthmus.paper.study.comparison import as_frame, compare
from isthmus.paper.study.figures import study_figures
from isthmus.paper.study.methods import METRICS
from isthmus.paper.study.statistics import pairwise, ranks_of
from isthmus.study import METHODS, Store, make_report

GIVEN = [name for name, method in METHODS.items() if method.kind == "K given"]
OURS, THEIRS = "ClAM+ELBO (random start)", "ClAM (Saha et al.)"
RANDOM = np.random.default_rng(3)


def fit(dataset: str, method: str, score: float | None, **more: Any) -> dict[str, Any]:
    """One row of results; every metric has the same score unless given."""
    fields = {
        "kind": METHODS[method].kind if method in METHODS else "K given",
        "parameters": "{}",
        "entry": 0,
        "seed": 0,
        "objective": None,
        "converged": True,
        "n_rows": 100,
        "n_available": 100,
        "n_clusters": 3,
        "n_classes": 3,
        "seconds": 1.0,
        "finished": 0.0,
        "message": "",
        "status": "ok" if score is not None else "timeout",
    }
    scores = dict.fromkeys(METRICS, score)
    return {"dataset": dataset, "method": method, **fields, **scores, **more}


def rows_of(table: Mapping[str, Sequence[float | None]]) -> list[dict[str, Any]]:
    """A fit for each score of each method, on datasets d00, d01, ..."""
    return [
        fit(f"d{place:02}", method, score)
        for method, scores in table.items()
        for place, score in enumerate(scores)
    ]


BASE = (0.3 + 0.04 * np.arange(15)).tolist()
WOBBLE = 0.001 * np.array([1, -2, 3, -4, 5, -6, 7, -8, 9, -10, 11, -12, 13, -14, 15])


@pytest.mark.parametrize(
    ("shift", "outcome", "verdict"),
    [
        (WOBBLE, "held", "competitive"),
        (-0.01 - np.abs(WOBBLE), "held", "competitive"),  # a difference, but one that is small
        (-0.06 - np.abs(WOBBLE), "did not hold", "worse"),
        (0.06 + np.abs(WOBBLE), "held", "better"),
        (40 * WOBBLE, "undecided", "undecided"),
        (0.02 + np.abs(40 * WOBBLE), "held", "better"),  # far better, so not equivalent
        (-0.045 + 3 * WOBBLE, "undecided", "worse"),  # worse, but by less or more than the margin?
    ],
)
def test_the_outcome_of_the_claim(shift: Any, outcome: str, verdict: str) -> None:
    rows = rows_of({THEIRS: BASE, OURS: (np.array(BASE) + shift).tolist()})
    claim = make_report(rows).claim()
    assert {claim.verdict(metric) for metric in ("ari", "silhouette")} == {
        {"held": verdict, "did not hold": "worse"}.get(outcome, "undecided")
    }
    assert {claim.pairs[metric].verdict for metric in ("rand", "ari", "nmi", "silhouette")} == {
        verdict
    }
    assert claim.outcomes["supervised metrics"] == outcome
    assert claim.outcomes["all of them"] == outcome


def test_the_papers_claim_on_the_published_results_by_brute_force() -> None:
    """All 2^15 signs of the ranks of 15 differences, at the margin and at zero."""
    place = shipped("docs/study")
    if place is None:
        pytest.skip("the docs are not here")
    rows = Store(place).read()
    signs = (np.arange(2**15)[:, None] >> np.arange(15)) & 1
    claim = make_report(rows).claim()
    for metric, expected in (
        ("rand", 3.1e-5),
        ("ari", 3.1e-5),
        ("ami", 6.1e-5),
        ("nmi", 6.1e-5),
        ("silhouette", 0.19),
    ):
        scores = {}
        for method in (OURS, THEIRS):
            table = compare([row for row in rows if row["method"] == method], metric, "K given")
            scores[method] = table.scores[method]
        gaps = np.array([scores[OURS][name] - each for name, each in scores[THEIRS].items()])
        p_values = []
        for shift in (0.05, 0.0):
            ranks = stats.rankdata(np.abs(gaps + shift))
            p_values.append(np.mean(signs @ ranks >= ranks[gaps > -shift].sum() - 1e-9))
        pair = claim.pairs[metric]
        assert pair.not_worse_p_values[0] == pytest.approx(p_values[0])
        assert pair.not_worse_p_values[0] == pytest.approx(expected, rel=0.03)
        assert pair.better_p_values[0] == pytest.approx(p_values[1])
    assert claim.outcomes["supervised metrics"] == "held"
    assert claim.outcomes["unsupervised metrics"] == "undecided"


def test_a_method_that_was_run_and_failed_ranks_last_and_says_so() -> None:
    rows = rows_of({"ClAM": [0.5, 0.5, None], "KMeans": [0.4, 0.4, 0.1]})
    lower = compare(rows, "davies_bouldin", "K given")
    assert lower.ranks["ClAM"] == pytest.approx((2 + 2 + 2) / 3)
    found = compare(rows, "ari", "K given")
    assert found.left_out == []
    assert found.ranks["ClAM"] == pytest.approx((1 + 1 + 2) / 3)
    assert found.pairs[0].datasets == 2


def test_scores_that_differ_by_rounding_share_their_rank() -> None:
    ranks = ranks_of([[0.7, 0.7 + 1e-15, 0.1], [123456.7, 123456.7 * (1 + 1e-14), 1.0]])
    assert ranks.tolist() == [[1.5, 1.5, 3.0]] * 2
    pair = pairwise(np.array([[0.3, 0.3 + 1e-16]] * 8), ["a", "b"])[0]
    assert (pair.ahead, pair.behind, pair.raw_p_value) == (0, 0, 1.0)


def test_every_failed_fit_is_counted() -> None:
    rows = [
        fit("iris", "KMeans", 0.5, seconds=1.0, n_rows=90, n_available=900),
        fit("iris", "KMeans", 0.6, seconds=3.0, seed=1, n_rows=90, n_available=900),
        fit("iris", "KMeans", 0.6, seconds=20.0, seed=2, converged=False, n_rows=90),
        fit("iris", "KMeans", None, seed=3, n_rows=None, message="Not done | after 1 s"),
        fit("iris", "Spectral", None, status="memory", n_rows=None),
        fit("iris", "ClAM", 0.1, n_rows=30, n_available=900),
    ]
    found = make_report(rows).summary
    means = next(each for each in found["methods"] if each["method"] == "KMeans")
    assert means["ended"] == {"ok": 3, "timeout": 1}
    assert (means["median_seconds"], means["not_converged"]) == (3.0, 1)
    assert means["selects_by"] == "inertia"
    bad = {(each["method"], each["status"]): (each["fits"], each["of"]) for each in found["not_ok"]}
    assert bad == {("KMeans", "timeout"): (1, 4), ("Spectral", "memory"): (1, 1)}
    spectral = next(each for each in found["methods"] if each["method"] == "Spectral")
    assert spectral["median_seconds"] is None


def test_of_a_fit_that_was_done_twice_the_last_counts() -> None:
    rows = [
        fit("iris", "KMeans", 0.9, finished=2.0),
        fit("iris", "KMeans", 0.1, finished=1.0),
        fit("iris", "KMeans", 0.2, finished=1.0, seed=1),
    ]
    assert as_frame(rows).ari.tolist() == [0.9, 0.2]
    assert make_report(rows).summary["methods"][0]["fits"] == 2


def test_json_has_no_nan_and_only_what_was_asked_for() -> None:
    rows = rows_of({THEIRS: [0.5, None], OURS: [0.5, 0.4]})
    report = make_report(rows)
    found = json.loads(report.to_json(metrics=["ari"], views=["oracle"], kinds=["K given"]))
    assert len(found["comparisons"]) == 1
    assert found["comparisons"][0]["scores"] == [[0.5, 0.5], [None, 0.4]]
    assert found["claims"][0]["metrics"]["ari"]["verdict"] == "undecided"
    assert len(json.loads(report.to_json())["comparisons"]) == 2 * 7 * 3


def test_the_published_tables_are_what_the_command_prints() -> None:
    page = shipped("docs/study/tables.md")
    if page is None:
        pytest.skip("the docs are not here")
    report = make_report(Store(page.parent).read())
    assert page.read_text() == report.text()
    outcomes = report.claim().outcomes
    assert outcomes["supervised metrics"] == "held"
    assert outcomes["unsupervised metrics"] == "undecided"


GRID = [(0, 0, 0.5, 3.0), (1, 0, 0.9, 2.0), (2, 0, 0.7, 1.0), (0, 1, 0.1, 1.0), (1, 1, 0.3, 2.0)]
ROWS = [
    fit("iris", "m", score, entry=entry, seed=seed, objective=objective)
    for entry, seed, score, objective in [*GRID, (2, 1, None, None)]
]


def test_each_view_of_a_hand_computed_grid() -> None:
    table = {view: compare(ROWS, "ari", "K given", view) for view in ("grid", "selected")}
    assert table["grid"].scores.m.item() == pytest.approx(0.5)
    assert table["selected"].scores.m.item() == pytest.approx((0.7 + 0.1) / 2)
    oracle = compare(ROWS, "ari", "K given", "oracle")
    assert oracle.scores.m.item() == pytest.approx(0.9)


def test_selection_does_not_change_with_the_labels() -> None:
    turned = [{**row, "ari": None if row["ari"] is None else 1 - row["ari"]} for row in ROWS]
    before, after = (compare(rows, "ari", "K given").scores for rows in (ROWS, turned))
    np.testing.assert_allclose(after, 1 - before)


def test_without_an_objective_the_first_settings_stand_for_the_method() -> None:
    rows = [{**row, "objective": None} for row in ROWS]
    assert compare(rows, "ari", "K given").scores.m.item() == pytest.approx((0.5 + 0.1) / 2)


# Fits of two methods on two datasets: with five fits, with one, with none that succeeded.
FITS = {
    ("iris", "a"): [0.2, 0.5, 0.4, 0.6, 0.9],
    ("iris", "b"): [0.4],
    ("zoo", "a"): [0.7] * 5,
    ("zoo", "b"): [None],
}
FITTED = [
    fit(dataset, method, score, entry=entry, objective=-entry, parameters=str(entry))
    for (dataset, method), scores in FITS.items()
    for entry, score in enumerate(scores)
]


def test_a_panel_for_each_dataset_and_metric_with_its_marks() -> None:
    figures = study_figures(FITTED)
    assert set(figures) == {
        "critical-difference",
        "violins-given-labelled",
        "violins-given-unlabelled",
    }
    iris, zoo = figures["violins-given-labelled"].axes[::4]
    for marker in "Do":
        (drawn,) = [line for line in iris.lines if line.get_marker() == marker]
        assert drawn.get_xydata().tolist() == [[0, 0.9], [1, 0.4]]
    assert [text.get_text() for text in zoo.texts] == ["0/1"]
    dots, bar = figures["critical-difference"].axes[0].lines
    assert list(dots.get_xdata()) == [1.0, 2.0]
    assert list(bar.get_ydata()) == list(dots.get_ydata()) == ["a", "b"]


def test_numbers_of_fits_of_neighbours_do_not_touch() -> None:
    rows = [
        fit(dataset, method, 0.05 * entry or None, entry=entry, parameters=str(entry))
        for dataset, method, entry in itertools.product(("iris", "zoo"), "abcdefghijk", range(12))
    ]
    figure = study_figures(rows, ["violins-given-labelled"])["violins-given-labelled"]
    figure.canvas.draw()
    for axes in figure.axes:
        boxes = [text.get_window_extent() for text in axes.texts]
        assert len(boxes) == 11
        assert all(box.x1 < after.x0 for box, after in itertools.pairwise(boxes))
