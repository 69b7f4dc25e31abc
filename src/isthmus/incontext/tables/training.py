"""Training of the table model: exact likelihood of fresh rows of synthetic tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from isthmus.incontext.config import CheckedFields
from isthmus.incontext.loop import TrainingRecipe, run
from isthmus.incontext.storage import Row, Weights
from isthmus.incontext.tables.model import ICLTables
from isthmus.incontext.tables.network import TableConfig, TableNetwork, write_memory
from isthmus.incontext.tables.prior import Batch, draw_batch, draw_mixed

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Relative frequencies of 1, 2, ... columns; more are rarer.
COLUMNS = (3, 3, 2.5, 2.5, 2, 2, 1.5, 1.5, 1, 1, *(0.4,) * 6, *(0.2,) * 8)
# The most columns of tables with categories; their number is nearly log-uniform.
MIXED_COLUMNS = 24
# Share of mixed tables without numbers.
NO_NUMBERS = 0.06
# Log-sizes of contexts are a power of a uniform number: small tables are cheaper.
SMALL = 1.25
# Share of updates with missing cells, and their largest share of the cells.
WITH_GAPS, MOST_GAPS = 0.25, 0.4
# Shapes (D, n) and seed of the tables that follow the training.
HELD_OUT_SHAPES = ((1, 16), (1, 128), (2, 32), (2, 256), (4, 32), (4, 128), (8, 64), (8, 256))
# Shapes (D, C, n) of those with categories.
HELD_OUT_MIXED = ((0, 3, 64), (1, 2, 32), (3, 1, 128), (4, 4, 64), (4, 4, 256), (6, 8, 128))
# Layers that are zero in a model that never read a category.
READ_FIRST = ("share_out.weight", "group_out.weight")
HELD_OUT_TABLES, HELD_OUT_SEED = 8, 2**31


@dataclass(frozen=True, kw_only=True)
class TableTraining(CheckedFields):
    """Settings of a training run of the table model.

    Parameters
    ----------
    model : TableConfig
    mixed : float
        Share of updates whose tables have categories.
    asked : float
        Share of updates whose last column is to be predicted: the network is told, and the
        objective is mostly the likelihood of that column given the others.
    updates : int
        Steps of the optimiser.
    context_rows : int
        Context rows of each update, over all of its tables.
    tables : int
        The most tables of an update.
    rows : int
        Fresh rows of each table, whose log-density is the objective.
    passes : int
        Forward and backward passes of an update, which share its context rows and tables, all of
        one shape; processes share the passes.
    size_low, size_high : int
        Context sizes, nearly log-uniform; one size and one number of columns for each update.
    learning_rate, weight_decay, clip, average : float
        Of AdamW, the largest norm of the gradient, and the decay of the average of the weights.
    warmup : int
        Updates over which the learning rate rises from zero.
    decay : float
        Share of the updates, at the end, over which the learning rate falls to zero.
    seed : int
    """

    model: TableConfig = field(default_factory=TableConfig)
    mixed: float = 0.6
    asked: float = 0.45
    updates: int = 6_500
    context_rows: int = 1536
    tables: int = 40
    rows: int = 96
    passes: int = 1
    size_low: int = 5
    size_high: int = 1024
    learning_rate: float = 1e-3
    weight_decay: float = 1e-2
    clip: float = 1.0
    average: float = 0.999
    warmup: int = 100
    decay: float = 0.8
    seed: int = 0

    zero = ("mixed", "asked", "weight_decay", "warmup", "seed")

    @classmethod
    def of_numbers(cls) -> TableTraining:
        """Return the settings of the first stage: tables of numbers, from random weights."""
        model = TableConfig(max_columns=16)
        return cls(model=model, mixed=0, asked=0, updates=14_000, learning_rate=1.5e-3, decay=0.6)

    def learning_rate_at(self, update: int) -> float:
        """Return the learning rate of one update, counted from 0."""
        rise = min(1.0, (update + 1) / (self.warmup + 1))
        left = (self.updates - update) / (self.decay * self.updates)
        fall = 1.0 if left >= 1 else 0.5 - 0.5 * math.cos(math.pi * left)
        return self.learning_rate * rise * fall

    def with_batch(self, tables: int) -> TableTraining:
        """Return the same training with other batches, of as many context rows a table."""
        rows = max(1, round(self.context_rows * tables / self.tables))
        return replace(self, tables=tables, context_rows=rows)

    def on_devices(self, devices: int) -> TableTraining:
        """Return the same training with passes that the processes can share equally."""
        return self if self.passes % devices == 0 else replace(self, passes=devices)

    def draw(self, update: int, part: int = 0) -> Task:
        """Return the tables of one pass of an update.

        They depend on the arguments alone; the passes of an update have one shape.
        """
        rng = np.random.default_rng([self.seed, update])
        numbers, categories = self._columns(rng)
        low, high = math.log(self.size_low), math.log(self.size_high + 1)
        size = int(math.exp(low + (high - low) * rng.random() ** SMALL))
        missing = rng.uniform(0, MOST_GAPS) if size > 15 and rng.random() < WITH_GAPS else 0.0
        tables = max(1, min(self.tables, self.context_rows // size) // self.passes)
        several = numbers + categories > 1
        asked = self.asked > 0 and several and rng.random() < self.asked
        number = numbers > 0 and (categories == 0 or bool(rng.random() < 0.4))
        if part:
            rng = np.random.default_rng([self.seed, update, part])
        if not categories and not asked:
            return Task(draw_batch(rng, tables, size, self.rows, numbers, missing))
        responses = 0.75 if asked else 0.35
        drawn = draw_mixed(rng, tables, size, self.rows, numbers, categories, missing, responses)
        return Task(drawn, asked, number)

    def _columns(self, rng: np.random.Generator) -> tuple[int, int]:
        """Return numbers of columns of numbers and of categories."""
        if self.mixed and rng.random() < self.mixed:
            total = int(math.exp(rng.uniform(math.log(2), math.log(MIXED_COLUMNS + 1))))
            if rng.random() < NO_NUMBERS:
                return 0, total
            categories = int(rng.integers(1, total)) if rng.random() < 0.75 else 1
            return total - categories, categories
        weights = np.array(COLUMNS[: self.model.max_columns])
        return 1 + int(rng.choice(len(weights), p=weights / weights.sum())), 0


class Task(NamedTuple):
    """The tables of an update, and what is asked of them."""

    batch: Batch
    asked: bool = False  # the network is told that the last column is to be predicted
    number: bool = True  # the last column is one of numbers

    @property
    def width(self) -> int:
        """The number of columns."""
        return self.batch.context.shape[2] + self.batch.codes.shape[2]

    def log_probs(self, network: Any) -> tuple[Tensor, Tensor]:
        """Return log-densities of fresh rows, and of their last column given the others."""
        device = next(network.parameters()).device
        context, rows, codes, row_codes, counts = (
            torch.from_numpy(each).to(device) for each in self.batch
        )
        last = (context.shape[2] if self.number else self.width) - 1
        memory = write_memory(network, context, codes, counts, last if self.asked else None)
        return memory.log_probs(rows, row_codes, self.number)


def held_out_score(mixed: bool) -> Callable[[Any], float]:
    """Return a function that scores a network on fixed tables, in nats for each column."""
    rng = np.random.default_rng(HELD_OUT_SEED)
    tasks = [Task(draw_batch(rng, HELD_OUT_TABLES, n, 128, D)) for D, n in HELD_OUT_SHAPES]
    for D, C, n in HELD_OUT_MIXED if mixed else ():
        batch = draw_mixed(rng, HELD_OUT_TABLES, n, 128, D, C)
        tasks += [Task(batch, asked, asked and n > 64) for asked in (False, True)]

    @torch.no_grad()
    def score(network: Any) -> float:
        found: dict[tuple[bool, bool], list[float]] = {}
        for task in tasks:
            joint, last = task.log_probs(network)
            value = float(last.mean()) if task.asked else float(joint.mean()) / task.width
            kind = task.asked, task.number if task.asked else task.batch.codes.shape[2] > 0
            found.setdefault(kind, []).append(-value)
        return float(np.mean([np.mean(values) for values in found.values()]))

    return score


class _TableRecipe(TrainingRecipe):
    """Training of an :class:`ICLTables` by the likelihood of fresh rows."""

    def __init__(self, settings: TableTraining, init: ICLTables | None = None) -> None:
        self.settings: TableTraining = settings
        if init is not None:
            given = {name: value.float() for name, value in init.network.state_dict().items()}
            fresh = self.new_network().state_dict()
            # Layers that read nothing yet start with random weights, so that they can learn.
            unread = not any(bool(given[f"mixed.{name}"].any()) for name in READ_FIRST)
            kept = [name for name in fresh if unread and name.startswith("mixed.")]
            self.start = {**given, **{name: fresh[name] for name in kept}}
        self.average, self.passes = settings.average, settings.passes

    def new_network(self) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            return TableNetwork(self.settings.model)

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(network.parameters(), weight_decay=self.settings.weight_decay)

    def loss(self, network: nn.Module, update: int, part: int) -> Tensor:
        task = self.settings.draw(update, part)
        joint, last = task.log_probs(network)
        whole = -joint.mean() / math.sqrt(task.width)
        if self.settings.mixed == 0 or task.width == 1:
            return whole
        return 0.15 * whole - last.mean() if task.asked else whole - 0.3 * last.mean()

    def held_out(self) -> Callable[[Any], float]:
        return held_out_score(self.settings.mixed > 0)

    def finished(self, weights: Weights) -> ICLTables:
        named = {f"network.{name}": value for name, value in weights.items()}
        return ICLTables.assembled(self.settings.model, named)


def train_tables(
    settings: TableTraining,
    out: str | Path | None = None,
    *,
    init: ICLTables | None = None,
    devices: int = 1,
    accelerator: str = "auto",
    fabric: Fabric | None = None,
    log_every: int = 20,
    evaluate_every: int = 200,
    checkpoint_every: int | None = None,
    progress: bool | None = None,
    report: Callable[[Row], None] | None = None,
) -> tuple[ICLTables, list[Row]]:
    """Train a table model; return it with the rows of its metrics.

    Parameters
    ----------
    init : ICLTables, optional
        A model whose weights to start from, such as one of the first stage.

    The other parameters are those of :func:`isthmus.incontext.train`; processes share the passes
    of an update (:meth:`TableTraining.on_devices`).
    """
    recipe = _TableRecipe(settings, init)
    weights, rows = run(
        recipe, out, devices=devices, accelerator=accelerator, fabric=fabric, log_every=log_every,
        evaluate_every=evaluate_every, checkpoint_every=checkpoint_every, progress=progress,
        report=report,
    )  # fmt: skip
    return recipe.finished(weights), rows
