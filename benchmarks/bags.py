"""Pooling of bags of digits: Hopfield pooling against attention, mean and max pooling.

    python benchmarks/bags.py
    python benchmarks/bags.py --seeds 20

A bag of 5 to 20 of scikit-learn's digits is positive if it contains a 9, as in the bags of Ilse,
Tomczak and Welling (2018). Every network embeds a digit by one hidden layer, pools the bag and
reads it by one linear layer; only the pooling differs. Bags for training and testing are made of
different digits. Accuracy and area under the ROC curve are means over seeds (digits, bags and
weights), with 95 % t-intervals; `ahead of attention` is the mean difference, paired by seed.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from measuring import Row, print_rows
from scipy.stats import t as student
from sklearn.datasets import load_digits
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from isthmus.nn import HopfieldPooling

POSITIVE, WIDTH, TRAINING_BAGS, TEST_BAGS, SMALLEST, LARGEST = 9, 32, 200, 500, 5, 20
STEPS, LEARNING_RATE, WEIGHT_DECAY = 200, 3e-3, 1e-3


class Bags(NamedTuple):
    """Padded bags (B, S, 64), their padding (B, S), and labels (B,)."""

    digits: Tensor
    padding: Tensor
    labels: Tensor


class MeanPooling(nn.Module):
    """The mean of each bag."""

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """Pool (B, S, D) to (B, D)."""
        kept = (~padding)[..., None]
        return (x * kept).sum(1) / kept.sum(1)


class MaxPooling(nn.Module):
    """The largest value of each coordinate in each bag."""

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """Pool (B, S, D) to (B, D)."""
        return x.masked_fill(padding[..., None], -torch.inf).amax(1)


class AttentionPooling(nn.Module):
    """Gated attention of Ilse, Tomczak and Welling (2018), equation 9."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.value, self.gate = nn.Linear(size, size), nn.Linear(size, size)
        self.weight = nn.Linear(size, 1)

    def forward(self, x: Tensor, padding: Tensor) -> Tensor:
        """Pool (B, S, D) to (B, D)."""
        logits = self.weight(self.value(x).tanh() * self.gate(x).sigmoid())
        return (torch.softmax(logits.masked_fill(padding[..., None], -torch.inf), 1) * x).sum(1)


POOLINGS: dict[str, Callable[[], nn.Module]] = {
    "mean": MeanPooling,
    "max": MaxPooling,
    "gated attention": lambda: AttentionPooling(WIDTH),
    "Hopfield": lambda: HopfieldPooling(WIDTH),
    "Hopfield, 3 steps": lambda: HopfieldPooling(WIDTH, steps=3),
    "Hopfield, 4 heads": lambda: HopfieldPooling(WIDTH, num_heads=4),
    "Hopfield, sparsemax": lambda: HopfieldPooling(WIDTH, separation="sparsemax"),
    "Hopfield, learned beta": lambda: HopfieldPooling(WIDTH, learn_beta=True),
}


class BagClassifier(nn.Module):
    """Embed each digit, pool the bag, and read it."""

    def __init__(self, pooling: nn.Module) -> None:
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU())
        self.pooling, self.read = pooling, nn.Linear(WIDTH, 1)

    def forward(self, bags: Bags) -> Tensor:
        """Return the log-odds of the positive class. (B,)."""
        return self.read(self.pooling(self.embed(bags.digits), bags.padding))[:, 0]


def make_bags(
    digits: np.ndarray, labels: np.ndarray, count: int, random: np.random.Generator
) -> Bags:
    """Draw bags, half of which contain the positive digit at least once."""
    sizes = random.integers(SMALLEST, LARGEST + 1, count)
    padding = np.arange(LARGEST) >= sizes[:, None]
    positive = np.arange(count) % 2 == 1
    rest, wanted = np.flatnonzero(labels != POSITIVE), np.flatnonzero(labels == POSITIVE)
    chosen = random.choice(rest, (count, LARGEST))
    chosen[positive, 0] = random.choice(wanted, positive.sum())
    found = torch.from_numpy(digits[chosen]).masked_fill(torch.from_numpy(padding)[..., None], 0)
    return Bags(found, torch.from_numpy(padding), torch.from_numpy(positive.astype(np.float32)))


def run(name: str, seed: int) -> dict[str, float]:
    """Train one network and return its scores on bags of unseen digits."""
    random = np.random.default_rng(seed)
    torch.manual_seed(seed)
    digits, labels = load_digits(return_X_y=True)
    digits = (digits / 16).astype(np.float32)
    order = random.permutation(len(digits))
    train, test = order[::2], order[1::2]
    training = make_bags(digits[train], labels[train], TRAINING_BAGS, random)
    unseen = make_bags(digits[test], labels[test], TEST_BAGS, random)
    network = BagClassifier(POOLINGS[name]())
    optimizer = torch.optim.AdamW(network.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY)
    loss_of = nn.BCEWithLogitsLoss()
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(network(training), training.labels).backward()
        optimizer.step()
    with torch.no_grad():
        logits = network(unseen)
    return {
        "accuracy": float(((logits > 0) == unseen.labels.bool()).float().mean()),
        "AUC": float(roc_auc_score(unseen.labels, logits)),
    }


def interval(values: list[float]) -> str:
    """Return the mean and half the width of its 95 % interval."""
    half = student.ppf(0.975, len(values) - 1) * np.std(values, ddof=1) / math.sqrt(len(values))
    return f"{np.mean(values):.3f} ± {half:.3f}"


def measure(full: bool = False, seed: int = 0, *, seeds: int | None = None) -> Iterator[Row]:
    """Yield a row for each pooling, over 10 seeds, or 3 if not full."""
    torch.set_num_threads(1)
    chosen = range(seed, seed + (seeds or (10 if full else 3)))
    runs = {name: [run(name, one) for one in chosen] for name in POOLINGS}
    attention = [one["AUC"] for one in runs["gated attention"]]
    for name, found in runs.items():
        areas = [one["AUC"] for one in found]
        ahead = [own - other for own, other in zip(areas, attention, strict=True)]
        yield {
            "table": f"Bags of digits, {len(chosen)} seeds",
            "pooling": name,
            "accuracy": interval([one["accuracy"] for one in found]),
            "AUC": interval(areas),
            "ahead of attention": "" if name == "gated attention" else interval(ahead),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=10)
    print_rows(measure(True, seeds=parser.parse_args().seeds))


if __name__ == "__main__":
    main()
