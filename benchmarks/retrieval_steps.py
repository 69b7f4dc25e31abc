"""Do several steps of retrieval help a trained layer? A test that was written before it was run.

    OMP_NUM_THREADS=1 python benchmarks/retrieval_steps.py

Task. Each example has 32 stored patterns in 16 dimensions: 8 copies, with noise of standard
deviation 0.5, of each of 4 prototypes N(0, I), in random order, each with the label of its
prototype, one of 4. The query is a prototype with noise of standard deviation 1.5; the answer is
its label. Patterns are new in every example, so that a layer must look the answer up. Iterated
retrieval can move the query to the middle of its copies before it reads their labels: if several
steps help anywhere, then here.

Models. `isthmus.nn.Hopfield` with 3 steps; the same with 1 step; `torch.nn.MultiheadAttention` with
the same layer norms, so that all three have the same number of parameters. 2 heads; a linear map to
4 logits.

Training. 400 updates of Adam, learning rate 3e-3, batches of 64 new examples, the same ones for all
models of a seed. Score: accuracy on 2,000 new examples.

Hypotheses. The accuracy of 3 steps is higher than (1) that of 1 step, (2) that of attention. 20
seeds, paired two-sided Wilcoxon tests at the level 0.05, with Holm's correction for the two.
Nothing of this is changed after the first run; the result is reported whichever way it falls.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy.stats import wilcoxon
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from isthmus.nn import Hopfield

CLASSES, COPIES, DIM, SEEDS, UPDATES, BATCH, TESTED = 4, 8, 16, 20, 400, 64, 2000
WIDTH = DIM + CLASSES


def examples(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return stored patterns with labels (B, 32, 20), queries (B, 1, 20) and answers (B,)."""
    prototypes = torch.randn(count, CLASSES, DIM, generator=generator)
    labels = torch.arange(CLASSES).repeat_interleave(COPIES).expand(count, -1)
    order = torch.rand(labels.shape, generator=generator).argsort(1)
    labels = labels.gather(1, order)
    copies = prototypes.gather(1, labels[..., None].expand(-1, -1, DIM))
    copies = copies + 0.5 * torch.randn(copies.shape, generator=generator)
    stored = torch.cat([copies, one_hot(labels, CLASSES).float()], dim=2)
    answer = torch.randint(CLASSES, (count,), generator=generator)
    query = prototypes[torch.arange(count), answer]
    query = query + 1.5 * torch.randn(query.shape, generator=generator)
    return stored, torch.cat([query, torch.zeros(count, CLASSES)], dim=1)[:, None], answer


class Iterated(nn.Module):
    """A Hopfield layer of several steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.layer = Hopfield(WIDTH, num_heads=2, steps=steps)
        self.readout = nn.Linear(WIDTH, CLASSES)

    def forward(self, stored: Tensor, query: Tensor) -> Tensor:
        """Return logits (B, 4)."""
        return self.readout(self.layer((stored, query, stored)))[:, 0]


class Attended(nn.Module):
    """Multi-head attention with the layer norms of a Hopfield layer."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.layer = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.readout = nn.Linear(WIDTH, CLASSES)

    def forward(self, stored: Tensor, query: Tensor) -> Tensor:
        """Return logits (B, 4)."""
        normed = (norm(x) for norm, x in zip(self.norms, (query, stored, stored), strict=True))
        return self.readout(self.layer(*normed, need_weights=False)[0])[:, 0]


def accuracy(model: nn.Module, seed: int) -> float:
    """Return the accuracy on new examples after training."""
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(UPDATES):
        stored, query, answer = examples(BATCH, generator)
        optimizer.zero_grad()
        cross_entropy(model(stored, query), answer).backward()
        optimizer.step()
    stored, query, answer = examples(TESTED, torch.Generator().manual_seed(10**6 + seed))
    with torch.no_grad():
        return float((model(stored, query).argmax(1) == answer).float().mean())


def main() -> None:
    kinds = {"3 steps": lambda: Iterated(3), "1 step": lambda: Iterated(1), "attention": Attended}
    found: dict[str, list[float]] = {name: [] for name in kinds}
    for seed in range(SEEDS):
        for name, build in kinds.items():
            torch.manual_seed(seed)
            found[name].append(accuracy(build(), seed))
    for name, build in kinds.items():
        size = sum(each.numel() for each in build().parameters())
        print(f"{name:10} {size} parameters, accuracy {np.mean(found[name]):.4f} "
              f"± {np.std(found[name], ddof=1) / SEEDS**0.5:.4f}")  # fmt: skip
    levels = {}
    for name in ("1 step", "attention"):
        levels[name] = float(wilcoxon(found["3 steps"], found[name]).pvalue)
    smaller = min(levels.values())
    for name, level in levels.items():
        gain = np.subtract(found["3 steps"], found[name])
        corrected = min(1.0, 2 * level if level == smaller else max(level, 2 * smaller))
        verdict = "higher" if gain.mean() > 0 else "lower"
        verdict = verdict if corrected < 0.05 else "no difference shown"
        print(f"3 steps against {name}: {gain.mean():+.4f} ± {gain.std(ddof=1) / SEEDS**0.5:.4f}, "
              f"p = {corrected:.3g} (Holm): {verdict}")  # fmt: skip


if __name__ == "__main__":
    main()
