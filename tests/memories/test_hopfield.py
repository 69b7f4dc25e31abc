"""Hopfield networks of any degree: energies, and updates on corners and on a sphere."""

from itertools import product

import numpy as np
import pytest
import torch
from helpers import draw, signs
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import isthmus as ist

DOUBLE = torch.float64


def corners(dim: int) -> Tensor:
    return torch.tensor(list(product([-1.0, 1.0], repeat=dim)), dtype=DOUBLE)


def coupling(memories: Tensor, zero_diagonal: bool) -> np.ndarray:
    matrix = sum(np.outer(memory, memory) for memory in memories.numpy()) / len(memories)
    return matrix - np.diag(np.diag(matrix)) if zero_diagonal else matrix


@pytest.mark.parametrize("zero_diagonal", [False, True])
@pytest.mark.parametrize("count", [2, 9])  # fewer and more memories than dimensions
def test_energy_and_score_are_those_of_the_quadratic_form(count, zero_diagonal):
    memories, x = draw(count, 4), draw(6, 4, seed=1)
    matrix = coupling(memories, zero_diagonal)
    energy = ist.Hopfield(memories, zero_diagonal=zero_diagonal)
    expected = [-0.5 * row @ matrix @ row for row in x.numpy()]
    np.testing.assert_allclose(energy.energy(x), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(energy.score(x), x.numpy() @ matrix, rtol=1e-12, atol=1e-12)


def test_states_are_binary_if_all_memories_are():
    assert ist.Hopfield(signs(3, 8)).states == "binary"
    assert ist.Hopfield(0.5 * signs(3, 8)).states == "continuous"
    assert ist.Hopfield(0.5 * signs(3, 8), states="binary").states == "binary"


@pytest.mark.parametrize("zero_diagonal", [False, True])
@pytest.mark.parametrize("update", ["synchronous", "asynchronous"])
def test_patterns_far_below_capacity_come_back_from_flipped_bits(update, zero_diagonal):
    stored = signs(6, 200)
    flipped = stored.clone()
    chosen = torch.randperm(200, generator=torch.Generator().manual_seed(1))[:30]
    flipped[:, chosen] *= -1
    memory = ist.Hopfield(stored, update=update, zero_diagonal=zero_diagonal)
    found = ist.retrieve(memory, flipped)
    assert found.converged.all()
    assert torch.equal(found.state, stored)


@pytest.mark.parametrize("held", [None, [True, False, False, True, False, False, False, True]])
@pytest.mark.parametrize(
    ("update", "zero_diagonal"),
    [("synchronous", False), ("asynchronous", False), ("asynchronous", True)],
)
def test_no_step_from_any_corner_raises_the_energy(update, zero_diagonal, held):
    x = corners(8)
    for seed in range(10):
        memory = ist.Hopfield(signs(3, 8, seed=seed), update=update, zero_diagonal=zero_diagonal)
        assert memory.step_descends
        moved = memory.step(x, held)
        assert (memory.energy(moved) <= memory.energy(x) + 1e-12).all()
        assert (moved.abs() == 1).all()
        if held is not None:
            assert torch.equal(moved[:, held], x[:, held])


def test_synchronous_steps_without_the_diagonal_can_oscillate_and_say_so():
    memory = ist.Hopfield(torch.tensor([[1.0, 1.0]]), zero_diagonal=True)
    x = torch.tensor([[1.0, -1.0], [1.0, 1.0]])
    assert not memory.step_descends
    assert torch.equal(memory.step(x)[0], -x[0])
    found = ist.retrieve(memory, x, max_steps=50)
    assert found.converged.tolist() == [False, True]
    assert found.steps.tolist() == [50, 1]


@pytest.mark.parametrize("zero_diagonal", [False, True])
def test_an_asynchronous_step_visits_each_coordinate_once_in_order(zero_diagonal):
    stored = signs(3, 7)
    matrix = coupling(stored, zero_diagonal)
    memory = ist.Hopfield(stored, update="asynchronous", zero_diagonal=zero_diagonal)
    x = corners(7)
    expected = x.numpy().copy()
    for row in expected:
        for d in range(7):
            force = matrix[d] @ row
            if abs(force) > 1e-12:
                row[d] = np.sign(force)
    assert np.array_equal(memory.step(x), expected)


def test_a_coordinate_without_force_keeps_its_sign():
    memory = ist.Hopfield(torch.tensor([[1.0, 1.0], [1.0, -1.0]]), zero_diagonal=True)
    x = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    assert torch.equal(memory.step(x), x)


@pytest.mark.parametrize("zero_diagonal", [False, True])
def test_the_sphere_leads_to_the_top_eigenvector_without_rising(zero_diagonal):
    memories, x = draw(4, 6), draw(5, 6, seed=1)
    memory = ist.Hopfield(memories, zero_diagonal=zero_diagonal)
    found = ist.retrieve(memory, x, tol=1e-10, max_steps=5000, trace=True)
    heights = memory.energy(found.trace)
    assert (heights[1:] <= heights[:-1] + 1e-12).all()
    torch.testing.assert_close(found.state.norm(dim=1), x.norm(dim=1))
    values, vectors = np.linalg.eigh(coupling(memories, zero_diagonal))
    top = np.abs(found.state.numpy() @ vectors[:, -1])
    np.testing.assert_allclose(top, x.norm(dim=1), rtol=1e-6)
    expected = -0.5 * values[-1] * x.square().sum(1)
    torch.testing.assert_close(found.energy, expected)


@pytest.mark.parametrize("update", ["synchronous", "asynchronous"])
def test_half_a_pattern_is_completed(update):
    stored = signs(5, 120)
    half = torch.where(torch.arange(120) < 60, stored, torch.nan)
    assert torch.equal(ist.complete(ist.Hopfield(stored, update=update), half), stored)


def test_unknown_coordinates_on_the_sphere_have_the_size_of_the_known_ones():
    memories = draw(3, 6)
    memory = ist.Hopfield(memories)
    observed = torch.arange(6) < 2
    start = memory.conditional_mean(memories, observed)
    torch.testing.assert_close(
        start[:, ~observed].square().mean(1), memories[:, observed].square().mean(1)
    )


@pytest.mark.parametrize("kind", [ist.Hopfield, ist.DenseAssociativeMemory])
@pytest.mark.parametrize("scale", [1e-100, 1e-30, 1e30])
def test_the_scale_of_memories_does_not_change_directions(kind, scale):
    memories, x = signs(5, 3).double() + 0.3, signs(4, 3, seed=1).double()
    small, plain = kind(memories * scale), kind(memories)
    torch.testing.assert_close(small.step(x), plain.step(x))
    seen = torch.tensor([True, False, False])
    expected = plain.conditional_mean(x, seen)
    torch.testing.assert_close(small.conditional_mean(x, seen), expected)


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
