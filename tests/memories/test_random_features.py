"""RandomFeatureKDE: close to the exact estimator where it says so, and constant in size."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import isthmus as ist
from isthmus.checks import check_energy
from isthmus.errors import DtypeError, InvalidInputError, ShapeError

DOUBLE = torch.float64


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=DOUBLE)


def test_it_is_the_exact_estimator_within_its_stated_error():
    memories, x = draw(3000, 2), draw(200, 2, seed=1)
    exact = ist.GaussianKDE(memories, 0.5)
    small = ist.RandomFeatureKDE(memories, 0.5, n_features=4096)
    error = small.error(x)
    inside = error < 0.2
    assert inside.double().mean() > 0.8
    gap = (small.energy(x) - exact.energy(x)).abs()[inside] / error[inside]
    assert gap.max() < 5
    assert 0.3 < gap.square().mean().sqrt() < 1.6  # one standard error is the right size
    near = (small.log_prob(x[inside]) - exact.log_prob(x[inside])).abs()
    assert near.median() < 0.05


def test_the_stated_error_is_the_spread_over_seeds():
    memories, x = draw(500, 3), draw(12, 3, seed=1)
    energies, errors = [], []
    for seed in range(40):
        small = ist.RandomFeatureKDE(memories, 1.0, n_features=1024, seed=seed)
        energies.append(small.energy(x))
        errors.append(small.error(x))
    spread, stated = torch.stack(energies).std(0), torch.stack(errors).mean(0)
    ratio = (spread / stated)[stated < 0.3]
    assert len(ratio) > 6
    assert ((ratio > 0.4) & (ratio < 1.6)).all()


def test_more_features_lower_the_error_as_their_square_root():
    memories = draw(400, 2)
    few, many = (ist.RandomFeatureKDE(memories, 0.6, n_features=m) for m in (512, 8192))
    assert 2.5 < few.typical_error / many.typical_error < 6


@settings(max_examples=20)
@given(count=st.integers(1, 40), dim=st.integers(1, 4), sigma=st.floats(0.8, 3.0))
def test_it_keeps_the_contract(count, dim, sigma):
    memories = draw(count, dim, seed=count)
    small = ist.RandomFeatureKDE(memories, sigma, n_features=256, max_error=100)
    check_energy(small, memories[:6] + 0.1)


def test_appending_and_forgetting_are_sums():
    memories = draw(600, 3)
    whole = ist.RandomFeatureKDE(memories, 1.5)
    grown = ist.RandomFeatureKDE(memories[:200], 1.5)
    for block in memories[200:].split(150):
        grown = grown.append(block)
    x = draw(5, 3, seed=2)
    torch.testing.assert_close(grown.energy(x), whole.energy(x))
    assert grown.count == 600
    assert grown.sums.shape == whole.sums.shape == (2, 2048)
    less = whole.forget(memories[200:]).append(memories[0]).forget(memories[0].numpy())
    torch.testing.assert_close(less.energy(x), ist.RandomFeatureKDE(memories[:200], 1.5).energy(x))
    assert whole.count == 600  # unchanged


def test_retrieval_climbs_to_a_mode():
    memories = torch.cat([0.2 * draw(300, 2), 0.2 * draw(300, 2, seed=1) + 3])
    small = ist.RandomFeatureKDE(memories, 0.5)
    found = ist.retrieve(small, torch.tensor([[0.5, 0.4], [2.5, 2.7]], dtype=DOUBLE))
    expected = ist.retrieve(ist.GaussianKDE(memories, 0.5), found.state).state
    torch.testing.assert_close(found.state, expected, rtol=0, atol=0.15)


def test_far_away_and_for_a_small_sigma_it_warns():
    memories = draw(500, 2)
    small = ist.RandomFeatureKDE(memories, 0.5)
    far = torch.full((3, 2), 50.0, dtype=DOUBLE)
    with pytest.warns(UserWarning, match="3 of 3 points is too low"):
        log_prob = small.log_prob(far)
    assert torch.isfinite(log_prob).all()
    assert torch.isfinite(small.score(far)).all()
    assert (small.energy(far) > small.energy(memories[:50]).max()).all()
    with pytest.warns(UserWarning, match="Use a larger sigma than 0.001"):
        ist.RandomFeatureKDE(memories, 0.001, n_features=64)
    with pytest.warns(UserWarning, match="at the memories"):
        ist.RandomFeatureKDE(draw(2000, 20), 0.5)


@pytest.mark.parametrize(
    ("arguments", "error", "complaint"),
    [
        ({"sigma": 0.0}, InvalidInputError, "sigma"),
        ({"n_features": 3}, InvalidInputError, "n_features"),
        ({"n_features": 99.5}, InvalidInputError, "n_features"),
        ({"max_error": -1.0}, InvalidInputError, "max_error"),
        ({"seed": "x"}, DtypeError, "seed"),
        ({"memories": np.zeros((0, 2))}, InvalidInputError, "empty"),
        ({"memories": np.zeros(3)}, ShapeError, "table"),
        ({"memories": np.full((2, 2), np.nan)}, InvalidInputError, "NaN"),
    ],
)
def test_bad_arguments_are_refused(arguments, error, complaint):
    with pytest.raises(error, match=complaint):
        ist.RandomFeatureKDE(**{"memories": np.eye(2), **arguments})


def test_bad_changes_are_refused():
    small = ist.RandomFeatureKDE(np.eye(2), 2.0)
    with pytest.raises(InvalidInputError, match="leave none"):
        small.forget(np.eye(2))
    with pytest.raises(ShapeError, match="3 coordinates"):
        small.append(np.eye(3))
