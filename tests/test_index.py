"""Attention over an index: its certificate holds, and bad input is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from isthmus.attend import Index, Keys, attend
from isthmus.errors import InvalidInputError


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


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    memories, _, _ = adversarial("one dimension", torch.float32)
    path = tmp_path / "index.safetensors"
    Index(memories).save(path)
    content = path.read_bytes()
    for damaged in (content[:100], content[:-50], b"", b"text"):
        path.write_bytes(damaged)
        with pytest.raises(InvalidInputError, match="not a readable index"):
            Index.load(path)
    changed = bytearray(content)
    changed[-9] ^= 1
    path.write_bytes(bytes(changed))
    with pytest.raises(InvalidInputError, match="altered"):
        Index.load(path)
    with pytest.raises(FileNotFoundError):
        Index.load(tmp_path / "none")
    with pytest.raises(InvalidInputError):
        Index.load(5)  # type: ignore[arg-type]
    from safetensors.torch import save_file

    save_file({"points": memories}, path)
    with pytest.raises(InvalidInputError, match="not an isthmus index"):
        Index.load(path)


FORGERIES: dict[str, Any] = {
    "tops.first": lambda a: np.array([0, 10**9]),
    "leaves.first": lambda a: np.r_[0, 2**40, a[2:]],
    "order": lambda a: np.zeros_like(a),
    "points": lambda a: a + 1,
    "leaves.radii": lambda a: np.zeros_like(a),
    "tops.low": lambda a: np.full_like(a, np.inf),
    "axes": lambda a: np.zeros_like(a),
    "centre": lambda a: np.full_like(a, np.nan),
}


@pytest.mark.parametrize("name", FORGERIES)
@pytest.mark.parametrize("verify", [True, False])
def test_forged_files_are_refused_or_give_the_right_sums(
    name: str, verify: bool, tmp_path: Path
) -> None:
    from safetensors.numpy import save_file

    from isthmus.index.index import FORMAT, _content

    memories, queries, sigma = adversarial("clustered", torch.float64)
    index = Index(memories)
    arrays = index._arrays()
    arrays[name] = FORGERIES[name](arrays[name])
    metadata = {"format": FORMAT, "memories": index.digest}
    metadata["digest"] = _content(arrays, index.digest)
    save_file(arrays, tmp_path / "index", metadata)
    try:
        loaded = Index.load(tmp_path / "index", verify=verify)
        found = attend(
            queries, memories, beta=0.5 / sigma**2, metric="sqeuclidean", index=loaded
        ).logsumexp
    except InvalidInputError:
        assert name in ("tops.first", "leaves.first", "order", "points")
        return
    exact, _ = brute_force(queries, memories, 0.5 / sigma**2, None, "sqeuclidean")
    torch.testing.assert_close(found, exact, rtol=0, atol=1e-5)
