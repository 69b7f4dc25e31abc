"""The experiment: what it trains, what it calls diverged, and that it can be interrupted."""

import json
import math
from pathlib import Path

import pytest

from isthmus.errors import InvalidInputError
from isthmus.paper import attention as experiment
from isthmus.paper.attention import Experiment, compare_variants

SMALL = {"seeds": 1, "steps": 10, "batch": 8, "width": 8, "progress": False}


def test_a_good_rate_learns_and_an_absurd_one_diverges():
    found = compare_variants(["SALN"], [0.01, 1e25], seeds=1, steps=60, progress=False)
    good, bad = found.runs
    assert not good.diverged
    assert good.loss < 1.8
    assert good.test_accuracy > 0.4
    assert bad.diverged
    assert found.fraction_diverged("SALN", 1e25) == 1.0
    assert math.isfinite(bad.largest_logit)


def test_a_run_can_be_interrupted_and_goes_on(tmp_path: Path, monkeypatch):
    path = tmp_path / "runs.json"
    whole = compare_variants(learning_rates=[0.01], path=tmp_path / "whole.json", **SMALL)
    real, count = experiment._train, 0

    def stops(*arguments):
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(experiment, "_train", stops)
    with pytest.raises(KeyboardInterrupt):
        compare_variants(learning_rates=[0.01], path=path, **SMALL)
    assert len(json.loads(path.read_text())["runs"]) == 2
    resumed = compare_variants(learning_rates=[0.01], path=path, **SMALL)
    assert count == 4  # the third again, and none of the others
    assert resumed == whole == Experiment.load(path)
    with pytest.raises(InvalidInputError, match="another file"):
        compare_variants(learning_rates=[0.01], path=path, **{**SMALL, "steps": 11})
