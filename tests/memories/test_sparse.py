"""SparseHopfield: sparse attention against the entmax package, exact retrieval, the certificate."""

import entmax
import numpy as np
import pytest
import torch
from helpers import draw
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

import isthmus as ist
from isthmus.capacity import certify
from isthmus.kernel import sparse
from isthmus.kernel.sparse import Separation, sparse_weights
from isthmus.kernel.sparse import entmax as own_entmax

DOUBLE = torch.float64
ENTMAX = [1.0001, 1.05, 1.5, 1.8, 2.0]
NORMMAX = [1.2, 2.0, 5.0]
RULES = [("entmax", a) for a in ENTMAX] + [("normmax", a) for a in NORMMAX]


def oracle(logits: torch.Tensor, family: str, alpha: float) -> torch.Tensor:
    function = entmax.entmax_bisect if family == "entmax" else entmax.normmax_bisect
    return function(logits, alpha, n_iter=100)


def regulariser(p: np.ndarray, family: str, alpha: float) -> float:
    if family == "normmax":
        return float((p**alpha).sum() ** (1 / alpha) - 1)
    return float(((p**alpha).sum() - 1) / (alpha * (alpha - 1)))


@pytest.mark.parametrize(("family", "alpha"), RULES)
@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0])
def test_weights_are_those_of_the_entmax_package(family, alpha, spread):
    logits = spread * draw(20, 60)
    found = sparse_weights(logits, Separation(family, alpha))
    torch.testing.assert_close(found, oracle(logits, family, alpha), rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(found.sum(1), torch.ones(20, dtype=DOUBLE))


@pytest.mark.parametrize(("family", "alpha"), [("entmax", 1.5), ("entmax", 2.0), ("normmax", 3.0)])
def test_weights_and_energy_solve_the_problem_that_defines_them(family, alpha):
    memories, x, beta = draw(5, 3), draw(3, seed=1), 1.7
    memory = ist.SparseHopfield(memories, beta, alpha, family)
    logits = beta * (memories @ x).numpy()
    found = minimize(
        lambda p: regulariser(np.clip(p, 0, None), family, alpha) - logits @ p,
        np.full(5, 0.2),
        bounds=[(0, 1)] * 5,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1},
        options={"ftol": 1e-14},
        method="SLSQP",
    )
    np.testing.assert_allclose(memory.responsibilities(x), found.x, atol=1e-5)
    expected = 0.5 * float(x @ x) + found.fun / beta
    assert float(memory.energy(x)) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize(("family", "alpha"), RULES)
def test_score_is_the_way_to_the_weighted_mean_and_minus_the_gradient(family, alpha):
    memories, x = draw(9, 4), draw(6, 4, seed=1)
    memory = ist.SparseHopfield(memories, 2.0, alpha, family)
    mean = oracle(2.0 * x @ memories.mT, family, alpha) @ memories
    torch.testing.assert_close(memory.step(x), mean, rtol=1e-8, atol=1e-9)
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(memory.energy(leaf).sum(), leaf, create_graph=True)
    torch.testing.assert_close(memory.score(x), -gradient.detach(), rtol=1e-8, atol=1e-9)
    # The Hessian of the energy by two derivatives of it is that by one of the score.
    (twice,) = torch.autograd.grad(gradient.sum(), leaf, create_graph=True)
    (once,) = torch.autograd.grad(memory.score(leaf).sum(), leaf)
    torch.testing.assert_close(twice, -once, rtol=1e-6, atol=1e-7)


def test_alpha_near_one_is_the_modern_hopfield_network(memories, points):
    modern = ist.ModernHopfield(memories, 1.5)
    nearly = ist.SparseHopfield(memories, 1.5, alpha=1 + 1e-9)
    torch.testing.assert_close(nearly.energy(points), modern.energy(points), rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(nearly.step(points), modern.step(points), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("family", "alpha"), [("entmax", 1.2), ("entmax", 2.0), ("normmax", 3.0)])
def test_blocks_of_queries_change_nothing(family, alpha, monkeypatch):
    memories, x = draw(1500, 3), draw(7, 3, seed=1)
    memory = ist.SparseHopfield(memories.requires_grad_(), 0.3, alpha, family)
    leaf = x.clone().requires_grad_()

    def results() -> list[torch.Tensor]:
        total = memory.energy(leaf).sum() + (memory.step(leaf) ** 2).sum()
        first = torch.autograd.grad(total, [leaf, memories], create_graph=True)
        second = torch.autograd.grad(first[0].square().sum(), leaf)
        with torch.no_grad():
            plain = [memory.energy(x), memory.step(x)]
        return [*plain, *(one.detach() for one in first), *second]

    whole = results()
    monkeypatch.setattr(sparse, "MANY_LOGITS", 1)
    monkeypatch.setattr("isthmus.kernel.logits.BLOCK_ENTRIES", 3 * 1500)
    for expected, found in zip(whole, results(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("family", "alpha"), RULES[2:])
def test_the_margin_from_both_sides(family, alpha):
    """One step is exact if and only if the logit leads all others by the margin over beta."""
    memories, beta = draw(6, 4), 8.0
    memory = ist.SparseHopfield(memories, beta, alpha, family)
    apart = memories[0] - memories[1:]
    start = torch.linalg.lstsq(apart, torch.ones(5, 1, dtype=DOUBLE)).solution[:, 0]
    lead = (apart @ start).min()
    assert lead > 0
    needed = memory.margin / beta
    at_margin = start * needed / lead
    beyond, short = at_margin * (1 + 1e-9), at_margin * (1 - 1e-4)
    assert torch.equal(memory.step(beyond), memories[0])
    assert int((memory.responsibilities(short) > 0).sum()) > 1
    assert not torch.equal(memory.step(0.9 * at_margin), memories[0])


def test_the_certified_radius_is_the_largest():
    memories, beta = 3 * torch.nn.functional.normalize(draw(12, 6), dim=1), 1.0
    memory = ist.SparseHopfield(memories, beta, alpha=2.0)
    found = certify(memory)
    assert found.kind == "sparse"
    assert found.required_separation == pytest.approx(1.0)
    proved = np.flatnonzero(found.decided == "proved")
    assert len(proved) > 3
    for n in proved:
        radius, pattern = found.guaranteed_radius[n], memories[n]
        assert found.ramsauer_radius[n] <= radius * (1 + 1e-12)
        direction = torch.nn.functional.normalize(draw(400, 6, seed=int(n)), dim=1)
        inside = pattern + 0.999999 * radius * direction
        assert (memory.step(inside) == pattern).all()
        apart = pattern - torch.cat([memories[:n], memories[n + 1 :]])
        towards = -torch.nn.functional.normalize(apart, dim=1)
        outside = memory.step(pattern + 1.000001 * radius * towards)
        assert (outside != pattern).any(1).any()
    assert (found.retrieval_error[proved] == 0).all()
    assert "Santos' bound" in str(found)


@pytest.mark.parametrize("alpha", [1.0, 1.05, 1.5, 2.0])
def test_first_and_second_derivatives_match_finite_differences(alpha: float) -> None:
    logits = 2 * draw(3, 5).requires_grad_()
    assert torch.autograd.gradcheck(lambda z: own_entmax(z, alpha), logits)
    assert torch.autograd.gradgradcheck(lambda z: own_entmax(z, alpha), logits)


@pytest.mark.parametrize("alpha", [1.0, 1.05, 1.5, 2.0])
def test_minus_infinity_leaves_an_entry_out_and_has_no_gradient(alpha: float) -> None:
    logits = 2 * draw(6)
    masked = logits.clone()
    masked[2] = -torch.inf
    masked.requires_grad_()
    found = own_entmax(masked, alpha)
    rest = torch.tensor([0, 1, 3, 4, 5])
    torch.testing.assert_close(found[rest], own_entmax(logits[rest], alpha))
    (gradient,) = torch.autograd.grad(found[0], masked)
    assert found[2] == 0
    assert gradient[2] == 0
    assert bool(torch.isfinite(gradient).all())


@given(
    rows=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=20),
    alpha=st.floats(1.02, 2.0),
    single=st.booleans(),
)
def test_entmax_is_always_a_distribution(rows: list[float], alpha: float, single: bool) -> None:
    logits = torch.tensor(rows, dtype=torch.float32 if single else torch.float64)
    found = own_entmax(logits, alpha)
    assert bool((found >= 0).all())
    assert abs(float(found.sum()) - 1) < (1e-5 if single else 1e-12)
    assert found.argmax() == logits.argmax() or found.max() == found[logits.argmax()]


def test_vmap_and_compile_see_through_it() -> None:
    logits = 2 * draw(3, 5)
    mapped = torch.func.vmap(lambda z: own_entmax(z, 1.5))(logits)
    torch.testing.assert_close(mapped, own_entmax(logits, 1.5))
    compiled = torch.compile(own_entmax, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(logits, 1.5), own_entmax(logits, 1.5))
