"""DenseAssociativeMemory against the formulas of Krotov and Hopfield, written out."""

import numpy as np
import pytest
import torch
from helpers import signs
from hypothesis import given
from hypothesis import strategies as st

import isthmus as ist

DOUBLE = torch.float64


def test_degree_two_is_the_classical_network():
    memories, x = signs(4, 9), signs(6, 9, seed=1)
    dense = ist.DenseAssociativeMemory(memories, 2, rectified=False)
    classical = ist.Hopfield(memories)
    torch.testing.assert_close(dense.energy(x), classical.energy(x))
    torch.testing.assert_close(dense.score(x), classical.score(x))
    assert torch.equal(dense.step(x), classical.step(x))


@pytest.mark.parametrize("degree", [2, 3, 5])
def test_energy_in_numpy(degree):
    memories, x = signs(5, 8).numpy(), np.random.default_rng(0).standard_normal((7, 8))
    overlaps = np.maximum(x @ memories.T / 8, 0)
    expected = -(64 / (degree * 5)) * (overlaps**degree).sum(1)
    dense = ist.DenseAssociativeMemory(torch.as_tensor(memories), degree)
    np.testing.assert_allclose(dense.energy(torch.as_tensor(x)), expected)


@given(
    degree=st.integers(2, 6),
    count=st.integers(1, 12),
    dim=st.integers(2, 8),
    seed=st.integers(0, 40),
    update=st.sampled_from(["synchronous", "asynchronous"]),
)
def test_updates_of_signs_never_raise_the_energy(degree, count, dim, seed, update):
    dense = ist.DenseAssociativeMemory(signs(count, dim, seed=seed), degree, update=update)
    x = signs(9, dim, seed=seed + 1)
    for _ in range(3):
        new = dense.step(x)
        assert (new.abs() == 1).all()
        assert (dense.energy(new) <= dense.energy(x) + 1e-9).all()
        x = new


def test_higher_degrees_store_more_patterns_than_neurons():
    patterns = signs(80, 30)
    noisy = patterns.clone()
    noisy[:, :3] *= -1
    stored = []
    for degree in (2, 3, 5):
        found = ist.retrieve(ist.DenseAssociativeMemory(patterns, degree), noisy)
        stored.append(int((found.state == patterns).all(1).sum()))
    assert stored[0] < 8
    assert stored[0] < stored[1] < stored[2]
    assert stored[2] > 75
    assert (found.memory == torch.arange(80)).float().mean() > 0.9


@pytest.mark.parametrize("update", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("degree", [3, 100, 300, 10**5])
def test_powers_of_any_degree_keep_their_order(degree, update):
    """Against signs of the force, or of an energy difference, in whole numbers.

    The asynchronous update takes each coordinate in turn, the others as they are by then.
    """
    patterns, noisy = signs(20, 60), signs(20, 60)
    for row in range(20):
        noisy[row, np.random.default_rng(row).permutation(60)[:12]] *= -1
    dense = ist.DenseAssociativeMemory(patterns.float(), degree, update=update)
    assert torch.equal(ist.retrieve(dense, noisy.float()).state, patterns.float())
    if degree > 300:
        return
    rows, x = patterns.long().tolist(), noisy[:1]
    expected = x.long()[0].tolist()
    before = list(expected)
    for d in range(60):
        state = before if update == "synchronous" else expected
        rest = [sum(a * b for a, b in zip(row, state, strict=True)) for row in rows]
        if update == "synchronous":
            force = sum(
                row[d] * max(m, 0) ** (degree - 1) for row, m in zip(rows, rest, strict=True)
            )
        else:
            rest = [m - state[d] * row[d] for row, m in zip(rows, rest, strict=True)]
            force = sum(
                max(m + row[d], 0) ** degree - max(m - row[d], 0) ** degree
                for row, m in zip(rows, rest, strict=True)
            )
        expected[d] = (force > 0) - (force < 0) or expected[d]
    assert dense.double().step(x)[0].long().tolist() == expected
