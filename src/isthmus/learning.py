"""fit: train the parameters of any energy on rows, by the objectives and the loop of isthmus."""

from __future__ import annotations

import hashlib
import math
import warnings
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from isthmus.bandwidth import leave_one_out
from isthmus.compose import Affine
from isthmus.deep import DeepMemory, EnergyTransformerBlock
from isthmus.deep.neural import Placed
from isthmus.dynamics.retrieve import require_energy, require_pointwise, retrieve
from isthmus.energy import Energy
from isthmus.errors import InvalidInputError, UnsupportedOperationError
from isthmus.incontext import objectives
from isthmus.incontext.config import CheckedFields, cosine_at
from isthmus.incontext.loop import TrainingRecipe, run, seeded, without_state
from isthmus.incontext.storage import Row, Weights
from isthmus.memories import GaussianKDE, StudentMixture
from isthmus.memories.base import Memory
from isthmus.normalizer import NormalizedEnergy
from isthmus.printing import definitions
from isthmus.saving import save
from isthmus.validation import as_choice, as_points, as_seed

__all__ = ["Fit", "FitRecord", "fit"]

OBJECTIVES = (
    "likelihood", "ranking", "binary", "contrastive", "persistent", "denoising", "sliced",
    "completion",
)  # fmt: skip
# Every tenth row is held out, and there must be two of them.
HELD_OUT, FEWEST_ROWS = 10, 20
# A mixture covers rows of so many columns; above, classification against it is too easy.
MOST_COLUMNS = 16
# Budgets: rows of a batch, candidates for each, draws of the held-out score, rows of the mixture.
BATCH, CANDIDATES, DRAWS, MIXTURE_ROWS = 256, 4, 8192, 4000
# Components that are tried, the least variance of one in standard deviations, and its tails.
COMPONENTS, LEAST_VARIANCE, TAILS = (1, 2, 4, 8, 16), 1e-3, 5.0
# The standard deviation of one more component, in those of the columns, and its share.
WIDE, WIDE_SHARE = 2.0, 0.2
# Parameters of memories, as powers of a length: steps of the optimiser are in units of the rows.
POWERS = {"memories": 1, "prior_mean": 1, "scale_trils": 1, "bandwidth": 1, "beta": -2, "rho": -2}
# Updates between evaluations, evaluations without a better one before the end, averaged updates,
# and updates over which the learning rate rises.
EVALUATE_EVERY, PATIENCE, AVERAGED, WARMUP = 50, 12, 100, 49


@dataclass(frozen=True, kw_only=True)
class FitSettings(CheckedFields):
    """What decides the outcome of a fit, beside the energy."""

    objective: Any
    updates: int
    learning_rate: float
    rows: str  # a digest
    seed: int
    clip: float | None = None

    zero = ("seed",)

    def learning_rate_at(self, update: int) -> float:
        """Return the learning rate of one update, counted from 0."""
        return self.learning_rate * cosine_at(update, self.updates, min(WARMUP, self.updates // 4))


class RowModel(nn.Module):
    """An energy as an in-context model with an empty context, on standardised rows (B, 1, D)."""

    unconditional = True
    center: Tensor
    scale: Tensor

    def __init__(self, energy: Energy, center: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.energy = energy
        self.offset = nn.Parameter(center.new_zeros(()))  # of classification, which needs log Z
        self.register_buffer("center", center, persistent=False)
        self.register_buffer("scale", scale, persistent=False)

    def points(self, z: Tensor) -> Tensor:
        """Return rows (n, D) in the units of the data."""
        return self.center + self.scale * z.reshape(-1, z.shape[-1])

    def branch_energy(self, x: Tensor, candidates: Tensor) -> Tensor:
        """Return energies in nats of candidates (..., D): (...)."""
        energy = self.energy.inverse_temperature * self.energy._energy(self.points(candidates))
        return energy.view(candidates.shape[:-1]) + self.offset

    def real_and_branch_energy(self, x: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        """Return energies of rows (B, 1, D) and of candidates (B, 1, C, D) from one pass."""
        energy = self.branch_energy(x, torch.cat([x[:, :, None], candidates], dim=2))
        return energy[..., 0], energy[..., 1:]

    def branch_gradient(self, x: Tensor, count: int) -> Callable[[Tensor], Tensor]:
        """Return the gradient, a function of candidates (..., D)."""
        factor = -self.energy.inverse_temperature * self.scale
        return lambda z: factor * self.energy._score(self.points(z)).view(z.shape)

    def step(self, x: Tensor, held: Tensor) -> Tensor:
        """Return one update of standardised rows (B, 1, D), with coordinates held."""
        moved = self.energy._step(self.points(x), held.view(-1, x.shape[-1])).view(x.shape)
        return (moved - self.center) / self.scale

    def log_prob(self, x: Tensor) -> Tensor:
        """Return log-densities of standardised rows (..., D): (...)."""
        found = self.energy._log_prob(self.points(x)).view(x.shape[:-1])
        return found + self.scale.log().sum() - 0 * self.offset


class RowRecipe(TrainingRecipe):
    """Training of an energy on rows."""

    patience = PATIENCE
    average, average_every = 1 - 10 / AVERAGED, 10
    advice = "Use a smaller learning_rate, or an energy that is bounded below."

    def __init__(
        self,
        settings: FitSettings,
        energy: Energy,
        held: Tensor,
        noise: Noise,
        units: dict[str, float] | None = None,
    ) -> None:
        self.settings: FitSettings = settings
        self.energy, self.rows, self.held, self.noise = energy, noise.rows, held, noise
        self.units = units or {}
        self.start = RowModel(energy, noise.center, noise.scale).state_dict()
        self.objective = settings.objective
        if isinstance(self.objective, objectives.Completion):
            self.score_name = "held_out_completion"
        elif held.shape[1] > MOST_COLUMNS:
            self.score_name = "held_out_denoising"

    def new_network(self) -> RowModel:
        """Return a copy of the energy, as a model of standardised rows."""
        return RowModel(deepcopy(self.energy), self.noise.center, self.noise.scale)

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Return the optimiser of the parameters, each in its unit."""
        groups: dict[float, list[Tensor]] = {}
        for name, each in network.named_parameters():
            unit = self.units.get(name.removeprefix("energy."), 1.0)
            if each.requires_grad:
                groups.setdefault(unit, []).append(each)
                if unit != 1:
                    each.register_hook(partial(torch.mul, unit))
        parameters = [{"params": each, "unit": unit} for unit, each in groups.items()]
        return torch.optim.AdamW(parameters, weight_decay=0.0, betas=(0.9, 0.99), fused=True)

    def loss(self, network: nn.Module, update: int, part: int) -> Tensor:
        """Return the loss of a batch that the number of the update decides."""
        generator = seeded(self.settings.seed, update)
        chosen = torch.randint(len(self.rows), (BATCH,), generator=generator)
        with torch.random.fork_rng(devices=[]):  # for dropout
            seed = seeded(self.settings.seed, 2**41 + update).initial_seed()
            torch.default_generator.manual_seed(seed)
            return self.objective(network, self.rows.index_select(0, chosen)[:, None], generator)

    def held_out(self) -> Callable[[Any], float]:
        """Return the score of a network on held-out rows, with the same random numbers."""
        if self.score_name == "held_out_nll":
            return self._nats()
        loss_of = self.objective
        if self.score_name == "held_out_denoising":
            loss_of = objectives.DenoisingScoreMatching(sigma=self.noise.sigma)

        def score(network: RowModel) -> float:
            generator = seeded(self.settings.seed, 2**40)
            return float(loss_of(network.eval(), self.held[:, None], generator).item())

        return score

    def _nats(self) -> Callable[[RowModel], float]:
        """Return the mean negative log-density of rows, with log Z by importance sampling."""
        noise, held = self.noise.mixture, self.held
        draws = noise._sample(DRAWS, seeded(self.settings.seed, 2**40)).to(held)
        log_noise, shift = noise._log_prob(draws), float(self.noise.scale.log().sum())

        @torch.no_grad()
        def score(network: RowModel) -> float:
            weight = -network.eval().branch_energy(held, draws) - log_noise
            log_normalizer = weight.logsumexp(0) - math.log(DRAWS)
            real = network.branch_energy(held, held).mean()
            return float(real + log_normalizer) + shift

        return score

    def finished(self, weights: Weights) -> Energy:
        """Return the energy with the weights of a network, frozen."""
        network = self.new_network()
        network.load_state_dict(weights)
        return network.energy.eval().requires_grad_(False)

    def save(self, weights: Weights, folder: Path) -> None:
        """Write the energy; one of the caller's own is in the checkpoint alone."""
        with suppress(UnsupportedOperationError):
            save(self.finished(weights), folder / "energy.safetensors")


@dataclass(eq=False)
class Noise:
    """What an objective compares rows with, chosen from the standardised rows (n, D)."""

    rows: Tensor
    center: Tensor
    scale: Tensor
    seed: int

    @cached_property
    def sigma(self) -> float:
        """The leave-one-out bandwidth, in standard deviations of the columns."""
        return min(0.5, max(0.02, leave_one_out(self.rows.double(), self.seed)))

    @cached_property
    def mixture(self) -> StudentMixture:
        """A mixture by the BIC, with heavier tails."""
        from sklearn.mixture import GaussianMixture

        some, dim = self.rows[:MIXTURE_ROWS].double().numpy(), self.rows.shape[1]
        most = max(1, len(some) // (2 * dim + 2))
        options: Any = {"reg_covar": LEAST_VARIANCE, "random_state": self.seed % 2**32}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one that has not converged is no worse as noise
            found = [GaussianMixture(k, **options).fit(some) for k in COMPONENTS if k <= most]
        best = min(found, key=lambda each: float(each.bic(some)))
        # A wide component covers what lies around the rows, where the energy must rise too.
        factors = np.concatenate([np.linalg.cholesky(best.covariances_), WIDE * np.eye(dim)[None]])
        means = np.concatenate([best.means_, np.zeros((1, dim))])
        weights = np.append(best.weights_ * (1 - WIDE_SHARE), WIDE_SHARE)
        return StudentMixture(means, factors, TAILS, np.log(weights)).to(self.rows.dtype)

    def objective(self, name: str) -> Any:
        """Return an objective with noise and steps that suit the rows."""
        if name == "denoising":
            return objectives.DenoisingScoreMatching(sigma=self.sigma, candidates=CANDIDATES)
        if name in ("ranking", "binary"):
            kind = objectives.RankingNCE if name == "ranking" else objectives.BinaryNCE
            return kind(candidates=CANDIDATES, proposal=objectives.EnergyProposal(self.mixture))
        if name in ("contrastive", "persistent"):
            sigma, again = self.sigma, name == "persistent"
            steps: Any = {"steps": 20, "noise": sigma, "step_size": sigma**2 / 2}
            start = self.mixture if again else GaussianKDE(self.rows, sigma)
            chains = objectives.ContrastiveDivergence(
                candidates=1,
                sampler=objectives.BranchLangevin(**steps, clip=3 / sigma),
                proposal=objectives.EnergyProposal(start),
            )
            more = objectives.PersistentContrastiveDivergence
            return more(chains=chains, refresh=0.05) if again else chains
        if name == "completion":
            return objectives.Completion()
        likely = name == "likelihood"
        return objectives.MaximumLikelihood() if likely else objectives.SlicedScoreMatching()


@dataclass(frozen=True, eq=False, repr=False)
class FitRecord:
    """The course of a fit.

    Attributes
    ----------
    objective : str
        The loss with the settings that were chosen.
    rows : list of dict
        Loss, held-out score, learning rate and CPU seconds after each number of updates.
    n_rows, n_held_out, updates : int
        The updates are those planned; fewer were made if the held-out score stopped falling.
    noise_scale : float or None
        Blur or Langevin noise in standard deviations of the columns, if the objective has one.
    score_name : str
        ``held_out_nll``: nats for each held-out row, with an estimated normaliser. Above 16
        columns, ``held_out_denoising``, and of completion, ``held_out_completion``: that loss of
        held-out rows.
    is_bounded : bool
        False if descents from rows left the data: the energy seems to have no lower bound.
    """

    objective: str
    rows: list[Row]
    n_rows: int
    n_held_out: int
    updates: int
    noise_scale: float | None
    score_name: str
    is_bounded: bool

    @property
    def held_out(self) -> float:
        """The best held-out score, that of the result."""
        return min(row[self.score_name] for row in self.rows if self.score_name in row)

    @property
    def loss(self) -> float:
        """The last loss."""
        return self.rows[-1]["loss"]

    @property
    def seconds(self) -> float:
        """CPU seconds."""
        return self.rows[-1]["cpu_seconds"]

    def __repr__(self) -> str:
        best = next(row for row in self.rows if row.get(self.score_name) == self.held_out)
        kind, last = self.score_name.removeprefix("held_out_"), self.rows[-1]
        facts = {"objective": self.objective}
        facts["rows"] = f"{self.n_rows}, and {self.n_held_out} held out"
        if self.noise_scale is not None:
            facts["noise scale"] = f"{self.noise_scale:.3g} standard deviations"
        facts["learning rate"] = f"{max(row['learning_rate'] for row in self.rows):.3g}"
        facts["updates"] = f"{last['update']:.0f} of {self.updates}, best {best['update']:.0f}"
        facts["loss"] = f"{self.loss:.4g}"
        unit = "nats a row" if kind == "nll" else f"of {kind}"
        facts["held-out score"] = f"{self.held_out:.4g} {unit}"
        facts["time"] = f"{self.seconds:.1f} s"
        return "\n".join(definitions(facts))

    def plot(self, axes: Any = None) -> Any:
        """Draw loss and held-out score against updates; return the axes."""
        if axes is None:
            from matplotlib.figure import Figure

            axes = Figure(figsize=(5, 3), layout="constrained").subplots()
        for name, label in (("loss", "loss"), (self.score_name, "held-out score")):
            seen = [(row["update"], row[name]) for row in self.rows if name in row]
            axes.plot(*zip(*seen, strict=True), label=label)
        axes.set_xlabel("update")
        axes.legend()
        return axes


@dataclass(frozen=True, eq=False)
class Fit:
    """A trained energy, frozen, and the record of its training."""

    energy: Energy
    record: FitRecord


def fit(
    energy: Energy,
    X: Any,
    objective: Any = None,
    *,
    updates: int = 3000,
    learning_rate: float = 2e-3,
    out: str | Path | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Fit:
    """Train the parameters of an energy on rows; return a :class:`Fit`.

    A tenth of the rows is held out. Training ends when their score stops falling, and the result
    has the weights of the best score, averaged over the last updates.

    Parameters
    ----------
    energy : Energy
        Any with parameters: :class:`~isthmus.NeuralEnergy`, :func:`~isthmus.as_energy` of a module,
        a memory, a deep memory, or a sum. Those that require a gradient are trained, or all if none
        does, in a copy.
    X : array, Tensor or frame (n, D)
    objective : str or Objective, optional
        ``"likelihood"``, where the normaliser is known; ``"ranking"`` and ``"binary"``
        noise-contrastive estimation; ``"contrastive"`` and ``"persistent"`` divergence;
        ``"denoising"`` and ``"sliced"`` score matching; ``"completion"`` of hidden coordinates, for
        energies with a step. They get noise and steps that suit the rows. Or an object of
        :mod:`isthmus.incontext.objectives`, in units of the columns' standard deviations. Default:
        the likelihood of a memory; ranking up to 16 columns; denoising above.
    updates : int
        Steps of the optimiser, at most.
    learning_rate : float
        The largest; it rises over 50 updates, or a quarter of all, and falls by a cosine.
    out : path, optional
        Folder for the checkpoint, the metrics and the energy. If it holds a checkpoint, the run
        continues from there, and ends bit for bit as it would have without the interruption.
    seed : int
    progress : bool, optional
        Show a progress bar. Default: on a terminal.

    Examples
    --------
    >>> import numpy as np, isthmus as ist
    >>> X = np.random.default_rng(0).normal(size=(200, 2))
    >>> trained = ist.fit(ist.NeuralEnergy(2, width=16), X, updates=60, progress=False)
    >>> bool(trained.energy.energy([0.0, 0.0]) < trained.energy.energy([4.0, 4.0]))
    True
    """
    require_energy(energy)
    seed = as_seed(seed)
    energy = _trainable(energy)
    rows = as_points(X, "X", dim=energy.dim, like=energy._template).cpu()
    if rows.ndim != 2 or len(rows) < FEWEST_ROWS:
        raise InvalidInputError(
            f"X must be (n, D) with {FEWEST_ROWS} rows or more, a tenth of which is held out, not "
            f"{tuple(rows.shape)}."
        )
    require_pointwise(energy.eval(), rows)
    energy.train()
    order = torch.randperm(len(rows), generator=seeded(seed, 0))
    rows = rows[order]
    count = len(rows) // HELD_OUT
    units = _in_units_of(energy, rows[count:])
    names = {name: units.get(id(each), 1.0) for name, each in energy.named_parameters()}
    dtype = rows.dtype
    if not all(1e-6 < unit < 1e6 for unit in names.values()):  # squares of which float32 loses
        energy, rows = energy.double(), rows.double()
    deviation, center = torch.std_mean(rows[count:], dim=0)
    scale = torch.where(deviation > 0, deviation, 1.0)
    standard = ((rows - center) / scale).to(dtype)
    noise = Noise(standard[count:], center, scale, seed)
    if objective is None:
        objective = "ranking" if rows.shape[1] <= MOST_COLUMNS else "denoising"
        objective = "likelihood" if isinstance(energy, Memory) else objective
    if isinstance(objective, str):
        objective = noise.objective(as_choice(objective, "objective", OBJECTIVES))
    settings = FitSettings(
        objective=without_state(objective),
        updates=updates,
        learning_rate=learning_rate,
        rows=hashlib.sha256(rows.numpy().tobytes()).hexdigest(),
        seed=seed,
    )
    recipe, often = RowRecipe(settings, energy, standard[:count], noise, names), EVALUATE_EVERY
    course: Any = {"log_every": often, "evaluate_every": often, "progress": progress}
    weights, history = run(recipe, out, accelerator="cpu", **course)
    trained = recipe.finished(weights)
    record = FitRecord(
        repr(objective), history, len(rows) - count, count, settings.updates,
        vars(noise).get("sigma"), recipe.score_name, _is_bounded(trained, rows[:64], center, scale),
    )  # fmt: skip
    return Fit(trained.to(dtype), record)


def _trainable(energy: Energy) -> Energy:
    """Return a copy whose parameters can be trained."""
    if isinstance(energy, NormalizedEnergy):
        raise InvalidInputError(
            "Training changes the normaliser. Fit energy.inner, then call with_normalizer again."
        )
    energy = deepcopy(energy)
    parameters = list(energy.parameters())
    if not parameters:
        raise InvalidInputError(f"{type(energy).__name__} has no parameters to train.")
    if not any(each.requires_grad for each in parameters):
        for each in parameters:  # the limits of some, such as Gaussian tails, have no gradient
            each.requires_grad_(bool(torch.isfinite(each).all()))
    if any(isinstance(part, _BatchNorm) for part in energy.modules()):
        raise InvalidInputError(
            "Batch normalisation makes the energy of a point depend on its batch. Use LayerNorm."
        )
    return energy


def _in_units_of(energy: nn.Module, rows: Tensor) -> dict[int, float]:
    """Put new networks where rows (n, D) are; return units of parameters of memories, by id."""
    units: dict[int, float] = {}
    length = float(rows.double().std(0).square().mean().sqrt()) or 1.0
    if isinstance(energy, Placed) and not energy.is_placed:
        energy.place_at(rows)
    elif isinstance(energy, Memory):
        parameters = dict(energy.named_parameters(recurse=False))
        powers, shape = POWERS, parameters.get("covariance")
        if shape is not None:  # which has all of the units of kernels, or some
            units[id(shape)] = spread = float(shape.detach().double().abs().max())
            powers = POWERS | {"beta": 0}
            units[id(parameters.get("bandwidth"))] = length / math.sqrt(spread)
        for name, each in parameters.items():
            units.setdefault(id(each), length ** powers.get(name, 0))
    elif isinstance(energy, DeepMemory | EnergyTransformerBlock) and not 1e-4 < length < 1e4:
        raise InvalidInputError(
            f"The rows spread over {length:.1g}, but {type(energy).__name__} has states of about "
            "1. Standardise the columns, or fit isthmus.Affine(energy, scale=..., shift=...)."
        )
    inner = energy.to_inner(rows) if isinstance(energy, Affine) else rows
    for part in energy.children():
        units |= _in_units_of(part, inner)
    return units


def _is_bounded(energy: Energy, rows: Tensor, center: Tensor, scale: Tensor) -> bool:
    """Return False, with a warning, if descents from rows leave the data."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ends = retrieve(energy, rows, max_steps=100).state
    left = int((((ends - center) / scale).abs().amax(dim=1) > objectives.FARTHEST).sum())
    if left:
        warnings.warn(
            f"{left} of {len(rows)} descents left the data: the energy seems to have no lower "
            "bound, so that it is no density. Add a term that grows with the distance, as "
            "isthmus.NeuralEnergy has.",
            UserWarning,
            stacklevel=3,
        )
    return not left
