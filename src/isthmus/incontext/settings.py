"""TrainingSettings: all settings that decide the outcome of a training run."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from isthmus.errors import InvalidInputError
from isthmus.incontext.config import CheckedFields, ICLEBMConfig, cosine_at
from isthmus.incontext.objectives import ContrastiveDivergence, Objective, Proposal, RankingNCE
from isthmus.incontext.priors import GaussianMixtures, Prior
from isthmus.validation import as_choice


@dataclass(frozen=True, kw_only=True)
class TrainingSettings(CheckedFields):
    """Settings of a training run. Equal settings give equal models, bit for bit.

    Parameters
    ----------
    model : ICLEBMConfig
    prior : Prior
        Distribution over densities, from which datasets are drawn.
    objective : Objective
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
    prior: Prior = field(default_factory=GaussianMixtures.compact)
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

    def on_prior(self, prior: Prior) -> TrainingSettings:
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

    Examples
    --------
    >>> preset("paper").objective.sampler.step_size
    3.16
    """
    return PRESETS[as_choice(name, "preset", PRESETS)]
