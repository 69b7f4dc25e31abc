"""Energies on disk: equal to the last bit when read back, and damage is refused."""

import pytest
import torch
from helpers import Bowl, draw
from torch import Tensor

import isthmus as ist
from isthmus.errors import InvalidInputError, UnsupportedOperationError


def same(found: ist.Energy, energy: ist.Energy, x: Tensor) -> None:
    assert type(found) is type(energy)
    assert repr(found) == repr(energy)
    assert torch.equal(found.energy(x), energy.energy(x))
    assert torch.equal(found.score(x), energy.score(x))
    before = energy.state_dict()
    assert {name: value.dtype for name, value in found.state_dict().items()} == {
        name: value.dtype for name, value in before.items()
    }
    assert not any(parameter.requires_grad for parameter in found.parameters())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_memory_is_read_as_it_was_written(make_energy, memories, points, dtype, tmp_path):
    energy = make_energy(memories.to(dtype))
    ist.save(energy, tmp_path / "energy.safetensors")
    same(ist.load(tmp_path / "energy.safetensors"), energy, points.to(dtype))


KDE = ist.GaussianKDE(draw(5, 2), 0.7)
OTHERS = {
    "shaped": ist.GaussianKDE(draw(5, 2), covariance=torch.eye(2) + 0.2, factors=[1, 2, 1, 1, 3]),
    "widths": ist.GaussianKDE(draw(5, 2), sigma=[0.3, 0.9], log_weights=draw(5)),
    "own covariances": ist.Mixture(draw(5, 2), covariance=torch.rand(5, 2) + 0.5),
    "categories": ist.TableMixture(draw(5, 1), [draw(5, 3).softmax(1)], dof=3.0),
    "affine": ist.Affine(KDE, scale=[2.0, 3.0], shift=[1.0, 5.0]),
    "sheared": ist.Affine(KDE, matrix=[[1.0, 0.5], [0.0, 2.0]]),
    "sum": KDE - 0.5 * ist.StudentKDE(draw(4, 2, seed=1)),
    "sum with a step": 2 * KDE + ist.GaussianKDE(draw(3, 2), 1.0),
    "in nats": ist.ModernHopfield(draw(4, 2), 3.0).in_nats() + KDE,
}


@pytest.mark.parametrize("energy", OTHERS.values(), ids=OTHERS)
def test_other_energies_too(energy, tmp_path):
    ist.save(energy, tmp_path / "energy.safetensors")
    same(ist.load(tmp_path / "energy.safetensors"), energy, draw(6, 2, seed=3))


def test_an_estimated_normalizer_is_kept(tmp_path):
    energy = ist.with_normalizer(ist.SparseHopfield(draw(4, 1), beta=2.0))
    ist.save(energy, tmp_path / "energy.safetensors")
    found = ist.load(tmp_path / "energy.safetensors")
    same(found, energy, draw(6, 1, seed=3))
    assert torch.equal(found.log_prob(draw(3, 1)), energy.log_prob(draw(3, 1)))
    assert torch.equal(found.normalizer.error, energy.normalizer.error)


def test_learned_tensors_can_be_saved(tmp_path):
    energy = ist.GaussianKDE(2 * draw(4, 2).requires_grad_(), 0.5)
    ist.save(energy, tmp_path / "energy")
    assert torch.equal(ist.load(tmp_path / "energy").memories, energy.memories.detach())


def test_energies_of_your_own_are_refused(tmp_path):
    with pytest.raises(UnsupportedOperationError, match="state_dict"):
        ist.save(Bowl(), tmp_path / "energy")
    with pytest.raises(UnsupportedOperationError, match="state_dict"):
        ist.save(KDE + Bowl(), tmp_path / "energy")
    for place in (tmp_path, tmp_path / "nowhere" / "energy"):
        with pytest.raises(InvalidInputError, match="directory"):
            ist.save(KDE, place)
    assert not (tmp_path / "energy").exists()


def test_views_of_one_tensor_are_not_confused(tmp_path):
    square = torch.tensor([[1.0, 2.0], [3.0, 5.0]])
    memory = ist.GaussianKDE(square, sigma=0.5)
    energy = ist.Affine(memory, matrix=memory.memories.T)
    ist.save(energy, tmp_path / "energy.safetensors")
    x = torch.tensor([[1.0, -1.0]])
    assert torch.equal(ist.load(tmp_path / "energy.safetensors").energy(x), energy.energy(x))


def test_equal_content_gives_equal_bytes(tmp_path):
    # The writer of safetensors puts metadata in a random order.
    files = [tmp_path / str(number) for number in range(20)]
    for file in files:
        ist.save(OTHERS["shaped"], file)
    assert len({file.read_bytes() for file in files}) == 1
