"""The experiment with three kinds of attention: what it trains, and what it calls diverged."""

import math

import pytest

from isthmus.paper.attention import compare_variants, load_runs
from isthmus.paper.report.registry import recorded


def test_a_good_rate_learns_and_an_absurd_one_diverges():
    found = compare_variants(["SALN"], [0.01, 1e25], seeds=[0], steps=60, progress=False)
    good, bad = found.itertuples()
    assert not good.diverged
    assert good.loss < 1.8
    assert good.test_accuracy > 0.4
    assert bad.diverged
    assert bad.loss == math.inf
    assert math.isfinite(bad.largest_logit)
    record = load_runs(recorded("benchmarks/results/attention.json"))
    assert list(record.columns.sort_values()) == list(found.columns.sort_values())


@pytest.mark.slow
def test_runs_at_a_safe_rate_are_those_of_the_record() -> None:
    """At higher rates rounding decides the outcome."""
    again = compare_variants(learning_rates=[0.01], seeds=[0], progress=False)
    record = load_runs(recorded("benchmarks/results/attention.json"))
    pairs = again.merge(record, on=["variant", "learning_rate", "seed"])
    assert pairs["loss_x"].tolist() == pytest.approx(pairs["loss_y"].tolist(), rel=0.05)
