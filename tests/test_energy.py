"""The contract: what a custom energy gets for free, and what every memory keeps."""

import copy
import pickle

import numpy as np
import pytest
import torch
from helpers import draw
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

import isthmus as ist
from isthmus.energy import Energy
from isthmus.errors import InvalidInputError
from isthmus.memories import Hopfield

DOUBLE = torch.float64
WITHOUT_DENSITY = (Hopfield, ist.DenseAssociativeMemory, ist.SparseHopfield)


class Ridge(Energy):
    """A smooth energy that says nothing but itself."""

    def energy(self, x: Tensor) -> Tensor:
        return x.square().sum(-1) + torch.cos(x[..., 0] * x[..., 1])


def ridge_force(x: Tensor) -> Tensor:
    sine = torch.sin(x[..., 0] * x[..., 1])
    return -2 * x + sine[..., None] * x.flip(-1)


@pytest.fixture
def plane_points() -> Tensor:
    return draw(6, 2)


def test_the_score_of_a_custom_energy_is_minus_its_gradient(plane_points):
    energy = Ridge()
    torch.testing.assert_close(energy.score(plane_points), ridge_force(plane_points))
    torch.testing.assert_close(energy.score(plane_points[0]), ridge_force(plane_points[0]))
    folded = plane_points.reshape(2, 3, 2)
    torch.testing.assert_close(energy.score(folded), ridge_force(folded))
    assert energy.score(plane_points.numpy()).shape == plane_points.shape
    assert energy.score(plane_points[:0]).shape == (0, 2)


def test_the_score_keeps_a_graph_only_when_one_is_wanted(plane_points):
    energy = Ridge()
    leaf = plane_points.requires_grad_()
    assert gradcheck(energy.score, leaf)
    assert gradgradcheck(energy.energy, leaf)
    with torch.no_grad():
        score = energy.score(leaf)
    assert not score.requires_grad


def test_a_score_keeps_the_graph_of_tensors_that_are_not_registered(plane_points):
    hidden = torch.tensor(2.0, dtype=DOUBLE, requires_grad=True)

    class Scaled(Ridge):
        def energy(self, x: Tensor) -> Tensor:
            return hidden.exp() * super().energy(x)

    Scaled().score(plane_points).sum().backward()
    assert hidden.grad is not None


def test_scores_of_custom_energies_can_be_transformed(plane_points):
    energy = Ridge()
    found = torch.func.vmap(energy.score)(plane_points)
    torch.testing.assert_close(found, ridge_force(plane_points))
    jacobian = torch.func.jacrev(energy.score)(plane_points[0])
    hessian = torch.autograd.functional.hessian(energy.energy, plane_points[0])
    torch.testing.assert_close(jacobian, -hessian)


def test_no_points_are_fine(make_energy, memories):
    energy = make_energy(memories)
    nothing = torch.zeros(0, 3)
    assert energy.energy(nothing).shape == (0,)
    assert energy.score(nothing).shape == (0, 3)
    assert energy.step(nothing).shape == (0, 3)
    assert energy.step(nothing, torch.ones(3, dtype=torch.bool)).shape == (0, 3)
    if not isinstance(energy, WITHOUT_DENSITY):
        assert energy.log_prob(nothing).shape == (0,)
        assert len(energy.responsibilities(nothing)) == 0
        assert energy.sample(0).shape == (0, 3)


def smooth_parameters(energy: Energy) -> dict[str, Tensor]:
    """The parameters that are finite: a log-weight of minus infinity has no derivative."""
    return {name: each for name, each in energy.named_parameters() if torch.isfinite(each).all()}


def test_derivatives_in_points_and_in_every_parameter(make_energy, memories, points):
    energy = make_energy(memories[:4]).requires_grad_()
    smooth = smooth_parameters(energy)
    assert "memories" in smooth

    def function(x: Tensor, *parameters: Tensor) -> Tensor:
        chosen = dict(zip(smooth, parameters, strict=True))
        return torch.func.functional_call(energy, chosen, (x,))

    leaves = [each.detach().clone().requires_grad_() for each in (points[:2], *smooth.values())]
    assert gradcheck(function, leaves)
    assert gradgradcheck(function, leaves)


def test_the_closed_form_score_is_differentiable_in_every_parameter(make_density, memories, points):
    energy = make_density(memories[:4]).requires_grad_()
    smooth = smooth_parameters(energy)

    def function(x: Tensor, *parameters: Tensor) -> tuple[Tensor, Tensor]:
        twin = copy.deepcopy(energy)
        for name, value in zip(smooth, parameters, strict=True):
            delattr(twin, name)
            twin.register_buffer(name, value)
        return twin.score(x), twin.log_prob(x)

    leaves = [each.detach().clone().requires_grad_() for each in (points[:2], *smooth.values())]
    assert gradcheck(function, leaves)


@pytest.mark.filterwarnings("ignore:`torch.jit.script`")  # torch's own, inside forward mode
def test_function_transforms_work_on_every_energy(make_energy, memories, points):
    energy = make_energy(memories)
    vmap, grad, hessian = torch.func.vmap, torch.func.grad, torch.func.hessian
    torch.testing.assert_close(vmap(energy.energy)(points), energy.energy(points))
    torch.testing.assert_close(vmap(energy.score)(points), energy.score(points))
    torch.testing.assert_close(vmap(energy.step)(points), energy.step(points))
    torch.testing.assert_close(-vmap(grad(energy.energy))(points), energy.score(points))
    expected = torch.autograd.functional.hessian(energy.energy, points[0])
    torch.testing.assert_close(hessian(energy.energy)(points[0]), expected)


def test_memories_out_of_a_network_keep_their_graph(make_energy, memories, points):
    weights = memories.clone().requires_grad_()
    plain = make_energy(memories)
    if isinstance(plain, Hopfield | ist.DenseAssociativeMemory):
        energy = type(plain)(2 * weights, states="continuous")
    else:
        energy = make_energy(2 * weights)
    assert "memories" not in dict(energy.named_parameters())
    energy.energy(points).sum().backward()
    # A uniform kernel counts, so that its derivative is zero.
    assert (weights.grad.abs().sum() > 0) != isinstance(energy, ist.UniformKDE)
    assert "memories" in energy.state_dict()


def test_a_parameter_stays_the_same_parameter(memories):
    means, beta = nn.Parameter(memories), nn.Parameter(torch.tensor(0.8, dtype=DOUBLE))
    energy = ist.Mixture(means, beta)
    energy.with_memories(memories + 1).energy(memories).sum().backward()
    assert beta.grad is not None  # shared with what is swapped
    assert energy.memories is means
    assert dict(energy.named_parameters())["beta"] is beta


def test_plain_tensors_become_frozen_parameters(make_energy, memories, points):
    energy = make_energy(memories)
    assert not any(value.requires_grad for value in energy.parameters())
    assert not energy.energy(points).requires_grad
    assert energy.requires_grad_().energy(points).requires_grad


def test_an_energy_has_its_own_copy_of_arrays(make_energy, memories, points):
    source = memories.numpy().copy()
    energy = make_energy(torch.from_numpy(source))
    before = energy.energy(points)
    with torch.no_grad():
        energy.memories.add_(1.0)
    np.testing.assert_array_equal(source, memories.numpy())
    energy = make_energy(torch.from_numpy(source))
    source += 1
    torch.testing.assert_close(energy.energy(points), before)


def test_memories_are_swapped_into_a_new_energy(make_energy, memories, points, on_sphere):
    energy = make_energy(memories)
    before = energy.energy(points)
    new = -memories.flip(0) if isinstance(energy, Hopfield) else memories.flip(0) + 0.3
    swapped = energy.with_memories(new)
    assert type(swapped) is type(energy)
    assert swapped is not energy
    torch.testing.assert_close(swapped.memories.detach(), on_sphere(energy, new))
    assert repr(swapped) == repr(energy) or isinstance(energy, Hopfield)
    torch.testing.assert_close(energy.energy(points), before)
    back = swapped.with_memories(energy.memories)
    torch.testing.assert_close(back.energy(points), before)


def test_a_swapped_energy_does_not_share_frozen_settings(make_density, memories, points):
    energy = make_density(memories)
    before = energy.energy(points)
    swapped = energy.with_memories(memories + 1).float()
    with torch.no_grad():
        for value in swapped.parameters():
            value.fill_(1.0)
    assert torch.equal(energy.energy(points), before)


def test_a_subset_takes_along_what_belongs_to_it(make_energy, memories, points):
    energy = make_energy(memories)
    order = [6, 0, 3, 1, 5, 2, 4]
    torch.testing.assert_close(energy.subset(order).energy(points), energy.energy(points))
    few = energy.subset(torch.tensor([1, 4]))
    assert few.n_memories == 2
    if isinstance(energy, ist.CRPMixture):
        assert torch.equal(few.counts, energy.counts[[1, 4]])
    if isinstance(energy, ist.Mixture) and energy.log_weights is not None:
        assert torch.equal(few.log_weights, energy.log_weights[[1, 4]])


def test_memories_move_with_their_points(make_energy, memories, points):
    energy = make_energy(memories)
    if energy.translation_invariant:
        moved = energy.with_memories(memories + 17.0).energy(points + 17.0)
        torch.testing.assert_close(moved, energy.energy(points), rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, DOUBLE])
def test_no_temperature_and_no_distance_gives_nan(make_energy, memories, points, dtype):
    energy, x = make_energy(memories).to(dtype), points.to(dtype)
    cases = [(energy, x + distance) for distance in (1e3, 1e6)]
    for name in [name for name, each in energy.state_dict().items() if each.ndim == 0]:
        for value in (1e-6, 1e-3, 1e3, 1e6):
            extreme = copy.deepcopy(energy)
            extreme.load_state_dict({**extreme.state_dict(), name: torch.tensor(value)})
            cases.append((extreme, x))
    for extreme, at in cases:
        assert not extreme.energy(at).isnan().any()
        assert not extreme.score(at).isnan().any()
        assert extreme.step(at).isfinite().all()


@torch.no_grad()
def change_in_place(energy, new):
    energy.memories.copy_(new)


@torch.inference_mode()
def change_in_inference_mode(energy, new):
    energy.memories.copy_(new)


def change_by_state_dict(energy, new):
    energy.load_state_dict({**energy.state_dict(), "memories": new})


def change_by_assignment(energy, new):
    energy.memories = nn.Parameter(new.clone(), requires_grad=False)


def change_storage(energy, new):
    energy.memories.data = torch.zeros_like(new)
    energy.memories.data = new.clone()


def change_dtype(energy, new):
    energy.float()
    change_in_place(energy, new)
    energy.double()


@pytest.mark.parametrize(
    "change",
    [
        *(change_in_place, change_in_inference_mode, change_by_state_dict),
        *(change_by_assignment, change_storage, change_dtype),
    ],
)
def test_what_is_kept_of_the_memories_changes_with_them(change, make_energy, memories, points):
    energy, new = make_energy(memories), make_energy(memories.flip(0) - 0.4)
    energy.step(points)
    change(energy, new.memories.detach())
    for method in ("energy", "score", "step"):
        expected = getattr(new, method)(points)
        found = getattr(energy, method)(points)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_other_memories_in_a_functional_call_are_not_kept(make_energy, memories, points):
    energy, new = make_energy(memories), make_energy(memories.flip(0) - 0.4)
    before = energy.energy(points)
    found = torch.func.functional_call(energy, {"memories": new.memories.detach()}, (points,))
    torch.testing.assert_close(found, new.energy(points))
    torch.testing.assert_close(energy.energy(points), before)


def test_pickles_carry_the_memories_once(make_energy, memories, points):
    energy = make_energy(memories)
    fresh = pickle.dumps(energy)
    before = energy.step(points)
    assert len(pickle.dumps(energy)) == len(fresh)
    torch.testing.assert_close(pickle.loads(fresh).step(points), before)


def test_memories_that_became_nan_are_refused(make_gaussian, memories, points):
    energy = make_gaussian(memories)
    energy.step(points)
    with torch.no_grad():
        energy.memories[0, 0] = torch.nan
    with pytest.raises(InvalidInputError, match="NaN"):
        energy.step(points)


def test_samples_follow_their_seed(make_density, memories):
    energy = make_density(memories)
    assert torch.equal(energy.sample(10, seed=3), energy.sample(10, seed=3))
    assert not torch.equal(energy.sample(10, seed=3), energy.sample(10, seed=4))
    generator = torch.Generator().manual_seed(3)
    first, second = energy.sample(10, seed=generator), energy.sample(10, seed=generator)
    assert torch.equal(first, energy.sample(10, seed=3))
    assert not torch.equal(first, second)
    with pytest.raises(InvalidInputError, match="whole number"):
        energy.sample(-1)
