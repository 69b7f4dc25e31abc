"""Values beside memories, batches of memories, and memories at unit length."""

import numpy as np
import pytest
import torch
from helpers import draw
from sklearn.datasets import load_digits

import isthmus as ist
from isthmus.checks import check_energy
from isthmus.errors import InvalidInputError, ShapeError

DOUBLE = torch.float64


KINDS = {
    "modern": lambda m: ist.ModernHopfield(m, 2.0),
    "sparse": lambda m: ist.SparseHopfield(m, 2.0),
    "kde": lambda m: ist.GaussianKDE(m, 0.7),
    "crp": lambda m: ist.CRPMixture(m, np.ones(len(m))),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_values_are_weighted_by_responsibilities(make):
    memory, x, values = make(draw(6, 3)), draw(2, 4, 3, seed=1), draw(6, 5, seed=2)
    weights = memory.responsibilities(x)[..., :6]
    weights = weights / weights.sum(-1, keepdim=True)
    torch.testing.assert_close(memory.recall(x, values), weights @ values)
    torch.testing.assert_close(memory.recall(x, values[:, 0]), weights @ values[:, 0])
    assert memory.recall(x, values).shape == (2, 4, 5)
    assert memory.recall(x[:0], values).shape == (0, 4, 5)


@pytest.mark.parametrize("name", ["modern", "kde", "sparse"])
def test_batches_of_memories_are_mapped(name):
    kind, batch, x = KINDS[name], draw(3, 6, 2), draw(3, 4, 2, seed=1)
    with pytest.raises(ShapeError, match=r"torch\.func\.vmap"):
        kind(batch)
    for method in ("step", "energy", "score", *(["log_prob"] if name != "sparse" else [])):
        found = torch.func.vmap(lambda m, q, name=method: getattr(kind(m), name)(q))(batch, x)
        expected = torch.stack([getattr(kind(m), method)(q) for m, q in zip(batch, x, strict=True)])
        torch.testing.assert_close(found, expected)


def test_memories_at_unit_length():
    memories, x = draw(6, 3), draw(4, 3, seed=1)
    memory = ist.ModernHopfield(memories, 2.0, normalize=True)
    unit = torch.nn.functional.normalize(memories, dim=1)
    torch.testing.assert_close(memory.step(x), ist.ModernHopfield(unit, 2.0).step(x))
    torch.testing.assert_close(memory.log_prob(x), ist.ModernHopfield(unit, 2.0).log_prob(x))
    check_energy(memory)
    again = memory.with_memories(5 * memories)
    torch.testing.assert_close(again.memories, memory.memories)
    assert "normalize=True" in repr(memory)
    with pytest.raises(InvalidInputError, match="all zero"):
        ist.ModernHopfield(torch.zeros(2, 2), normalize=True)


def test_long_memories_that_capture_others_are_warned_of():
    """Images of one digit differ in length: raw, most are captured; at unit length, few."""
    X = torch.as_tensor(load_digits().data)
    with pytest.warns(UserWarning, match="normalize=True"):
        raw = ist.retrieve(ist.ModernHopfield(X, beta=1.0), X[:200])
    memory = ist.ModernHopfield(X, beta=4000.0, normalize=True)
    unit = ist.retrieve(memory, memory.memories[:200])
    own = torch.arange(200)
    assert (raw.memory == own).double().mean() < 0.5
    assert (unit.memory == own).double().mean() > 0.95
