"""train: in-context energies, trained by an objective on datasets of a prior."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from isthmus.errors import InvalidInputError
from isthmus.incontext.evaluation import HeldOut
from isthmus.incontext.loop import RunOptions, TrainingRecipe, run, seeded
from isthmus.incontext.model import ICLEBM
from isthmus.incontext.objectives import StatefulObjective
from isthmus.incontext.runs import Row, Weights
from isthmus.incontext.settings import TrainingSettings
from isthmus.incontext.storage import assembled
from isthmus.validation import require_kind

if TYPE_CHECKING:
    from lightning_fabric import Fabric


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
    recipe = EnergyRecipe(settings, init)
    options = RunOptions(
        devices=devices,
        accelerator=accelerator,
        precision=precision,
        fabric=fabric,
        log_every=log_every,
        evaluate_every=evaluate_every,
        checkpoint_every=checkpoint_every,
        progress=progress,
        report=report,
    )
    weights, rows = run(recipe, out, options)
    return Trained(recipe.finished(weights), rows)


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
    generator = seeded(np.random.SeedSequence([settings.seed, update, part]), device)
    if settings.pool is None:
        tasks = settings.prior.draw(settings.pass_size, generator)
    else:  # the same pool for every pass, and cheap enough to draw again
        once = seeded(np.random.SeedSequence(settings.seed, spawn_key=(0,)), device)
        pool, chosen = settings.prior.draw(settings.pool, once), (settings.pass_size,)
        tasks = pool[torch.randint(settings.pool, chosen, generator=generator, device=device)]
    return tasks.sample(settings.length, generator), generator


class EnergyRecipe(TrainingRecipe):
    """Training of an :class:`ICLEBM` by an objective on datasets of a prior."""

    advice = (
        "Use a smaller learning_rate, clip the gradient (clip=1.0), or, with contrastive "
        "divergence, a smaller step_size."
    )

    def __init__(self, settings: TrainingSettings, init: ICLEBM | None = None) -> None:
        require_kind(settings, "settings", TrainingSettings)
        if init is not None:
            require_kind(init, "init", ICLEBM)
            box, wall, scale = settings.model.box, settings.model.wall, settings.model.scale
            if replace(init.config, box=box, wall=wall, scale=scale) != settings.model:
                raise InvalidInputError(
                    f"init has the shape {init.config}, but the settings ask for {settings.model}."
                )
        self.settings: TrainingSettings = settings
        self.start = None if init is None else init.state_dict()
        self.precision = settings.precision
        self.passes = settings.batch // settings.pass_size
        # Its state belongs to this run, not to the settings.
        self.objective = copy(settings.objective)
        if isinstance(self.objective, StatefulObjective):
            self.objective.load_state_dict({})

    def new_network(self) -> ICLEBM:
        """Return the network with its first weights."""
        return new_model(self.settings)

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Return the optimiser of the network."""
        settings = self.settings
        made: torch.optim.Optimizer = getattr(torch.optim, settings.optimizer)(
            network.parameters(),
            lr=settings.learning_rate,
            betas=settings.betas,
            eps=settings.epsilon,
            weight_decay=settings.weight_decay,
        )
        return made

    def loss(self, network: nn.Module, update: int, part: int) -> Tensor:
        """Return the loss of one pass."""
        model = cast(ICLEBM, network)
        x, generator = draw_pass(self.settings, update, part, model.readout.weight.device)
        return self.objective(model, x, generator)

    def held_out(self) -> Callable[[ICLEBM], float]:
        """Return the held-out score of a network."""
        return HeldOut(self.settings.prior, length=self.settings.length)

    def finished(self, weights: Weights) -> ICLEBM:
        """Return the model with the given weights."""
        return cast(ICLEBM, assembled(ICLEBM, self.settings.model, weights))
