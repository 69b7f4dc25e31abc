"""Every energy passes check_energy, and each check catches the fault that it is for."""

import pytest
import torch
from torch import Tensor, nn

import isthmus as ist
from isthmus.checks import CHECKS, check_energy
from isthmus.energy import Energy
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
    if not energy.translation_invariant:
        allowed |= {"translation"}
    if isinstance(energy, ist.Hopfield | ist.DenseAssociativeMemory | ist.SparseHopfield):
        allowed |= {"density matches energy"}
    if all(value.ndim for value in energy.state_dict().values()):
        allowed |= {"extreme temperatures"}
    if not energy.step_descends:
        allowed |= {"step never raises the energy"}
    assert skipped == allowed


@pytest.mark.parametrize(("count", "dim"), [(1, 1), (1, 4), (30, 1), (5, 8)])
def test_every_energy_passes_in_other_shapes(make_energy, count, dim):
    if dim < 2 and isinstance(make_energy(torch.eye(2)), ist.VonMisesFisherMixture):
        pytest.skip("directions have at least two coordinates")
    generator = torch.Generator().manual_seed(1)
    memories = torch.randn(count, dim, generator=generator, dtype=DOUBLE)
    check_energy(make_energy(memories), seed=2)


def test_every_energy_passes_with_duplicates_and_constant_columns(make_energy, memories):
    odd = torch.cat([memories, memories[:3]])
    odd[:, 0] = 1.0
    check_energy(make_energy(odd))


def test_points_can_be_given(memories, points):
    assert len(check_energy(ist.GaussianKDE(memories, 1.0), points.numpy()).passed) == 16
    outside = torch.full((2, 3), 99.0)
    report = check_energy(ist.EpanechnikovKDE(memories), outside)
    assert "score is minus gradient" in report.not_applicable
    with pytest.raises(InvalidInputError, match="at least one point"):
        check_energy(ist.GaussianKDE(memories, 1.0), points[:0])


class Bowl(Energy):
    """A custom energy without memories that keeps all its promises."""

    def __init__(self) -> None:
        super().__init__()
        self.centre = nn.Parameter(torch.ones(2))

    def energy(self, x) -> Tensor:
        return 0.5 * (self.as_input(x) - self.centre).square().sum(-1)


class BowlOfTwo(Bowl):
    @property
    def dim(self) -> int:
        return 2


def test_a_custom_energy_can_be_checked():
    report = check_energy(Bowl(), torch.randn(5, 2, generator=torch.Generator().manual_seed(0)))
    assert "score against finite differences" in report.passed
    assert "far queries" in report.not_applicable
    assert check_energy(BowlOfTwo()).passed == report.passed
    with pytest.raises(InvalidInputError, match="pass points"):
        check_energy(Bowl())


class Broken(Memory):
    """A sound memory, E = sum of log(1 + |x - m|^2), to break one promise at a time."""

    translation_invariant = True

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


class SquashesTheBatch(Broken):
    def energy(self, x) -> Tensor:
        return super().energy(x).reshape(-1)


class IsNanSomewhere(Broken):
    def energy(self, x) -> Tensor:
        x = self.as_input(x)
        return super().energy(x) + torch.where(x[..., 0] > 0, torch.nan, 0.0)


class CannotReadArrays(Broken):
    def as_input(self, x, *, allow_nan=False) -> Tensor:
        points = super().as_input(x, allow_nan=allow_nan)
        return points if isinstance(x, Tensor) else points + 1


class AlwaysAnswersInDouble(Broken):
    def energy(self, x) -> Tensor:
        return super().energy(x).double()


class HasAWrongScore(Broken):
    def score(self, x) -> Tensor:
        return 0.5 * super().score(x)


class HasASlopeThatAutogradCannotSee(Broken):
    def energy(self, x) -> Tensor:
        x = self.as_input(x)
        return super().energy(x) + 0.1 * x.detach().sum(-1)


class CutsTheGraph(Broken):
    def score(self, x) -> Tensor:
        return super().score(x).detach()


class HidesItsMemoriesFromAutograd(Broken):
    def energy(self, x) -> Tensor:
        return Broken(self.memories.detach(), self.scale.detach()).energy(x)


class ForgetsItsInverseTemperature(Broken):
    @property
    def inverse_temperature(self) -> Tensor:
        return 2 * self.scale

    def log_normalizer(self) -> Tensor:
        return self.scale.log()

    def log_prob(self, x) -> Tensor:
        return -self.energy(x) - self.log_normalizer()


class StepsUphill(Broken):
    def step(self, x, observed=None) -> Tensor:
        x = self.as_input(x)
        return keep_observed(x - 0.1 * self.score(x), x, observed)


class LetsGoOfWhatIsHeld(Broken):
    def step(self, x, observed=None) -> Tensor:
        return super().step(x)


class PrefersItsFirstMemory(Broken):
    def energy(self, x) -> Tensor:
        x = self.as_input(x)
        return super().energy(x) + (x - self.memories[0]).square().sum(-1)

    def step(self, x, observed=None) -> Tensor:
        return self.as_input(x)


class IsTiedToTheOrigin(Broken):
    def energy(self, x) -> Tensor:
        x = self.as_input(x)
        return super().energy(x) + 0.1 * x.square().sum(-1)

    def step(self, x, observed=None) -> Tensor:
        return self.as_input(x)


class OverflowsWhenCold(Broken):
    def energy(self, x) -> Tensor:
        huge = torch.exp(self.scale)
        return super().energy(x) + huge / huge

    def step(self, x, observed=None) -> Tensor:
        return Broken(self.memories, self.scale).step(x, observed)


class OverflowsFarAway(Broken):
    def energy(self, x) -> Tensor:
        huge = torch.exp(self.as_input(x).sum(-1).detach() / 10)
        centre_free = huge / huge
        return super().energy(x) + centre_free


class KeepsSomethingOutOfItsStateDict(Broken):
    def __init__(self, memories, scale=1.0) -> None:
        super().__init__(memories, scale)
        self.register_buffer("hidden", self.memories.detach().clone(), persistent=False)

    def energy(self, x) -> Tensor:
        return super().energy(x) + (self.as_input(x) - self.hidden.mean(0)).square().sum(-1)

    def step(self, x, observed=None) -> Tensor:
        return self.as_input(x)


BREAKS = {
    "no nan": IsNanSomewhere,
    "batch shapes": SquashesTheBatch,
    "numpy input": CannotReadArrays,
    "dtypes and device": AlwaysAnswersInDouble,
    "score is minus gradient": HasAWrongScore,
    "score against finite differences": HasASlopeThatAutogradCannotSee,
    "second derivatives": CutsTheGraph,
    "parameters get gradients": HidesItsMemoriesFromAutograd,
    "density matches energy": ForgetsItsInverseTemperature,
    "step never raises the energy": StepsUphill,
    "step holds observed coordinates": LetsGoOfWhatIsHeld,
    "order of memories does not matter": PrefersItsFirstMemory,
    "translation": IsTiedToTheOrigin,
    "extreme temperatures": OverflowsWhenCold,
    "far queries": OverflowsFarAway,
    "state dict round trip": KeepsSomethingOutOfItsStateDict,
}


def test_the_sound_one_passes(memories):
    assert len(check_energy(Broken(memories)).passed) == len(NAMES) - 1  # no known density


@pytest.mark.parametrize(("name", "broken"), BREAKS.items(), ids=BREAKS)
def test_a_broken_promise_is_found_by_its_check(name, broken, memories):
    with pytest.raises(CheckFailedError, match=f"^{broken.__name__}, {name}: "):
        check_energy(broken(memories))


class Crashes(Broken):
    def energy(self, x) -> Tensor:
        if self.as_input(x).ndim == 1:
            raise IndexError("one point is too few")
        return super().energy(x)


def test_an_exception_counts_against_the_check_it_came_from(memories):
    with pytest.raises(CheckFailedError, match="IndexError") as caught:
        check_energy(Crashes(memories))
    assert isinstance(caught.value.__cause__, IndexError)
