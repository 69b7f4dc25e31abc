"""Training of the table model: exact likelihood of fresh rows of synthetic tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from isthmus.incontext.config import CheckedFields
from isthmus.incontext.loop import RunOptions, TrainingRecipe, run
from isthmus.incontext.runs import Row, Weights
from isthmus.incontext.storage import assembled
from isthmus.incontext.tables.model import ICLTables
from isthmus.incontext.tables.network import TableConfig, TableNetwork, write_memory
from isthmus.incontext.tables.prior import draw_batch

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# Relative frequencies of 1, 2, ... columns; more are rarer.
COLUMNS = (3, 3, 2.5, 2.5, 2, 2, 1.5, 1.5, 1, 1, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4)
# Log-sizes of contexts are a power of a uniform number: small tables are cheaper.
SMALL = 1.25
# Share of updates with missing cells, and their largest share of the cells.
WITH_GAPS, MOST_GAPS = 0.25, 0.4
# Shapes (D, n) and seed of the tables that follow the training.
HELD_OUT_SHAPES = ((1, 16), (1, 128), (2, 32), (2, 256), (4, 32), (4, 128), (8, 64), (8, 256))
HELD_OUT_TABLES, HELD_OUT_SEED = 8, 2**31


@dataclass(frozen=True, kw_only=True)
class TableTraining(CheckedFields):
    """Settings of a training run of the table model.

    Parameters
    ----------
    model : TableConfig
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
    updates: int = 14_000
    context_rows: int = 1536
    tables: int = 40
    rows: int = 96
    passes: int = 1
    size_low: int = 5
    size_high: int = 1024
    learning_rate: float = 1.5e-3
    weight_decay: float = 1e-2
    clip: float = 1.0
    average: float = 0.999
    warmup: int = 100
    decay: float = 0.6
    seed: int = 0

    zero = ("weight_decay", "warmup", "seed")

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

    def draw(self, update: int, part: int = 0) -> tuple[Tensor, Tensor]:
        """Return contexts (B, n, D) and fresh rows (B, m, D) of one pass of an update.

        They depend on the arguments alone; the passes of an update have one shape.
        """
        rng = np.random.default_rng([self.seed, update])
        weights = np.array(COLUMNS[: self.model.max_columns])
        columns = 1 + int(rng.choice(len(weights), p=weights / weights.sum()))
        low, high = math.log(self.size_low), math.log(self.size_high + 1)
        size = int(math.exp(low + (high - low) * rng.random() ** SMALL))
        missing = rng.uniform(0, MOST_GAPS) if size > 15 and rng.random() < WITH_GAPS else 0.0
        tables = max(1, min(self.tables, self.context_rows // size) // self.passes)
        if part:
            rng = np.random.default_rng([self.seed, update, part])
        batch = draw_batch(rng, tables, size, self.rows, columns, missing)
        return torch.from_numpy(batch.context), torch.from_numpy(batch.rows)


def loss_of(network: TableNetwork, context: Tensor, rows: Tensor) -> Tensor:
    """Return the mean negative log-density of fresh rows, divided by the root of D."""
    log_prob = write_memory(network, context).log_prob(rows)
    return -log_prob.mean() / math.sqrt(rows.shape[2])


class HeldOutTables:
    """Mean negative log-density of fresh rows, for each column, on fixed synthetic tables."""

    @cached_property
    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """Contexts and fresh rows of each shape."""
        rng = np.random.default_rng(HELD_OUT_SEED)
        drawn = [draw_batch(rng, HELD_OUT_TABLES, n, 128, D) for D, n in HELD_OUT_SHAPES]
        return [(torch.from_numpy(each.context), torch.from_numpy(each.rows)) for each in drawn]

    @torch.no_grad()
    def __call__(self, network: Any) -> float:
        """Return the score of a network in nats."""
        scores = [
            -float(write_memory(network, context).log_prob(rows).mean()) / rows.shape[2]
            for context, rows in self.batches
        ]
        return float(np.mean(scores))


class TableRecipe(TrainingRecipe):
    """Training of an :class:`ICLTables` by the likelihood of fresh rows."""

    def __init__(self, settings: TableTraining) -> None:
        self.settings: TableTraining = settings
        self.average, self.passes = settings.average, settings.passes

    def new_network(self) -> nn.Module:
        """Return the network with its first weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            return TableNetwork(self.settings.model)

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Return the optimiser of the network."""
        return torch.optim.AdamW(network.parameters(), weight_decay=self.settings.weight_decay)

    def loss(self, network: nn.Module, update: int, part: int) -> Tensor:
        """Return the loss of one pass."""
        device = next(network.parameters()).device
        context, rows = (x.to(device) for x in self.settings.draw(update, part))
        return loss_of(cast(TableNetwork, network), context, rows)

    def held_out(self) -> Callable[[Any], float]:
        """Return the held-out score of a network."""
        return HeldOutTables()

    def finished(self, weights: Weights) -> ICLTables:
        """Return the model with the given weights."""
        named = {f"network.{name}": value for name, value in weights.items()}
        return cast(ICLTables, assembled(ICLTables, self.settings.model, named))


def train_tables(
    settings: TableTraining,
    out: str | Path | None = None,
    *,
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

    The parameters are those of :func:`isthmus.incontext.train`; processes share the passes of an
    update (:meth:`TableTraining.on_devices`).
    """
    recipe = TableRecipe(settings)
    options = RunOptions(
        devices=devices,
        accelerator=accelerator,
        fabric=fabric,
        log_every=log_every,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        progress=progress,
        report=report,
    )
    weights, rows = run(recipe, out, options)
    return recipe.finished(weights), rows
