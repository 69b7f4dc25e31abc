"""Training: the same numbers whatever interrupts it; models on disk, and the shipped ones."""

import io
import json
import math
import zipfile
from dataclasses import dataclass, fields, replace

import numpy as np
import pytest
import torch

from isthmus.errors import DivergenceError, InvalidInputError
from isthmus.incontext import ICLEBM, ICLEBMConfig, TrainingSettings, pretrained, train
from isthmus.incontext.evaluation import evaluate
from isthmus.incontext.objectives import (
    BranchLangevin,
    ContrastiveDivergence,
    PersistentContrastiveDivergence,
)
from isthmus.incontext.priors import GaussianMixtures, prior
from isthmus.incontext.storage import Checkpoint, _digest_line
from isthmus.incontext.training import draw_pass, new_model

SMALL = TrainingSettings(
    model=ICLEBMConfig(layers=1, heads=2, width=8, box=5.5),
    updates=12,
    batch=4,
    micro_batch=2,
    length=5,
    warmup=2,
)


def weights_equal(a, b):
    a, b = a.state_dict(), b.state_dict()
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def without_time(rows):
    return [{key: value for key, value in row.items() if key != "cpu_seconds"} for row in rows]


def test_training_equals_a_plain_torch_loop():
    """An independent loop: one batch at a time, AdamW, clipping and schedule written out."""
    settings = replace(SMALL, epsilon=1e-3)  # so that rounding in a zero gradient stays small
    trained = train(settings).model
    model = new_model(settings)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-3, weight_decay=0.0
    )
    for update in range(12):
        optimizer.zero_grad()
        for part in range(2):
            x, generator = draw_pass(SMALL, update, part, torch.device("cpu"))
            (SMALL.objective(model, x, generator) / 2).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        rise = min(1.0, (update + 1) / 3)
        for group in optimizer.param_groups:
            group["lr"] = 1e-3 * rise * 0.5 * (1 + math.cos(math.pi * update / 12))
        optimizer.step()
    for a, b in zip(trained.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_runs_are_bit_equal_not_repeated_and_leave_the_global_stream_alone(tmp_path):
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    one, two = train(SMALL), train(SMALL, tmp_path)
    stamp = (tmp_path / "checkpoint.pt").stat().st_mtime_ns
    again = train(SMALL, tmp_path)
    assert weights_equal(one.model, two.model)
    assert weights_equal(two.model, again.model)
    assert (tmp_path / "checkpoint.pt").stat().st_mtime_ns == stamp
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize(
    "objective",
    [
        SMALL.objective,
        ContrastiveDivergence.calibrated(),
        PersistentContrastiveDivergence(pool=2, refresh=0.5),
    ],
    ids=lambda objective: type(objective).__name__,
)
def test_an_interrupted_run_ends_bit_equal_to_an_uninterrupted_one(tmp_path, objective):
    @dataclass(frozen=True)
    class Interrupted:
        """The objective, with a power cut at the sixteenth pass."""

        calls: list
        at: int

        def __call__(self, model, x, generator):
            self.calls.append(None)
            if len(self.calls) == self.at:
                raise KeyboardInterrupt
            return objective(model, x, generator)

        def __repr__(self):
            return repr(objective)

        def state_dict(self):
            return getattr(objective, "state_dict", dict)()

        def load_state_dict(self, state):
            getattr(objective, "load_state_dict", dict)(state)

    whole = train(replace(SMALL, objective=objective), log_every=2)
    assert weights_equal(whole.model, train(replace(SMALL, objective=objective)).model)
    cut = replace(SMALL, objective=Interrupted([], 16))
    with pytest.raises(KeyboardInterrupt):
        train(cut, tmp_path, checkpoint_every=3, log_every=2)
    with pytest.warns(UserWarning, match="has made 6 of its 12 updates"):
        halfway = pretrained(tmp_path)
    kept = Checkpoint.load(tmp_path / "checkpoint.pt").model
    assert halfway.config == SMALL.model
    assert all(torch.equal(value, kept[name]) for name, value in halfway.state_dict().items())
    rest = Interrupted([], 0)
    resumed = train(replace(SMALL, objective=rest), tmp_path, checkpoint_every=3, log_every=2)
    assert len(rest.calls) == 2 * (12 - 6)
    assert weights_equal(whole.model, resumed.model)
    assert without_time(whole.rows) == without_time(resumed.rows)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert without_time(map(json.loads, lines)) == without_time(whole.rows)
    assert weights_equal(ICLEBM.from_pretrained(tmp_path / "model"), whole.model)
    assert weights_equal(pretrained(tmp_path), whole.model)


@pytest.mark.slow
def test_two_processes_get_the_gradients_of_one(tmp_path):
    """With plain gradient descent in AdamW's clothes, equal weights mean equal gradients."""
    settings = replace(SMALL, updates=3, clip=None, epsilon=1e6, learning_rate=1e6, warmup=0)
    settings = replace(settings, schedule="constant", betas=(0.0, 0.0))
    one = train(settings, tmp_path / "one", accelerator="cpu").model
    two = train(settings, tmp_path / "two", accelerator="cpu", devices=2).model
    start = new_model(settings)
    for a, b, origin in zip(one.parameters(), two.parameters(), start.parameters(), strict=True):
        torch.testing.assert_close(b - origin, a - origin, rtol=1e-3, atol=1e-6)
    moved = max(
        float((a - b).detach().abs().max())
        for a, b in zip(one.parameters(), start.parameters(), strict=True)
    )
    assert moved > 1e-2


def test_fine_tuning_starts_from_the_given_weights(tmp_path):
    first = train(SMALL).model
    tuned = train(replace(SMALL, learning_rate=1e-12), init=first).model
    for a, b in zip(first.parameters(), tuned.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-8)
    with pytest.raises(InvalidInputError, match="settings ask for"):
        train(SMALL, init=ICLEBM(ICLEBMConfig(layers=2, heads=2, width=8)))


def test_a_checkpoint_takes_no_more_memory_than_its_size(tmp_path):
    """Each of these would take a gigabyte: compressed zeros, a call, a tensor without strides."""
    train(SMALL, tmp_path)
    plain = vars(Checkpoint.load(tmp_path / "checkpoint.pt"))

    def written(changes, compression=zipfile.ZIP_STORED):
        torch.save(plain | changes, buffer := io.BytesIO())
        packed = io.BytesIO()
        with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(packed, "w", compression) as new:
            for name in old.namelist():
                new.writestr(name, old.read(name))
        content = packed.getvalue()
        (tmp_path / "forged.pt").write_bytes(_digest_line(content) + content)
        return tmp_path / "forged.pt"

    assert Checkpoint.load(written({}))
    for changes, compression in (
        ({"model": {"weight": torch.zeros(1).expand(2**28)}}, zipfile.ZIP_STORED),
        ({"rows": [bytearray(1)]}, zipfile.ZIP_STORED),
        ({"model": {"weight": torch.zeros(2**20)}}, zipfile.ZIP_DEFLATED),
    ):
        with pytest.raises(InvalidInputError, match="checkpoint"):
            Checkpoint.load(written(changes, compression))


def test_a_non_finite_loss_raises():
    def broken(model, x, generator):
        return model(x).mean() * float("nan")

    with pytest.raises(DivergenceError, match="update 1.*smaller learning_rate"):
        train(replace(SMALL, objective=broken), log_every=1)


KINDS = (ICLEBMConfig, TrainingSettings, BranchLangevin, GaussianMixtures, ContrastiveDivergence)


@pytest.mark.parametrize("value", [math.nan, math.inf, -1, -0.5, True, "3", [1]])
@pytest.mark.parametrize("kind", KINDS)
def test_numbers_out_of_range_are_refused_by_name(kind, value):
    for each in fields(kind):
        if each.type.split()[0] in ("int", "float"):
            with pytest.raises(InvalidInputError, match=each.name):
                replace(kind(), **{each.name: value})


def test_a_model_is_read_back_equal_from_its_folder_or_that_of_its_run(tmp_path):
    model, folder = ICLEBM(ICLEBMConfig(dim=3, layers=1, heads=2, width=8)), tmp_path / "model"
    model.save_pretrained(folder)
    x = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    for again in (ICLEBM.from_pretrained(folder), pretrained(folder), pretrained(folder.parent)):
        assert again.config == model.config
        assert torch.equal(again(x), model(x))
    assert not any(parameter.requires_grad for parameter in pretrained(folder).parameters())


@pytest.mark.slow
def test_the_shipped_model_is_within_a_twentieth_of_a_nat_of_bayes():
    found = evaluate(
        pretrained("mixtures-2d"), prior("compact"), contexts=(1, 2, 4, 8, 16, 32), tasks=40, seed=2
    )
    difference, error = found.difference("bayes")
    assert (difference < 0.05 + 2 * error).all()
    for rival in ("kde-best", "em-0.001", "em-0.1"):
        difference, error = found.difference(rival)
        assert (np.nan_to_num(difference, nan=-1.0) < 2 * np.nan_to_num(error)).all()
