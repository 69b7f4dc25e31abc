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

WORDS = ("mean", "least", "largest")


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


def test_means_and_ranges_over_the_seeds_of_a_record(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    shipped = recorded("benchmarks/results/incontext-objectives.json")
    record = json.loads(shipped.read_text())
    for seed, shift in ((1, 0.5), (2, -0.2)):
        run = copy.deepcopy(record["runs"][incontext.PAPER])
        last = run["evaluations"][-1]
        last["nll"] = [value + shift for value in last["nll"]]
        record["runs"][f"{incontext.PAPER}, seed {seed}"] = run
    path = tmp_path / "record.json"
    path.write_text(json.dumps(record))
    monkeypatch.setattr(incontext, "recorded", lambda place: path)
    section = incontext.incontext_objectives(0)
    assert section.numbers["seeds"] == {incontext.PAPER: 3, incontext.OURS: 1}
    nll = section.numbers["nll_by_objective_and_n"]
    first = record["runs"][incontext.PAPER]["evaluations"][-1]["nll"][-1]
    shown = [nll[f"{incontext.PAPER}, temperature 1, {name}"]["32"] for name in WORDS]
    assert shown == pytest.approx([first + 0.1, first - 0.2, first + 0.5])
    assert "3 seeds" in section.caption
    assert f"{first + 0.1:.2f} ({first - 0.2:.2f} to {first + 0.5:.2f})" in (
        section.findings[0].because
    )
    # One seed that learns nothing refutes the claim.
    last["nll"][-1] = last["tempered"][-1] = 9.0
    path.write_text(json.dumps(record))
    assert incontext.incontext_objectives(0).findings[0].verdict == "did not hold"
