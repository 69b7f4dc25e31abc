"""Retrieval lets points fall and rest; completion starts from the exact conditional mean."""

import numpy as np
import pytest
import torch
from helpers import draw
from scipy import integrate, optimize
from torch import Tensor

import isthmus as ist
from isthmus.checks import check_energy
from isthmus.energy import Energy
from isthmus.errors import InvalidInputError, UnsupportedOperationError

DOUBLE = torch.float64
NAN = torch.nan


def never_rises(heights: Tensor) -> bool:
    slack = 1e-10 * (1 + heights[0].abs())
    return bool((heights[1:] <= heights[:-1] + slack).all())


class Valley(Energy):
    """Rosenbrock's valley: no closed-form step, a hard descent, one minimum at (1, 1)."""

    def energy(self, x: Tensor) -> Tensor:
        return (1 - x[..., 0]) ** 2 + 20 * (x[..., 1] - x[..., 0] ** 2) ** 2


class Tilted(Energy):
    """A tilted quartic with a coupling, for minima that are not round numbers."""

    def energy(self, x: Tensor) -> Tensor:
        return (x**4).sum(-1) - 3 * x[..., 0] * x[..., 1] + x.sum(-1)


class CountsRows(Energy):
    """A memory that keeps a list of how many rows its step was given."""

    def __init__(self, memory: Energy) -> None:
        super().__init__()
        self.memory = memory
        self.rows: list[int] = []

    def energy(self, x: Tensor) -> Tensor:
        return self.memory.energy(x)

    def step(self, x: Tensor, observed: Tensor | None = None) -> Tensor:
        self.rows.append(len(x))
        return self.memory.step(x, observed)


@pytest.mark.parametrize("held", [None, [True, False, False]])
def test_no_energy_ever_rises_on_the_way(make_energy, memories, held, on_sphere):
    energy = make_energy(memories)
    x = on_sphere(energy, draw(60, 3, seed=4))
    if getattr(energy, "states", None) == "binary":
        x = torch.where(x < 0, -1.0, 1.0).double()
    x = x[torch.isfinite(energy.energy(x))]
    found = ist.retrieve(energy, x, held, trace=True)
    assert never_rises(energy.energy(found.trace)) or not energy.step_descends
    if held is not None:
        assert torch.equal(found.trace[..., held], x[:, held].expand_as(found.trace[..., held]))


@pytest.mark.parametrize("energy", [Valley(), Tilted()])
def test_gradient_flow_ends_where_scipy_integrates_it_to(energy):
    starts = draw(8, 2)
    found = ist.retrieve(energy, starts, tol=1e-9, max_steps=20_000)
    assert found.converged.all()
    for start, end in zip(starts.numpy(), found.state.numpy(), strict=True):
        flow = integrate.solve_ivp(
            lambda _, x: energy.score(torch.from_numpy(x)).detach(), (0, 200), start, method="BDF"
        )
        np.testing.assert_allclose(end, flow.y[:, -1], atol=1e-3)
    assert energy.score(found.state).abs().max() < 1e-5


def test_gradient_flow_takes_no_step_off_the_numbers():
    class Cliff(Energy):
        def energy(self, x: Tensor) -> Tensor:
            return torch.where(x[..., 0] > 0, x[..., 0] - x[..., 0].log(), torch.inf)

    found = ist.retrieve(Cliff(), torch.tensor([[1e-3], [5.0], [-1.0]], dtype=DOUBLE))
    torch.testing.assert_close(found.state[:2], torch.ones(2, 1, dtype=DOUBLE))
    assert found.state[2] == -1
    assert found.converged.tolist() == [True, True, False]


def test_rows_at_rest_stop_costing():
    memories = torch.tensor([[0.0, 0.0], [1.9, 0.0], [50.0, 50.0]], dtype=DOUBLE)
    energy = CountsRows(ist.GaussianKDE(memories, 1.0))
    x = torch.cat([memories[2].expand(90, 2), torch.tensor([[0.3, 0.1]], dtype=DOUBLE)])
    found = ist.retrieve(energy, x, tol=1e-10)
    assert energy.rows[0] == 91
    assert set(energy.rows[2:]) == {1}
    assert len(energy.rows) > 20
    assert sum(energy.rows) == found.steps.sum()
    assert found.steps[:90].max() <= 2
    assert found.steps[90] == len(energy.rows)


def test_each_row_ends_as_if_it_were_alone(make_energy, memories):
    energy = make_energy(memories)
    x = 0.7 * draw(6, 3, seed=2)
    together = ist.retrieve(energy, x, max_steps=60)
    for row in range(6):
        alone = ist.retrieve(energy, x[row], max_steps=60)
        torch.testing.assert_close(alone.state, together.state[row])
        assert alone.steps == together.steps[row]


def test_rounding_does_not_keep_a_row_from_resting():
    # On a sphere in float32 many rows jump between neighbouring numbers for ever.
    found = ist.retrieve(ist.Hopfield(draw(40, 6).float()), draw(50, 6, seed=1).float(), tol=0.0)
    assert found.converged.all()


def test_the_trace_holds_every_state():
    energy = ist.GaussianKDE(draw(6, 3), 1.0)
    x = draw(4, 3, seed=1).reshape(2, 2, 3)
    found = ist.retrieve(energy, x, trace=True)
    assert found.trace.shape == (int(found.steps.max()) + 1, 2, 2, 3)
    assert torch.equal(found.trace[0], x)
    assert torch.equal(found.trace[-1], found.state)
    torch.testing.assert_close(found.trace[1], energy.step(x))
    first = int(found.steps[0, 0])
    assert torch.equal(found.trace[first, 0, 0], found.state[0, 0])
    assert ist.retrieve(energy, x).trace is None


def test_the_start_is_the_mean_of_the_density_along_the_unknown_axis(make_density):
    energy = make_density(draw(5, 2))
    place = torch.linspace(-16, 16, 100_001, dtype=DOUBLE)
    axis, steps = place.sinh(), place.cosh()  # far enough for heavy tails
    if isinstance(energy, ist.VonMisesFisherMixture):  # two points of the circle are left
        axis, steps = 0.84**0.5 * torch.tensor([-1.0, 1.0], dtype=DOUBLE), torch.ones(2)
    line = torch.stack([torch.full_like(axis, 0.4), axis], 1)
    density = energy.log_prob(line).exp() * steps
    expected = (density @ axis) / density.sum()
    start = ist.complete(energy, torch.tensor([0.4, NAN], dtype=DOUBLE), max_steps=0)
    edges = isinstance(energy, ist.UniformKDE)  # which lie between points of the grid
    torch.testing.assert_close(start[1], expected, atol=5e-4 if edges else 1e-5, rtol=0)


def test_completion_is_retrieval_from_that_start_with_the_rest_held(
    make_energy, memories, on_sphere
):
    energy = make_energy(memories)
    whole = on_sphere(energy, 0.5 * draw(9, 3, seed=1))
    x = torch.where(draw(9, 3, seed=2) > 0.3, NAN, whole)
    observed = ~torch.isnan(x)
    start = energy.conditional_mean(x, observed)
    torch.testing.assert_close(ist.complete(energy, x), torch.where(observed, x, start))
    expected = ist.retrieve(energy, start, observed).state
    found = ist.complete(energy, x, how="mode")
    torch.testing.assert_close(found, expected)
    assert torch.equal(found[observed], x[observed])
    assert torch.isfinite(found).all()
    if energy.step_descends:
        assert (energy.energy(found) <= energy.energy(start) + 1e-9).all()


def test_a_row_with_nothing_known_starts_at_the_mean_and_a_whole_one_stays(make_gaussian, memories):
    energy = make_gaussian(memories)
    whole = 0.5 * draw(1, 3, seed=5)
    x = torch.cat([torch.full((1, 3), NAN, dtype=DOUBLE), whole])
    start = ist.complete(energy, x, max_steps=0)
    exact = energy.sample(200_000, seed=0)
    torch.testing.assert_close(start[0], exact.mean(0), atol=0.02, rtol=0)
    assert torch.equal(ist.complete(energy, x)[1], whole[0])


def test_a_step_that_cannot_hold_coordinates_is_left_to_the_score():
    class Tilted(ist.Energy):
        dim = 2

        def energy(self, x):
            return x.square().sum(-1) + x.prod(-1)

        def step(self, x):
            return 0.5 * x

    start = torch.tensor([1.0, torch.nan], dtype=DOUBLE)
    for energy in (Tilted(), ist.Affine(Tilted(), scale=1.0)):
        found = ist.complete(energy, start, init=[0.0, 3.0])
        assert found.tolist() == pytest.approx([1.0, -0.5], abs=1e-5)
    assert "step holds observed coordinates" in check_energy(Tilted()).not_applicable
    free = ist.retrieve(Tilted(), torch.tensor([[1.0, 3.0]], dtype=DOUBLE))
    assert float(free.state.abs().max()) < 1e-5


def test_an_energy_that_cannot_guess_says_so_and_takes_a_guess():
    x = torch.tensor([[0.3, NAN], [-1.0, NAN], [1.2, NAN], [NAN, NAN]], dtype=DOUBLE)
    with pytest.raises(UnsupportedOperationError, match="Pass init="):
        ist.complete(Tilted(), x)
    start = torch.zeros(4, 2, dtype=DOUBLE)
    found = ist.complete(Tilted(), x, init=start, tol=1e-10)
    for held, free in found[:3].tolist():
        expected = optimize.minimize_scalar(lambda y, held=held: y**4 - 3 * held * y + y).x
        assert free == pytest.approx(expected, abs=1e-6)
    assert torch.equal(found[:3, 0], x[:3, 0])
    for options in ({"init": x}, {"init": start, "how": "mean"}, {"how": "median"}):
        with pytest.raises(InvalidInputError, match="NaN|leave|how must be one of"):
            ist.complete(Tilted(), x, **options)


def test_the_memory_of_each_row_is_known() -> None:
    memories = 10 * torch.eye(4, dtype=torch.float64)
    x = memories[[2, 0, 3]] + 0.1
    for energy in (ist.GaussianKDE(memories, 1.0), ist.GaussianKDE(memories, [1.0, 1, 1, 1])):
        assert ist.retrieve(energy, x).memory.tolist() == [2, 0, 3]
        assert ist.retrieve(energy, x[0]).memory == 2
        assert ist.retrieve(energy, x[:0]).memory.shape == (0,)
    far = ist.retrieve(ist.EpanechnikovKDE(memories), torch.full((1, 4), 99.0))
    assert far.memory.tolist() == [-1]
    new = ist.CRPMixture(memories, [1.0, 1, 1, 1], beta=1.0, rho=1e-4, alpha=9.0)
    assert ist.retrieve(new, torch.full((1, 4), 90.0), max_steps=0).memory.tolist() == [-1]


def test_an_energy_without_a_lower_bound_is_reported() -> None:
    class Slope(ist.Energy):
        def energy(self, x: torch.Tensor) -> torch.Tensor:
            return -x.square().sum(-1)

    with pytest.warns(UserWarning, match="2 of 3 rows ran off"):
        found = ist.retrieve(Slope(), torch.tensor([[1.0, 0.0], [0.0, 0.0], [0.0, -2.0]]))
    assert found.memory is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_converged_are_near_a_fixed_point_found_by_newtons_method(dtype) -> None:
    """Random memories, two of them about two bandwidths apart, where updates slow down."""
    rng, off = np.random.default_rng(7), []
    for _ in range(300):
        dim, count = int(rng.integers(1, 4)), int(rng.integers(2, 5))
        memories, way = rng.normal(size=(count, dim)), rng.normal(size=dim)
        memories[1] = memories[0] + way / np.linalg.norm(way) * rng.uniform(1.9, 2.1)
        memory = ist.GaussianKDE(torch.tensor(memories, dtype=dtype), 1.0)
        start = torch.tensor(memories[:2] + 0.3 * rng.normal(size=(2, dim)), dtype=dtype)
        found, X = ist.retrieve(memory, start, max_steps=3000), memory.memories.double().numpy()
        for state in found.state[found.converged].double().numpy():
            x = state.copy()
            for _ in range(8):
                weights = np.exp(-0.5 * np.square(x - X).sum(1))
                weights /= weights.sum()
                mean = weights @ X
                slope = (X - mean).T * weights @ (X - mean)  # of the update, where sigma is 1
                x = x + np.linalg.solve(np.eye(dim) - slope, mean - x)
            off.append(np.linalg.norm(x - state) / np.ptp(X, axis=0).max())
    limit = 1e-4 if dtype == torch.float32 else 1e-5
    assert len(off) > 500
    assert np.max(off) < limit


@pytest.mark.parametrize("unit", [1e-9, 1e-4, 1e7])
@pytest.mark.parametrize("kernel", [ist.GaussianKDE, ist.EpanechnikovKDE, ist.StudentKDE])
def test_other_units_lead_to_the_same_fixed_points(kernel, unit):
    rng = np.random.default_rng(0)
    memories = 3 * rng.normal(size=(30, 2))
    starts = memories[:5] + 0.4
    expected = ist.retrieve(kernel(memories, 0.7), starts).state
    found = ist.retrieve(kernel(unit * memories, 0.7 * unit), unit * starts).state
    np.testing.assert_allclose(found / unit, expected, atol=1e-4)
    mapped = ist.Affine(kernel(memories, 0.7), scale=[unit, unit])
    np.testing.assert_allclose(
        ist.retrieve(mapped, unit * starts).state / unit, expected, atol=1e-4
    )
