"""The model that ships: as good as is said, on tasks that nobody has seen."""

import csv
from importlib.resources import files

import numpy as np
import pytest
import torch

from isthmus.incontext import evaluate, pretrained
from isthmus.incontext.priors import prior


@pytest.fixture(scope="module")
def model():
    return pretrained("mixtures-2d")


def test_it_has_the_paper_s_size_and_comes_with_its_metrics(model):
    config = model.config
    assert (config.dim, config.layers, config.heads, config.width) == (2, 6, 8, 128)
    text = (files("isthmus.incontext") / "weights/mixtures-2d/metrics.csv").read_text()
    rows = list(csv.DictReader(text.splitlines()))
    measured = [float(row["held_out_nll"]) for row in rows if row["held_out_nll"]]
    assert measured[-1] < measured[0] - 0.05


def test_a_context_changes_the_landscape_and_no_parameter(model):
    before = {name: value.clone() for name, value in model.state_dict().items()}
    left = model.condition(torch.tensor([[-2.0, 0.0], [-2.2, 0.3], [-1.8, -0.2], [-2.1, 0.1]]))
    right = model.condition(torch.tensor([[2.0, 0.0], [2.2, 0.3], [1.8, -0.2], [2.1, 0.1]]))
    ends = torch.tensor([[-2.0, 0.0], [2.0, 0.0]])
    with torch.no_grad():
        assert left.energy(ends).diff() > 1
        assert right.energy(ends).diff() < -1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_energies_of_the_shipped_model_come_without_a_graph(model):
    assert model.condition([[1.0, 1.0]]).energy([[0.0, 0.0]]).numpy().shape == (1,)


def test_it_beats_a_kernel_estimate_with_the_best_bandwidth(model):
    found = evaluate(
        model, prior("compact"), contexts=(2, 8), tasks=8, points=32, seed=1, probes=0,
        references=("kde-best",),
    )  # fmt: skip
    difference, _ = found.difference("kde-best")
    assert (difference < 0).all()


@pytest.mark.slow
def test_it_is_within_a_twentieth_of_a_nat_of_bayes(model):
    found = evaluate(model, prior("compact"), contexts=(1, 2, 4, 8, 16, 32), tasks=40, seed=2)
    difference, error = found.difference("bayes")
    assert (difference < 0.05 + 2 * error).all()
    for rival in ("kde-best", "em-0.001", "em-0.1"):
        difference, error = found.difference(rival)
        assert (np.nan_to_num(difference, nan=-1.0) < 2 * np.nan_to_num(error)).all()
