"""`isthmus icl`: train, eval, sample and plot, and one clear line for every error."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from isthmus.cli.main import main
from isthmus.incontext import ICLEBM, ICLEBMConfig, preset
from isthmus.incontext.evaluation import Evaluation
from isthmus.incontext.runs import Checkpoint

POINTS = np.array([[1.0, 1.0], [1.2, 0.9], [-2.0, 0.5]])


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small model, untrained."""
    folder = tmp_path_factory.mktemp("models") / "small"
    with torch.random.fork_rng():
        torch.manual_seed(0)
        ICLEBM(ICLEBMConfig(layers=1, heads=2, width=8, box=5.5)).save_pretrained(folder)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "points.csv"
    np.savetxt(path, POINTS, delimiter=",", header="first,second", comments="")
    return path


def icl(line: str, **places: Path) -> int:
    """Run a command, with paths for the names in braces."""
    return main(["icl", *(word.format(**places) for word in line.split())])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "deep" / "run"
    assert icl("train --preset tiny --updates 4 --out {out}", out=out) == 0
    return out


def test_training_leaves_a_model_and_its_metrics(trained) -> None:
    names = {path.name for path in trained.iterdir()}
    assert names - {".lock"} == {"checkpoint.pt", "metrics.csv", "metrics.jsonl", "model"}
    assert ICLEBM.from_pretrained(trained / "model").config == preset("tiny").model
    last = json.loads((trained / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["update"] == 4
    assert np.isfinite(last["held_out_nll"])


def test_a_finished_run_is_not_repeated_and_other_settings_are_refused(trained, capsys) -> None:
    before = (trained / "model" / "model.safetensors").read_bytes()
    assert icl("train --preset tiny --updates 4 --out {out}", out=trained) == 0
    assert (trained / "model" / "model.safetensors").read_bytes() == before
    assert icl("train --preset tiny --updates 5 --out {out}", out=trained) == 2
    assert "updates" in capsys.readouterr().err


def test_fine_tuning_takes_the_shape_of_the_model_and_the_box_of_the_prior(
    model, tmp_path, capsys
) -> None:
    out = tmp_path / "run"
    command = "train --preset tiny --updates 2 --out {out} --init {model} --prior paper --seed 3"
    assert icl(command, out=out, model=model) == 0
    tuned = ICLEBM.from_pretrained(out / "model")
    scale = 20.0 / 5.5
    assert tuned.config == ICLEBMConfig(layers=1, heads=2, width=8, box=20.0, scale=scale)
    start = ICLEBM.from_pretrained(model).state_dict()
    for name, weight in tuned.state_dict().items():
        torch.testing.assert_close(weight, start[name], atol=0.02, rtol=0)
    settings = Checkpoint.load(out / "checkpoint.pt").settings
    assert "Proposal(box=20.0" in settings["objective"]
    assert settings["seed"] == "3"


def test_an_evaluation_as_json_can_be_read_back(model, tmp_path, capsys) -> None:
    command = "eval --model {model} --tasks 2 --points 4 --contexts 0,2 --prior rings"
    assert icl(f"{command} --json -o -", model=model) == 0
    printed = capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
    path = tmp_path / "found.json"
    assert icl(f"{command} -o {path}", model=model) == 0
    assert capsys.readouterr().out == f"{path}\n"
    assert json.loads(path.read_text()) == json.loads(printed)
    assert Evaluation.from_json(path).contexts == (0, 2)


def test_samples_are_a_table_and_the_same_for_the_same_seed(model, data, tmp_path, capsys) -> None:
    command = ["icl", "sample", "--model", str(model), "--context", str(data), "-n", "6"]
    command += ["--steps", "5"]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    drawn = np.genfromtxt(io.StringIO(printed.out), delimiter=",", names=True)
    assert drawn.dtype.names == ("first", "second")
    assert len(drawn) == 6
    path = tmp_path / "drawn.csv"
    assert main([*command, "-o", str(path)]) == 0
    assert path.read_text() == printed.out
    capsys.readouterr()
    assert main([*command, "-o", "-"]) == 0
    assert capsys.readouterr().out == printed.out
    assert main([*command, "--seed", "1", "--sampler", "langevin"]) == 0
    assert capsys.readouterr().out != printed.out


def test_points_of_any_units_are_drawn_in_them(tmp_path, capsys) -> None:
    """Two clusters, one column in units of thousands, the other of thousandths."""
    rng = np.random.default_rng(0)
    points = rng.normal(size=(30, 2)) * 0.4 + np.repeat([[-2.0, 1.0], [2.0, -1.0]], 15, 0)
    command = ["icl", "sample", "-n", "200", "--steps", "20", "--context"]
    path, unit, offset = tmp_path / "raw.csv", [1000.0, 0.001], [5e4, 0.3]
    np.savetxt(path, points * unit + offset, delimiter=",", header="mass,size", comments="")
    assert main([*command, str(path)]) == 0
    drawn = np.loadtxt(io.StringIO(capsys.readouterr().out), delimiter=",", skiprows=1)
    standard = (drawn - offset) / unit
    near = np.linalg.norm(standard[:, None] - points, axis=-1).min(1)
    assert np.median(near) < 0.5
    assert 0.3 < (standard[:, 0] > 0).mean() < 0.7


def test_tables_are_sampled_from_their_exact_density(tmp_path, capsys) -> None:
    rng = np.random.default_rng(0)
    table = tmp_path / "table.csv"
    rows = "\n".join(f"{a},{2 * a + 1},x" for a in rng.normal(100, 5, 30).round(2))
    table.write_text(f"height,double,name\n{rows}\n")
    arguments = ["icl", "sample", "--model", "tables", "--context", str(table), "-n", "200"]
    assert main([*arguments, "--seed", "1", "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "height,double"
    drawn = np.loadtxt(lines[1:], delimiter=",")
    assert drawn.shape == (200, 2)
    assert abs(np.median(drawn[:, 1] - 2 * drawn[:, 0]) - 1) < 1


def test_the_preset_of_tables_trains_and_resumes(tmp_path, capsys) -> None:
    arguments = ["icl", "train", "--preset", "tables", "--updates", "2", "--out", str(tmp_path)]
    assert main(arguments) == 0
    first = (tmp_path / "model" / "model.safetensors").read_bytes()
    assert capsys.readouterr().out.strip() == str(tmp_path / "model")
    assert main([*arguments, "--quiet"]) == 0
    assert (tmp_path / "model" / "model.safetensors").read_bytes() == first
    assert main([*arguments, "--batch", "3"]) == 2
    assert "context_rows" in capsys.readouterr().err
