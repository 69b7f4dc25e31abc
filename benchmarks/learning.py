"""Learned energies: held-out nats in the plane and on tables, completion of images, speed.

    OMP_NUM_THREADS=1 python benchmarks/learning.py densities|tables|images|step|descent

`densities` and `step` compare with torchebm 0.8.9 (pip install torchebm) where it is installed.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn.mixture import GaussianMixture

import isthmus as ist

ROWS, TEST_ROWS, UPDATES = 2000, 10_000, 1000


def moons(n: int, rng: np.random.Generator) -> np.ndarray:
    angle, upper = np.pi * rng.random(n), rng.random(n) < 0.5
    x = np.where(upper, np.cos(angle), 1 - np.cos(angle))
    y = np.where(upper, np.sin(angle), 0.5 - np.sin(angle))
    return np.c_[x, y] + 0.08 * rng.normal(size=(n, 2))


def rings(n: int, rng: np.random.Generator) -> np.ndarray:
    radius = rng.integers(1, 4, n) + 0.08 * rng.normal(size=n)
    angle = 2 * np.pi * rng.random(n)
    return radius[:, None] * np.c_[np.cos(angle), np.sin(angle)]


def pinwheel(n: int, rng: np.random.Generator) -> np.ndarray:
    arm = rng.integers(0, 5, n)
    x, y = 1 + 0.3 * rng.normal(size=n), 0.1 * rng.normal(size=n)
    turn = 2 * np.pi * arm / 5 + 0.25 * np.exp(x)
    return 2 * np.c_[x * np.cos(turn) - y * np.sin(turn), x * np.sin(turn) + y * np.cos(turn)]


def checkerboard(n: int, rng: np.random.Generator) -> np.ndarray:
    column, row = rng.integers(0, 4, n), 2 * rng.integers(0, 2, n)
    return np.c_[column + rng.random(n), (row + column % 2) + rng.random(n)] - 2


def spirals(n: int, rng: np.random.Generator) -> np.ndarray:
    turn = 3 * np.pi * np.sqrt(rng.random(n))
    sign = np.where(rng.random(n) < 0.5, 1, -1)
    return np.c_[np.cos(turn), np.sin(turn)] * (sign * turn / 3)[:, None] + 0.1 * rng.normal(
        size=(n, 2)
    )


DENSITIES = {each.__name__: each for each in (moons, rings, pinwheel, checkerboard, spirals)}


def nats(energy: ist.Energy, rows: np.ndarray, test: np.ndarray) -> float:
    """Return the mean log-density of test rows, normalised on a grid of 401 x 401 nodes."""
    low, high = rows.min(0), rows.max(0)
    reach = 0.5 * (high - low)
    axes = [np.linspace(a, b, 401) for a, b in zip(low - reach, high + reach, strict=True)]
    nodes = np.stack(np.meshgrid(*axes, indexing="ij"), -1).reshape(-1, 2)
    with torch.no_grad():
        height = -np.concatenate([energy.energy(part) for part in np.array_split(nodes, 20)])
    area = np.prod([axis[1] - axis[0] for axis in axes])
    log_z = np.logaddexp.reduce(height.astype(float)) + np.log(area)
    return float(-np.mean(energy.energy(test), dtype=float) - log_z)


def kernel(rows: np.ndarray) -> ist.Energy:
    from isthmus.bandwidth import leave_one_out

    return ist.GaussianKDE(rows, leave_one_out(rows))


def torchebm_steps(energy: ist.Energy, sigma: float) -> dict[str, Callable[[torch.Tensor], None]]:
    """Return a training step of rows (n, D) for each loss of torchebm.

    The loop is that of its documentation: its trainer of contrastive divergence raises TypeError.
    """
    from torchebm.core import BaseModel
    from torchebm.losses import ContrastiveDivergence, DenoisingScoreMatching, SlicedScoreMatching
    from torchebm.samplers import LangevinDynamics

    class Wrapped(BaseModel):
        def __init__(self) -> None:
            super().__init__()
            self.energy = energy

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.energy._energy(x)

    model = Wrapped()
    optimizer = torch.optim.Adam(energy.parameters(), lr=2e-3)
    chains = {"sampler": LangevinDynamics(model, step_size=sigma**2 / 2), "k_steps": 20}
    losses = {
        "denoising": DenoisingScoreMatching(model, noise_scale=sigma),
        "sliced": SlicedScoreMatching(model, n_projections=1, projection_type="gaussian"),
        "contrastive": ContrastiveDivergence(model, **chains),
        "persistent": ContrastiveDivergence(model, **chains, persistent=True, buffer_size=5000),
    }

    def step(loss_of: Any, x: torch.Tensor) -> None:
        optimizer.zero_grad()
        loss = loss_of(x)
        (loss[0] if isinstance(loss, tuple) else loss).backward()
        optimizer.step()

    return {name: partial(step, loss) for name, loss in losses.items()}


def trained_by_torchebm(name: str, rows: np.ndarray, seconds: float, seed: int) -> ist.Energy:
    """Return the network of the default, trained by torchebm for so many CPU seconds."""
    from isthmus.bandwidth import leave_one_out

    torch.manual_seed(seed)
    center, scale = rows.mean(0), rows.std(0)
    x = torch.as_tensor((rows - center) / scale).float()
    energy = ist.NeuralEnergy(rows.shape[1], seed=seed)
    step = torchebm_steps(energy, leave_one_out(x))[name]
    start = time.process_time()
    while time.process_time() - start < seconds:
        step(x[torch.randint(len(x), (256,))])
    return ist.Affine(energy.requires_grad_(False), scale=scale, shift=center)


def densities(seeds: int) -> None:
    """Print mean held-out log-densities; torchebm has the CPU time that fit took."""
    names = ["isthmus", "KDE-CV"]
    if find_spec("torchebm"):
        names += [f"torchebm, {name}" for name in ("denoising", "sliced", "persistent")]
    print("density", *names, "CPU s", sep=" | ")
    for name, draw in DENSITIES.items():
        found = []
        for seed in range(seeds):
            rng = np.random.default_rng(seed)
            rows, test = draw(ROWS, rng), draw(TEST_ROWS, rng)
            start = time.process_time()
            trained = ist.fit(ist.NeuralEnergy(2, seed=seed), rows, seed=seed, progress=False)
            seconds = time.process_time() - start
            scores = [nats(trained.energy, rows, test), kernel(rows).log_prob(test).mean()]
            for other in names[2:]:
                energy = trained_by_torchebm(other.split(", ")[1], rows, seconds, seed)
                scores.append(nats(energy, rows, test))
            found.append([*scores, seconds])
        print(name, *(f"{value:.3f}" for value in np.mean(found, 0)), sep=" | ", flush=True)


def step(seeds: int) -> None:
    """Print CPU milliseconds of a training step: 64 columns, 256 rows, the same network."""
    from lightning_fabric import Fabric

    from isthmus.incontext import loop
    from isthmus.incontext import objectives as o
    from isthmus.learning import FitSettings, Noise, RowRecipe

    rows = torch.randn(4096, 64, generator=torch.Generator().manual_seed(0))
    near = o.EnergyProposal(ist.GaussianKDE(rows, 1e-3))
    langevin = o.BranchLangevin(steps=20, noise=0.3, step_size=0.045)
    losses = {
        "denoising": o.DenoisingScoreMatching(sigma=0.3),
        "sliced": o.SlicedScoreMatching(),
        "contrastive": o.ContrastiveDivergence(candidates=1, sampler=langevin, proposal=near),
    }
    print("objective | isthmus, ms | torchebm, ms | ratio")
    for name, loss in losses.items():
        noise = Noise(rows, torch.zeros(64), torch.ones(64), 0)
        settings = FitSettings(objective=loss, updates=10**6, learning_rate=1e-3, rows="", seed=0)
        recipe = RowRecipe(settings, ist.NeuralEnergy(64), rows[:100], noise)
        state = loop._State(recipe, None, Fabric(accelerator="cpu", devices=1))
        other = torchebm_steps(ist.NeuralEnergy(64), 0.3)[name]
        steps = {
            "ours": lambda count, state=state: state.update(count),
            "theirs": lambda count, other=other: other(rows[torch.randint(len(rows), (256,))]),
        }
        spent: dict[str, list[float]] = {key: [] for key in steps}
        for count in range(1, 30 * max(seeds, 1)):
            for key, make in steps.items():
                start = time.process_time()
                make(count)
                spent[key].append(1000 * (time.process_time() - start))
        ours, theirs = (np.median(spent[key][5:]) for key in steps)
        print(f"{name} | {ours:.2f} | {theirs:.2f} | {ours / theirs:.2f}", flush=True)


def images(seeds: int) -> None:
    """Print the root mean squared error of hidden lower halves: digits, and faces of 16 x 16."""
    from sklearn.datasets import load_digits

    from isthmus.datasets import load
    from isthmus.deep import Bias, DeepMemory, Dense, Neurons
    from isthmus.impute import MemoryImputer

    faces = np.asarray(load("olivetti_faces").X, float).reshape(-1, 16, 4, 16, 4).mean((2, 4))
    sets = {"digits": load_digits().data / 16, "faces": faces.reshape(len(faces), -1)}
    sets["faces"] /= sets["faces"].max()
    print("images | mean image | complete, KDE | MemoryImputer | deep memory | CPU s")
    for name, X in sets.items():
        found = []
        for seed in range(seeds):
            order = np.random.default_rng(seed).permutation(len(X))
            test, train = X[order[: len(X) // 5]], X[order[len(X) // 5 :]]
            D = X.shape[1]
            half = test.copy()
            half[:, D // 2 :] = np.nan
            start = time.process_time()
            layers = {"pixels": Neurons(D), "parts": Neurons((16, 32), "softmax", beta=4.0)}
            synapses = [Dense("pixels", "parts"), Bias("pixels"), Bias("parts")]
            memory = DeepMemory(layers, synapses, seed=seed).over("pixels")
            standard = ist.Affine(memory, scale=train.std(), shift=train.mean(0))
            trained = ist.fit(
                standard, train, "completion", updates=UPDATES, learning_rate=0.01, seed=seed
            )
            filled = ist.complete(trained.energy, half, init=train.mean(0), max_steps=4)
            seconds = time.process_time() - start
            fills = [
                np.broadcast_to(train.mean(0), test.shape),
                ist.complete(kernel(train), half),
                MemoryImputer(random_state=seed).fit(train).transform(half),
                filled,
            ]
            errors = [np.sqrt(np.mean((fill - test)[:, D // 2 :] ** 2)) for fill in fills]
            found.append([*errors, seconds])
        print(name, *(f"{value:.4f}" for value in np.mean(found, 0)), sep=" | ", flush=True)


def columns_of(path: Path) -> np.ndarray | None:
    """Return the numbers with at least 20 values of a table, ties spread over their step."""
    frame = pd.read_parquet(path).select_dtypes("number").dropna()
    X = frame.loc[:, frame.nunique() >= 20].to_numpy(float)
    if not 8 <= X.shape[1] <= 16 or len(X) < 300:
        return None
    rng = np.random.default_rng(0)
    gaps = np.array([np.diff(np.unique(column)).min() for column in X.T])
    return X + gaps * (rng.random(X.shape) - 0.5)


def mixture(train: np.ndarray, test: np.ndarray, seed: int) -> float:
    """Return the mean log-density by the Gaussian mixture with the best BIC of 1 to 10."""
    made = [GaussianMixture(k, random_state=seed).fit(train) for k in range(1, 11)]
    return float(min(made, key=lambda each: each.bic(train)).score(test))


def flow(train: np.ndarray, test: np.ndarray, seed: int) -> float:
    """Return the mean log-density by a neural spline flow that stops early; it needs zuko."""
    import zuko

    torch.manual_seed(seed)
    x, y = torch.as_tensor(train).float(), torch.as_tensor(test).float()
    held, own = x[: len(x) // 10], x[len(x) // 10 :]
    made = zuko.flows.NSF(x.shape[1], transforms=3, hidden_features=(64, 64))
    optimizer = torch.optim.Adam(made.parameters(), lr=2e-3)
    best, kept, waited = np.inf, {}, 0
    for update in range(1500):
        optimizer.zero_grad()
        (-made().log_prob(own[torch.randint(len(own), (256,))]).mean()).backward()
        torch.nn.utils.clip_grad_norm_(made.parameters(), 5.0)
        optimizer.step()
        if update % 25 == 24:
            with torch.no_grad():
                score = float(-made().log_prob(held).mean())
            waited = 0 if score < best else waited + 1
            if score < best:
                best, kept = score, {k: v.clone() for k, v in made.state_dict().items()}
            if waited == 8:
                break
    made.load_state_dict(kept)
    with torch.no_grad():
        return float(made().log_prob(y).mean())


def tables(seeds: int) -> None:
    """Print mean held-out log-densities of six tables; log Z by annealing, with its error."""
    folder = Path(os.environ.get("ISTHMUS_ARENA", "../shared/arena"))
    listed = json.loads((folder / "manifest.json").read_text())
    print("table | rows | columns | isthmus | error of log Z | GMM-BIC | spline flow | CPU s")
    count = 0
    for entry in listed:
        X = columns_of(folder / f"{entry['name']}.parquet")
        if X is None or count == 6:
            continue
        count += 1
        found = []
        for seed in range(seeds):
            order = np.random.default_rng(seed).permutation(len(X))
            test, train = X[order[: len(X) // 5]], X[order[len(X) // 5 :]]
            center, scale = train.mean(0), train.std(0)
            train, test = (train - center) / scale, (test - center) / scale
            start = time.process_time()
            trained = ist.fit(ist.NeuralEnergy(X.shape[1]), train, seed=seed, progress=False)
            seconds = time.process_time() - start
            density = ist.with_normalizer(trained.energy, seed=seed)
            ours = density.log_prob(test).mean(), float(density.normalizer.error)
            theirs = mixture(train, test, seed), flow(train, test, seed)
            found.append([*ours, *theirs, seconds])
        values = (f"{value:.3f}" for value in np.mean(found, 0))
        print(entry["name"], len(X), X.shape[1], *values, sep=" | ", flush=True)


def descent(seeds: int) -> None:
    """Print the largest rise of the energy in a step, of 10,000 random deep memories."""
    from isthmus.deep import Attention, Bias, DeepMemory, Dense, Neurons

    kinds = ("identity", "relu", "softmax", "layer_norm", "spherical")
    rng, worst = np.random.default_rng(seeds), 0.0
    for seed in range(10_000):
        names = [f"layer {place}" for place in range(rng.integers(2, 5))]
        layers = {
            name: Neurons(
                tuple(rng.integers(2, 6, 2)), kinds[rng.integers(5)], 4 * rng.random() + 0.1
            )
            for name in names
        }
        pairs = list(pairwise(names))
        if len(names) > 2 and rng.random() < 0.5:
            pairs.append((names[0], names[-1]))
        synapses = [Dense(*pair) for pair in pairs] + [Bias(names[0])]
        if rng.random() < 0.3:
            synapses.append(Attention(names[0], heads=2, head_width=3))
        memory = DeepMemory(layers, synapses, seed=seed).double()
        x = torch.as_tensor(3 * rng.normal(size=(2, memory.dim)))
        held = torch.as_tensor(rng.random((2, memory.dim)) < 0.3) if seed % 2 else None
        with torch.no_grad():
            height = memory._energy(x)
            for _ in range(3):
                x = memory._step(x, held)
                new = memory._energy(x)
                worst = max(worst, float(((new - height) / (1 + height.abs())).max()))
                height = new
    print(f"10,000 memories, 3 steps of 2 states: largest relative rise {worst:.1e}")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("densities", "tables", "images", "step", "descent"))
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    globals()[arguments.what](arguments.seeds)
