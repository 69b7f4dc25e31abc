"""Training of the table model: exact likelihood of fresh rows of synthetic tables."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from isthmus.errors import DivergenceError, InvalidInputError
from isthmus.files import exclusive
from isthmus.incontext.config import CheckedFields
from isthmus.incontext.tables.features import features
from isthmus.incontext.tables.model import ICLTables
from isthmus.incontext.tables.network import Components, TableConfig, TableNetwork
from isthmus.incontext.tables.prior import draw_batch
from isthmus.incontext.tables.resolution import column_resolution, width_floor
from isthmus.incontext.training import Checkpoint, Row, metrics_log
from isthmus.progress import progress as show_progress

SECONDS_BETWEEN_CHECKPOINTS = 60.0
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
    updates: int = 4000
    context_rows: int = 1536
    tables: int = 40
    rows: int = 96
    size_low: int = 5
    size_high: int = 1024
    learning_rate: float = 2e-3
    weight_decay: float = 1e-2
    clip: float = 1.0
    average: float = 0.998
    warmup: int = 100
    decay: float = 0.31
    seed: int = 0

    zero = ("weight_decay", "warmup", "seed")

    def learning_rate_at(self, update: int) -> float:
        """Return the learning rate of one update, counted from 0."""
        rise = min(1.0, (update + 1) / (self.warmup + 1))
        left = (self.updates - update) / (self.decay * self.updates)
        fall = 1.0 if left >= 1 else 0.5 - 0.5 * math.cos(math.pi * left)
        return self.learning_rate * rise * fall

    def draw(self, update: int) -> tuple[Tensor, Tensor]:
        """Return contexts (B, n, D) and fresh rows (B, m, D); they depend on the update alone."""
        rng = np.random.default_rng([self.seed, update])
        weights = np.array(COLUMNS[: self.model.max_columns])
        columns = 1 + int(rng.choice(len(weights), p=weights / weights.sum()))
        low, high = math.log(self.size_low), math.log(self.size_high + 1)
        size = int(math.exp(low + (high - low) * rng.random() ** SMALL))
        missing = rng.uniform(0, MOST_GAPS) if size > 15 and rng.random() < WITH_GAPS else 0.0
        tables = max(1, min(self.tables, self.context_rows // size))
        batch = draw_batch(rng, tables, size, self.rows, columns, missing)
        return torch.from_numpy(batch.context), torch.from_numpy(batch.rows)


def write_memory(network: TableNetwork, context: Tensor) -> Components:
    """Return the components that a network writes for contexts (B, n, D) in standard units."""
    resolution = column_resolution(context)
    return cast(Components, network(features(context, resolution), width_floor(resolution)))


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
    def __call__(self, network: TableNetwork) -> float:
        """Return the score of a network in nats."""
        scores = [
            -float(write_memory(network, context).log_prob(rows).mean()) / rows.shape[2]
            for context, rows in self.batches
        ]
        return float(np.mean(scores))


def train_tables(
    settings: TableTraining,
    out: str | Path | None = None,
    *,
    log_every: int = 20,
    evaluate_every: int = 200,
    checkpoint_every: int | None = None,
    progress: bool | None = None,
    report: Callable[[Row], None] | None = None,
) -> tuple[ICLTables, list[Row]]:
    """Train a table model; return it with the rows of its metrics.

    Parameters
    ----------
    settings : TableTraining
    out : path, optional
        Folder for the checkpoint, the metrics and the model. If it holds a checkpoint, the run
        continues from there, and ends as it would have without the interruption.
    log_every, evaluate_every : int
        Updates between rows of the metrics, and between held-out likelihoods.
    checkpoint_every : int, optional
        Updates between checkpoints. Default: about one a minute.
    progress : bool, optional
        Show a progress bar. Default: on a terminal.
    report : callable, optional
        Called with each row of the metrics.
    """
    folder = None if out is None else Path(out)
    lock: Any = nullcontext()
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        lock = exclusive(folder)
    with lock:
        run = _Run(settings, folder)
        with (
            metrics_log(folder, run.rows) as add_row,
            show_progress("training", settings.updates, show=progress) as advance,
        ):
            saved_at = time.monotonic()
            for done in range(run.done + 1, settings.updates + 1):
                loss, last = run.update(done), done == settings.updates
                advance(done, f"loss {loss:.3f}")
                if last or done % log_every == 0:
                    row = run.row(loss, evaluate=last or done % evaluate_every == 0)
                    add_row(row)
                    if report is not None:
                        report(row)
                due = time.monotonic() - saved_at >= SECONDS_BETWEEN_CHECKPOINTS
                if checkpoint_every is not None:
                    due = done % checkpoint_every == 0
                if folder is not None and (last or due):
                    run.save(folder)
                    saved_at = time.monotonic()
    return run.model(), run.rows


class _Run:
    """Weights, optimiser and metrics of a run between two updates."""

    def __init__(self, settings: TableTraining, folder: Path | None) -> None:
        self.settings, self.done, self.seconds, self.recent = settings, 0, 0.0, list[float]()
        self.rows: list[Row] = []
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            self.network = TableNetwork(settings.model)
        average = get_ema_multi_avg_fn(settings.average)
        self.average = AveragedModel(self.network, multi_avg_fn=average)
        decay = settings.weight_decay
        self.optimizer = torch.optim.AdamW(self.network.parameters(), weight_decay=decay)
        self.held_out = HeldOutTables()
        self.identity = {each.name: repr(getattr(settings, each.name)) for each in fields(settings)}
        if folder is not None and (folder / "checkpoint.pt").exists():
            self._load(folder / "checkpoint.pt")
        self.clock = self.seconds - time.process_time()

    def _load(self, path: Path) -> None:
        found = Checkpoint.load(path)
        if found.settings != self.identity:
            changed = [name for name in self.identity if found.settings.get(name) !=
                       self.identity[name]]  # fmt: skip
            raise InvalidInputError(
                f"{path.parent} holds a run with other settings: {', '.join(changed)}. Use its "
                "settings, or another folder."
            )
        self.done, self.seconds, self.rows = found.updates, found.cpu_seconds, found.rows
        self.network.load_state_dict(found.model)
        self.average.load_state_dict(found.objective[0])
        self.optimizer.load_state_dict(found.optimizer)

    def save(self, folder: Path) -> None:
        seconds = self.clock + time.process_time()
        Checkpoint(
            self.identity, self.done, seconds, self.network.state_dict(),
            self.optimizer.state_dict(), [self.average.state_dict()], self.rows,
        ).save(folder / "checkpoint.pt")  # fmt: skip
        self.model().save_pretrained(folder / "model")

    def update(self, done: int) -> float:
        """Make one update; return its loss."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.settings.learning_rate_at(done - 1)
        loss = loss_of(self.network, *self.settings.draw(done - 1))
        value = float(loss.detach())
        if not math.isfinite(value):
            raise DivergenceError(f"The loss became {value} at update {done}.")
        self.optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.network.parameters(), self.settings.clip)
        if bool(torch.isfinite(norm)):
            self.optimizer.step()
            self.average.update_parameters(self.network)
        self.done = done
        self.recent.append(value)
        return value

    def row(self, loss: float, *, evaluate: bool) -> Row:
        """Return a row of the metrics, with the mean loss since the last one."""
        row: Row = {"update": self.done, "loss": float(np.mean(self.recent))}
        self.recent.clear()
        row["learning_rate"] = self.settings.learning_rate_at(self.done - 1)
        row["cpu_seconds"] = round(self.clock + time.process_time(), 2)
        if evaluate:
            row["held_out_nll"] = self.held_out(cast(TableNetwork, self.average.module))
        return row

    def model(self) -> ICLTables:
        """Return the model with the averaged weights."""
        model = ICLTables(self.settings.model)
        model.network.load_state_dict(self.average.module.state_dict())
        return model
