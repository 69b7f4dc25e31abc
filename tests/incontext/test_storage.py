"""Models on disk are read back equal or refused; pretrained models are as good as documented."""

import json

import numpy as np
import pytest
import torch

from isthmus.incontext import ICLEBM, ICLEBMConfig, TableConfig, evaluate, pretrained
from isthmus.incontext.priors import prior
from isthmus.incontext.tables.model import ICLTables
from isthmus.io.archive import write_archive


@pytest.fixture
def saved(tmp_path):
    model = ICLEBM(ICLEBMConfig(dim=3, layers=1, heads=2, width=8, box=2.0, positions=9))
    model.save_pretrained(tmp_path / "run" / "model")
    return model, tmp_path / "run" / "model"


def test_a_model_is_read_back_equal_from_its_folder_or_that_of_its_run(saved):
    model, folder = saved
    x = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(0))
    for again in (ICLEBM.from_pretrained(folder), pretrained(folder), pretrained(folder.parent)):
        assert again.config == model.config
        assert torch.equal(again(x), model(x))
    assert not any(parameter.requires_grad for parameter in pretrained(folder).parameters())


def test_models_that_had_an_energy_head_are_read_without_it(tmp_path):
    model = ICLTables(TableConfig(width=8, cell_width=4, layers=1, heads=2))
    arrays = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    content = json.dumps(model.config.to_dict() | {"head_layers": 1})
    arrays["head.weight"] = np.ones(3)
    write_archive(tmp_path / "model.safetensors", ICLTables.format, content, arrays)
    again = ICLTables.from_pretrained(tmp_path)
    x = np.random.default_rng(0).normal(size=(9, 2))
    np.testing.assert_array_equal(again.condition(x).log_prob(x), model.condition(x).log_prob(x))


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
