"""The in-context parts of `isthmus reproduce`: numbers that JSON can hold, and what they mean."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from isthmus.incontext import ICLEBM, ICLEBMConfig
from isthmus.incontext.priors import prior
from isthmus.paper.report.parts import incontext
from isthmus.paper.report.registry import recorded


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> ICLEBM:
    """A model without weight: its density is that of the box, whatever the context."""
    model = ICLEBM(ICLEBMConfig(layers=1, heads=1, width=4, box=5.5, wall=0.5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    monkeypatch.setattr(incontext, "pretrained", lambda name: model)
    monkeypatch.setattr(incontext, "TASKS", 4)
    monkeypatch.setattr(incontext, "CONTEXTS", (0, 2))
    return model


def test_divergence_is_that_of_a_flat_density(small: ICLEBM) -> None:
    tasks = prior("compact").draw(50, torch.Generator().manual_seed(0))
    found = incontext.sharpness(small, tasks, seed=1)[0]
    # Negative entropy by Monte Carlo, minus the flat log-density of a box with soft walls.
    points = tasks.sample(400, torch.Generator().manual_seed(2))
    entropy = -float(tasks.log_prob(points).mean())
    volume = (11 + 0.5 * np.sqrt(2 * np.pi)) ** 2
    for size in ("0", "2", "8", "32"):
        assert found[size] == pytest.approx(np.log(volume) - entropy, abs=0.05)


def test_a_model_that_ignores_its_context_does_not_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    landscapes = incontext.incontext_landscapes(0)
    assert [each.verdict for each in landscapes.findings[:2]] == ["did not hold"] * 2
    divergence = landscapes.numbers["kl_from_truth_by_n"]
    assert list(divergence) == ["0", "2", "8", "32"]
    swapped = landscapes.numbers["kl_with_the_context_of_another_dataset"]
    assert swapped == pytest.approx(divergence["32"])
    assert landscapes.numbers["tasks"] == 4
    monkeypatch.setattr(incontext, "FULL_TASKS", 5)
    for full, tasks in ((True, 5), (False, 4)):
        likelihood = incontext.incontext_likelihood(0, full=full)
        assert likelihood.numbers["tasks"] == tasks
        assert [each.verdict for each in likelihood.findings] == ["did not hold"]
        assert list(likelihood.numbers["nats_above_bayes_by_n"]) == ["0", "2"]
        assert likelihood.numbers["nll_by_predictor_and_n"]["kde-best"]["0"] is None


def test_ranges_over_the_seeds_of_a_record_and_seeds_that_learn_nothing(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    record = json.loads(recorded("benchmarks/results/incontext-objectives.json").read_text())
    run = copy.deepcopy(record["runs"][incontext.PAPER])
    last = run["evaluations"][-1]
    first = list(last["nll"])
    last["nll"] = [value - 0.2 for value in first]
    record["runs"][f"{incontext.PAPER}, seed 1"] = run
    path = tmp_path / "record.json"
    monkeypatch.setattr(
        incontext, "recorded", lambda place: path if "json" in place else recorded(place)
    )
    monkeypatch.setattr(incontext, "context_landscapes", lambda *_, **__: None)
    path.write_text(json.dumps(record))
    section = incontext.incontext_objectives(0)
    assert section.numbers["seeds"][incontext.PAPER] == 2
    nll = section.numbers["nll_of_seeds_by_objective_and_n"]
    shown = nll[f"{incontext.PAPER}, temperature 1"]["32"]
    assert shown == pytest.approx([first[-1], first[-1] - 0.2])
    words = f"{first[-1] - 0.1:.2f} ({first[-1] - 0.2:.2f} to {first[-1]:.2f})"
    assert words in section.findings[0].because
    # One seed that learns nothing refutes the claim.
    last["nll"][-1] = last["tempered"][-1] = 9.0
    path.write_text(json.dumps(record))
    assert incontext.incontext_objectives(0).findings[0].verdict == "did not hold"


def test_the_record_of_what_is_printed_has_its_settings_weights_and_verdict() -> None:
    record = json.loads(recorded("benchmarks/results/incontext-objectives.json").read_text())
    runs = incontext.by_objective(record)[incontext.PRINTED]
    assert [run["settings"]["seed"] for run in runs] == ["0", "1", "2"]
    for run in runs:
        objective = run["settings"]["objective"]
        assert "steps=15, step_size=3.16, noise=0.01, clip=None" in objective
        assert "regularization=0.0" in objective
        (end,) = run["evaluations"]
        assert end["update"] == run["planned"] == 1250
        assert end["nll"][-1] + 3 * end["standard_error"][-1] < min(
            end["nll"][0], record["references"]["bayes"][0]
        )
