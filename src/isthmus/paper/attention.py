"""Train one small transformer with three kinds of attention at increasing learning rates."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

import pandas as pd
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from isthmus.attention.layers import PreNormAttention, SALNAttention
from isthmus.attention.mixture import entanglement
from isthmus.attention.view import vmf_view
from isthmus.errors import InvalidInputError
from isthmus.io.reading import reading
from isthmus.progress import progress as progress_bar

# Each kind of attention, made of a norm and a plain attention.
VARIANTS: dict[str, Callable[..., PreNormAttention | SALNAttention]] = {
    "pre-norm": PreNormAttention.from_prenorm,
    "QK-norm": partial(PreNormAttention.from_prenorm, qk_norm=True),
    "SALN": SALNAttention.from_prenorm,
}
LEARNING_RATES = (1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
CLASSES, PATCHES, PIXELS, HEADS, WIDTH, DEPTH, BATCH = 10, 16, 4, 4, 32, 2, 64
TEST_SHARE = 0.2
# A model with a loss above this has learned nothing.
GUESSING = 0.95 * math.log(CLASSES)
# Images on which logits are measured, and measurements per run.
PROBED, PROBES = 64, 16


class PatchTransformer(nn.Module):
    """Classify images from their patches, with attention of one of the `VARIANTS`.

    Models with the same seed start from the same pre-norm weights, converted to their variant.
    """

    def __init__(self, variant: str = "pre-norm", *, seed: int = 0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed = nn.Linear(PIXELS, WIDTH)
            self.places = nn.Parameter(0.02 * torch.randn(PATCHES, WIDTH))
            self.blocks = nn.ModuleList(_Block(variant) for _ in range(DEPTH))
            self.norm = nn.LayerNorm(WIDTH)
            self.classify = nn.Linear(WIDTH, CLASSES)

    def forward(self, patches: Tensor) -> Tensor:
        """Return class logits. (B, 16, 4) -> (B, 10)."""
        x = self.embed(patches) + self.places
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.classify(self.norm(x).mean(1))
        return logits

    @torch.no_grad()
    def layers(self, patches: Tensor) -> list[tuple[Any, Tensor]]:
        """Return the attention layer of each block and its input. (B, 16, 4) -> (B, 16, D) each."""
        x, found = self.embed(patches) + self.places, []
        for block in self.blocks:
            found.append((block.attention, x))
            x = block(x)
        return found

    def largest_logit(self) -> float:
        """Return the largest absolute logit on a few images; zero if the model is not finite."""
        try:
            layers = self.layers(digit_patches()[0][:PROBED])
            found = [float(vmf_view(*each).logits().abs().max()) for each in layers]
        except InvalidInputError:
            return 0.0
        return max(filter(math.isfinite, found), default=0.0)


class _Block(nn.Module):
    def __init__(self, variant: str) -> None:
        super().__init__()
        norm = nn.LayerNorm(WIDTH)
        attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        # A new layer draws weights before it copies others; later draws must not depend on it.
        with torch.random.fork_rng(devices=[]):
            self.attention = VARIANTS[variant](norm, attention)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Apply attention and feed-forward layer. (B, S, D) -> (B, S, D)."""
        x = x + self.attention(x, x, x, need_weights=False)[0]
        moved: Tensor = x + self.feed_forward(x)
        return moved


@cache
def digit_patches() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return scikit-learn's digits as patches (n, 16, 4) and labels, for training and testing."""
    pixels, labels = load_digits(return_X_y=True)
    pictures = torch.from_numpy(pixels).float().reshape(-1, 4, 2, 4, 2)
    patches = pictures.transpose(2, 3).reshape(-1, PATCHES, PIXELS)
    order = torch.randperm(len(patches), generator=torch.Generator().manual_seed(0))
    test, train = order.tensor_split([int(TEST_SHARE * len(patches))])
    scaled = (patches - patches[train].mean()) / patches[train].std()
    targets = torch.from_numpy(labels)
    return scaled[train], targets[train], scaled[test], targets[test]


def train_on_digits(
    model: PatchTransformer,
    learning_rate: float,
    *,
    steps: int = 200,
    seed: int = 0,
    watch: Callable[[int], None] | None = None,
) -> list[float]:
    """Train a model in place, and return the loss before each step, up to one that is not finite.

    Adam, a warm-up over the first tenth of the steps and a cosine to zero after it, no clipping of
    gradients, no weight decay. `watch` is called after each step with its number.
    """
    train, labels, _, _ = digit_patches()
    warmup = steps // 10

    def share(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / (steps - warmup)))

    optimizer = torch.optim.Adam(model.parameters(), lr=learning_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, share)
    generator = torch.Generator().manual_seed(seed)
    losses: list[float] = []
    for step in range(steps):
        rows = torch.randint(len(train), (BATCH,), generator=generator)
        loss = cross_entropy(model(train[rows]), labels[rows])
        losses.append(float(loss.detach()))
        if not math.isfinite(losses[-1]):
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if watch is not None:
            watch(step)
    return losses


def compare_variants(
    variants: Iterable[str] = VARIANTS,
    learning_rates: Iterable[float] = LEARNING_RATES,
    *,
    seeds: Iterable[int] = range(5),
    steps: int = 200,
    progress: bool | None = None,
) -> pd.DataFrame:
    """Train the same transformer with each kind of attention, learning rate and seed: a row each.

    The columns are `loss` (cross-entropy over the last tenth of the steps), `test_loss`,
    `test_accuracy`, `diverged` (never finite, or no better than guessing at the end),
    `largest_logit` (of any block during the run), and `entanglement` (mean absolute correlation of
    concentration with log-weight). A measure that is not finite is infinite.
    """
    wanted, runs = list(product(seeds, learning_rates, variants)), []
    with progress_bar("attention experiment", len(wanted), show=progress) as report:
        for seed, rate, variant in wanted:
            measured = _train(variant, rate, seed, steps)
            runs.append({"variant": variant, "learning_rate": rate, "seed": seed, **measured})
            report(len(runs))
    return pd.DataFrame(runs)


def load_runs(path: str | Path) -> pd.DataFrame:
    """Read recorded runs, as :func:`compare_variants` returns them."""
    with reading(path, "file of runs") as place:
        return pd.DataFrame(json.loads(place.read_text("utf-8"))["runs"]).fillna(math.inf)


def _train(variant: str, rate: float, seed: int, steps: int) -> dict[str, Any]:
    train, _, test, test_labels = digit_patches()
    model = PatchTransformer(variant, seed=seed)
    logits = [model.largest_logit()]

    def look(step: int) -> None:
        if (step + 1) % max(1, steps // PROBES) == 0:
            logits.append(model.largest_logit())

    losses = train_on_digits(model, rate, steps=steps, seed=seed, watch=look)
    with torch.no_grad():
        scores = model(test)
        test_loss = float(cross_entropy(scores, test_labels))
    loss, accuracy, tied = fmean(losses[-max(1, steps // 10) :]), math.inf, math.inf
    finite = math.isfinite(loss) and math.isfinite(test_loss)
    if finite:
        accuracy = float((scores.argmax(1) == test_labels).double().mean())
        views = [vmf_view(*each) for each in model.layers(train[:PROBED])]
        tied = float(torch.cat([entanglement(v).correlation.abs() for v in views]).nanmean())
    found = {"loss": loss, "test_loss": test_loss, "test_accuracy": accuracy}
    found |= {"largest_logit": max(logits), "entanglement": tied}
    rounded = {name: float(f"{value:.5g}") for name, value in found.items()}
    rounded |= {name: math.inf for name, value in rounded.items() if not math.isfinite(value)}
    return {**rounded, "diverged": not finite or loss > GUESSING}
