"""The experiment: what it trains, what it calls diverged, and its files."""

import math
from pathlib import Path

import pytest

from isthmus.errors import InvalidInputError
from isthmus.paper.attention import Experiment, compare_variants


def test_a_good_rate_learns_and_an_absurd_one_diverges():
    found = compare_variants(["SALN"], [0.01, 1e25], seeds=1, steps=60, progress=False)
    good, bad = found.runs
    assert not good.diverged
    assert good.loss < 1.8
    assert good.test_accuracy > 0.4
    assert bad.diverged
    assert found.fraction_diverged("SALN", 1e25) == 1.0
    assert math.isfinite(bad.largest_logit)


def test_runs_are_read_as_they_were_written(tmp_path: Path):
    sizes = {"seeds": 1, "steps": 10, "batch": 8, "width": 8, "progress": False}
    found = compare_variants(learning_rates=[0.01], path=tmp_path / "runs.json", **sizes)
    assert found == Experiment.load(tmp_path / "runs.json")
    assert found.variants == ["pre-norm", "QK-norm", "SALN"]
    with pytest.raises(InvalidInputError, match="variant"):
        compare_variants(["other"], **sizes)
