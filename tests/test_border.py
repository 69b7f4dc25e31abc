"""Points are checked once, at the border, and values come out as they went in."""

import copy
import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import isthmus as ist
from isthmus import validation
from isthmus.capacity import certify
from isthmus.incontext import ICLEBM, ICLEBMConfig, pretrained

DOUBLE = torch.float64


def validations(call: Callable[[], Any]) -> int:
    """Return how often a call enters the module of checks; a look at torch's state is no check."""
    call()  # caches are filled by the first
    found, home = 0, validation.__file__

    def watch(frame: Any, event: str, _: Any) -> None:
        nonlocal found
        if event == "call" and frame.f_code.co_filename == home:
            outside = frame.f_back.f_code.co_filename != home
            found += outside and frame.f_code.co_name != "is_transforming"

    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


def test_the_number_of_checks_does_not_grow_with_steps():
    memories, x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(4, 3)
    kde, hmc = ist.GaussianKDE(memories, 0.5), ist.HMC(0.3, 8)
    for name in ("energy", "score", "log_prob", "step", "responsibilities"):
        assert validations(lambda name=name: getattr(kde, name)(x)) <= 4, name
    assert validations(lambda: ist.retrieve(kde, x)) <= 12
    few, many = (
        validations(lambda n=n: ist.sample(kde, 4, hmc, burn_in=n, progress=False)) for n in (5, 50)
    )
    assert few == many <= 20
    few, many = (
        validations(lambda n=n: ist.retrieve(kde, x + 1, max_steps=n, tol=0.0)) for n in (2, 9)
    )
    assert few == many


class Counts(ist.Energy):
    """An energy whose first buffer holds whole numbers."""

    dim = 2

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("sizes", torch.tensor([3, 4]))
        self.register_buffer("centre", torch.zeros(2, dtype=DOUBLE))

    def energy(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * (x - self.centre).square().sum(-1)


def test_whole_numbers_never_set_the_dtype_of_points():
    energy = Counts()
    assert energy.as_input([[0.9, 0.7]]).tolist() == [[0.9, 0.7]]
    mapped = ist.Affine(energy, scale=[1.5, 2.5])
    np.testing.assert_allclose(mapped.energy([[1.5, 2.5]]), [1.0])
    density = ist.with_normalizer(energy)
    np.testing.assert_allclose(density.log_normalizer(), np.log(2 * np.pi), atol=1e-6)
    assert density.log_normalizer().dtype == DOUBLE


def test_own_methods_see_tensors_and_super_means_the_one_beneath():
    class Bowl(ist.Energy):
        def energy(self, x: torch.Tensor) -> torch.Tensor:
            assert isinstance(x, torch.Tensor)
            return 0.5 * x.square().sum(-1)

        def score(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().score(x)

    class Raised(Bowl):
        def energy(self, x: torch.Tensor) -> torch.Tensor:
            return super().energy(x) + 1

    class Shifted(ist.GaussianKDE):
        def energy(self, x: torch.Tensor) -> torch.Tensor:
            return super().energy(x) + 1

        def step(self, x: torch.Tensor, observed: Any = None) -> torch.Tensor:
            return super().step(x, observed)

    class Doubled(ist.Energy):
        def score(self, x: torch.Tensor) -> torch.Tensor:
            return 2 * super().score(x)

    class Both(Counts, Doubled):
        pass

    np.testing.assert_array_equal(Both().score([[1.0, 2.0]]), [[-2.0, -4.0]])
    compiled = torch.compile(Raised().energy, backend="eager")
    assert compiled(torch.ones(1, 2)) == 2
    assert Bowl().energy([[1, 1]]) == Bowl()([[1, 1]]) == [1.0]
    assert Bowl().energy(np.ones((1, 2), np.float32)).dtype == np.float32
    np.testing.assert_array_equal(Bowl().score([[1.0, 2.0]]), [[-2.0, -4.0]])
    assert Raised().energy([[1, 1]]) == [2.0]
    assert Raised()._energy(torch.ones(1, 2)) == 2
    memory = Shifted([[0.0, 0.0], [2.0, 2.0]], 1.0)
    assert (
        memory.energy([[0.0, 0.0]])
        == ist.GaussianKDE(memory.memories, 1.0).energy([[0.0, 0.0]]) + 1
    )
    np.testing.assert_allclose(
        memory.step([[0.0, 0.0]]), memory._step(torch.zeros(1, 2, dtype=DOUBLE))
    )


def test_own_energies_may_be_mixed_with_other_classes_take_options_and_state_plain_numbers():
    class Round:
        def energy(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
            return scale * x.square().sum(-1)

    class Bowl(Round, ist.Energy):
        dim, inverse_temperature = 2, 0.5

        def log_normalizer(self) -> float:
            return float(np.log(2 * np.pi))

    energy, x = Bowl(), torch.ones(1, 2)
    assert energy.energy([[1, 1]]) == [2.0]
    assert energy.energy(x, scale=3.0) == energy.energy(x, 3.0) == 6
    torch.testing.assert_close(energy.score(x), -2 * x)
    assert (energy + energy).energy(x) == energy.in_nats().energy(2 * x) == 4
    log_prob = torch.tensor([-1 - np.log(2 * np.pi)], dtype=torch.float32)
    for density in (energy, ist.with_normalizer(energy), energy.in_nats()):
        torch.testing.assert_close(density.log_prob(x).float(), log_prob)


def test_states_of_wrappers_load():
    kde = ist.GaussianKDE(torch.randn(4, 3), 1.0)
    for make in (lambda b: ist.Affine(kde, 2.0 + b, shift=b), lambda b: (2 + b) * kde):
        energy = make(1.0)
        energy.load_state_dict(make(0.0).state_dict())
        torch.testing.assert_close(energy.energy(torch.ones(3)), make(0.0).energy(torch.ones(3)))


def test_affine_maps_keep_their_numbers():
    scale, shift = np.ones(2), torch.zeros(2)
    mapped = ist.Affine(ist.GaussianKDE(np.eye(2), 1.0), scale, shift=shift)
    before = mapped.energy([[1.0, 2.0]])
    scale *= 3
    shift += 1
    assert mapped.energy([[1.0, 2.0]]) == before


def test_what_an_energy_cannot_do_is_stated_and_refused_by_its_name():
    kde = ist.GaussianKDE(torch.zeros(2, 2), 1.0)
    for energy in (kde - kde, ist.with_normalizer(Counts()), ist.Affine(Counts(), 2.0)):
        assert not any((energy.has_step, energy.has_exact_draws, energy.has_responsibilities))
        for call in (
            lambda energy=energy: energy.step(torch.zeros(1, 2)),
            lambda energy=energy: energy.sample(3),
            lambda energy=energy: energy.responsibilities(torch.zeros(1, 2)),
            lambda energy=energy: energy.recall(torch.zeros(1, 2), [0.0, 1.0]),
            lambda energy=energy: energy.conditional_mean(torch.zeros(1, 2), [True, False]),
        ):
            with pytest.raises(ist.errors.MissingOperationError, match="^[A-Z]"):
                call()


WRAPPERS: dict[str, Callable[[ist.Energy], ist.Energy]] = {
    "normalised": ist.with_normalizer,
    "halved twice": lambda energy: 2 * energy / 2,
    "in nats": lambda energy: energy.in_nats(),
    "mapped": lambda energy: ist.Affine(energy, scale=1.0),
    "both": lambda energy: ist.with_normalizer(ist.Affine(2 * energy / 2, scale=1.0)),
}


@pytest.mark.parametrize("wrapped", WRAPPERS.values(), ids=WRAPPERS)
def test_a_wrapper_can_do_all_that_its_energy_can(wrapped):
    rows = torch.tensor([[-6.0, 0.0], [26.0, 1.0], [25.0, 2.0]], dtype=DOUBLE)
    kde = ist.GaussianKDE(rows, 0.5)
    energy, x = wrapped(kde), rows + 0.3
    known = torch.tensor([True, False])
    for values in (
        lambda e: e.energy(x),
        lambda e: e.score(x),
        lambda e: e.log_prob(x),
        lambda e: e.log_prob(x, known),
        lambda e: e.step(x),
        lambda e: e.step(x, known),
        lambda e: e.responsibilities(x),
        lambda e: e.responsibilities(x, known),
        lambda e: e.conditional_mean(x, known),
        lambda e: e.recall(x, [1.0, 2.0, 3.0]),
        lambda e: e.sample(5, seed=3),
        lambda e: e.cdf(x[:, 0], 0),
        lambda e: e.as_distribution().mean,
        lambda e: ist.retrieve(e, x).state,
        lambda e: ist.retrieve(e, x).memory,
        lambda e: ist.complete(e, torch.tensor([25.5, torch.nan], dtype=DOUBLE)),
    ):
        torch.testing.assert_close(values(energy), values(kde))


def test_chains_start_in_all_modes_of_wrapped_memories():
    kde = ist.GaussianKDE([[-6.0], [26.0]], 0.5)
    for energy in (kde, ist.with_normalizer(kde), 2 * kde / 2, kde + kde, ist.Affine(kde, 2.0)):
        for options in ({}, {"burn_in": 10}):
            drawn = ist.sample(energy, 400, progress=False, **options)
            assert 0.4 < (drawn > 10).mean() < 0.6


def test_sample_takes_exact_draws_unless_a_chain_is_asked_for():
    kde = ist.GaussianKDE([[0.0], [5.0]], 0.5)
    np.testing.assert_array_equal(ist.sample(kde, 9, seed=4), kde.sample(9, seed=4))
    by_chain = ist.sample(kde, 9, ist.HMC(0.3, 4), seed=4, burn_in=3)
    assert not np.array_equal(by_chain, kde.sample(9, seed=4))


def test_equal_temperatures_add_in_any_dtype():
    coarse = ist.ModernHopfield(torch.eye(2), beta=0.1)
    fine = ist.ModernHopfield(torch.eye(2, dtype=DOUBLE), beta=0.1)
    x = torch.tensor([[0.3, 0.4]])
    torch.testing.assert_close((coarse + fine).energy(x), 2 * coarse.energy(x))
    with pytest.raises(ist.errors.InvalidInputError, match="in_nats"):
        coarse + ist.ModernHopfield(torch.eye(2, dtype=DOUBLE), beta=0.1001)


def test_results_with_tensors_can_be_compared():
    kde, x = ist.GaussianKDE(torch.randn(5, 2), 1.0), torch.zeros(3, 2)
    certificate = certify(np.eye(4), 0.3)
    for result in (ist.retrieve(kde, x), certificate, ist.with_normalizer(kde).normalizer):
        assert result == result
        assert result not in (None, ist.retrieve(kde, x), certify(np.eye(3), 0.3))


def test_tensors_with_the_negative_bit_are_numbers():
    negative = torch.tensor([[1 + 2j, 3 - 1j]], dtype=torch.complex128).conj().imag
    assert negative.is_neg()
    plain = negative.resolve_neg()
    kde = ist.GaussianKDE(negative, 1.0)
    np.testing.assert_array_equal(kde.memories, plain)
    np.testing.assert_array_equal(ist.retrieve(kde, negative).state.numpy(), plain)
    np.testing.assert_array_equal(validation.as_array(negative, "x"), plain)


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
