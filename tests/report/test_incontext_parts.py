"""The in-context parts of `isthmus reproduce`: numbers that JSON can hold, and what they mean."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from isthmus.incontext import ICLEBM, ICLEBMConfig
from isthmus.incontext.priors import prior
from isthmus.paper.figures import incontext_records as figures
from isthmus.paper.report.parts import incontext, incontext_recorded


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
    landscapes = incontext.landscapes_in_context(0)
    assert [each.verdict for each in landscapes.findings] == ["did not hold"] * 2
    divergence = landscapes.numbers["kl_from_truth_by_n"]
    assert list(divergence) == ["0", "2", "8", "32"]
    swapped = landscapes.numbers["kl_with_the_context_of_another_dataset"]
    assert swapped == pytest.approx(divergence["32"])
    assert landscapes.numbers["tasks"] == 4
    monkeypatch.setattr(incontext, "FULL_TASKS", 5)
    for full, tasks in ((True, 5), (False, 4)):
        likelihood = incontext.likelihood_in_context(0, full=full)
        assert likelihood.numbers["tasks"] == tasks
        assert [each.verdict for each in likelihood.findings] == ["did not hold"]
        assert list(likelihood.numbers["nats_above_bayes_by_n"]) == ["0", "2"]
        assert likelihood.numbers["nll_by_predictor_and_n"]["kde-best"]["0"] is None


@pytest.mark.slow
def test_a_flat_model_is_judged_by_its_volume_outside_the_prior(
    small: ICLEBM, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    part = incontext_recorded
    monkeypatch.setattr(part, "pretrained", lambda name: small)
    monkeypatch.setattr(part, "TASKS", 3)
    monkeypatch.setattr(part, "SIZES", (8, 16))
    monkeypatch.setattr(figures, "OTHERS", ("rings", "moons"))
    monkeypatch.setattr(part, "OUTSIDE", {name: part.OUTSIDE[name] for name in FEW})
    section = part.outside_the_prior(0, full=True)
    nll = section.numbers["nll_by_setting_and_predictor"]
    assert list(nll) == [*FEW]
    flat = np.log((11 + 0.5 * np.sqrt(2 * np.pi)) ** 2)
    assert nll["moons"]["model"]["8"] == pytest.approx(flat, abs=1e-3)
    assert "bayes" in nll["K = 3"]
    assert "bayes" not in nll["rings"]
    again = {name: part.outside(name) for name in FEW}
    kept = tmp_path / "outside.json"
    monkeypatch.setattr(part, "recorded", lambda name: kept)
    kept.write_text(json.dumps(again))
    assert "it agrees" in part.outside_the_prior(0).caption
    for rows in again.values():
        rows["nll"]["model"][0] += 1
    kept.write_text(json.dumps(again))
    assert "it differs" in part.outside_the_prior(0).caption


FEW = ("K = 2", "K = 3", "rings", "moons")
