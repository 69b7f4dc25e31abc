"""Attention over an index: its certificate holds, and bad input is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from isthmus.attend import CompressedKeys, Index, Keys, attend
from isthmus.errors import InvalidInputError
from isthmus.index.pruned import Weights, lower_bounds_of


def brute_force(
    queries: Tensor, memories: Tensor, beta: float, bias: Tensor | None, metric: str
) -> tuple[Tensor, Tensor]:
    """Log-sum-exp and mean over all memories, in float64 and from differences."""
    q, x = queries.double(), memories.double()
    if metric == "dot":
        logits = beta * (q @ x.T)
    else:
        apart = torch.cdist(q, x, compute_mode="donot_use_mm_for_euclid_dist")
        logits = -beta * apart.square()
    if bias is not None:
        logits = logits + bias.double()
    # Relative to the first memory, which keeps the digits of means far from the origin.
    return torch.logsumexp(logits, 1), x[0] + torch.softmax(logits, 1) @ (x - x[0])


def check(
    queries: Tensor,
    memories: Tensor,
    beta: float,
    bias: Tensor | None = None,
    metric: Any = "sqeuclidean",
    tol: float = 1e-6,
) -> None:
    """Compare with brute force: the errors are within their bounds, and the bound within tol."""
    found = attend(
        queries, memories, beta=beta, bias=bias, metric=metric, index=Index(memories), tol=tol
    )
    bound = found.error_bound
    assert bound is not None
    for start in range(0, len(queries), 500):
        some = slice(start, start + 500)
        exact, mean = brute_force(queries[some], memories, beta, bias, metric)
        error = exact - found.logsumexp[some].double()
        rounding = bound.rounding[some].double()
        assert (error <= bound.logsumexp[some].double() + rounding).all()
        assert (error >= -rounding).all()
        off = torch.linalg.vector_norm(found.mean[some].double() - mean, dim=1)
        # Logits that are rounded by r weigh their memories differently by a factor of exp(2 r).
        reach = torch.cdist(queries[some].double(), memories.double()).amax(1)
        allowed = torch.expm1(2 * rounding).clamp(max=2) * reach
        floor = 4 * torch.finfo(memories.dtype).eps * memories.abs().max()
        assert (off <= bound.mean[some].double() + allowed + floor).all()
    assert (bound.logsumexp <= tol * (1 + 1e-6)).all()


def adversarial(name: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, float]:
    """Memories, queries and a bandwidth that are hard on bounds."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    sigma = 0.2
    if name == "duplicates":
        memories = torch.cat([normal(1, 4).expand(2000, 4), normal(1000, 4)])
        queries = torch.cat([memories[:50], normal(100, 4)])
    elif name == "giant cell":
        memories = torch.cat([1e-6 * normal(3000, 6), 5 + normal(40, 6)])
        queries = torch.cat([1e-6 * normal(50, 6), 5 + normal(50, 6), 2 * normal(50, 6)])
    elif name == "collinear":
        memories = normal(3000, 1) * torch.linspace(1, 2, 7, dtype=torch.float64)
        queries = memories[:150] + 0.1 * normal(150, 7)
    elif name == "mixed scales":
        memories = torch.cat([1e-3 * normal(1500, 5), normal(1500, 5), 1e3 * normal(500, 5)])
        queries = torch.cat([memories[::40] + 0.1 * normal(88, 5), 100 * normal(60, 5)])
    elif name == "far away":
        memories = normal(2000, 5)
        queries = 30 + normal(150, 5)
    elif name == "off the origin":
        memories = 1000 + normal(3000, 4)
        queries = 1000 + normal(150, 4)
    elif name == "one memory":
        memories, queries = normal(1, 3), normal(70, 3)
    elif name == "one dimension":
        memories, queries, sigma = normal(5000, 1), normal(300, 1), 0.01
    elif name == "constant columns":
        memories = torch.cat([normal(3000, 4), torch.full((3000, 3), 7.0)], 1)
        queries = torch.cat([normal(150, 4), torch.full((150, 3), 7.0)], 1)
    else:
        centres = 5 * normal(100, 20)
        memories = centres[torch.randint(100, (6000,), generator=generator)] + 0.2 * normal(
            6000, 20
        )
        queries = centres[torch.randint(100, (300,), generator=generator)] + 0.2 * normal(300, 20)
    return memories.to(dtype), queries.to(dtype), sigma


SETS = [
    "duplicates",
    "giant cell",
    "collinear",
    "mixed scales",
    "far away",
    "off the origin",
    "one memory",
    "one dimension",
    "constant columns",
    "clustered",
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", SETS)
def test_bounds_hold_on_hard_sets(name: str, dtype: torch.dtype) -> None:
    memories, queries, sigma = adversarial(name, dtype)
    for factor in (0.2, 1.0, 5.0):
        check(queries, memories, 0.5 / (factor * sigma) ** 2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("tol", [1e-2, 1e-9])
def test_bounds_hold_with_biases_and_dot_products(dtype: torch.dtype, tol: float) -> None:
    memories, queries, sigma = adversarial("clustered", dtype)
    bias = 3 * torch.randn(len(memories), generator=torch.Generator().manual_seed(1), dtype=dtype)
    bias[::7] = -torch.inf
    check(queries, memories, 0.5 / sigma**2, bias, tol=tol)
    check(queries, memories, 0.5, metric="dot", tol=tol)
    check(queries, memories, 0.5, bias, metric="dot", tol=tol)


def test_an_index_of_other_memories_is_refused() -> None:
    memories, queries, _ = adversarial("clustered", torch.float32)
    index = Index(memories)
    changed = memories.clone()
    attend(queries, changed, index=index)
    changed[5, 3] += 1e-3
    for other in (changed, memories[1:], memories.double()):
        with pytest.raises(InvalidInputError, match="other memories"):
            attend(queries.to(other.dtype), other, index=index)
    with pytest.raises(InvalidInputError, match="other memories"):
        attend(queries, Keys.of(changed), index=index)
    with pytest.raises(InvalidInputError, match="must be an isthmus.attend.Index"):
        attend(queries, memories, index=True)  # type: ignore[arg-type]


def test_a_saved_index_is_the_same(tmp_path: Path) -> None:
    memories, queries, sigma = adversarial("clustered", torch.float32)
    index = Index(memories)
    index.save(tmp_path / "index.safetensors")
    loaded = Index.load(tmp_path / "index.safetensors")
    assert repr(loaded) == repr(index)
    assert loaded.digest == index.digest
    arguments = {"beta": 0.5 / sigma**2, "metric": "sqeuclidean"}
    one = attend(queries, memories, index=index, **arguments)
    two = attend(queries, memories, index=loaded, **arguments)
    assert torch.equal(one.logsumexp, two.logsumexp)
    assert torch.equal(one.mean, two.mean)
    with pytest.raises(InvalidInputError, match="other memories"):
        attend(queries, memories + 1, index=loaded)


FORGERIES: dict[str, Any] = {
    "tops.first": lambda a: np.array([0, 10**9]),
    "leaves.first": lambda a: np.r_[0, 2**40, a[2:]],
    "order": lambda a: np.zeros_like(a),
    "points": lambda a: a + 1,
}


@pytest.mark.parametrize("name", FORGERIES)
@pytest.mark.parametrize("verify", [True, False])
def test_forged_files_are_refused(name: str, verify: bool, tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    from isthmus.index.index import FORMAT, _content

    memories, queries, _ = adversarial("clustered", torch.float64)
    index, path = Index(memories), tmp_path / "index"
    index.save(path)
    arrays = load_file(path)
    arrays[name] = FORGERIES[name](arrays[name])
    metadata = {"format": FORMAT, "digest": _content(arrays, index.digest)}
    save_file(arrays, path, metadata)
    with pytest.raises(InvalidInputError):
        attend(queries, memories, index=Index.load(path, verify=verify))


def unstructured(count: int, dim: int = 64, seed: int = 0) -> Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed))


def likely_errors(
    queries: Tensor,
    memories: Tensor,
    beta: float,
    seed: int = 0,
    delta: float = 1e-3,
    **options: Any,
) -> tuple[Tensor, Tensor]:
    """Return True where the log-sum-exp, and where the mean, is outside its bounds."""
    index = Index(memories)
    options = {"beta": beta, "metric": "sqeuclidean", **options}
    found = attend(queries, memories, index=index, tol=1e-2, delta=delta, seed=seed, **options)
    likely, certain = found.confidence_bound, found.error_bound
    assert likely is not None
    assert certain is not None
    assert likely.delta == delta
    assert (likely.mean > 0).any()
    assert (likely.logsumexp <= 1e-2).all()
    exact, mean = brute_force(
        queries, memories, options["beta"], options.get("bias"), options["metric"]
    )
    rounding = certain.rounding.double()
    wrong = (found.logsumexp - exact).abs() > likely.logsumexp.double() + rounding
    off = torch.linalg.vector_norm(found.mean.double() - mean, dim=1)
    return wrong, off > likely.mean.double() + rounding * off.max() + 1e-5


@pytest.mark.parametrize("beta", [0.01, 0.05, 0.15])
@pytest.mark.parametrize("metric", ["sqeuclidean", "dot"])
def test_sampled_attention_is_within_its_bounds(beta: float, metric: str) -> None:
    wrong, off = likely_errors(
        unstructured(300, seed=1), unstructured(20_000), beta, metric=metric, seed=3
    )
    assert not wrong.any()
    assert not off.any()


def test_sampled_bounds_fail_no_oftener_than_delta() -> None:
    # At a level of one half, failures would show if the inequalities were not true.
    queries, memories = unstructured(1000, seed=1), unstructured(12_000)
    wrong, off = likely_errors(queries, memories, 0.05, delta=0.5)
    assert (wrong | off).double().mean() <= 0.5


@pytest.mark.parametrize("with_bias", [False, True])
def test_one_heavy_memory_cannot_hide_from_the_sample(with_bias: bool) -> None:
    queries, memories = unstructured(40, seed=1), unstructured(20_000)
    beta, bias = 0.1, torch.zeros(20_000)
    if with_bias:
        bias[777] = 60.0
    else:
        memories[777] = queries.mean(0)
        queries = memories[777] + 0.01 * queries
    wrong, off = likely_errors(queries, memories, beta, bias=bias)
    assert not wrong.any()
    assert not off.any()


def test_a_memory_whose_weight_overflows_beside_near_ones_is_counted() -> None:
    # The lower bound comes from memories near the query, which weigh e^80 times less.
    memories = unstructured(30_000)
    memories[777] = 0
    memories[777, 0] = 100.0
    queries = torch.zeros(3, 64)
    queries[:, 0] = torch.tensor([0.9, 0.95, 1.0])
    options: dict[str, Any] = {"index": Index(memories), "tol": 0.1, "delta": 1e-2}
    found = attend(queries, memories, **options)
    exact, _ = brute_force(queries, memories, 1.0, None, "dot")
    assert found.confidence_bound is not None
    assert ((found.logsumexp - exact).abs() <= found.confidence_bound.logsumexp + 1e-4).all()


@pytest.mark.parametrize("height", [-70.0, -75.0])
def test_weights_below_the_range_of_float32_are_counted(height: float) -> None:
    # All memories of the nearest cell are left out, so that no lower bound is known.
    queries, memories = 0.3 * unstructured(4, seed=1), unstructured(20_000)
    index, bias = Index(memories), torch.full((20_000,), height)
    leaves, _ = lower_bounds_of(queries.numpy(), index, Weights(index, None, 0.3, "sqeuclidean"))
    for leaf in leaves:
        rows = slice(*index.leaves.first[leaf : leaf + 2])
        bias[torch.from_numpy(index.order[rows])] = -torch.inf
    options: dict[str, Any] = {"beta": 0.3, "bias": bias, "metric": "sqeuclidean"}
    found = attend(queries, memories, index=index, tol=1e-2, delta=1e-3, **options)
    exact, _ = brute_force(queries, memories, 0.3, bias, "sqeuclidean")
    assert found.confidence_bound is not None
    assert ((found.logsumexp - exact).abs() <= found.confidence_bound.logsumexp + 1e-4).all()


def test_samples_repeat_with_their_seed_whatever_the_other_queries() -> None:
    queries, memories = unstructured(100, seed=1), unstructured(20_000)
    index = Index(memories)

    def found(some: Tensor, seed: int) -> Tensor:
        options: dict[str, Any] = {"beta": 0.02, "metric": "sqeuclidean", "index": index}
        return attend(some, memories, tol=1e-2, delta=1e-3, seed=seed, **options).logsumexp

    assert torch.equal(found(queries, 0), found(queries, 0))
    assert torch.equal(found(queries[:7], 0), found(queries, 0)[:7])
    assert not torch.equal(found(queries, 0), found(queries, 1))
    shaped = queries.reshape(4, 25, 64)
    assert torch.equal(found(shaped, 0).flatten(), found(queries, 0))


def test_a_level_needs_an_index_and_lies_between_zero_and_one() -> None:
    memories = unstructured(100, 4)
    index = Index(memories)
    for delta in (0.0, 1.0, -0.1, float("nan"), "much"):
        with pytest.raises(InvalidInputError, match="delta"):
            attend(memories, memories, index=index, delta=delta)  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="tol"):
        attend(memories, memories, index=index, tol=0.0, delta=0.1)
    with pytest.raises(InvalidInputError, match="index"):
        attend(memories, memories, delta=0.1)
    found = attend(memories, memories, index=index, delta=0.1)
    assert found.confidence_bound is not None
    assert not found.confidence_bound.logsumexp.any()


@pytest.mark.parametrize("kind", ["int8", "float16"])
@pytest.mark.parametrize("metric", ["dot", "sqeuclidean"])
@pytest.mark.parametrize("name", [*SETS, "huge row"])
def test_errors_of_compressed_memories_are_within_their_bounds(
    name: str, metric: Any, kind: Any
) -> None:
    memories, queries, sigma = adversarial(name, torch.float64)
    if name == "huge row":
        memories[7] *= 1e4
    beta = min(0.5 / sigma**2, 2.0)
    bias = torch.linspace(-3, 3, len(memories), dtype=torch.float64)
    bias[1:1500] = -torch.inf  # whole blocks are left out
    keys = CompressedKeys(memories, kind)
    found = attend(queries, keys, beta=beta, bias=bias, metric=metric)
    exact, mean = brute_force(queries, memories, beta, bias, metric)
    bound = found.error_bound
    assert bound is not None
    assert ((found.logsumexp - exact).abs() <= bound.logsumexp + bound.rounding).all()
    off = torch.linalg.vector_norm(found.mean - mean, dim=1)
    reach = torch.cdist(queries, memories).amax(1)
    assert (off <= bound.mean + torch.expm1(2 * bound.rounding).clamp(max=2) * reach + 1e-9).all()


def test_compressed_memories_are_small_close_and_equal_when_loaded(tmp_path: Path) -> None:
    memories = torch.randn(3000, 64, generator=torch.Generator().manual_seed(0)).double()
    queries = memories[:5] + 0.1
    exact = attend(queries, memories, beta=0.05, metric="sqeuclidean")
    for kind, close in (("int8", 5e-3), ("float16", 2e-4)):
        keys = CompressedKeys(memories, kind)  # type: ignore[arg-type]
        keys.save(tmp_path / kind)
        again = CompressedKeys.load(tmp_path / kind)
        assert repr(again) == repr(keys)
        found, same = (
            attend(queries, each, beta=0.05, metric="sqeuclidean") for each in (keys, again)
        )
        assert torch.equal(found.logsumexp, same.logsumexp)
        torch.testing.assert_close(found.logsumexp, exact.logsumexp, rtol=0, atol=close)
        torch.testing.assert_close(found.mean, exact.mean, rtol=0, atol=close)
    assert (tmp_path / "int8").stat().st_size < 0.3 * memories.numel() * 4 + 2000


def test_compressed_memories_refuse_what_they_cannot_hold(tmp_path: Path) -> None:
    for bad in ([[float("nan"), 1.0]], [[float("inf"), 1.0]], np.zeros((0, 3)), ["a"]):
        with pytest.raises(InvalidInputError):
            CompressedKeys(bad)
    keys = CompressedKeys(np.eye(3))
    for option in ({"observed": np.ones(3, bool)}, {"delta": 0.1}):
        with pytest.raises(InvalidInputError, match="CompressedKeys"):
            attend(np.zeros(3), keys, metric="sqeuclidean", **option)
    with pytest.raises(InvalidInputError):
        attend([np.nan, 0, 0], keys)
    assert attend(np.zeros((0, 3)), keys).mean.shape == (0, 3)
    keys.save(tmp_path / "keys")
    (tmp_path / "keys").write_bytes((tmp_path / "keys").read_bytes()[:-3])
    with pytest.raises(InvalidInputError, match="truncated"):
        CompressedKeys.load(tmp_path / "keys")
