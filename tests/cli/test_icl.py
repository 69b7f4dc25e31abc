"""`isthmus icl`: train, eval, sample and plot."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from isthmus.cli.main import main
from isthmus.incontext import ICLEBM, ICLEBMConfig, preset
from isthmus.incontext.evaluation import Evaluation
from isthmus.incontext.storage import Checkpoint

SMALL = ICLEBMConfig(layers=1, heads=2, width=8, box=5.5)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small model, untrained."""
    folder = tmp_path_factory.mktemp("models") / "small"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ICLEBM(SMALL).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "deep" / "run"
    assert main(["icl", "train", "--preset", "tiny", "--updates", "4", "--out", str(out)]) == 0
    return out


def rows(text: str) -> np.ndarray:
    return np.loadtxt(io.StringIO(text), delimiter=",", skiprows=1)


def test_training_leaves_a_model_and_its_metrics_and_is_not_repeated(run, trained) -> None:
    names = {path.name for path in trained.iterdir()}
    assert names - {".lock"} == {"checkpoint.pt", "metrics.csv", "metrics.jsonl", "model"}
    assert ICLEBM.from_pretrained(trained / "model").config == preset("tiny").model
    last = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["update"] == 4
    assert np.isfinite(last["held_out_nll"])
    before = (trained / "model" / "model.safetensors").read_bytes()
    run(f"icl train --preset tiny --updates 4 --out {trained}")
    assert (trained / "model" / "model.safetensors").read_bytes() == before
    assert "updates" in run(f"icl train --preset tiny --updates 5 --out {trained}", code=2).err


def test_fine_tuning_takes_the_shape_of_the_model_and_the_box_of_the_prior(run, model) -> None:
    run(f"icl train --preset tiny --updates 2 --out run --init {model} --prior paper --seed 3")
    tuned = ICLEBM.from_pretrained("run/model")
    scale = 20.0 / 5.5
    assert tuned.config == ICLEBMConfig(layers=1, heads=2, width=8, box=20.0, scale=scale)
    start = ICLEBM.from_pretrained(model).state_dict()
    for name, weight in tuned.state_dict().items():
        torch.testing.assert_close(weight, start[name], atol=0.02, rtol=0)
    settings = Checkpoint.load(Path("run/checkpoint.pt")).settings
    assert "Proposal(box=20.0" in settings["objective"]
    assert settings["seed"] == "3"


def test_an_evaluation_as_json_can_be_read_back(run, model) -> None:
    command = f"icl eval --model {model} --tasks 2 --points 4 --contexts 0,2 --prior paper"
    printed = run(f"{command} --json -o -").out
    assert list(Path().iterdir()) == []
    assert run(f"{command} -o found.json").out == "found.json\n"
    assert json.loads(Path("found.json").read_text()) == json.loads(printed)
    assert Evaluation.from_json(Path("found.json")).contexts == (0, 2)


def test_samples_are_a_table_and_the_same_for_the_same_seed(run, model) -> None:
    Path("points.csv").write_text("first,second\n1,1\n1.2,0.9\n-2,0.5\n")
    command = f"icl sample --model {model} --context points.csv -n 6 --steps 5"
    printed = run(command)
    assert printed.err == ""
    assert printed.out.startswith("first,second\n")
    assert rows(printed.out).shape == (6, 2)
    run(f"{command} -o drawn.csv")
    assert Path("drawn.csv").read_text() == printed.out == run(f"{command} -o -").out
    assert run(f"{command} --seed 1 --sampler langevin").out != printed.out


def test_axes_are_named_as_the_columns_of_the_context(run, model, monkeypatch) -> None:
    Path("points.csv").write_text("cost $,size $\n1,1\n1.2,0.9\n-2,0.5\n")
    drawn = []
    monkeypatch.setattr("isthmus.figures.save", lambda figure, _: drawn.append(figure))
    run(f"icl plot --model {model} --context points.csv --contexts 0 -o landscape.png")
    first, second, _ = drawn[0].axes
    assert (first.get_xlabel(), first.get_ylabel()) == (r"cost \$", r"size \$")
    assert (second.get_xlabel(), second.get_ylabel()) == (r"cost \$", "")


def test_points_of_any_units_are_drawn_in_them(run) -> None:
    """Two clusters, one column in units of thousands, the other of thousandths."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(30, 2)) * 0.4 + np.repeat([[-2.0, 1.0], [2.0, -1.0]], 15, 0)
    unit, offset = [1000.0, 0.001], [5e4, 0.3]
    np.savetxt("raw.csv", points * unit + offset, delimiter=",", header="mass,size", comments="")
    standard = (rows(run("icl sample -n 200 --steps 20 --context raw.csv").out) - offset) / unit
    near = np.linalg.norm(standard[:, None] - points, axis=-1).min(1)
    assert np.median(near) < 0.5
    assert 0.3 < (standard[:, 0] > 0).mean() < 0.7


def test_tables_are_sampled_from_their_exact_density(run) -> None:
    heights = np.random.default_rng(0).normal(100, 5, 30).round(2)
    lines = [f"{height},{2 * height + 1},x" for height in heights]
    Path("table.csv").write_text("\n".join(["height,double,name", *lines]))
    out = run("icl sample --model tables --context table.csv -n 200 --seed 1 --quiet").out
    assert out.startswith("height,double\n")
    drawn = rows(out)
    assert drawn.shape == (200, 2)
    assert abs(np.median(drawn[:, 1] - 2 * drawn[:, 0]) - 1) < 1


def test_the_preset_of_tables_trains_and_resumes(run) -> None:
    command = "icl train --preset tables --updates 2 --out run"
    assert run(command).out == "run/model\n"
    first = Path("run/model/model.safetensors").read_bytes()
    run(f"{command} --quiet")
    assert Path("run/model/model.safetensors").read_bytes() == first
    assert "context_rows" in run(f"{command} --batch 3", code=2).err
