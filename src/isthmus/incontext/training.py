"""train: one readable loop on Lightning Fabric, for one process or many."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from isthmus.errors import DivergenceError, InvalidInputError
from isthmus.files import exclusive, write_atomically
from isthmus.incontext.config import ICLEBMConfig
from isthmus.incontext.evaluation import HeldOut
from isthmus.incontext.model import ICLEBM
from isthmus.incontext.objectives import Objective, StatefulObjective
from isthmus.incontext.settings import TrainingSettings
from isthmus.progress import progress as show_progress
from isthmus.validation import as_count

if TYPE_CHECKING:
    from lightning_fabric import Fabric

# The default bound on the work, in seconds, that a killed run loses.
SECONDS_BETWEEN_CHECKPOINTS = 60.0
# A checkpoint starts with this, the digest of the rest in hexadecimal, and a line feed.
CHECKPOINT_START = b"isthmus checkpoint 3 "
COLUMNS = ["update", "loss", "held_out_nll", "learning_rate", "cpu_seconds"]

Row = dict[str, float]
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Trained:
    """A finished run: its model, and the rows of ``metrics.jsonl``."""

    model: ICLEBM
    rows: list[Row]


def train(
    settings: TrainingSettings,
    out: str | Path | None = None,
    *,
    init: ICLEBM | None = None,
    devices: int = 1,
    accelerator: str = "auto",
    precision: Any = None,
    fabric: Fabric | None = None,
    log_every: int = 20,
    evaluate_every: int = 500,
    checkpoint_every: int | None = None,
    tensorboard: bool = False,
    progress: bool | None = None,
    report: Callable[[Row], None] | None = None,
) -> Trained:
    """Train an in-context energy.

    Parameters
    ----------
    settings : TrainingSettings
        For example ``isthmus.incontext.preset("tiny")``.
    out : path, optional
        Folder for the checkpoint, the metrics and the model. If it holds a checkpoint, the run
        continues from there and ends bit for bit as it would have without the interruption.
        Only one run at a time may use a folder.
    init : ICLEBM, optional
        Start from the weights of this model: fine-tuning. Its box, wall and scale may differ from
        those of the settings. Default: random weights.
    devices, accelerator, precision, fabric
        Arguments of Lightning Fabric: processes that share the batch, hardware, and precision
        (default: that of the settings); or a Fabric that is already launched.
    log_every, evaluate_every : int
        Updates between rows of the metrics, and between held-out likelihoods.
    checkpoint_every : int, optional
        Updates between checkpoints. Default: about one a minute.
    tensorboard : bool
        Also write the metrics for TensorBoard.
    progress : bool, optional
        Show a progress bar. Default: on a terminal.
    report : callable, optional
        Called with each row of the metrics. With several processes it must be picklable.

    Examples
    --------
    >>> from isthmus.incontext import ICLEBMConfig, TrainingSettings, train
    >>> small = ICLEBMConfig(layers=1, heads=2, width=8, box=5.5)
    >>> run = train(TrainingSettings(model=small, updates=2, batch=2, length=5))
    >>> len(run.rows)
    1
    """
    as_count(log_every, "log_every")
    as_count(evaluate_every, "evaluate_every")
    folder, lock = None if out is None else Path(out), cast(Any, nullcontext())
    if folder is not None and (fabric is None or fabric.is_global_zero):
        folder.mkdir(parents=True, exist_ok=True)
        lock = exclusive(folder)
    with lock:
        checkpoint = find_checkpoint(folder, settings, init)
        weights = None if init is None else init.state_dict()
        run = partial(_run, settings, folder, weights, checkpoint, log_every, evaluate_every,
                      checkpoint_every, tensorboard, progress, report)  # fmt: skip
        if fabric is not None:
            state, rows = run(fabric)
        else:
            strategy = "auto" if devices == 1 else "ddp_spawn"
            try:
                from lightning_fabric import Fabric
            except ImportError:
                raise InvalidInputError(
                    'Training needs Lightning Fabric: pip install "isthmus[train]".'
                ) from None
            fabric = Fabric(
                accelerator=accelerator,
                devices=devices,
                strategy=strategy,
                precision=precision or settings.precision,
            )
            # Through a file: a process that ends would wait for a pipe that is full.
            with tempfile.TemporaryDirectory() as scratch:
                result = Path(scratch) / "result.pt"
                fabric.launch(partial(_run_into, run=run, path=result))
                state, rows = torch.load(result, weights_only=True)
    model = new_model(settings)
    model.load_state_dict(state)
    return Trained(model, rows)


def new_model(settings: TrainingSettings) -> ICLEBM:
    """Return the untrained model of a run; the seed alone determines its weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return ICLEBM(settings.model)


def draw_pass(
    settings: TrainingSettings, update: int, part: int, device: torch.device
) -> tuple[Tensor, torch.Generator]:
    """Return datasets (B, S, D) of one pass, and the generator for the rest of its randomness.

    They depend on the arguments alone, not on what was drawn before or on the process.
    """

    def seeded(seed: np.random.SeedSequence) -> torch.Generator:
        words = seed.generate_state(2)
        return torch.Generator(device).manual_seed(int(words[0]) << 31 ^ int(words[1]))

    generator = seeded(np.random.SeedSequence([settings.seed, update, part]))
    if settings.pool is None:
        tasks = settings.prior.draw(settings.pass_size, generator)
    else:  # the same pool for every pass, and cheap enough to draw again
        once = seeded(np.random.SeedSequence(settings.seed, spawn_key=(0,)))
        pool, chosen = settings.prior.draw(settings.pool, once), (settings.pass_size,)
        tasks = pool[torch.randint(settings.pool, chosen, generator=generator, device=device)]
    return tasks.sample(settings.length, generator), generator


def find_checkpoint(
    folder: Path | None, settings: TrainingSettings, init: ICLEBM | None = None
) -> Checkpoint | None:
    """Return the checkpoint in a folder, if there is one; refuse one of other settings."""
    if init is not None:
        box, wall, scale = settings.model.box, settings.model.wall, settings.model.scale
        if replace(init.config, box=box, wall=wall, scale=scale) != settings.model:
            raise InvalidInputError(
                f"init has the shape {init.config}, but the settings ask for {settings.model}."
            )
    if folder is None or not (folder / "checkpoint.pt").exists():
        return None
    checkpoint = Checkpoint.load(folder / "checkpoint.pt")
    wanted = _fingerprint(settings, None if init is None else init.state_dict())
    changes = [
        f"{name}={checkpoint.settings.get(name)} instead of {value}"
        for name, value in wanted.items()
        if checkpoint.settings.get(name) != value
    ]
    if changes:
        raise InvalidInputError(
            f"{folder} holds a run with other settings: {', '.join(changes)}. Use its settings, "
            "or another folder."
        )
    return checkpoint


def _fingerprint(settings: TrainingSettings, weights: Weights | None) -> dict[str, str]:
    """Return the ``repr`` of everything that decides the outcome of a run."""
    found = {each.name: repr(getattr(settings, each.name)) for each in fields(settings)}
    total = sum(float(tensor.double().abs().sum()) for tensor in (weights or {}).values())
    return {**found, "init": f"weights that add up to {total:.17g}" if weights else "none"}


def _run(
    settings: TrainingSettings,
    folder: Path | None,
    weights: Weights | None,
    checkpoint: Checkpoint | None,
    log_every: int,
    evaluate_every: int,
    checkpoint_every: int | None,
    tensorboard: bool,
    progress: bool | None,
    report: Callable[[Row], None] | None,
    fabric: Fabric,
) -> tuple[Weights, list[Row]]:
    """Train in one process; return the weights and the metrics."""
    passes = settings.batch // settings.pass_size
    if passes % fabric.world_size:
        raise InvalidInputError(
            f"{passes} passes of {settings.pass_size} datasets cannot be shared equally by "
            f"{fabric.world_size} processes. Choose another batch or micro_batch."
        )
    chief = fabric.is_global_zero
    folder = folder if chief else None
    model = new_model(settings)
    if checkpoint is not None or weights is not None:
        model.load_state_dict(checkpoint.model if checkpoint else cast(Weights, weights))
    optimizer = getattr(torch.optim, settings.optimizer)(
        model.parameters(),
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
    )
    loss_of, optimizer = fabric.setup(_Loss(model, settings), optimizer)
    start, cpu_before, rows = 0, 0.0, []
    if checkpoint is not None:
        start, cpu_before, rows = checkpoint.updates, checkpoint.cpu_seconds, checkpoint.rows
        optimizer.load_state_dict(checkpoint.optimizer)
        for state in checkpoint.objective[fabric.global_rank :][:1]:
            cast(StatefulObjective, settings.objective).load_state_dict(state)
    held_out = HeldOut(settings.prior, length=settings.length)
    clock, saved_at = cpu_before - time.process_time(), time.monotonic()
    with (
        metrics_log(folder, rows, tensorboard=tensorboard) as add_row,
        show_progress("training", settings.updates, show=progress if chief else False) as advance,
    ):
        for done in range(start + 1, settings.updates + 1):
            rate, last = settings.learning_rate_at(done - 1), done == settings.updates
            for group in optimizer.param_groups:
                group["lr"] = rate
            loss = _accumulate(fabric, loss_of, settings, done)
            if settings.clip is not None:
                fabric.clip_gradients(
                    loss_of, optimizer, max_norm=settings.clip, error_if_nonfinite=False
                )
            optimizer.step()
            optimizer.zero_grad()
            advance(done, f"loss {float(loss):.3f}")
            if last or done % log_every == 0:
                mean = float(cast(Tensor, fabric.all_reduce(loss, reduce_op="mean")))
                seconds = round(clock + time.process_time(), 2)
                row: Row = {"update": done, "loss": mean}
                row |= {"learning_rate": rate, "cpu_seconds": seconds}
                if chief and (last or done % evaluate_every == 0):
                    row["held_out_nll"] = held_out(model)
                add_row(row)
                if chief and report is not None:
                    report(row)
            due = time.monotonic() - saved_at >= SECONDS_BETWEEN_CHECKPOINTS
            if checkpoint_every is not None:
                due = done % checkpoint_every == 0
            if last or due:
                states = _objective_states(fabric, settings.objective)
                if folder is not None:
                    Checkpoint(
                        _fingerprint(settings, weights), done,
                        clock + time.process_time(), model.state_dict(),
                        optimizer.state_dict(), states, rows,
                    ).save(folder / "checkpoint.pt")  # fmt: skip
                saved_at = time.monotonic()
    if folder is not None:
        model.save_pretrained(folder / "model")
    fabric.barrier()
    return {name: tensor.cpu() for name, tensor in model.state_dict().items()}, rows


class _Loss(nn.Module):
    """Model and objective as one module, whose forward pass Fabric distributes."""

    def __init__(self, model: ICLEBM, settings: TrainingSettings) -> None:
        super().__init__()
        self.model = model
        self.settings = settings

    def forward(self, update: int, part: int) -> Tensor:
        # The data are no arguments, which Fabric would round.
        device = self.model.readout.weight.device
        x, generator = draw_pass(self.settings, update, part, device)
        return self.settings.objective(self.model, x, generator)


def _run_into(fabric: Fabric, run: Callable[[Fabric], Any], path: Path) -> None:
    """Train in one process, and save the result of the first one."""
    result = run(fabric)
    if fabric.is_global_zero:
        torch.save(result, path)


def _accumulate(fabric: Fabric, loss_of: Any, settings: TrainingSettings, done: int) -> Tensor:
    """Add up the gradients of this process's share of the batch; return its mean loss."""
    share = range(fabric.global_rank, settings.batch // settings.pass_size, fabric.world_size)
    total = torch.zeros((), device=fabric.device)
    for part in share:
        with fabric.no_backward_sync(loss_of, enabled=part != share[-1]):
            loss = loss_of(done - 1, part) / len(share)
            fabric.backward(loss)
        total += loss.detach()
    if not bool(torch.isfinite(total)):  # before the update, and a checkpoint, lose the weights
        raise DivergenceError(
            f"The loss became {float(total)} at update {done}. Use a smaller learning_rate, clip "
            "the gradient (clip=1.0), or, with contrastive divergence, a smaller step_size."
        )
    return total


def _objective_states(fabric: Fabric, objective: Objective) -> list[Weights]:
    """Return the state of the objective in each process."""
    if not isinstance(objective, StatefulObjective):
        return []
    states: list[Any] = [objective.state_dict()] * fabric.world_size
    if fabric.world_size > 1:
        torch.distributed.all_gather_object(states, states[0])
    return states


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run between two updates; their seeds follow from their numbers."""

    settings: dict[str, str]  # the repr of every setting, to refuse a run with others
    updates: int
    cpu_seconds: float
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    objective: list[dict[str, Tensor]]  # its state in each process; mostly empty
    rows: list[dict[str, float]]  # the metrics so far

    def save(self, path: Path) -> None:
        """Write the checkpoint atomically."""
        buffer = io.BytesIO()
        torch.save(self.__dict__, buffer)
        write_atomically(path, _digest_line(buffer.getvalue()) + buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read the file of :meth:`save`; refuse one that is damaged."""
        advice = "Remove it to start again."
        try:
            start, _, content = path.read_bytes().partition(b"\n")
        except OSError as error:
            raise InvalidInputError(f"{path} cannot be read: {error.strerror}. {advice}") from None
        if start.startswith(b"PK"):
            raise InvalidInputError(
                f"{path} is of an earlier version: continue with the isthmus that wrote it. "
                f"{advice}"
            )
        if start + b"\n" != _digest_line(content):
            raise InvalidInputError(
                f"{path} is not a readable checkpoint: it is damaged, or not one of isthmus. "
                f"{advice}"
            )
        return cls(**torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))

    def restored(self) -> ICLEBM:
        """Return the model as it was after the last update."""
        call = cast(ast.Call, ast.parse(self.settings["model"], mode="eval").body)
        config = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
        model = ICLEBM(ICLEBMConfig.from_dict(config))
        model.load_state_dict(self.model)
        return model


def _digest_line(content: bytes) -> bytes:
    return CHECKPOINT_START + hashlib.sha256(content).hexdigest().encode() + b"\n"


@contextmanager
def metrics_log(
    folder: Path | None, rows: list[dict[str, float]], *, tensorboard: bool = False
) -> Iterator[Callable[[dict[str, float]], None]]:
    """Yield a function that appends a row to `rows` and to the files of a run, if it has a folder.

    ``metrics.jsonl`` starts with the given rows, which drops those that a killed run wrote after
    its checkpoint, and grows with each call. ``metrics.csv`` is written at the end.
    """
    if folder is None:
        yield rows.append
        return
    import pandas

    writer: Any = _tensorboard_writer(folder) if tensorboard else None
    path = folder / "metrics.jsonl"
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))
    with path.open("a", buffering=1) as lines:

        def add(row: dict[str, float]) -> None:
            rows.append(row)
            lines.write(json.dumps(row) + "\n")
            if writer is not None:
                for name, value in row.items():
                    writer.add_scalar(name, value, int(row["update"]))

        try:
            yield add
        finally:
            table = pandas.DataFrame(rows, columns=COLUMNS).to_csv(index=False)
            write_atomically(folder / "metrics.csv", table)
            if writer is not None:
                writer.close()


def _tensorboard_writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InvalidInputError(
            "tensorboard=True needs TensorBoard: pip install tensorboard, or leave it out; "
            "metrics.jsonl and metrics.csv are always written."
        ) from None
    return SummaryWriter(str(folder))
