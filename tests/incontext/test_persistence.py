"""save_pretrained and from_pretrained: equal, or refused with a reason."""

import json
import pickle

import pytest
import torch

from isthmus.errors import InvalidInputError
from isthmus.incontext import ICLEBM, ICLEBMConfig, pretrained


@pytest.fixture
def saved(tmp_path):
    model = ICLEBM(ICLEBMConfig(dim=3, layers=1, heads=2, width=8, box=2.0, positions=9))
    model.save_pretrained(tmp_path / "model")
    return model, tmp_path / "model"


def change(folder, **entries):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **entries}))


def test_a_model_comes_back_equal(saved):
    model, folder = saved
    again = ICLEBM.from_pretrained(folder)
    assert again.config == model.config
    x = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    assert torch.equal(again(x), model(x))


def test_saving_is_two_files_that_hold_no_code(saved):
    _, folder = saved
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    with pytest.raises(pickle.UnpicklingError):
        pickle.loads((folder / "model.safetensors").read_bytes())


@pytest.mark.parametrize("keep", [0, 10, 500])
def test_weights_cut_short_are_refused(saved, keep):
    _, folder = saved
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(InvalidInputError, match="truncated or was changed"):
        ICLEBM.from_pretrained(folder)


def test_one_altered_bit_is_noticed(saved):
    _, folder = saved
    path = folder / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match="altered"):
        ICLEBM.from_pretrained(folder)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"version": 2}, "Upgrade isthmus"),
        ({"format": "something"}, "does not describe"),
        ({"config": {"dim": 3, "colour": "red"}}, "newer version"),
        ({"config": {"dim": -3}}, "dim"),
        ({"config": {"dim": 5}}, "do not fit"),
    ],
)
def test_other_descriptions_are_refused(saved, entries, message):
    _, folder = saved
    change(folder, **entries)
    with pytest.raises(InvalidInputError, match=message):
        ICLEBM.from_pretrained(folder)


def test_files_that_are_not_there_or_not_json(saved, tmp_path):
    _, folder = saved
    with pytest.raises(InvalidInputError, match="cannot be read"):
        ICLEBM.from_pretrained(tmp_path / "nowhere")
    (folder / "config.json").write_text("{")
    with pytest.raises(InvalidInputError, match="not JSON"):
        ICLEBM.from_pretrained(folder)


def test_a_missing_weights_file_is_named(saved):
    _, folder = saved
    (folder / "model.safetensors").unlink()
    with pytest.raises(InvalidInputError, match=r"model\.safetensors cannot be read"):
        ICLEBM.from_pretrained(folder)


def test_names_of_shipped_models_are_told():
    with pytest.raises(InvalidInputError, match="mixtures-2d"):
        pretrained("elephants")
