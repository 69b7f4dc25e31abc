"""R-hat and effective sample size against known autocorrelations and a loop-by-loop reference."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from isthmus.dynamics.diagnostics import effective_sample_size, split_r_hat


def autoregressive(phi: float, draws: int, chains: int, dim: int = 1, seed: int = 0) -> Tensor:
    """x' = phi x + noise with unit stationary variance, started in its stationary law."""
    rng = np.random.default_rng(seed)
    noise = rng.standard_normal((draws, chains, dim))
    series = [noise[0]]
    for step in noise[1:]:
        series.append(phi * series[-1] + math.sqrt(1 - phi**2) * step)
    return torch.tensor(np.stack(series))


def effective_sample_size_by_loops(draws: np.ndarray) -> float:
    """One coordinate, (draws, chains), straight from the definition."""
    half = draws.shape[0] // 2
    chains = np.concatenate([draws[:half], draws[-half:]], axis=1).T
    centred = chains - chains.mean(1, keepdims=True)
    within = chains.var(1, ddof=1).mean()
    total = (half - 1) / half * within + chains.mean(1).var(ddof=1)
    rho = [1.0]
    for lag in range(1, half):
        covariance = (centred[:, : half - lag] * centred[:, lag:]).sum(1) / half
        rho.append(1 - (within - covariance.mean()) / total)
    tau, previous = -1.0, math.inf
    for k in range(0, half - 1, 2):
        pair = rho[k] + rho[k + 1]
        if pair <= 0:
            break
        previous = min(previous, pair)
        tau += 2 * previous
    return chains.size / tau


@pytest.mark.parametrize("phi", [-0.5, 0.0, 0.5, 0.9])
def test_effective_sample_size_of_an_autoregression(phi: float) -> None:
    draws = autoregressive(phi, draws=20_000, chains=4, dim=3)
    expected = torch.full((3,), 80_000 * (1 - phi) / (1 + phi), dtype=torch.float64)
    torch.testing.assert_close(effective_sample_size(draws), expected, rtol=0.1, atol=0)


@pytest.mark.parametrize("draws", [40, 41, 301])
def test_effective_sample_size_agrees_with_loops(draws: int) -> None:
    series = autoregressive(0.7, draws, chains=3, dim=4)
    expected = [effective_sample_size_by_loops(series[..., d].numpy()) for d in range(4)]
    np.testing.assert_allclose(effective_sample_size(series), expected, rtol=1e-9)


def test_effective_sample_size_is_bounded_for_alternating_chains() -> None:
    signs = torch.tensor([1.0, -1.0], dtype=torch.float64).repeat(100)[:, None, None]
    series = signs.expand(200, 2, 1) + 1e-3 * autoregressive(0.0, 200, 2)
    assert float(effective_sample_size(series)) == pytest.approx(400 * math.log10(400))


def test_r_hat_sees_a_chain_that_sits_elsewhere_and_only_in_that_coordinate() -> None:
    series = autoregressive(0.0, 1000, 4, dim=2)
    series[:, 0, 1] += 3
    r_hat = split_r_hat(series)
    assert float(r_hat[0]) < 1.01
    # Half-chain means 3, 0, 0, 0 twice over: between variance 9 * (2 * 6 / 8) / 7 over within 1.
    assert float(r_hat[1]) == pytest.approx(math.sqrt(1 + 9 * 1.5 / 7), rel=0.02)
    assert float(effective_sample_size(series)[1]) < 20


def test_r_hat_sees_a_drift_that_all_chains_share() -> None:
    series = autoregressive(0.0, 1000, 4) + torch.linspace(-2, 2, 1000)[:, None, None]
    assert float(split_r_hat(series)) > 1.2


def test_chains_that_stand_still() -> None:
    together = torch.full((10, 4, 1), 0.1)
    apart = torch.arange(4.0).expand(10, 4)[..., None] / 10
    assert math.isnan(float(split_r_hat(together)))
    assert math.isnan(float(effective_sample_size(together)))
    assert float(split_r_hat(apart)) == math.inf
    # Eight half-chains that never move are worth no more than eight draws.
    assert float(effective_sample_size(apart)) < 8
