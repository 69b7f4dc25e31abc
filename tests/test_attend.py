"""The kernel against brute force, on its plain, fused and fallback paths."""

import sys
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from helpers import draw
from scipy.special import logsumexp, softmax
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import isthmus as ist
from isthmus.attend import Keys, Metric, attend
from isthmus.kernel import attention, logits

DOUBLE = torch.float64
METRICS = ["dot", "sqeuclidean"]
PATHS = ["plain", "fused", "fallback"]


@pytest.fixture
def take_path(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Force one of the kernel's paths; the fused ones in blocks of 256 memories or more."""

    def take(path: str, block_entries: int = 2**10) -> None:
        monkeypatch.setattr(attention, "PLAIN_LOGITS", sys.maxsize if path == "plain" else 0)
        monkeypatch.setattr(attention, "BLOCK_ENTRIES", block_entries)
        monkeypatch.setattr(logits, "BLOCK_ENTRIES", block_entries)
        monkeypatch.setattr(attention, "has_kernel", lambda _: path == "fused")

    return take


def brute_logits(queries, memories, beta, bias, metric) -> np.ndarray:
    queries, memories = np.float64(queries), np.float64(memories)
    if metric == "dot":
        logits = beta * queries @ memories.T
    else:
        logits = -beta * np.square(queries[:, None] - memories).sum(-1)
    return logits if bias is None else logits + np.float64(bias)


def brute_attend(queries, memories, beta=1.0, bias=None, metric="dot"):
    logits = brute_logits(queries, memories, beta, bias, metric)
    return logsumexp(logits, axis=1), softmax(logits, axis=1) @ np.float64(memories)


def some_bias(count: int) -> Tensor:
    bias = draw(count, seed=5)
    bias[::3] = -torch.inf
    return bias


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("path", PATHS)
def test_results_match_brute_force(path, metric, with_bias, take_path):
    take_path(path)
    queries, memories = draw(9, 4), draw(700, 4, seed=1)
    bias = some_bias(700) if with_bias else None
    found = attend(queries, memories, beta=0.7, bias=bias, metric=metric)
    expected = brute_attend(queries, memories, 0.7, bias, metric)
    np.testing.assert_allclose(found.logsumexp, expected[0], rtol=1e-11)
    np.testing.assert_allclose(found.mean, expected[1], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("offset", [0.0, 5.0, 1e3])
@pytest.mark.parametrize("metric", METRICS)
def test_one_query_against_prepared_keys_matches_brute_force(metric, offset, threads, take_path):
    take_path("fused", block_entries=2**12)
    query, memories = draw(1, 4) + offset, draw(1001, 4, seed=1) + offset
    keys = Keys.of(memories)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = attend(query, keys, beta=0.7, bias=some_bias(1001), metric=metric)
    finally:
        torch.set_num_threads(before)
    expected = brute_attend(query, memories, 0.7, some_bias(1001), metric)
    np.testing.assert_allclose(found.logsumexp, expected[0], rtol=1e-10)
    np.testing.assert_allclose(found.mean, expected[1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(
    ("metric", "hidden"), [*((each, False) for each in METRICS), ("sqeuclidean", True)]
)
@pytest.mark.parametrize("path", PATHS)
def test_first_and_second_derivatives(path, metric, hidden, take_path):
    take_path(path)
    observed = torch.tensor([[True, False], [False, False], [True, True]]) if hidden else None
    leaves = [draw(3, 2), draw(5, 2, seed=1), draw(5, seed=2), torch.tensor(0.6, dtype=DOUBLE)]

    def function(queries, memories, bias, beta):
        options = {"bias": bias, "beta": beta, "metric": metric, "observed": observed}
        return tuple(attend(queries, memories, **options))

    leaves = [leaf.requires_grad_() for leaf in leaves]
    assert gradcheck(function, leaves)
    assert gradgradcheck(function, leaves)


@pytest.mark.parametrize("path", PATHS)
def test_observed_coordinates_are_the_only_ones_in_the_distance(path, take_path):
    take_path(path)
    queries, memories, bias = draw(8, 3), draw(600, 3, seed=1), some_bias(600)
    observed = draw(8, 3, seed=2) > 0
    observed[0], observed[1] = True, False
    unknown = torch.where(observed, queries, torch.nan)
    found = attend(unknown, memories, beta=1.3, bias=bias, metric="sqeuclidean", observed=observed)
    for row in range(8):
        seen = observed[row].numpy()
        squares = np.square(queries.numpy()[row, seen] - memories.numpy()[:, seen]).sum(1)
        logits = bias.numpy() - 1.3 * squares
        np.testing.assert_allclose(found.logsumexp[row], logsumexp(logits), rtol=1e-10)
        expected = softmax(logits) @ memories.numpy()
        np.testing.assert_allclose(found.mean[row], expected, rtol=1e-9, atol=1e-12)


class Recorder(TorchDispatchMode):
    """Records the size and the dtype of every tensor that any operation makes."""

    def __init__(self) -> None:
        super().__init__()
        self.largest = self.largest_new = 0
        self.names: set[str] = set()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        made = [leaf for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.largest = max([self.largest, *(tensor.numel() for tensor in made)])
        self.dtypes.update(tensor.dtype for tensor in made)
        self.names.add(function.overloadpacket.__name__)
        given = [leaf for leaf in tree_leaves(args) if isinstance(leaf, Tensor)]
        addresses = {tensor.untyped_storage().data_ptr() for tensor in given}
        fresh = [tensor for tensor in made if tensor.untyped_storage().data_ptr() not in addresses]
        self.largest_new = max([self.largest_new, *(tensor.numel() for tensor in fresh)])
        return out


QUERIES, MEMORIES = 900, 3000


def entries_of_largest_tensor(function: Callable[[Tensor, Tensor], Tensor]) -> int:
    queries = draw(QUERIES, 4, dtype=torch.float32).requires_grad_()
    memories = draw(MEMORIES, 4, seed=1, dtype=torch.float32).requires_grad_()
    with Recorder() as recorder:
        function(queries, memories).sum().backward()
    assert queries.grad is not None
    assert memories.grad is not None
    return recorder.largest


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("path", ["fused", "fallback"])
def test_no_matrix_of_queries_by_memories_is_ever_held(path, metric, take_path):
    take_path(path, block_entries=2**13)

    def both(queries: Tensor, memories: Tensor) -> Tensor:
        found = attend(queries, memories, metric=metric)
        return found.logsumexp + found.mean.sum(1)

    assert entries_of_largest_tensor(both) <= max(QUERIES, MEMORIES) * 5
    take_path("plain")
    assert entries_of_largest_tensor(both) >= QUERIES * MEMORIES


def test_a_step_with_prepared_keys_makes_no_tensor_of_their_size(take_path):
    take_path("fused")
    memory = ist.GaussianKDE(draw(3000, 8, dtype=torch.float32), sigma=1.0)
    memory.step(draw(1, 8, dtype=torch.float32))
    with Recorder() as recorder:
        memory.step(draw(1, 8, seed=1, dtype=torch.float32))
    # Views of the memories are made, but no pass of their size other than the kernel.
    assert "mean" not in recorder.names
    assert recorder.largest_new <= 3000


def clouds(centres: list[float], count: int, seed: int) -> Tensor:
    parts = [draw(count, 3, seed=seed + i) + centre for i, centre in enumerate(centres)]
    return torch.cat(parts).to(torch.float32)


@pytest.mark.parametrize(
    ("centres", "beta"), [([1e4], 0.5), ([-5e3, 5e3], 0.5), ([0.0, 1e4], 0.5), ([0.0], 1e5)]
)
@pytest.mark.parametrize("path", PATHS)
def test_float32_far_from_the_origin_or_cold_agrees_with_float64(path, centres, beta, take_path):
    take_path(path)
    memories, queries = clouds(centres, 400, seed=0), clouds(centres, 20, seed=10)
    found = attend(queries, memories, beta=beta, metric="sqeuclidean")
    expected = brute_attend(queries, memories, beta, metric="sqeuclidean")
    assert found.logsumexp.dtype == torch.float32
    np.testing.assert_allclose(found.logsumexp, expected[0], atol=1e-3, rtol=1e-6)
    np.testing.assert_allclose(found.mean, expected[1], atol=1e-3, rtol=0)


@pytest.mark.parametrize("beta", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("distance", [0.0, 1e6])
@pytest.mark.parametrize("metric", METRICS)
def test_extreme_logits_against_arbitrary_precision(metric, distance, beta):
    queries, memories = draw(3, 2) + distance, draw(4, 2, seed=1)
    found = attend(queries, memories, beta=beta, metric=metric)
    with mpmath.workdps(60):
        for row, query in enumerate(queries.tolist()):
            logits = []
            for memory in memories.tolist():
                pairs = [(mpmath.mpf(q), mpmath.mpf(m)) for q, m in zip(query, memory, strict=True)]
                terms = [q * m if metric == "dot" else -((q - m) ** 2) for q, m in pairs]
                logits.append(mpmath.mpf(beta) * mpmath.fsum(terms))
            exact = mpmath.log(mpmath.fsum(mpmath.exp(logit) for logit in logits))
            assert float(abs(found.logsumexp[row].item() - exact)) <= 1e-9 * (1 + abs(exact))


@pytest.mark.parametrize("path", PATHS)
def test_a_cloud_far_from_the_origin_does_not_cost_float64(path, take_path):
    take_path(path)
    memories, queries = clouds([1e4], 300, seed=0), clouds([1e4], 20, seed=10)
    with Recorder() as recorder:
        attend(queries, memories, beta=0.5, metric="sqeuclidean")
    assert DOUBLE not in recorder.dtypes


@pytest.mark.parametrize("metric", METRICS)
def test_column_major_tensors_give_the_same_results_and_gradients(
    take_path: Callable[..., None], metric: Metric
) -> None:
    take_path("fused")
    rows = [draw(300, 7), draw(350, 7, seed=1)]
    results = []
    for order in (lambda x: x, lambda x: x.T.contiguous().T):
        queries, memories = (order(x).requires_grad_() for x in rows)
        found = attend(queries, memories, metric=metric)
        loss = found.logsumexp.sum() + order(found.mean).square().sum()
        results.append([*found, *torch.autograd.grad(loss, (queries, memories))])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("far", [1e8, 1e12, 1e100])
def test_one_far_memory_costs_the_others_no_digits(far):
    rng = np.random.default_rng(0)
    memories, queries = rng.normal(size=(200, 3)), rng.normal(size=(50, 3))
    memories[7, 1] = far
    squares = np.square(queries[:, None] - memories).sum(-1)
    found = attend(
        torch.from_numpy(queries), torch.from_numpy(memories), beta=5.0, metric="sqeuclidean"
    )
    np.testing.assert_allclose(found.logsumexp, logsumexp(-5.0 * squares, axis=1), atol=1e-12)
