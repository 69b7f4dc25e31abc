"""Values come out as points went in: tensors for tensors, arrays for everything else."""

import copy
import pickle

import numpy as np
import pandas as pd
import torch

import isthmus as ist
from isthmus.dynamics.diagnostics import effective_sample_size, split_r_hat
from isthmus.incontext import ICLEBM, ICLEBMConfig, pretrained

DOUBLE = torch.float64


def methods(energy: ist.Energy) -> list[str]:
    """The methods of points that an energy has, except those that need more than points."""
    unknown = isinstance(energy, ist.Hopfield | ist.DenseAssociativeMemory | ist.SparseHopfield)
    names = ["energy", "score"] + ([] if unknown else ["log_prob"])
    names += ["step", "step_and_energy"] if energy.has_step else []
    return names + (["responsibilities"] if energy.has_responsibilities else [])


def as_tuple(values):
    return values if isinstance(values, tuple) else (values,)


def test_every_form_of_points_has_the_values_of_tensors_as_arrays(
    make_energy, memories, points, on_sphere
):
    energy = make_energy(memories)
    x = on_sphere(energy, points)
    array = x.numpy()
    forms = (array, array.tolist(), tuple(map(tuple, array)), pd.DataFrame(array))
    for name in methods(energy):
        method = getattr(energy, name)
        expected = as_tuple(method(x))
        assert all(isinstance(each, torch.Tensor) for each in expected)
        for given in (*forms, array.astype(np.float32)):
            exact = given.dtype != np.float32 if isinstance(given, np.ndarray) else True
            for found, right in zip(as_tuple(method(given)), expected, strict=True):
                assert type(found) is np.ndarray
                assert found.dtype == np.float64  # that of the memories
                tolerance = 1e-12 if exact else 1e-4
                np.testing.assert_allclose(found, right, rtol=tolerance, atol=tolerance)
        by_keyword = as_tuple(method(x=array))
        np.testing.assert_array_equal(by_keyword[0], as_tuple(method(array))[0])
        assert type(as_tuple(method(array[0]))[0]) is np.ndarray


def test_a_mask_goes_with_either(make_energy, memories, points, on_sphere):
    energy = make_energy(memories)
    x = 0.9 * on_sphere(energy, points)
    seen = np.array([True, False, True])
    gaps = np.where(seen, x.numpy(), np.nan)
    expected = energy.conditional_mean(x, torch.from_numpy(seen))
    for given, mask in ((gaps, seen), (gaps.tolist(), seen.tolist()), (gaps, torch.tensor(seen))):
        found = energy.conditional_mean(given, mask)
        assert isinstance(found, np.ndarray)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    tensor = energy.conditional_mean(torch.from_numpy(gaps), seen)
    assert isinstance(tensor, torch.Tensor)
    np.testing.assert_array_equal(ist.complete(energy, gaps), found)
    np.testing.assert_array_equal(energy.step(x.numpy(), observed=seen)[:, 0], x[:, 0])


def test_retrieval_follows_its_starting_points(make_energy, memories, points, on_sphere):
    energy = make_energy(memories)
    x = on_sphere(energy, points)
    right = ist.retrieve(energy, x, trace=True)
    found = ist.retrieve(energy, x.numpy(), trace=True)
    assert repr(found) == repr(right)
    for name in ("state", "energy", "steps", "converged", "trace"):
        assert isinstance(getattr(right, name), torch.Tensor)
        assert type(getattr(found, name)) is np.ndarray
        np.testing.assert_array_equal(getattr(found, name), getattr(right, name))
    if isinstance(energy, ist.Hopfield):
        assert found.memory is None
    else:
        assert type(found.memory) is np.ndarray
        np.testing.assert_array_equal(found.memory, right.memory)


def test_draws_follow_the_memories(make_density, memories):
    # Fixtures take the settings from a tensor, so the energy is rebuilt on the other type.
    energy = make_density(memories)
    array = type(energy)(memories.numpy(), **energy._settings())
    assert isinstance(energy.sample(3), torch.Tensor)
    derived = [
        array,
        copy.deepcopy(array),
        pickle.loads(pickle.dumps(array)),
        array.with_memories(memories),
    ]
    for each in derived:
        assert type(each.sample(3)) is np.ndarray
        np.testing.assert_allclose(each.sample(3), energy.sample(3), rtol=1e-12)
    assert type(array.subset([0, 1]).sample(3)) is np.ndarray
    assert isinstance(energy.with_memories(memories.numpy()).sample(3), torch.Tensor)
    if hasattr(array, "conditional"):
        gap = [0.1, float("nan"), 0.2]
        assert type(array.marginal([0, 1]).sample(3)) is np.ndarray
        assert type(array.conditional(gap).sample(3)) is np.ndarray
        assert isinstance(energy.conditional(gap).sample(3), torch.Tensor)


def test_energies_made_of_others_draw_as_they_do(tmp_path):
    rows = np.array([[0.0, 0.0], [3.0, 4.0]])
    for memories in (rows, torch.from_numpy(rows)):
        kde = ist.GaussianKDE(memories, 1.0)
        made = [ist.Affine(kde, 2.0), kde + kde, ist.widen(kde, 0.5)]
        made.append(ist.ModernHopfield(memories, 2.0).condition([0.5, np.nan]))
        for energy in made:
            assert type(energy.energy(np.zeros(energy.dim))) is np.ndarray
            assert isinstance(ist.sample(energy, 2, ist.MALA(0.1), burn_in=2), type(memories))
            ist.save(energy, tmp_path / "energy")
            assert ist.load(tmp_path / "energy").returns_arrays == energy.returns_arrays
        found = ist.anneal(kde, [2.0, 1.0], 3)
        assert isinstance(found.draws, type(memories))
        assert isinstance(found.judge().new, type(memories))


def test_chains_follow_init_and_else_the_memories():
    rows = np.array([[0.0, 0.0], [3.0, 4.0]])
    options = {"burn_in": 5, "sampler": ist.MALA(0.1)}
    for memories in (rows, torch.from_numpy(rows)):
        energy = ist.GaussianKDE(memories, 1.0)
        kind = type(memories)
        assert isinstance(ist.sample(energy, 4, **options), kind)
        chains = ist.sample_chains(energy, 8, chains=2, **options)
        for each in (chains.draws, chains.acceptance, chains.r_hat, chains.ess, chains.flatten()):
            assert isinstance(each, kind)
        for init in (rows[0], torch.from_numpy(rows[0])):
            drawn = ist.sample(energy, 4, init=init, **options)
            assert isinstance(drawn, type(init))
            np.testing.assert_array_equal(
                drawn, ist.sample(energy, 4, init=torch.as_tensor(init), **options)
            )
    assert repr(ist.sample_chains(ist.GaussianKDE(rows, 1.0), 8, **options)).startswith("Chains(")


def test_diagnostics_follow_the_draws():
    draws = torch.randn(50, 3, 2, generator=torch.Generator().manual_seed(0), dtype=DOUBLE)
    for function in (split_r_hat, effective_sample_size):
        assert isinstance(function(draws), torch.Tensor)
        assert type(function(draws.numpy())) is np.ndarray
        np.testing.assert_array_equal(function(draws.numpy()), function(draws))


def test_contexts_are_followed_as_memories_are():
    model = ICLEBM(ICLEBMConfig(dim=2, layers=1, heads=2, width=8, box=3.0))
    rows = np.array([[0.0, 1.0], [0.5, 1.0], [-1.0, 0.2]])
    for context in (rows, torch.from_numpy(rows)):
        energy = model.condition(context).append([0.1, 0.1])
        assert type(energy.log_prob(rows)) is np.ndarray
        for each in (energy, copy.deepcopy(energy)):
            assert isinstance(ist.sample(each, 2, ist.MALA(0.1), burn_in=2), type(context))
    table = np.random.default_rng(0).normal(size=(12, 2))
    for context in (table, torch.from_numpy(table)):
        density = pretrained("tables").condition(context)
        assert isinstance(density.sample(2), type(context))
        assert isinstance(density.conditional([0.0, np.nan]).sample(2), type(context))
