"""The skeletons that CONTRIBUTING.md starts from work as they are."""

import doctest
import importlib.util
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks

import isthmus as ist
from isthmus.checks import check_energy
from isthmus.report import Section

FOLDER = Path(__file__).parents[1] / "docs" / "skeletons"
SKELETONS = sorted(path.stem for path in FOLDER.glob("*.py"))


@cache
def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"skeleton_{name}", FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look for their annotations
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", SKELETONS)
def test_examples_in_docstrings_run(name: str) -> None:
    flags = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
    result = doctest.testmod(load(name), optionflags=flags)
    assert result.attempted > 0
    assert result.failed == 0


def test_the_energy_passes_check_energy_and_matches_torch() -> None:
    energy = load("energy").DiagonalGaussian([0.0, 1.0, -2.0], [1.0, 0.5, 3.0])
    check_energy(energy)
    x = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = torch.distributions.Normal(energy.mean, energy.sigma).log_prob(x).sum(-1)
    torch.testing.assert_close(energy.log_prob(x), expected)


def test_the_sampler_draws_with_the_exact_moments() -> None:
    energy = load("energy").DiagonalGaussian([3.0, -1.0], [1.0, 0.5])
    sampler = load("sampler").RandomWalk(0.8)
    start = torch.tensor([3.0, -1.0])
    draws = ist.sample(energy, 4000, sampler, init=start, burn_in=200, thin=1, seed=0)
    # 4,000 independent chains: four standard errors.
    assert ((draws.mean(0) - energy.mean).abs() < 4 * energy.sigma / 4000**0.5).all()
    spread = draws.var(0) / energy.sigma.square() - 1
    assert (spread.abs() < 4 * (2 / 4000) ** 0.5).all()


def test_the_report_part_is_a_section_that_can_be_written_and_read() -> None:
    section = load("report_part").descent_of_an_update(0)
    assert isinstance(section, Section)
    assert section.numbers["largest_rise"] <= 0
    assert Section.from_json(section.to_json(), section.figure) == section


@parametrize_with_checks([load("clusterer").FarthestPoints()])
def test_the_clusterer_passes_every_check_of_scikit_learn(estimator, check) -> None:
    check(estimator)
