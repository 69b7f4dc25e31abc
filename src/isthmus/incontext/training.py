"""train: in-context energies, trained by an objective on datasets of a prior, and its settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import torch
from torch import Tensor, nn

from isthmus.errors import InvalidInputError
from isthmus.incontext.config import CheckedFields, ICLEBMConfig, cosine_at
from isthmus.incontext.evaluation import held_out_score
from isthmus.incontext.loop import TrainingRecipe, run, seeded, without_state
from isthmus.incontext.model import ICLEBM
from isthmus.incontext.objectives import ContrastiveDivergence, Objective, Proposal, RankingNCE
from isthmus.incontext.priors import GaussianMixtures
from isthmus.incontext.storage import Row, Weights
from isthmus.validation import as_choice, require_kind

if TYPE_CHECKING:
    from lightning_fabric import Fabric


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(CheckedFields):
    """Settings of a training run. Equal settings give equal models, bit for bit.

    Parameters
    ----------
    model, prior, objective : ICLEBMConfig, GaussianMixtures, Objective
        The network, the distribution over densities of its datasets, and the loss.
    updates, batch : int
        Steps of the optimiser, and datasets for each step.
    micro_batch : int, optional
        Datasets for each forward and backward pass; gradients accumulate over the batch.
        Processes share the passes. Default: the whole batch.
    length : int
        Points of each dataset, so contexts have 0 to ``length - 1`` points.
    pool : int, optional
        Number of densities to train on, drawn once from the seed; datasets hold fresh points of
        them. Default: fresh densities at every update.
    optimizer : {"AdamW", "Adam"}
        Adam adds the weight decay to the gradient.
    learning_rate, betas, epsilon, weight_decay : float
    warmup, schedule : int, {"cosine", "constant"}
        Updates over which the learning rate rises from zero, and its course after that.
    clip : float, optional
        Largest norm of the gradient.
    precision : {"32-true", "bf16-mixed"}
        Of Lightning Fabric. With the second, products of matrices are in bfloat16, also those of
        the sampler; points, energies and parameters stay in float32.
    seed : int
    """

    model: ICLEBMConfig = field(default_factory=lambda: ICLEBMConfig(box=5.5))
    prior: GaussianMixtures = field(default_factory=GaussianMixtures.compact)
    objective: Objective = field(default_factory=RankingNCE)
    updates: int = 6500
    batch: int = 16
    micro_batch: int | None = None
    length: int = 41
    pool: int | None = None
    optimizer: Literal["AdamW", "Adam"] = "AdamW"
    learning_rate: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.98)
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    warmup: int = 100
    schedule: Literal["cosine", "constant"] = "cosine"
    clip: float | None = 1.0
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    seed: int = 0

    zero = ("weight_decay", "warmup", "seed")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch % self.pass_size:
            raise InvalidInputError(f"batch ({self.batch}) must be a multiple of micro_batch.")
        if self.prior.dim != self.model.dim:
            raise InvalidInputError(
                f"The prior draws points in {self.prior.dim} dimensions, "
                f"but the model reads {self.model.dim}."
            )

    @property
    def pass_size(self) -> int:
        """Datasets for each forward and backward pass."""
        return self.micro_batch or self.batch

    def on_prior(self, prior: GaussianMixtures) -> TrainingSettings:
        """Return the same training on another prior, whose box the model and proposal take."""
        model, objective = self.model, self.objective
        if model.box is not None:
            scale = model.scale * prior.box / self.prior.box
            model = replace(model, box=prior.box, scale=scale)
        if prior != self.prior and isinstance(objective, ContrastiveDivergence | RankingNCE):
            proposal = objective.proposal
            if isinstance(proposal, Proposal):
                objective = replace(objective, proposal=replace(proposal, box=prior.box))
        return replace(self, prior=prior, model=model, objective=objective)

    def with_batch(self, batch: int) -> TrainingSettings:
        """Return the same training with other batches, in as many passes as before."""
        passes = self.batch // self.pass_size
        micro_batch = None if self.micro_batch is None else max(1, batch // passes)
        return replace(self, batch=batch, micro_batch=micro_batch)

    def on_devices(self, devices: int) -> TrainingSettings:
        """Return the same training with passes that the processes can share equally."""
        if (self.batch // self.pass_size) % devices == 0:
            return self
        return replace(self, micro_batch=self.batch // devices or 1)

    def learning_rate_at(self, update: int) -> float:
        """Return the learning rate of one update, counted from 0."""
        if self.schedule == "constant":
            return self.learning_rate * min(1.0, (update + 1) / (self.warmup + 1))
        return self.learning_rate * cosine_at(update, self.updates, self.warmup)


# The paper's settings, and where it gives none, those of its authors' code.
PAPER = TrainingSettings(
    model=ICLEBMConfig(feedforward=2048),
    prior=GaussianMixtures.paper(),
    objective=ContrastiveDivergence.paper(),
    updates=1250,
    batch=64,
    micro_batch=32,
    length=40,
    pool=100,
    optimizer="Adam",
    betas=(0.9, 0.999),
    epsilon=1e-4,
    weight_decay=1e-5,
    warmup=0,
    schedule="constant",
    clip=0.1,
    precision="bf16-mixed",
)
PRESETS = {
    "default": TrainingSettings(),
    "paper": PAPER,
    # The paper's model and data by the default objective, to compare the two.
    "paper-nce": replace(PAPER, objective=RankingNCE(proposal=Proposal(box=PAPER.prior.box))),
    # Less than a minute on one core, for a first look.
    "tiny": TrainingSettings(
        model=ICLEBMConfig(layers=2, heads=4, width=32, box=5.5),
        updates=600,
        length=25,
        learning_rate=5e-3,
        warmup=50,
    ),
}


def preset(name: str) -> TrainingSettings:
    """Return the settings called ``default``, ``paper``, ``paper-nce`` or ``tiny``.

    >>> preset("paper").objective.sampler.step_size
    3.16
    """
    return PRESETS[as_choice(name, "preset", PRESETS)]


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
    recipe = _EnergyRecipe(settings, init)
    weights, rows = run(
        recipe, out, devices=devices, accelerator=accelerator, precision=precision, fabric=fabric,
        log_every=log_every, evaluate_every=evaluate_every, checkpoint_every=checkpoint_every,
        progress=progress, report=report,
    )  # fmt: skip
    return Trained(recipe.finished(weights), rows)


def new_model(settings: TrainingSettings) -> ICLEBM:
    """Return the untrained model of a run; the seed alone determines its weights."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return ICLEBM(settings.model)


def draw_pass(
    settings: TrainingSettings, update: int, part: int, device: torch.device
) -> tuple[Tensor, torch.Generator]:
    """Return datasets (B, S, D) of one pass, which the arguments decide, and its generator."""
    generator = seeded(settings.seed, update, part, device=device)
    if settings.pool is None:
        tasks = settings.prior.draw(settings.pass_size, generator)
    else:  # the same pool for every pass, and cheap enough to draw again
        once = seeded(settings.seed, device=device, spawn_key=(0,))
        pool, chosen = settings.prior.draw(settings.pool, once), (settings.pass_size,)
        tasks = pool[torch.randint(settings.pool, chosen, generator=generator, device=device)]
    return tasks.sample(settings.length, generator), generator


class _EnergyRecipe(TrainingRecipe):
    """Training of an :class:`ICLEBM` by an objective on datasets of a prior."""

    advice = (
        "Use a smaller learning_rate, clip the gradient (clip=1.0), or, with contrastive "
        "divergence, a smaller step_size."
    )

    def __init__(self, settings: TrainingSettings, init: ICLEBM | None = None) -> None:
        require_kind(settings, "settings", TrainingSettings)
        if init is not None:
            require_kind(init, "init", ICLEBM)
            own = {name: getattr(settings.model, name) for name in ("box", "wall", "scale")}
            if replace(init.config, **own) != settings.model:
                raise InvalidInputError(
                    f"init has the shape {init.config}, but the settings ask for {settings.model}."
                )
        self.settings: TrainingSettings = settings
        self.start = None if init is None else init.state_dict()
        self.precision = settings.precision
        self.passes = settings.batch // settings.pass_size
        self.objective = without_state(settings.objective)

    def new_network(self) -> ICLEBM:
        return new_model(self.settings)

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        settings = self.settings
        kind = {"AdamW": torch.optim.AdamW, "Adam": torch.optim.Adam}[settings.optimizer]
        options = {"betas": settings.betas, "eps": settings.epsilon, "lr": settings.learning_rate}
        return kind(network.parameters(), weight_decay=settings.weight_decay, **options)

    def loss(self, network: nn.Module, update: int, part: int) -> Tensor:
        model = cast(ICLEBM, network)
        x, generator = draw_pass(self.settings, update, part, model.readout.weight.device)
        return self.objective(model, x, generator)

    def held_out(self) -> Callable[[ICLEBM], float]:
        return held_out_score(self.settings.prior, self.settings.length)

    def finished(self, weights: Weights) -> ICLEBM:
        return ICLEBM.assembled(self.settings.model, weights)
