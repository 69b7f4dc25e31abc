"""Every energy passes check_energy, and each check catches the fault that it is for."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from helpers import Bowl, draw
from torch import Tensor

import isthmus as ist
from isthmus.checks import CHECKS, check_energy
from isthmus.errors import CheckFailedError, InvalidInputError
from isthmus.memories import Memory
from isthmus.memories.base import keep_observed

DOUBLE = torch.float64
NAMES = [check.__name__.removeprefix("_check_").replace("_", " ") for check in CHECKS]


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_every_energy_passes(make_energy, memories, dtype):
    energy = make_energy(memories.to(dtype))
    report = check_energy(energy)
    skipped = set(report.not_applicable)
    assert set(report.passed) | skipped == set(NAMES)
    allowed = set()
    if isinstance(energy, ist.Hopfield | ist.DenseAssociativeMemory | ist.SparseHopfield):
        allowed |= {"density matches energy"}
    if not energy.step_descends:
        allowed |= {"step never raises the energy"}
    assert skipped == allowed


@pytest.mark.parametrize(("count", "dim"), [(1, 1), (1, 4), (30, 1), (5, 8)])
def test_every_energy_passes_in_other_shapes(make_energy, count, dim):
    if dim < 2 and isinstance(make_energy(torch.eye(2)), ist.VonMisesFisherMixture):
        pytest.skip("directions have at least two coordinates")
    check_energy(make_energy(draw(count, dim, seed=1)), seed=2)


def test_every_energy_passes_with_duplicates_and_constant_columns(make_energy, memories):
    odd = torch.cat([memories, memories[:3]])
    odd[:, 0] = 1.0
    check_energy(make_energy(odd))


def test_points_can_be_given(memories, points):
    assert len(check_energy(ist.GaussianKDE(memories, 1.0), points.numpy()).passed) == 11
    outside = torch.full((2, 3), 99.0)
    report = check_energy(ist.EpanechnikovKDE(memories), outside)
    assert "score is minus gradient" in report.not_applicable
    with pytest.raises(InvalidInputError, match="at least one point"):
        check_energy(ist.GaussianKDE(memories, 1.0), points[:0])


def test_a_custom_energy_can_be_checked():
    report = check_energy(Bowl(), draw(5, 2))
    assert "score against finite differences" in report.passed
    assert check_energy(Bowl(2)).passed == report.passed
    with pytest.raises(InvalidInputError, match="pass points"):
        check_energy(Bowl())


class Broken(Memory):
    """A sound memory, E = sum of log(1 + |x - m|^2), to break one promise at a time."""

    def __init__(self, memories, scale=1.0) -> None:
        super().__init__(memories)
        self._store("scale", torch.as_tensor(scale).to(self.memories))

    def energy(self, x) -> Tensor:
        x = self.as_input(x)
        squares = (x[..., None, :] - self.memories).square().sum(-1)
        return torch.log1p(self.scale * squares).sum(-1)

    def step(self, x, observed=None) -> Tensor:
        x = self.as_input(x)
        squares = (x[..., None, :] - self.memories).square().sum(-1, keepdim=True)
        weights = 1 / (1 + self.scale * squares)
        new = (weights * self.memories).sum(-2) / weights.sum(-2)
        return keep_observed(new, x, observed)

    def conditional_mean(self, x, observed) -> Tensor:
        raise NotImplementedError


def faulty(**members: Any) -> type[Broken]:
    """Return a memory that breaks a promise by these methods."""
    return type("Faulty", (Broken,), members)


def plus(term: Callable[[Broken, Tensor], Tensor | float]) -> Callable[..., Tensor]:
    """Return the method `energy` with one more term."""
    return lambda self, x: Broken.energy(self, x) + term(self, self.as_input(x))


def read_wrongly(self: Broken, x: Any, *, allow_nan: bool = False) -> Tensor:
    points = Broken.as_input(self, x, allow_nan=allow_nan)
    return points if isinstance(x, Tensor) else points + 1


def step_uphill(self: Broken, x: Tensor, observed: Any = None) -> Tensor:
    x = self.as_input(x)
    return keep_observed(x - 0.1 * self.score(x), x, observed)


BREAKS = {
    "no nan": faulty(energy=plus(lambda _, x: torch.where(x[..., 0] > 0, torch.nan, 0.0))),
    "batch shapes": faulty(energy=lambda self, x: Broken.energy(self, x).reshape(-1)),
    "numpy input": faulty(as_input=read_wrongly),
    "dtypes and device": faulty(energy=lambda self, x: Broken.energy(self, x).double()),
    "score is minus gradient": faulty(score=lambda self, x: 0.5 * Broken.score(self, x)),
    "score against finite differences": faulty(energy=plus(lambda _, x: 0.1 * x.detach().sum(-1))),
    "second derivatives": faulty(score=lambda self, x: Broken.score(self, x).detach()),
    "parameters get gradients": faulty(
        energy=lambda self, x: Broken(self.memories.detach(), self.scale.detach()).energy(x)
    ),
    "density matches energy": faulty(
        inverse_temperature=property(lambda self: 2 * self.scale),
        log_normalizer=lambda self: self.scale.log(),
        log_prob=lambda self, x: -self.energy(x) - self.log_normalizer(),
    ),
    "step never raises the energy": faulty(step=step_uphill),
    "step holds observed coordinates": faulty(
        step=lambda self, x, observed=None: Broken.step(self, x)
    ),
}


def test_the_sound_one_passes(memories):
    assert len(check_energy(Broken(memories)).passed) == len(NAMES) - 1  # no known density


@pytest.mark.parametrize(("name", "broken"), BREAKS.items(), ids=BREAKS)
def test_a_broken_promise_is_found_by_its_check(name, broken, memories):
    with pytest.raises(CheckFailedError, match=f"^Faulty, {name}: "):
        check_energy(broken(memories))


def crash_at_one_point(self: Broken, x: Tensor) -> Tensor:
    if self.as_input(x).ndim == 1:
        raise IndexError("one point is too few")
    return Broken.energy(self, x)


def test_an_exception_counts_against_the_check_it_came_from(memories):
    with pytest.raises(CheckFailedError, match="IndexError") as caught:
        check_energy(faulty(energy=crash_at_one_point)(memories))
    assert isinstance(caught.value.__cause__, IndexError)
