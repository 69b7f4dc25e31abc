"""The evaluation itself, on models whose scores are known in closed form."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import isthmus as ist
from isthmus.incontext.evaluation import Evaluation, Grid, evaluate
from isthmus.incontext.priors import GaussianMixtures
from isthmus.incontext.references import FittedMixture, KernelDensity, Reference

COMPACT = GaussianMixtures.compact()


class Shifted(ist.Energy):
    """Minus a log-density, plus a constant for each context that hides its normaliser."""

    inverse_temperature = torch.tensor(2.0)

    def __init__(self, log_density: Any, dim: int) -> None:
        super().__init__()
        self.log_density, self._dim = log_density, dim

    @property
    def dim(self) -> int:
        return self._dim

    def energy(self, x: Any) -> Tensor:
        constants = 3.0 + torch.arange(len(x), dtype=torch.float64)
        return (constants[:, None] - self.log_density(x)) / 2


class Model:
    """A log-density of points given contexts, dressed as a model."""

    def __init__(self, log_density: Any, dim: int = 2) -> None:
        self.log_density, self.config = log_density, SimpleNamespace(dim=dim, box=None)

    def condition(self, context: Tensor) -> ist.Energy:
        return Shifted(lambda x: self.log_density(context, x), self.config.dim)


def gaussian(context: Tensor, x: Tensor, centre: Any = 0.0) -> Tensor:
    """N(centre, I), but for its constant."""
    return -(x - centre).square().sum(-1) / 2


def following(context: Tensor, x: Tensor) -> Tensor:
    """The same about the last point of the context or the origin."""
    return gaussian(context, x, context[:, -1:] if context.shape[1] else 0.0)


class WithEmpty(Reference):
    """A kernel density that knows something when there is no context: a wide Gaussian."""

    name = "kde"

    def nested(self, sequence: Tensor, sizes: Any, points: Tensor) -> list[Tensor]:
        wide = -points.square().sum(-1) / 4 - points.shape[-1] / 2 * math.log(4 * math.pi)
        found = KernelDensity(0.5).nested(sequence, sizes, points)
        return [wide if size == 0 else each for size, each in zip(sizes, found, strict=True)]


def score(model: Any, law: Any = COMPACT, **options: Any) -> Evaluation:
    """Evaluate a model, without references and on few points unless the options differ."""
    return evaluate(
        model, law, **{"contexts": (0,), "tasks": 3, "points": 4, "references": (), **options}
    )


@pytest.fixture(scope="module")
def kernel_evaluation() -> Evaluation:
    references = [WithEmpty(), "kde-best", FittedMixture(3, starts=1)]
    options = {"contexts": (0, 1, 4), "tasks": 6, "points": 16, "probes": 3}
    return score(Model(WithEmpty().log_prob), references=references, **options)


def test_a_reference_dressed_as_a_model_scores_like_itself_in_any_order(kernel_evaluation):
    mean, error = kernel_evaluation.difference("kde")
    np.testing.assert_allclose(mean, 0.0, atol=1e-6)
    np.testing.assert_allclose(error, 0.0, atol=1e-6)
    assert kernel_evaluation.normalizer_error.max() < 1e-3
    assert kernel_evaluation.order.shape == (3, 3)
    np.testing.assert_allclose(kernel_evaluation.order, 0.0, atol=1e-9)


@pytest.mark.parametrize("dim", [1, 2])
def test_divergence_and_temperature_of_gaussians(dim):
    # One component at the origin: the truth is N(0, 0.5^2), whatever the task.
    law = GaussianMixtures(1, dim, "uniform", 1e-9, 0.5, 0.5, box=6.0)
    found = score(Model(gaussian, dim), law, tasks=5, points=2000)
    kl = dim * (math.log(1 / 0.5) + 0.5**2 / 2 - 0.5)
    np.testing.assert_allclose(found.kl, kl, rtol=1e-6)
    assert found.temperature == pytest.approx(0.25, rel=0.1)
    # At that temperature the model is the truth.
    np.testing.assert_allclose(found.tempered, found.nll["truth"], atol=0.02)
    assert found.nll["model"].mean() == pytest.approx(
        dim * (math.log(2 * math.pi) / 2 + 0.5**2 / 2), abs=0.02
    )


def test_order_sensitivity_of_a_density_that_follows_the_last_point():
    grid = Grid(2, 11.0, 61)
    found = score(Model(following), contexts=(0, 1, 2), tasks=12, grid=grid)
    generator = torch.Generator().manual_seed(0)
    sequence = COMPACT.draw(12, generator, dtype=torch.float64).sample(2, generator)
    swapped = (sequence[:, 0] - sequence[:, 1]).square().sum(-1).numpy() / 2
    np.testing.assert_allclose(found.order[:2], 0.0, atol=1e-9)
    match = np.isclose(found.order[2], swapped, rtol=1e-3)
    assert (match | np.isclose(found.order[2], 0.0, atol=1e-9)).all()
    assert 0 < match.sum() < 12


def test_above_two_dimensions_annealing_takes_over(tmp_path):
    law = GaussianMixtures(2, 3, std_low=0.5, std_high=0.5)
    options = {"contexts": (0, 3), "points": 16, "probes": 2}
    found = score(Model(WithEmpty().log_prob, 3), law, references=[WithEmpty()], **options)
    difference = np.abs(found.nll["model"] - found.nll["kde"])
    assert (difference < 5 * found.normalizer_error + 1e-3).all()
    assert found.normalizer_error.max() < 0.3
    assert np.isnan(found.temperature)
    found.to_json(tmp_path / "scores.json")
    assert str(Evaluation.from_json(tmp_path / "scores.json")) == str(found)
    assert np.isnan(found.order).all()
    np.testing.assert_allclose(found.kl, found.nll["model"] - found.nll["truth"])
