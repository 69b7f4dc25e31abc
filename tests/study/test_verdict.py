"""The verdict follows from the scores alone, and says what it could not use."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from scipy import stats

from isthmus.errors import InvalidInputError
from isthmus.files import shipped
from isthmus.study import METHODS, Store, compare, make_report
from isthmus.study.comparison import as_frame
from isthmus.study.fitting import METRICS
from isthmus.study.statistics import Pair, groups, mean_ranks, pairwise

GIVEN = [name for name, method in METHODS.items() if method.kind == "K given"]
UNKNOWN = [name for name, method in METHODS.items() if method.kind == "K unknown"]
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


def plain_holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction, step by step as it is defined."""
    order = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted, largest = [0.0] * len(p_values), 0.0
    for step, place in enumerate(order):
        largest = max(largest, (len(p_values) - step) * p_values[place])
        adjusted[place] = min(1.0, largest)
    return adjusted


def test_the_claim_has_the_p_values_of_scipy_corrected_for_all_pairs() -> None:
    table = {method: RANDOM.random(15).tolist() for method in GIVEN}
    report = make_report(rows_of(table))
    raw = [stats.wilcoxon(table[a], table[b]).pvalue for a, b in combinations(GIVEN, 2)]
    adjusted = plain_holm(raw)
    place = list(combinations(GIVEN, 2)).index((THEIRS, OURS))
    pair = report.claim().pairs["ari"]
    assert (pair.first, pair.second) == (OURS, THEIRS)
    assert pair.raw_p_value == pytest.approx(raw[place])
    assert pair.p_value == pytest.approx(adjusted[place])
    gaps = np.subtract(table[OURS], table[THEIRS])
    assert pair.difference == pytest.approx(gaps.mean())
    assert (pair.ahead, pair.behind) == ((gaps > 0).sum(), (gaps < 0).sum())


def test_ranks_and_friedman_of_the_report_are_those_of_scipy() -> None:
    table = {method: RANDOM.random(9).tolist() for method in GIVEN}
    found = make_report(rows_of(table)).comparison("K given", "ari")
    scores = np.array([table[method] for method in GIVEN]).T
    expected = stats.rankdata(-scores, axis=1).mean(0)
    np.testing.assert_allclose([found.ranks[method] for method in GIVEN], expected)
    assert found.friedman is not None
    assert found.friedman.p_value == pytest.approx(stats.friedmanchisquare(*scores.T).pvalue)
    lower = make_report(rows_of(table)).comparison("K given", "davies_bouldin")
    np.testing.assert_allclose([len(GIVEN) + 1 - lower.ranks[method] for method in GIVEN], expected)


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
    ],
)
def test_the_outcome_of_the_claim(shift: Any, outcome: str, verdict: str) -> None:
    rows = rows_of({THEIRS: BASE, OURS: (np.array(BASE) + shift).tolist()})
    claim = make_report(rows).claim()
    assert {claim.pairs[metric].verdict for metric in ("rand", "ari", "nmi", "silhouette")} == {
        verdict
    }
    assert claim.outcomes["supervised metrics"] == outcome
    assert claim.outcomes["all of them"] == outcome
    words = f"The claim by scores with a common scale, under supervised metrics: **{outcome}**"
    assert words in str(claim)


def test_one_metric_can_spoil_the_claim_under_all_of_them() -> None:
    rows = rows_of({THEIRS: BASE, OURS: (np.array(BASE) + WOBBLE).tolist()})
    for row in rows:
        if row["method"] == OURS:
            row["silhouette"] -= 0.1
    outcomes = make_report(rows).claim().outcomes
    assert outcomes["supervised metrics"] == "held"
    assert outcomes["unsupervised metrics"] == outcomes["all of them"] == "did not hold"


def test_significance_is_judged_after_the_correction() -> None:
    pair = Pair("a", "b", 15, 0.01, p_value=0.2, raw_p_value=0.03)
    assert pair.verdict == "undecided"
    assert replace(pair, p_value=0.04).verdict == "better"
    assert "0.03 before correction" in str(pair)


def test_five_datasets_decide_nothing_and_six_may() -> None:
    for number, verdict in ((5, "undecided"), (6, "competitive")):
        pair = pairwise(np.ones((number, 2)), ["a", "b"])[0]
        assert pair.verdict == verdict


def test_scores_without_a_common_scale_are_never_called_competitive() -> None:
    rows = rows_of({THEIRS: BASE, OURS: (np.array(BASE) + WOBBLE).tolist()})
    claim = make_report(rows).claim()
    assert claim.pairs["calinski_harabasz"].verdict == "undecided"
    assert "| calinski_harabasz |  |  |" in str(claim)


def test_units_of_a_dataset_do_not_matter_where_there_is_no_common_scale() -> None:
    table = {"ClAM": RANDOM.random(9) + 0.1, "ClAM+ELBO": RANDOM.random(9) + 0.1}
    units = 10.0 ** np.arange(9)
    for metric in ("calinski_harabasz", "davies_bouldin"):
        small, large = (
            compare(rows_of({m: (v * unit).tolist() for m, v in table.items()}), metric, "K given")
            for unit in (1.0, units)
        )
        assert small.pairs[0].raw_p_value == pytest.approx(large.pairs[0].raw_p_value)
        assert small.pairs[0].difference == pytest.approx(large.pairs[0].difference)


def test_a_method_that_was_not_run_on_a_dataset_is_not_its_worst() -> None:
    rows = rows_of({"ClAM": [0.5, 0.5, 0.9], "KMeans": [0.4, 0.4]})
    found = compare(rows, "ari", "K given")
    assert found.ranked == ("d00", "d01")
    assert found.left_out == ("d02",)
    assert found.ranks == {"ClAM": 1.0, "KMeans": 2.0}
    assert found.mean("ClAM") == pytest.approx(0.5)
    assert "| d02 | 0.900 | not run |" in str(found)
    assert "Not ranked" in str(found)
    assert "d02" in str(found).splitlines()[-1]


def test_a_pair_does_not_wait_for_a_third_method() -> None:
    rows = rows_of({"ClAM": [0.5, 0.5, 0.9], "KMeans": [0.4, 0.4, 0.6], "Spectral": [0.1]})
    found = compare(rows, "ari", "K given")
    assert found.ranked == ("d00",)
    pair = found.pair("KMeans", "ClAM")
    assert pair is not None
    assert (pair.datasets, pair.difference) == (3, pytest.approx(-0.5 / 3))
    assert found.mean("KMeans", "ClAM") == pytest.approx(1.4 / 3)
    apart = compare(rows_of({"ClAM": [0.5, 0.5], "KMeans": []}), "ari", "K given")
    assert apart.ranks == {}


def test_a_method_that_was_run_and_failed_ranks_last_and_says_so() -> None:
    rows = rows_of({"ClAM": [0.5, 0.5, None], "KMeans": [0.4, 0.4, 0.1]})
    found = compare(rows, "ari", "K given")
    assert found.left_out == ()
    assert found.ranks["ClAM"] == pytest.approx((1 + 1 + 2) / 3)
    assert found.pairs[0].datasets == 2
    assert found.mean("KMeans", "ClAM") == pytest.approx(0.4)
    assert "| d02 | none | 0.100 |" in str(found)


def test_a_mean_that_does_not_cover_all_datasets_is_marked() -> None:
    rows = rows_of(
        {"ClAM": [0.5, 0.6, None], "KMeans": [0.4, 0.4, 0.1], "Spectral": [None, None, None]}
    )
    found = compare(rows, "ari", "K given")
    assert [found.covered(name) for name in ("ClAM", "KMeans", "Spectral")] == [2, 3, 0]
    text = str(found)
    assert "| **mean** | 0.550 (2) | 0.300 | none |" in text
    assert "(n): mean over only n of the 3 datasets" in text
    numbers = found.as_dict()
    assert numbers["means"] == {
        "ClAM": pytest.approx(0.55),
        "KMeans": pytest.approx(0.3),
        "Spectral": None,
    }
    assert numbers["datasets_in_mean"] == {"ClAM": 2, "KMeans": 3, "Spectral": 0}
    whole = str(compare(rows_of({"ClAM": [0.5, 0.6], "KMeans": [0.4, 0.4]}), "ari", "K given"))
    assert "| **mean** | 0.550 | 0.400 |" in whole
    assert "(n)" not in whole


def test_a_difference_that_does_not_cover_all_datasets_is_marked() -> None:
    steps = (0.01 * np.arange(8)).tolist()
    rows = rows_of({"ClAM+CRP": [0.5 + each for each in steps], "HDBSCAN": [None, *steps[1:]]})
    text = make_report(rows).text(metrics=[])
    line = next(each for each in text.splitlines() if each.startswith("| ClAM+CRP against"))
    assert line.count("better, +0.500 on 7 (0.016, 0.016)") == 5


def test_nothing_to_rank_is_said() -> None:
    alone = make_report(rows_of({"ClAM": BASE}))
    assert alone.claim().outcomes["all of them"] == "not tested"
    assert "Nothing to rank" in str(alone.comparison("K given", "ari"))
    assert "not run" in str(alone.claim())
    assert "not run together with another" in alone.text()
    json.loads(alone.to_json())


def test_scores_that_differ_by_rounding_share_their_rank() -> None:
    ranks = mean_ranks([[0.7, 0.7 + 1e-15, 0.1], [123456.7, 123456.7 * (1 + 1e-14), 1.0]])
    assert ranks.tolist() == [1.5, 1.5, 3.0]
    pair = pairwise(np.array([[0.3, 0.3 + 1e-16]] * 8), ["a", "b"])[0]
    assert (pair.ahead, pair.behind, pair.raw_p_value) == (0, 0, 1.0)


@pytest.mark.parametrize("seed", range(5))
def test_groups_are_the_largest_sets_within_the_width(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ranks = {f"m{place}": float(rank) for place, rank in enumerate(rng.uniform(1, 6, 6))}
    width = 1.5
    close = [
        set(chosen)
        for size in range(2, 7)
        for chosen in combinations(ranks, size)
        if max(ranks[name] for name in chosen) - min(ranks[name] for name in chosen) <= width
    ]
    largest = [each for each in close if not any(each < other for other in close)]
    found = groups(ranks, width)
    assert sorted(map(sorted, found)) == sorted(map(sorted, largest))
    assert all(list(each) == sorted(each, key=lambda name: ranks[name]) for each in found)


def test_growing_methods_meet_all_others_of_their_kind_once() -> None:
    table = {method: RANDOM.random(8).tolist() for method in UNKNOWN}
    report = make_report(rows_of(table))
    found = report.growing()
    assert len(found) == 2 * (len(UNKNOWN) - 1) - 1
    assert ("ClAM+CRP", "ClAM+CRP+ELBO") in found
    assert ("ClAM+CRP+ELBO", "ClAM+CRP") not in found
    gaps = np.subtract(table["ClAM+CRP"], table["HDBSCAN"])
    pair = found["ClAM+CRP", "HDBSCAN"]["nmi"]
    assert pair.difference == pytest.approx(gaps.mean())
    assert "| ClAM+CRP against HDBSCAN |" in report.text()


def test_numbers_of_clusters_are_those_of_the_selected_fits_beside_the_classes() -> None:
    def clusters(dataset: str, found: int, **more: Any) -> dict[str, Any]:
        return fit(dataset, "ClAM+CRP", 0.5, n_clusters=found, n_classes=4, **more)

    rows = [clusters(f"d{place}", found) for place, found in enumerate([4, 6, 3, 2, 8, 40, 5])]
    rows += [clusters("d0", 99, entry=1, objective=2.0), clusters("d0", 12, seed=1)]
    (found,) = make_report(rows).cluster_numbers
    # On d0: the fit with an objective, and that of the other seed.
    assert found.found["d0"] == (99 + 12) / 2
    np.testing.assert_allclose(found.factors, [111 / 8, 1.5, 4 / 3, 2, 2, 10, 1.25])
    assert (found.within, found.outcome) == (3, "did not hold")
    assert replace(found, found=dict.fromkeys(found.found, 4.0)).outcome == "held"
    assert replace(found, found={"d1": 4.0}).outcome == "undecided"
    text = make_report(rows).text(metrics=[])
    assert "ClAM+CRP: median factor 2.00, within 1.5 on 3 of 7 datasets" in text
    assert "| d5 | 4 | 40 |" in text


def test_versions_of_the_code_are_listed_with_their_methods_and_days() -> None:
    rows = [
        fit("d0", "ClAM", 0.5, version="0.1.0"),
        fit("d0", "KMeans", 0.5, version="0.1.0+abc", finished=86400.0),
        fit("d1", "KMeans", 0.5, version="0.1.0+abc", finished=3 * 86400.0),
    ]
    text = str(make_report(rows).summary)
    assert "| 0.1.0 | 1 | 1970-01-01 | ClAM |" in text
    assert "| 0.1.0+abc | 2 | 1970-01-02 to 1970-01-04 | KMeans |" in text


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
    assert (found.fits, found.succeeded) == (6, 4)
    means = next(each for each in found.methods if each["method"] == "KMeans")
    assert means["ended"] == {"ok": 3, "timeout": 1}
    assert (means["median_seconds"], means["not_converged"]) == (3.0, 1)
    assert means["selects_by"] == "inertia"
    bad = {(each["method"], each["status"]): (each["fits"], each["of"]) for each in found.failures}
    assert bad == {("KMeans", "timeout"): (1, 4), ("Spectral", "memory"): (1, 1)}
    text = str(found)
    assert "| iris | KMeans | timeout | 1 of 4 | Not done / after 1 s |" in text
    assert "| iris | 90 of 900 rows; ClAM: 30 |" in text
    spectral = next(each for each in found.methods if each["method"] == "Spectral")
    assert spectral["median_seconds"] is None


def test_time_is_that_of_all_fits_and_the_stopped_ones_are_told_apart() -> None:
    rows = [
        fit("iris", "KMeans", 0.5, seconds=1.0),
        fit("iris", "KMeans", 0.5, seconds=32.1, seed=1),
        fit("iris", "KMeans", 0.5, seconds=31.9, seed=2),
        fit("iris", "KMeans", None, seconds=40.0, seed=3),
        fit("iris", "KMeans", None, seconds=5.0, seed=4, status="memory"),
        fit("iris", "KMeans", None, seconds=None, seed=5, status="crashed"),
    ]
    found = make_report(rows).summary
    (work,) = found.methods
    assert work["median_seconds"] == 31.9
    assert tuple(work[name] for name in ("total_seconds", "stopped_seconds", "untimed")) == (
        110.0,
        45.0,
        1,
    )
    assert (found.time_limit, found.nearly_stopped) == (40.0, 1)
    text = str(found)
    assert "| 31.90 | 110 | 45 |" in text
    assert "including 45 s of fits that failed or were stopped and excluding 1 of those" in text
    assert "1 of the successful fits took more than 80% of the time limit of 40 s" in text
    json.loads(make_report(rows).to_json())


@pytest.mark.parametrize("seconds", [None, 2.0])
def test_an_unknown_time_limit_is_not_mentioned(seconds: float | None) -> None:
    # One that hangs is stopped by the clock, and has used next to no CPU time.
    rows = [fit("iris", "KMeans", 0.5, seconds=9.0), fit("zoo", "KMeans", None, seconds=seconds)]
    found = make_report(rows).summary
    assert found.time_limit is None
    assert "time limit" not in str(found)
    well = str(make_report(rows[:1]).summary)
    assert "All fits took 9 s of CPU time." in well


def test_the_criterion_of_an_unknown_method_follows_from_its_fits() -> None:
    rows = [fit("iris", "mine", 0.5), fit("iris", "other", 0.5, objective=1.0)]
    words = {each["method"]: each["selects_by"] for each in make_report(rows).summary.methods}
    assert words == {"mine": "its first settings", "other": "its objective"}


def test_methods_come_in_the_order_of_the_study_and_others_last() -> None:
    rows = rows_of({"mine": BASE, "KMeans": BASE, "ClAM": BASE})
    found = make_report(rows).comparison("K given", "ari")
    assert found.scores.methods == ("ClAM", "KMeans", "mine")


def test_of_a_fit_that_was_done_twice_the_last_counts() -> None:
    rows = [
        fit("iris", "KMeans", 0.9, finished=2.0),
        fit("iris", "KMeans", 0.1, finished=1.0),
        fit("iris", "KMeans", 0.2, finished=1.0, seed=1),
    ]
    assert as_frame(rows).ari.tolist() == [0.9, 0.2]
    assert make_report(rows).summary.fits == 2


def test_json_has_no_nan_and_only_what_was_asked_for() -> None:
    rows = rows_of({THEIRS: [0.5, None], OURS: [0.5, 0.4]})
    report = make_report(rows)
    found = json.loads(report.to_json(metrics=["ari"], views=["oracle"], kinds=["K given"]))
    assert len(found["comparisons"]) == 1
    assert found["comparisons"][0]["scores"] == [[0.5, 0.5], [None, 0.4]]
    assert found["claims"][0]["metrics"]["ari"]["verdict"] == "undecided"
    assert len(json.loads(report.to_json())["comparisons"]) == 2 * 7 * 3
    text = report.text(metrics=["nmi"], kinds=["K given"], views=["selected"])
    assert text.count("\n## K ") == 1
    assert "## K given: nmi, selected" in text
    assert str(report) == report.text()


def test_the_text_is_a_page_with_one_title() -> None:
    text = make_report(rows_of({"ClAM": BASE, "ClAM+ELBO": BASE})).text()
    assert text.startswith("# Tables of the study\n\n30 of 30 fits succeeded")
    assert text.count("\n# ") == 0
    assert text.endswith("|\n")


def test_the_published_tables_are_what_the_command_prints() -> None:
    page = shipped("docs/study/tables.md")
    if page is None:
        pytest.skip("the docs are not here")
    assert page.read_text() == make_report(Store(page.parent).read()).text()


def test_no_rows_and_wrong_words_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="no results yet"):
        make_report([])
    report = make_report(rows_of({"ClAM": BASE}))
    with pytest.raises(InvalidInputError, match="no comparison of 'K given', 'f1'"):
        report.comparison("K given", "f1")
