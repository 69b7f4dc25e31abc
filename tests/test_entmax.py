"""entmax against quadratic and convex programmes, sorting, and finite differences."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq
from torch import Tensor

from isthmus.kernel.sparse import entmax

ALPHAS = [1.0, 1.05, 1.5, 2.0]


def random_logits(*shape: int, scale: float = 2.0, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=generator, dtype=torch.float64)


def sorted_sparsemax(logits: np.ndarray) -> np.ndarray:
    """The projection onto the simplex, by sorting."""
    descending = np.sort(logits)[::-1]
    thresholds = (np.cumsum(descending) - 1) / np.arange(1, len(logits) + 1)
    return np.maximum(logits - thresholds[descending > thresholds][-1], 0)


def by_root(logits: np.ndarray, alpha: float) -> np.ndarray:
    """The solution of the optimality conditions, by scipy's root finder."""
    scaled = (alpha - 1) * (logits - logits.max())

    def weights(threshold: float) -> np.ndarray:
        return np.maximum(scaled - threshold, 0) ** (1 / (alpha - 1))

    found = weights(brentq(lambda threshold: weights(threshold).sum() - 1, -1.0, 0.0, xtol=1e-15))
    return found / found.sum()


def test_alpha_one_is_softmax() -> None:
    logits = random_logits(4, 6)
    assert torch.equal(entmax(logits, 1.0), torch.softmax(logits, -1))


@pytest.mark.parametrize("scale", [0.01, 1.0, 30.0])
def test_alpha_two_is_the_projection_onto_the_simplex(scale: float) -> None:
    logits = random_logits(20, 9, scale=scale)
    expected = np.stack([sorted_sparsemax(row) for row in logits.numpy()])
    np.testing.assert_allclose(entmax(logits, 2.0).numpy(), expected, atol=1e-14)


@pytest.mark.parametrize("alpha", ALPHAS[1:])
def test_equals_the_root_of_the_optimality_conditions(alpha: float) -> None:
    logits = random_logits(20, 9)
    expected = np.stack([by_root(row, alpha) for row in logits.numpy()])
    np.testing.assert_allclose(entmax(logits, alpha).numpy(), expected, atol=1e-11)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_first_and_second_derivatives_match_finite_differences(alpha: float) -> None:
    logits = random_logits(3, 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: entmax(z, alpha), logits)
    assert torch.autograd.gradgradcheck(lambda z: entmax(z, alpha), logits)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_minus_infinity_leaves_an_entry_out_and_has_no_gradient(alpha: float) -> None:
    logits = random_logits(6)
    masked = logits.clone()
    masked[2] = -torch.inf
    masked.requires_grad_()
    found = entmax(masked, alpha)
    rest = torch.tensor([0, 1, 3, 4, 5])
    torch.testing.assert_close(found[rest], entmax(logits[rest], alpha))
    (gradient,) = torch.autograd.grad(found[0], masked)
    assert found[2] == 0
    assert gradient[2] == 0
    assert bool(torch.isfinite(gradient).all())


@given(
    rows=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20),
    alpha=st.floats(1.02, 2.0),
    single=st.booleans(),
)
def test_is_always_a_distribution(rows: list[float], alpha: float, single: bool) -> None:
    logits = torch.tensor(rows, dtype=torch.float32 if single else torch.float64)
    found = entmax(logits, alpha)
    assert bool((found >= 0).all())
    assert abs(float(found.sum()) - 1) < (1e-5 if single else 1e-12)
    assert found.argmax() == logits.argmax() or found.max() == found[logits.argmax()]


def test_vmap_and_compile_see_through_it() -> None:
    logits = random_logits(3, 5)
    mapped = torch.func.vmap(lambda z: entmax(z, 1.5))(logits)
    torch.testing.assert_close(mapped, entmax(logits, 1.5))
    compiled = torch.compile(entmax, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(logits, 1.5), entmax(logits, 1.5))
