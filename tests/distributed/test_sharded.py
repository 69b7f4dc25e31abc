"""Memories in shards agree with the same memories in one process."""

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import torch

import isthmus as ist
from isthmus.distributed import shard
from isthmus.errors import InvalidInputError, UnsupportedOperationError

N, D = 203, 4
TOLERANCE = {"float64": 1e-12, "float32": 1e-5}
RNG = np.random.default_rng(0)
X = RNG.normal(size=(N, D))
POINTS = 0.8 * RNG.normal(size=(3, 5, D))
ROOT = RNG.normal(size=(D, D))
COVARIANCE = ROOT @ ROOT.T + np.eye(D)
LOG_WEIGHTS = np.where(np.arange(N) < 60, -np.inf, RNG.normal(size=N))  # a whole block is left out

CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "kde": (ist.GaussianKDE, {"sigma": 0.6}),
    "kde-columns": (ist.GaussianKDE, {"sigma": np.array([0.5, 0.9, 0.4, 0.7])}),
    "kde-full": (ist.GaussianKDE, {"sigma": 0.5, "covariance": COVARIANCE}),
    "kde-weighted": (ist.GaussianKDE, {"sigma": 0.6, "log_weights": LOG_WEIGHTS}),
    "mixture": (ist.Mixture, {"beta": 2.0}),
    "mixture-tied": (ist.Mixture, {"beta": 1.5, "covariance": COVARIANCE}),
    "modern-hopfield": (ist.ModernHopfield, {"beta": 1.3}),
    "on-the-sphere": (ist.ModernHopfield, {"beta": 2.0, "normalize": True}),
}


def close(found: torch.Tensor, expected: torch.Tensor, dtype: str) -> None:
    tolerance = TOLERANCE[dtype]
    assert found.dtype == expected.dtype
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("case", CASES)
def test_every_method_is_that_of_the_memory_in_one_process(case: str, dtype: str) -> None:
    kind, settings = CASES[case]
    data = da.from_array(X.astype(dtype), chunks=((50, 3, 0, 150), (3, 1)))
    one, many = kind(X.astype(dtype), **settings), shard(kind, data, **settings)
    x = torch.from_numpy(POINTS.astype(dtype))
    observed = torch.from_numpy(np.random.default_rng(1).random(POINTS.shape) < 0.5)
    gaps = torch.where(observed, x, torch.nan)
    close(many.energy(x), one.energy(x), dtype)
    close(many.log_prob(x), one.log_prob(x), dtype)
    close(many.log_prob(gaps, observed), one.log_prob(gaps, observed), dtype)
    close(many.log_normalizer(), one.log_normalizer(), dtype)
    close(many.score(x), one.score(x), dtype)
    close(many.step(x), one.step(x), dtype)
    close(many.step(x, observed), one.step(x, observed), dtype)
    close(many.conditional_mean(gaps, observed), one.conditional_mean(gaps, observed), dtype)
    close(ist.complete(many, gaps), ist.complete(one, gaps), dtype)
    close(many.responsibilities(x), one.responsibilities(x), dtype)
    close(many.responsibilities(gaps, observed), one.responsibilities(gaps, observed), dtype)
    close(many.sample(20, seed=3), one.sample(20, seed=3), dtype)
    assert torch.equal(many.recalled(x), one.responsibilities(x).argmax(-1))
    assert (many.n_memories, many.dim, many.n_shards) == (N, D, 3)


def test_memories_without_any_weight_are_refused() -> None:
    with pytest.raises(InvalidInputError, match="weights"):
        shard(ist.GaussianKDE, da.from_array(X), sigma=1.0, log_weights=np.full(N, -np.inf))


@pytest.mark.parametrize("case", ["kde", "modern-hopfield"])
def test_retrieval_and_chains_take_the_same_way(case: str) -> None:
    kind, settings = CASES[case]
    one, many = kind(X, **settings), shard(kind, da.from_array(X, chunks=(70, D)), **settings)
    ends = [ist.retrieve(each, torch.from_numpy(POINTS), tol=1e-9) for each in (many, one)]
    torch.testing.assert_close(ends[0].state, ends[1].state, rtol=0, atol=1e-8)
    assert torch.equal(ends[0].steps, ends[1].steps)
    assert torch.equal(ends[0].memory, ends[1].memory)
    chains = [
        ist.sample_chains(each, 5, ist.MALA(step_size=0.1), chains=4, burn_in=5, seed=1).draws
        for each in (many, one)
    ]
    torch.testing.assert_close(*chains, rtol=0, atol=1e-9)


def test_basins_group_queries_by_the_mode_of_the_shards() -> None:
    centres = np.array([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]])
    rows = np.repeat(centres, 40, axis=0) + RNG.normal(size=(120, 2))
    many = shard(ist.GaussianKDE, da.from_array(rows, chunks=(33, 2)), sigma=1.0)
    found = ist.capacity.basins(many, starts=rows)
    expected = ist.capacity.basins(rows, 1.0)
    assert found.sigma == expected.sigma
    np.testing.assert_array_equal(found.labels, expected.labels)
    np.testing.assert_allclose(found.fixed_points, expected.fixed_points, atol=1e-5)
    with pytest.raises(InvalidInputError, match="Pass starts"):
        ist.capacity.basins(many)


def test_the_nearest_memories_are_those_of_brute_force() -> None:
    many = shard(ist.GaussianKDE, da.from_array(X, chunks=((2, 0, 200, 1), (D,))), sigma=0.6)
    found = many.nearest(X[:30], k=4)
    distances = np.linalg.norm(X[:30, None] - X, axis=2)
    order = np.argsort(distances, axis=1, kind="stable")[:, :4]
    np.testing.assert_array_equal(found.index, order)
    np.testing.assert_allclose(found.distances, np.take_along_axis(distances, order, 1), atol=1e-12)
    separation = ist.capacity.certify(X, 0.6, iterate="none").separation
    np.testing.assert_allclose(many.separation(X), separation, rtol=1e-12)


def test_the_derivative_of_energy_and_density_is_known_to_autograd() -> None:
    many = shard(ist.ModernHopfield, da.from_array(X, chunks=(90, D)), beta=1.3)
    one = ist.ModernHopfield(X, beta=1.3)
    for name in ("energy", "log_prob"):
        gradients = []
        for each in (many, one):
            x = torch.from_numpy(POINTS).requires_grad_()
            (2 * getattr(each, name)(x)).sum().backward()
            gradients.append(x.grad)
        torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)
    with pytest.raises(UnsupportedOperationError, match="has no derivative"):
        many.step(torch.from_numpy(POINTS).requires_grad_())


@pytest.mark.parametrize("source", ["frame", "file", "directory", "pattern"])
def test_frames_and_parquet_are_read_in_blocks(source: str, tmp_path: Any) -> None:
    frame = pd.DataFrame(X, columns=list("abcd")).assign(a=lambda table: table.a.round())
    frame = frame.astype({"a": "int64", "b": "float32"})
    data: Any = dd.from_pandas(frame, npartitions=3)
    if source != "frame":
        for start in (0, 100):
            path = tmp_path / f"{start:03}.parquet"
            frame[start : start + 100 if start == 0 else None].to_parquet(path, row_group_size=40)
        data = {"directory": tmp_path, "pattern": str(tmp_path / "*.parquet")}.get(source)
        if source == "file":
            frame, data = frame[:100], tmp_path / "000.parquet"
    many = shard(ist.GaussianKDE, data, sigma=0.6)
    one, x = ist.GaussianKDE(frame.to_numpy(dtype=float), 0.6), torch.from_numpy(POINTS)
    torch.testing.assert_close(many.energy(x), one.energy(x), rtol=1e-12, atol=1e-12)
