"""Train one small transformer with three kinds of attention at increasing learning rates."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import product
from pathlib import Path
from statistics import fmean, median
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from isthmus.attention.layers import PreNormAttention, SALNAttention
from isthmus.attention.mixture import entanglement
from isthmus.attention.view import vmf_view
from isthmus.errors import InvalidInputError
from isthmus.io.files import write_atomically
from isthmus.io.reading import reading
from isthmus.progress import progress as progress_bar
from isthmus.validation import as_choice, as_count

__all__ = ["Experiment", "TrainingRun", "compare_variants", "train_on_digits"]

# Each kind of attention, made of a norm and a plain attention.
VARIANTS: dict[str, Callable[..., PreNormAttention | SALNAttention]] = {
    "pre-norm": PreNormAttention.from_prenorm,
    "QK-norm": partial(PreNormAttention.from_prenorm, qk_norm=True),
    "SALN": SALNAttention.from_prenorm,
}
LEARNING_RATES = (1e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0)
CLASSES, PATCHES, PIXELS, HEADS = 10, 16, 4, 4
TEST_SHARE = 0.2
# A model with a loss above this has learned nothing.
GUESSING = 0.95 * math.log(CLASSES)
# Images on which logits are measured, and measurements per run.
PROBED, PROBES = 64, 16


class PatchTransformer(nn.Module):
    """Classify images from their patches, with attention of one of the `VARIANTS`.

    Models with the same seed start from the same pre-norm weights, converted to their variant.
    """

    def __init__(
        self, variant: str = "pre-norm", *, width: int = 32, depth: int = 2, seed: int = 0
    ) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed = nn.Linear(PIXELS, width)
            self.places = nn.Parameter(0.02 * torch.randn(PATCHES, width))
            self.blocks = nn.ModuleList(_Block(variant, width) for _ in range(depth))
            self.norm = nn.LayerNorm(width)
            self.classify = nn.Linear(width, CLASSES)

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


class _Block(nn.Module):
    def __init__(self, variant: str, width: int) -> None:
        super().__init__()
        norm = nn.LayerNorm(width)
        attention = nn.MultiheadAttention(width, HEADS, batch_first=True)
        # A new layer draws weights before it copies others; later draws must not depend on it.
        with torch.random.fork_rng(devices=[]):
            self.attention = VARIANTS[variant](norm, attention)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Apply attention and feed-forward layer. (B, S, D) -> (B, S, D)."""
        x = x + self.attention(x, x, x, need_weights=False)[0]
        moved: Tensor = x + self.feed_forward(x)
        return moved


@cache
def digit_patches() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return scikit-learn's digits as 16 patches of 2 by 2 pixels, in a fixed split.

    Patches and labels for training, (n, 16, 4) and (n,), then those for testing.
    """
    pixels, labels = load_digits(return_X_y=True)
    pictures = torch.from_numpy(pixels).float().reshape(-1, 4, 2, 4, 2)
    patches = pictures.transpose(2, 3).reshape(-1, PATCHES, PIXELS)
    order = torch.randperm(len(patches), generator=torch.Generator().manual_seed(0))
    test, train = order.tensor_split([int(TEST_SHARE * len(patches))])
    scaled = (patches - patches[train].mean()) / patches[train].std()
    targets = torch.from_numpy(labels)
    return scaled[train], targets[train], scaled[test], targets[test]


@dataclass(frozen=True)
class TrainingRun:
    """One training run.

    Attributes
    ----------
    loss : float or None
        Cross-entropy in training, over the last tenth of the steps; None if not finite.
    test_loss, test_accuracy : float or None
    diverged : bool
        True if the loss was ever not finite, or is no better than guessing at the end.
    largest_logit : float
        Largest absolute attention logit measured in any block during the run.
    entanglement : float or None
        Mean absolute correlation of concentration with log-weight over blocks and heads.
    """

    variant: str
    learning_rate: float
    seed: int
    loss: float | None
    test_loss: float | None
    test_accuracy: float | None
    diverged: bool
    largest_logit: float
    entanglement: float | None

    def value(self, measure: str) -> float:
        """Return a measure, or infinity if it is missing."""
        found: float | None = getattr(self, measure)
        return math.inf if found is None else found


@dataclass(frozen=True)
class Experiment:
    """All runs of a comparison."""

    runs: tuple[TrainingRun, ...]

    @property
    def variants(self) -> list[str]:
        """The kinds of attention, in the order of ``VARIANTS``."""
        return [name for name in VARIANTS if any(run.variant == name for run in self.runs)]

    @property
    def learning_rates(self) -> list[float]:
        """The learning rates, ascending."""
        return sorted({run.learning_rate for run in self.runs})

    def of(self, variant: str, learning_rate: float) -> list[TrainingRun]:
        """Return the runs of one variant and learning rate, one for each seed."""
        cell = (variant, learning_rate)
        return [run for run in self.runs if (run.variant, run.learning_rate) == cell]

    def fraction_diverged(self, variant: str, learning_rate: float) -> float:
        """Return the fraction of seeds whose runs diverged."""
        return fmean(run.diverged for run in self.of(variant, learning_rate))

    def median(self, measure: str, variant: str, learning_rate: float) -> float:
        """Return the median over seeds; a missing value counts as infinite."""
        return median(run.value(measure) for run in self.of(variant, learning_rate))

    @classmethod
    def load(cls, path: str | Path) -> Experiment:
        """Read a file written by :func:`compare_variants`."""
        with reading(path, "file of runs") as place:
            kept = json.loads(place.read_text(encoding="utf-8"))
            return cls(tuple(TrainingRun(**run) for run in kept["runs"]))


def compare_variants(
    variants: Iterable[str] = VARIANTS,
    learning_rates: Iterable[float] = LEARNING_RATES,
    *,
    seeds: int | Iterable[int] = 5,
    steps: int = 200,
    batch: int = 64,
    width: int = 32,
    depth: int = 2,
    path: str | Path | None = None,
    progress: bool | None = None,
) -> Experiment:
    """Train the same transformer on digits with each kind of attention and learning rate.

    Adam, a warm-up over the first tenth of the steps and a cosine to zero after it, no
    clipping of gradients, no weight decay. All runs of a seed see the same batches.

    Parameters
    ----------
    variants : iterable of {"pre-norm", "QK-norm", "SALN"}
    learning_rates : iterable of float
    seeds : int or iterable of int
        The number of seeds, from 0 on, or the seeds themselves.
    steps, batch, width, depth : int
    path : path, optional
        A JSON file to write the runs to.
    progress : bool, optional
        Show a progress bar. Default: on a terminal, for long runs.

    Examples
    --------
    >>> from isthmus.paper.attention import compare_variants
    >>> compare_variants(["SALN"], [0.01], seeds=1, steps=20, progress=False).variants
    ['SALN']
    """
    settings = {
        "steps": as_count(steps, "steps", at_least=10),
        "batch": as_count(batch, "batch"),
        "width": as_count(width, "width"),
        "depth": as_count(depth, "depth"),
    }
    chosen = [as_choice(variant, "variant", VARIANTS) for variant in variants]
    draws = seeds if isinstance(seeds, Iterable) else range(as_count(seeds, "seeds"))
    wanted = list(product(draws, map(float, learning_rates), chosen))
    runs: list[TrainingRun] = []
    with progress_bar("attention experiment", len(wanted), show=progress) as report:
        for seed, rate, variant in wanted:
            runs.append(_train(variant, rate, seed, **settings))
            report(len(runs))
    if path is not None:
        content = {"settings": settings, "runs": [asdict(run) for run in runs]}
        write_atomically(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return Experiment(tuple(runs))


def train_on_digits(
    model: PatchTransformer,
    learning_rate: float,
    *,
    steps: int = 200,
    batch: int = 64,
    seed: int = 0,
    watch: Callable[[int], None] | None = None,
) -> list[float]:
    """Train a model in place, and return the loss before each step.

    Ends early once the loss is not finite. `watch` is called after each step with its number.
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
        rows = torch.randint(len(train), (batch,), generator=generator)
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


def _train(
    variant: str, rate: float, seed: int, *, steps: int, batch: int, width: int, depth: int
) -> TrainingRun:
    train, _, test, test_labels = digit_patches()
    model = PatchTransformer(variant, width=width, depth=depth, seed=seed)
    largest = _largest_logit(model)

    def look(step: int) -> None:
        nonlocal largest
        if (step + 1) % max(1, steps // PROBES) == 0:
            largest = max(largest, _largest_logit(model))

    losses = train_on_digits(model, rate, steps=steps, batch=batch, seed=seed, watch=look)
    with torch.no_grad():
        logits = model(test)
        test_loss = float(cross_entropy(logits, test_labels))
        accuracy = float((logits.argmax(1) == test_labels).double().mean())
    loss, tied = fmean(losses[-max(1, steps // 10) :]), math.nan
    finite = math.isfinite(loss) and math.isfinite(test_loss)
    if finite:
        views = [vmf_view(*each) for each in model.layers(train[:PROBED])]
        tied = float(torch.cat([entanglement(v).correlation.abs() for v in views]).nanmean())
    return TrainingRun(
        *(variant, rate, seed, _rounded(loss), _rounded(test_loss)),
        test_accuracy=_rounded(accuracy) if finite else None,
        diverged=not finite or loss > GUESSING,
        largest_logit=float(f"{largest:.5g}"),
        entanglement=_rounded(tied),
    )


def _largest_logit(model: PatchTransformer) -> float:
    """Return the largest absolute logit on a few images; zero if the model is not finite."""
    try:
        layers = model.layers(digit_patches()[0][:PROBED])
        found = [float(vmf_view(*each).logits().abs().max()) for each in layers]
    except InvalidInputError:
        return 0.0
    return max(filter(math.isfinite, found), default=0.0)


def _rounded(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None
