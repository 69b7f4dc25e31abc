"""train: one readable loop on Lightning Fabric, for one process or many."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from isthmus.dynamics.progress import progress_bar
from isthmus.errors import DivergenceError, InvalidInputError
from isthmus.incontext.checkpoint import Checkpoint
from isthmus.incontext.held_out import HeldOut
from isthmus.incontext.metrics import MetricsLog
from isthmus.incontext.model import ICLEBM
from isthmus.incontext.objectives import Objective, StatefulObjective
from isthmus.incontext.settings import TrainingSettings

if TYPE_CHECKING:
    from lightning_fabric import Fabric

__all__ = ["Trained", "train"]

# A run that is killed loses at most this many seconds of work, unless told otherwise.
SECONDS_BETWEEN_CHECKPOINTS = 60.0


@dataclass(frozen=True)
class Trained:
    """A finished run.

    Attributes
    ----------
    model : ICLEBM
    rows : list of dict
        The metrics, as they are in ``metrics.jsonl``.
    """

    model: ICLEBM
    rows: list[dict[str, float]]


def train(
    settings: TrainingSettings,
    out: str | Path | None = None,
    *,
    init: ICLEBM | None = None,
    devices: int = 1,
    accelerator: str = "auto",
    precision: Any = "32-true",
    fabric: Fabric | None = None,
    log_every: int = 20,
    evaluate_every: int = 500,
    checkpoint_every: int | None = None,
    tensorboard: bool = False,
    progress: bool | None = None,
    report: Callable[[dict[str, float]], None] | None = None,
) -> Trained:
    """Train an in-context energy.

    Parameters
    ----------
    settings : TrainingSettings
        ``isthmus.incontext.preset(name)`` gives some.
    out : path, optional
        A folder for the checkpoint, the metrics and the model. If it holds a checkpoint, the run
        goes on from there, and ends as it would have without the interruption, bit for bit.
    init : ICLEBM, optional
        Start from the weights of this model: fine-tuning. Default: random weights.
    devices, accelerator, precision, fabric
        For Lightning Fabric: how many processes, on what, in which precision, such as
        ``"bf16-mixed"`` on a GPU; or a Fabric of your own, launched. The batch of
        `settings` is divided between the processes.
    log_every, evaluate_every : int
        Updates between rows of the metrics, and between held-out likelihoods.
    checkpoint_every : int, optional
        Updates between checkpoints. Default: about one a minute.
    tensorboard : bool
        Whether to write the metrics for TensorBoard, too.
    progress : bool, optional
        Whether to show a bar. Default: on a terminal.
    report : callable, optional
        Told each row of the metrics as it comes. With several processes it must be picklable.

    Returns
    -------
    Trained

    Examples
    --------
    >>> from isthmus.incontext import ICLEBMConfig, TrainingSettings, train
    >>> small = ICLEBMConfig(layers=1, heads=2, width=8, box=5.5)
    >>> run = train(TrainingSettings(model=small, updates=2, batch=2, length=5))
    >>> len(run.rows)
    1
    """
    options = _Options(log_every, evaluate_every, checkpoint_every, tensorboard, progress, report)
    folder = None if out is None else Path(out)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    weights = None if init is None else init.state_dict()
    if init is not None and init.config != settings.model:
        raise InvalidInputError(
            f"init has the shape {init.config}, but the settings ask for {settings.model}."
        )
    # Bound beforehand, since Fabric tries to look into what it is given and stumbles.
    run = partial(_run, settings=settings, folder=folder, weights=weights, options=options)
    if fabric is not None:
        state, rows = run(fabric)
    else:
        strategy = "auto" if devices == 1 else "ddp_spawn"
        fabric = _import_fabric()(
            accelerator=accelerator, devices=devices, strategy=strategy, precision=precision
        )
        # Through a file, since processes that end would wait for a pipe that is full.
        with tempfile.TemporaryDirectory() as scratch:
            result = Path(scratch) / "result.pt"
            fabric.launch(partial(_run_into, run=run, path=result))
            state, rows = torch.load(result, weights_only=True)
    model = new_model(settings)
    model.load_state_dict(state)
    return Trained(model, rows)


@dataclass(frozen=True)
class _Options:
    log_every: int
    evaluate_every: int
    checkpoint_every: int | None
    tensorboard: bool
    progress: bool | None
    report: Callable[[dict[str, float]], None] | None

    def checkpoint_due(self, done: int, since: float) -> bool:
        """Whether to save after `done` updates, `since` seconds after the last time."""
        if self.checkpoint_every is None:
            return since >= SECONDS_BETWEEN_CHECKPOINTS
        return done % self.checkpoint_every == 0


class _Loss(nn.Module):
    """Model and objective as one module, so that its forward pass is what Fabric distributes.

    It draws the data itself: Fabric would round them if they were handed in.
    """

    def __init__(self, model: ICLEBM, settings: TrainingSettings) -> None:
        super().__init__()
        self.model = model
        self.settings = settings

    def forward(self, update: int, part: int) -> Tensor:
        device = self.model.readout.weight.device
        x, generator = draw_pass(self.settings, update, part, device)
        return self.settings.objective(self.model, x, generator)


def _run_into(fabric: Fabric, run: Callable[[Fabric], Any], path: Path) -> None:
    """Train in one process, and leave what the first one returns in a file."""
    result = run(fabric)
    if fabric.is_global_zero:
        torch.save(result, path)


def _run(
    fabric: Fabric,
    settings: TrainingSettings,
    folder: Path | None,
    weights: dict[str, Tensor] | None,
    options: _Options,
) -> tuple[dict[str, Tensor], list[dict[str, float]]]:
    """Train in one process; the weights and the metrics."""
    passes = settings.batch // settings.pass_size
    if passes % fabric.world_size:
        raise InvalidInputError(
            f"{passes} passes of {settings.pass_size} datasets cannot be shared equally by "
            f"{fabric.world_size} processes. Choose another batch or micro_batch."
        )
    model = new_model(settings)
    if weights is not None:
        model.load_state_dict(weights)
    optimizer = getattr(torch.optim, settings.optimizer)(
        model.parameters(),
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
    )
    checkpoint = find_checkpoint(folder, settings, weights)
    if checkpoint is not None:
        model.load_state_dict(checkpoint.model)
    loss_of, optimizer = fabric.setup(_Loss(model, settings), optimizer)
    rows: list[dict[str, float]] = []
    start, cpu_before = 0, 0.0
    if checkpoint is not None:
        optimizer.load_state_dict(checkpoint.optimizer)
        _give_state(settings.objective, checkpoint.objective[fabric.global_rank :][:1])
        rows, start, cpu_before = checkpoint.rows, checkpoint.updates, checkpoint.cpu_seconds
    chief = fabric.is_global_zero
    log = MetricsLog(folder if chief else None, rows, tensorboard=options.tensorboard)
    held_out = HeldOut(settings.prior, length=settings.length)
    clock, saved_at = time.process_time(), time.monotonic()

    def keep(done: int) -> None:
        objective = _states(fabric, settings.objective)
        if chief and folder is not None:
            Checkpoint(
                _fingerprint(settings, weights),
                done,
                cpu_before + time.process_time() - clock,
                model.state_dict(),
                optimizer.state_dict(),
                objective,
                log.rows,
            ).save(folder / "checkpoint.pt")

    with log, _bar(settings, options, chief) as report:
        for update in range(start, settings.updates):
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate_at(update)
            loss = _accumulate(fabric, loss_of, settings, update)
            _require_finite(loss, update + 1)
            if settings.clip is not None:
                fabric.clip_gradients(
                    loss_of, optimizer, max_norm=settings.clip, error_if_nonfinite=False
                )
            optimizer.step()
            optimizer.zero_grad()
            done = update + 1
            last = done == settings.updates
            if last or done % options.log_every == 0:
                row = _row(done, loss, fabric, settings, cpu_before + time.process_time() - clock)
                if chief and (last or done % options.evaluate_every == 0):
                    row["held_out_nll"] = held_out(model)
                log.add(row)
                report(done)
                if chief and options.report is not None:
                    options.report(row)
            if last or options.checkpoint_due(done, time.monotonic() - saved_at):
                keep(done)
                saved_at = time.monotonic()
    if chief and folder is not None:
        model.save_pretrained(folder / "model")
    fabric.barrier()
    return {name: tensor.cpu() for name, tensor in model.state_dict().items()}, log.rows


def _import_fabric() -> type[Fabric]:
    try:
        from lightning_fabric import Fabric
    except ImportError:
        raise InvalidInputError(
            'Training needs Lightning Fabric: pip install "isthmus[train]".'
        ) from None
    return Fabric


def new_model(settings: TrainingSettings) -> ICLEBM:
    """The untrained model of a run: its weights follow from the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return ICLEBM(settings.model)


def draw_pass(
    settings: TrainingSettings, update: int, part: int, device: torch.device
) -> tuple[Tensor, torch.Generator]:
    """Return datasets (B, S, D) of one pass, and the generator for the rest of its randomness.

    They depend only on the settings, the update and the number of the pass: not on what was drawn
    before, nor on which process asks.
    """
    generator = _generator(np.random.SeedSequence([settings.seed, update, part]), device)
    if settings.pool is None:
        tasks = settings.prior.draw(settings.pass_size, generator)
    else:  # the same pool for every pass, and cheap enough to draw again
        once = _generator(np.random.SeedSequence(settings.seed, spawn_key=(0,)), device)
        pool = settings.prior.draw(settings.pool, once)
        chosen = (settings.pass_size,)
        tasks = pool[torch.randint(settings.pool, chosen, generator=generator, device=device)]
    return tasks.sample(settings.length, generator), generator


def _generator(seed: np.random.SeedSequence, device: torch.device) -> torch.Generator:
    words = seed.generate_state(2)
    return torch.Generator(device).manual_seed(int(words[0]) << 31 ^ int(words[1]))


def _accumulate(fabric: Fabric, loss_of: Any, settings: TrainingSettings, update: int) -> Tensor:
    """Add up the gradients of this process's share of the batch; the mean loss of the share."""
    passes = settings.batch // settings.pass_size
    share = range(fabric.global_rank, passes, fabric.world_size)
    total = torch.zeros((), device=fabric.device)
    for part in share:
        with fabric.no_backward_sync(loss_of, enabled=part != share[-1]):
            loss = loss_of(update, part) / len(share)
            fabric.backward(loss)
        total += loss.detach()
    return total


def _require_finite(loss: Tensor, done: int) -> None:
    """Stop before an update that would spoil the weights, and the next checkpoint with them."""
    if not bool(torch.isfinite(loss)):
        raise DivergenceError(
            f"The loss became {float(loss)} at update {done}. Take a smaller learning_rate, clip "
            "the gradient (clip=1.0), or, with contrastive divergence, a smaller step_size."
        )


def _bar(
    settings: TrainingSettings, options: _Options, chief: bool
) -> AbstractContextManager[Callable[[int], None]]:
    return progress_bar(settings.updates, "training", options.progress if chief else False)


def _row(
    done: int, loss: Tensor, fabric: Fabric, settings: TrainingSettings, seconds: float
) -> dict[str, float]:
    mean = float(cast(Tensor, fabric.all_reduce(loss, reduce_op="mean")))
    rate = settings.learning_rate_at(done - 1)
    return {"update": done, "loss": mean, "learning_rate": rate, "cpu_seconds": round(seconds, 2)}


def find_checkpoint(
    folder: Path | None, settings: TrainingSettings, weights: dict[str, Tensor] | None
) -> Checkpoint | None:
    """What a folder holds of a run, if anything; a run with other settings is refused."""
    if folder is None or not (folder / "checkpoint.pt").exists():
        return None
    checkpoint = Checkpoint.load(folder / "checkpoint.pt")
    mine = _fingerprint(settings, weights)
    others = {
        name: checkpoint.settings.get(name)
        for name in mine
        if checkpoint.settings.get(name) != mine[name]
    }
    if others:
        raise InvalidInputError(
            f"{folder} holds a run with other settings: "
            + ", ".join(f"{name}={value} instead of {mine[name]}" for name, value in others.items())
            + ". Use its settings, or another folder."
        )
    return checkpoint


def _fingerprint(settings: TrainingSettings, weights: dict[str, Tensor] | None) -> dict[str, str]:
    """Everything that decides the outcome of a run, printed."""
    found = {each.name: repr(getattr(settings, each.name)) for each in fields(settings)}
    total = sum(float(tensor.double().abs().sum()) for tensor in (weights or {}).values())
    return {**found, "init": f"weights that add up to {total:.17g}" if weights else "none"}


def _states(fabric: Fabric, objective: Objective) -> list[dict[str, Tensor]]:
    """What the objective of each process remembers."""
    if not isinstance(objective, StatefulObjective):
        return []
    state = objective.state_dict()
    if fabric.world_size == 1:
        return [state]
    states: list[Any] = [None] * fabric.world_size
    torch.distributed.all_gather_object(states, state)
    return states


def _give_state(objective: Objective, states: list[dict[str, Tensor]]) -> None:
    for state in states:
        if isinstance(objective, StatefulObjective):
            objective.load_state_dict(state)
