"""The training loop of energies, in context or not, on Lightning Fabric, in one process or many."""

from __future__ import annotations

import io
import math
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from copy import copy, deepcopy
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from isthmus.errors import DivergenceError, InvalidInputError
from isthmus.extras import require
from isthmus.incontext.objectives import StatefulObjective
from isthmus.incontext.storage import Checkpoint, Row, Weights, metrics_log
from isthmus.io.files import exclusive, write_atomically
from isthmus.progress import progress as show_progress
from isthmus.validation import as_count, as_path

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# The default bound on the work, in seconds, that a killed run loses.
SECONDS_BETWEEN_CHECKPOINTS = 60.0


def without_state(objective: Any) -> Any:
    """Return a copy of an objective for a new run; its state, if it has one, is empty."""
    objective = copy(objective)
    if isinstance(objective, StatefulObjective):
        objective.load_state_dict({})
    return objective


def seeded(*words: int, device: Any = "cpu", spawn_key: tuple[int, ...] = ()) -> torch.Generator:
    """Return a generator that depends on the words alone, such as a seed and an update."""
    state = np.random.SeedSequence(words, spawn_key=spawn_key).generate_state(2)
    return torch.Generator(device).manual_seed(int(state[0]) << 31 ^ int(state[1]))


class TrainingRecipe(ABC):
    """A kind of training: what the loop must know of a model and its settings."""

    settings: Any  # a frozen dataclass with `updates`, `clip` and `learning_rate_at(update)`
    objective: Any = None  # the loss, if it has a state that belongs in checkpoints
    passes: int = 1  # forward and backward, of an update, which processes share
    # Weights to start from, and the decay of their average if that is the result.
    start: Weights | None = None
    average: float | None = None
    average_every: int = 1
    # The name of the held-out score, and, for one process, the evaluations without a better score
    # after which training ends; the result then has the weights of the best.
    score_name: str = "held_out_nll"
    patience: int | None = None
    precision: Any = "32-true"
    advice: str = "Use a smaller learning_rate."

    @abstractmethod
    def new_network(self) -> nn.Module:
        """Return the network with weights that depend on the seed alone."""

    @abstractmethod
    def optimizer(self, network: nn.Module) -> Optimizer:
        """Return the optimiser of the network."""

    @abstractmethod
    def loss(self, network: nn.Module, update: int, part: int) -> Tensor:
        """Return the loss of one pass; its data depend on the arguments alone."""

    @abstractmethod
    def held_out(self) -> Callable[[Any], float]:
        """Return a function that scores a network on fixed data, in nats."""

    @abstractmethod
    def finished(self, weights: Weights) -> Any:
        """Return the model with the weights of a network."""

    def save(self, weights: Weights, folder: Path) -> None:
        """Write the finished model into the folder of its run."""
        self.finished(weights).save_pretrained(folder / "model")

    def fingerprint(self) -> dict[str, str]:
        """Return the ``repr`` of everything that decides the outcome of a run."""
        names = [each.name for each in fields(self.settings)]
        found = {name: repr(getattr(self.settings, name)) for name in names}
        total = sum(float(tensor.double().abs().sum()) for tensor in (self.start or {}).values())
        return {**found, "init": f"weights that add up to {total:.17g}" if self.start else "none"}


def run(
    recipe: TrainingRecipe,
    out: str | Path | None,
    *,
    devices: int = 1,
    accelerator: str = "auto",
    precision: Any = None,
    fabric: Fabric | None = None,
    **course: Any,
) -> tuple[Weights, list[Row]]:
    """Train, or continue a run, in a folder; return the weights and the rows of the metrics."""
    folder = None if out is None else as_path(out, "out")
    lock: Any = nullcontext()
    if folder is not None and (fabric is None or fabric.is_global_zero):
        folder.mkdir(parents=True, exist_ok=True)
        lock = exclusive(folder)
    with lock:
        train: Any = partial(_train, recipe, folder, _checkpoint_in(folder, recipe), **course)
        if fabric is not None:
            return cast(tuple[Weights, list[Row]], train(fabric))
        require("lightning_fabric")
        from lightning_fabric import Fabric

        strategy = "auto" if devices == 1 else "ddp_spawn"
        options: Any = {"devices": devices, "precision": precision or recipe.precision}
        fabric = Fabric(accelerator=accelerator, strategy=strategy, **options)
        # Through a file: a process that ends would wait for a pipe that is full.
        with tempfile.TemporaryDirectory() as scratch:
            result = Path(scratch) / "result.pt"
            fabric.launch(partial(_train_into, train=train, path=result))
            return cast(tuple[Weights, list[Row]], torch.load(result, weights_only=True))


def _checkpoint_in(folder: Path | None, recipe: TrainingRecipe) -> Checkpoint | None:
    """Return the checkpoint in a folder, if there is one; refuse one of other settings."""
    if folder is None or not (folder / "checkpoint.pt").exists():
        return None
    checkpoint = Checkpoint.load(folder / "checkpoint.pt")
    changes = [
        f"{name}={checkpoint.settings.get(name)} instead of {value}"
        for name, value in recipe.fingerprint().items()
        if checkpoint.settings.get(name) != value
    ]
    if changes:
        raise InvalidInputError(
            f"{folder} holds a run with other settings: {', '.join(changes)}. Use its "
            "settings, or another folder."
        )
    return checkpoint


def _train_into(fabric: Fabric, train: Callable[[Fabric], Any], path: Path) -> None:
    """Train in one process, and save the result of the first one."""
    result = train(fabric)
    if fabric.is_global_zero:
        torch.save(result, buffer := io.BytesIO())
        write_atomically(path, buffer.getvalue())


def _train(
    recipe: TrainingRecipe,
    folder: Path | None,
    checkpoint: Checkpoint | None,
    fabric: Fabric,
    log_every: int = 20,
    evaluate_every: int = 500,
    checkpoint_every: int | None = None,
    progress: bool | None = None,
    report: Callable[[Row], None] | None = None,
) -> tuple[Weights, list[Row]]:
    """Train in one process; return the weights and the metrics."""
    log_every = as_count(log_every, "log_every")
    evaluate_every = as_count(evaluate_every, "evaluate_every")
    updates, chief, name = recipe.settings.updates, fabric.is_global_zero, recipe.score_name
    if recipe.passes % fabric.world_size:
        raise InvalidInputError(
            f"{recipe.passes} passes cannot be shared equally by {fabric.world_size} processes. "
            "Choose another batch or micro_batch."
        )
    folder = folder if chief else None
    state = _State(recipe, checkpoint, fabric)
    held_out, saved_at = recipe.held_out(), time.monotonic()
    bar = show_progress("training", updates, show=progress if chief else False)
    with metrics_log(folder, state.rows) as add_row, bar as advance:
        for done in range(state.done + 1, updates + 1):
            if state.stalled():
                break
            last, loss = done == updates, state.update(done)
            advance(done, f"loss {float(loss):.3f}")
            if last or done % log_every == 0:
                row = state.row(loss)
                if chief and (last or done % evaluate_every == 0):
                    row[name] = held_out(deepcopy(state.result).cpu())
                    if recipe.patience and row[name] < min(state.scores, default=math.inf):
                        state.best = deepcopy(state.result.state_dict())
                add_row(row)
                last = last or state.stalled()
                if chief and report is not None:
                    report(row)
            if checkpoint_every is None:
                due = time.monotonic() - saved_at >= SECONDS_BETWEEN_CHECKPOINTS
            else:
                due = done % checkpoint_every == 0
            if last or due:
                found = state.checkpoint()
                if folder is not None:
                    found.save(folder / "checkpoint.pt")
                saved_at = time.monotonic()
    best = state.best or state.result.state_dict()
    weights = {name: tensor.cpu() for name, tensor in best.items()}
    if folder is not None:
        recipe.save(weights, folder)
    fabric.barrier()
    return weights, state.rows


class _State:
    """Weights, optimiser and metrics of a run between two updates."""

    def __init__(
        self, recipe: TrainingRecipe, checkpoint: Checkpoint | None, fabric: Fabric
    ) -> None:
        self.recipe, self.fabric, self.done, seconds = recipe, fabric, 0, 0.0
        self.rows: list[Row] = []
        self.best: Weights = {}
        self.network = recipe.new_network()
        start = recipe.start if checkpoint is None else checkpoint.model
        if start is not None:
            self.network.load_state_dict(start)
        loss_of, optimizer = _Loss(self.network, recipe), recipe.optimizer(self.network)
        self.loss_of, self.optimizer = fabric.setup(loss_of, optimizer)
        self.average: AveragedModel | None = None
        if recipe.average is not None:
            average = get_ema_multi_avg_fn(recipe.average)
            self.average = AveragedModel(self.network, multi_avg_fn=average)
        if checkpoint is not None:
            self.done, seconds, self.rows = (
                checkpoint.updates, checkpoint.cpu_seconds, checkpoint.rows
            )  # fmt: skip
            self.optimizer.load_state_dict(checkpoint.optimizer)
            more = list(checkpoint.objective)
            if self.average is not None:
                self.average.load_state_dict(more.pop(0))
            if recipe.patience is not None:
                self.best = more.pop(0)
            for state in more[fabric.global_rank :][:1]:  # of the objective in this process
                recipe.objective.load_state_dict(state)
        self.clock = seconds - time.process_time()

    @property
    def result(self) -> nn.Module:
        """The network, with averaged weights if the recipe asks for them."""
        return self.network if self.average is None else self.average.module

    @property
    def scores(self) -> list[float]:
        """The held-out scores so far."""
        name = self.recipe.score_name
        return [row[name] for row in self.rows if name in row]

    def stalled(self) -> bool:
        """Return True if the last evaluations brought no better score."""
        scores, patience = self.scores, self.recipe.patience
        if patience is None or not scores:
            return False
        return len(scores) - 1 - scores.index(min(scores)) >= patience

    def update(self, done: int) -> Tensor:
        """Make one update of this process's share of the passes; return its mean loss."""
        settings, fabric, passes = self.recipe.settings, self.fabric, self.recipe.passes
        for group in self.optimizer.param_groups:
            group["lr"] = settings.learning_rate_at(done - 1) * group.get("unit", 1.0)
        share = range(fabric.global_rank, passes, fabric.world_size)
        total = torch.zeros((), device=fabric.device)
        for part in share:
            with fabric.no_backward_sync(self.loss_of, enabled=part != share[-1]):
                loss = self.loss_of(done - 1, part) / len(share)
                fabric.backward(loss)
            total += loss.detach()
        if not bool(torch.isfinite(total)):  # before the update, and a checkpoint, lose the weights
            raise DivergenceError(
                f"The loss became {float(total)} at update {done}. {self.recipe.advice}"
            )
        norm: Tensor | None = None
        if settings.clip is not None:
            norm = fabric.clip_gradients(
                self.loss_of, self.optimizer, max_norm=settings.clip, error_if_nonfinite=False
            )
        if norm is None or bool(torch.isfinite(norm)):
            self.optimizer.step()
            if self.average is not None and done % self.recipe.average_every == 0:
                self.average.update_parameters(self.network)
                for mean, each in zip(
                    self.average.module.parameters(), self.network.parameters(), strict=True
                ):
                    if not each.requires_grad:  # the average of infinite constants is no number
                        mean.data.copy_(each)
        self.optimizer.zero_grad()
        self.done = done
        return total

    def row(self, loss: Tensor) -> Row:
        """Return a row of the metrics, with the mean loss of all processes."""
        mean = float(cast(Tensor, self.fabric.all_reduce(loss, reduce_op="mean")))
        return {
            "update": self.done,
            "loss": mean,
            "learning_rate": self.recipe.settings.learning_rate_at(self.done - 1),
            "cpu_seconds": round(self.clock + time.process_time(), 2),
        }

    def checkpoint(self) -> Checkpoint:
        """Return the state; every process must call this."""
        more = [] if self.average is None else [self.average.state_dict()]
        if self.recipe.patience is not None:
            more.append(self.best)
        if isinstance(self.recipe.objective, StatefulObjective):
            states: list[Any] = [self.recipe.objective.state_dict()] * self.fabric.world_size
            if len(states) > 1:
                torch.distributed.all_gather_object(states, states[0])
            more += states
        return Checkpoint(
            self.recipe.fingerprint(), self.done, self.clock + time.process_time(),
            self.network.state_dict(), self.optimizer.state_dict(), more, self.rows,
        )  # fmt: skip


class _Loss(nn.Module):
    """Network and recipe as one module, whose forward pass Fabric distributes."""

    def __init__(self, network: nn.Module, recipe: TrainingRecipe) -> None:
        super().__init__()
        self.network, self.recipe = network, recipe

    def forward(self, update: int, part: int) -> Tensor:
        # The data are no arguments, which Fabric would round.
        return self.recipe.loss(self.network, update, part)
