"""Training: the same numbers whatever interrupts it and however many processes share it."""

import io
import json
import math
import os
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import dataclass, replace

import pytest
import torch

from isthmus.errors import DivergenceError, InvalidInputError
from isthmus.incontext import ICLEBM, ICLEBMConfig, TrainingSettings, preset, pretrained, train
from isthmus.incontext.evaluation import HeldOut
from isthmus.incontext.objectives import (
    ContrastiveDivergence,
    PersistentContrastiveDivergence,
    Proposal,
    RankingNCE,
)
from isthmus.incontext.priors import GaussianMixtures
from isthmus.incontext.runs import Checkpoint, _digest_line
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


def test_training_lowers_the_held_out_likelihood():
    settings = replace(SMALL, updates=150, batch=8, micro_batch=None, length=9, learning_rate=5e-3)
    before = HeldOut(settings.prior, length=9)(new_model(settings))
    assert train(settings).rows[-1]["held_out_nll"] < before - 0.05


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


def test_a_pool_of_densities_is_drawn_once_from_the_seed():
    settings = replace(SMALL, pool=3, prior=GaussianMixtures(components=1, std_high=0.3))
    passes = [
        draw_pass(settings, update, part, torch.device("cpu"))[0]
        for update in range(6)
        for part in range(2)
    ]
    places = torch.cat(passes).mean(1)
    centres = places[:1]  # datasets of one component: those of one density have nearly one mean
    for place in places:
        if (centres - place).norm(dim=1).min() > 1.0:
            centres = torch.cat([centres, place[None]])
    assert len(centres) == 3
    assert len(torch.cat(passes).flatten(0, 1).unique(dim=0)) == 12 * 2 * 5  # fresh points
    assert weights_equal(train(settings).model, train(settings).model)
    assert not weights_equal(train(settings).model, train(replace(settings, pool=4)).model)


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


SCRIPT = """
import sys, torch
from isthmus.incontext import ICLEBMConfig, TrainingSettings, train
torch.set_num_threads(1)
settings = TrainingSettings(
    model=ICLEBMConfig(layers=1, heads=2, width=8, box=5.5), updates=80, batch=4, length=5
)
print("ready", flush=True)
train(settings, sys.argv[1], checkpoint_every=1, log_every=20, evaluate_every=80, progress=False)
"""


@pytest.mark.slow
def test_a_killed_run_continues_to_the_same_end(tmp_path):
    """kill -9 while it writes a checkpoint after every update, twice over."""
    victim = tmp_path / "victim"
    for delay in (0.1, 0.3):
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, str(victim)], stdout=subprocess.PIPE
        )
        process.stdout.readline()
        while not (victim / "checkpoint.pt").exists() and process.poll() is None:
            time.sleep(0.01)
        time.sleep(delay)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
    for folder in (victim, tmp_path / "whole"):
        subprocess.run([sys.executable, "-c", SCRIPT, str(folder)], check=True, capture_output=True)
    found, expected = (Checkpoint.load(f / "checkpoint.pt") for f in (victim, tmp_path / "whole"))
    assert found.updates == expected.updates == 80
    assert without_time(found.rows) == without_time(expected.rows)
    for name, value in expected.model.items():
        assert torch.equal(found.model[name], value), name
    for number, state in expected.optimizer["state"].items():
        for name, value in state.items():
            assert torch.equal(found.optimizer["state"][number][name], value), (number, name)


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


def test_a_folder_with_another_run_is_refused_and_left_alone(tmp_path):
    train(SMALL, tmp_path)
    kept = (tmp_path / "checkpoint.pt").read_bytes()
    with pytest.raises(InvalidInputError, match="other settings"):
        train(replace(SMALL, learning_rate=1e-2), tmp_path)
    assert (tmp_path / "checkpoint.pt").read_bytes() == kept


def test_no_damaged_checkpoint_is_continued(tmp_path):
    train(SMALL, tmp_path)
    path = tmp_path / "checkpoint.pt"
    whole = path.read_bytes()
    for place in torch.randint(len(whole), (300,)).tolist():
        flipped = bytes([whole[place] ^ 1 << place % 8])
        path.write_bytes(whole[:place] + flipped + whole[place + 1 :])
        with pytest.raises(InvalidInputError, match=r"checkpoint\.pt is"):
            Checkpoint.load(path)


def forged(path, content):
    path.write_bytes(_digest_line(content) + content)
    return path


def zipped(found, compression=zipfile.ZIP_DEFLATED):
    torch.save(found, buffer := io.BytesIO())
    packed = io.BytesIO()
    with zipfile.ZipFile(buffer) as old, zipfile.ZipFile(packed, "w", compression) as new:
        for name in old.namelist():
            new.writestr(name, old.read(name))
    return packed.getvalue()


def test_a_checkpoint_takes_no_more_memory_than_its_size(tmp_path):
    """Each of these would take a gigabyte: compressed zeros, a call, a tensor without strides."""
    train(SMALL, path := tmp_path / "run")
    plain = vars(Checkpoint.load(path / "checkpoint.pt"))
    assert Checkpoint.load(forged(tmp_path / "same", zipped(plain, zipfile.ZIP_STORED)))
    wide = {"weight": torch.zeros(1).expand(2**28)}
    torch.save(plain | {"model": wide}, buffer := io.BytesIO())
    call = zipped(plain | {"rows": [bytearray(1)]}, zipfile.ZIP_STORED)
    packed = zipped(plain | {"model": {"weight": torch.zeros(2**20)}})
    for content in (packed, buffer.getvalue(), call):
        with pytest.raises(InvalidInputError, match="checkpoint"):
            Checkpoint.load(forged(tmp_path / "checkpoint.pt", content))


def test_metrics_are_written_as_lines_and_as_a_table(tmp_path):
    run = train(SMALL, tmp_path, log_every=5)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert lines == run.rows
    assert [row["update"] for row in lines] == [5, 10, 12]
    table = (tmp_path / "metrics.csv").read_text().splitlines()
    assert table[0] == "update,loss,held_out_nll,learning_rate,cpu_seconds"
    assert len(table) == 4


def test_a_non_finite_loss_raises():
    def broken(model, x, generator):
        return model(x).mean() * float("nan")

    with pytest.raises(DivergenceError, match="update 1.*smaller learning_rate"):
        train(replace(SMALL, objective=broken), log_every=1)


def test_presets():
    paper = preset("paper")
    assert paper.objective.sampler.step_size == 3.16
    assert paper.objective.sampler.noise == 0.01
    assert paper.objective.sampler.steps == 15
    assert (paper.length, paper.micro_batch, paper.batch) == (40, 32, 64)
    assert (paper.updates, paper.pool, paper.model.feedforward) == (1250, 100, 2048)
    assert (paper.optimizer, paper.epsilon, paper.weight_decay) == ("Adam", 1e-4, 1e-5)
    assert paper.precision == "bf16-mixed"
    both = preset("paper-nce")
    assert both == replace(paper, objective=both.objective)
    assert both.objective == RankingNCE(proposal=Proposal(box=paper.prior.box))
    with pytest.raises(InvalidInputError, match="'default', 'paper', 'paper-nce', 'tiny'"):
        preset("huge")
