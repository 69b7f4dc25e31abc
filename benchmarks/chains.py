"""Effective draws of HMC and NUTS for each CPU second, and R-hat, on two Gaussians.

    OMP_NUM_THREADS=1 python benchmarks/chains.py

The first has two coordinates with a correlation of 0.9, the second fifty with scales from 1 to 100.
Samplers are tuned; the seconds include the burn-in, and the median of three seeds counts.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch
from measuring import Row, print_rows
from torch import Tensor

import isthmus as ist

SEEDS = 3


class Gaussian(ist.Energy):
    """N(0, covariance), with the score in closed form."""

    def __init__(self, covariance: Tensor) -> None:
        super().__init__()
        self.precision = torch.linalg.inv(covariance)

    @property
    def dim(self) -> int:
        """Coordinates."""
        return len(self.precision)

    def energy(self, x: Tensor) -> Tensor:
        """Return x' P x / 2."""
        return -0.5 * (self.score(x) * x).sum(-1)

    def score(self, x: Tensor) -> Tensor:
        """Return -P x."""
        return -x @ self.precision


CASES = {
    "2-D, correlation 0.9": torch.tensor([[1.0, 0.9], [0.9, 1.0]]),
    "50-D, scales 1 to 100": torch.logspace(0, 4, 50).diag(),
}
SAMPLERS = {"HMC": ist.HMC(n_leapfrog=8, jitter=0.3), "NUTS": ist.NUTS()}


def measured(energy: Gaussian, sampler: Any, chains: int, draws: int) -> Row:
    """Return medians over seeds."""
    options: Any = {"chains": chains, "init": torch.zeros(energy.dim), "tune": True}
    found = []
    for seed in range(SEEDS):
        start = time.process_time()
        run = ist.sample_chains(energy, draws, sampler, seed=seed, **options)
        seconds = time.process_time() - start
        found.append([float(run.ess.min()), float(run.ess.min()) / seconds, float(run.r_hat.max())])
    effective, rate, _ = np.median(found, axis=0).tolist()
    worst = max(r_hat for *_, r_hat in found)
    return {"effective": effective, "a CPU second": rate, "largest R-hat - 1": worst - 1}


def main() -> None:
    rows: list[Row] = []
    for case, covariance in CASES.items():
        for name, sampler in SAMPLERS.items():
            for chains, draws in ((4, 2000), (64, 250)):
                own: Row = {"target": case, "sampler": name, "chains": chains, "draws": draws}
                rows.append({**own, **measured(Gaussian(covariance), sampler, chains, draws)})
    print_rows(rows)


if __name__ == "__main__":
    main()
