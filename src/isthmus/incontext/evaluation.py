"""evaluate: compare a model with the truth, the Bayes predictive and common estimators."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.energy import Energy
from isthmus.errors import InvalidInputError
from isthmus.incontext.model import ICLEBM
from isthmus.incontext.priors import GaussianMixtures, MixtureTasks
from isthmus.incontext.references import BayesPredictive, Reference, known_references, reference
from isthmus.io.files import write_atomically
from isthmus.io.reading import reading
from isthmus.normalizer import Grid as Grid
from isthmus.normalizer import LogIntegral as LogIntegral
from isthmus.normalizer import annealed_log_normalizer as annealed_log_normalizer
from isthmus.progress import progress as show_progress
from isthmus.validation import as_choice, as_count, as_seed

if TYPE_CHECKING:
    import pandas

FloatArray = NDArray[np.float64]

CONTEXTS = (0, 1, 2, 4, 8, 16, 32, 64)
# A finer search than a likelihood of a hundred tasks can resolve.
TEMPERATURES = tuple(10 ** (i / 40) for i in range(-60, 61))
# Of the held-out score; its seed differs from those of training.
HELD_OUT_CONTEXTS, HELD_OUT_SEED = (0, 2, 8, 32), 2**31
HELD_OUT_TASKS, HELD_OUT_POINTS = 16, 64
TASKS_AT_ONCE = 4
ARRAYS = ("tempered", "kl", "order", "normalizer_error")


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """Scores in nats, for every context size and task.

    Attributes
    ----------
    prior : str
        The ``repr`` of the prior of the tasks.
    seed, points : int
        The seed of the tasks, and the number of held-out points of each.
    contexts : tuple of int
        Context sizes n; contexts of a task are the first n points of one sequence.
    nll : dict of ndarray (contexts, tasks)
        Mean negative log-likelihood of a task's held-out points: "model", "truth", and each
        reference; NaN where a reference is not defined.
    temperature, tempered : float, ndarray (contexts, tasks)
        The temperature T with the lowest mean negative log-likelihood of p^(1/T), and the latter.
    kl : ndarray (contexts, tasks)
        Kullback-Leibler divergence of the model's density from the true one.
    order : ndarray (contexts, some tasks)
        Divergence between the model's densities for two orders of one context.
    normalizer_error : ndarray (contexts, tasks)
        Bound or standard error of the model's log-normaliser.
    reference_error : dict of ndarray (contexts, tasks)
        Monte Carlo error of those references that have one.
    """

    prior: str
    seed: int
    points: int
    contexts: tuple[int, ...]
    nll: dict[str, FloatArray]
    temperature: float
    tempered: FloatArray
    kl: FloatArray
    order: FloatArray
    normalizer_error: FloatArray
    reference_error: dict[str, FloatArray]

    @property
    def tasks(self) -> int:
        """Number of tasks."""
        return self.kl.shape[1]

    @property
    def references(self) -> tuple[str, ...]:
        """Names of everything that the model is compared with, the truth included."""
        return tuple(name for name in self.nll if name != "model")

    def mean(self, name: str = "model") -> FloatArray:
        """Return the mean negative log-likelihood over tasks. (contexts,)."""
        return self.nll[as_choice(name, "name", self.nll)].mean(1)

    def standard_error(self, name: str = "model") -> FloatArray:
        """Return the standard error of that mean, over tasks. (contexts,)."""
        return _standard_error(self.nll[as_choice(name, "name", self.nll)])

    def difference(self, name: str) -> tuple[FloatArray, FloatArray]:
        """Return mean and standard error of model minus reference, paired over tasks.

        Both are (contexts,). The model is better where the mean is below zero.
        """
        paired = self.nll["model"] - self.nll[as_choice(name, "name", self.nll)]
        return paired.mean(1), _standard_error(paired)

    def __repr__(self) -> str:
        return f"Evaluation(prior={self.prior}, contexts={self.contexts}, tasks={self.tasks})"

    def __str__(self) -> str:
        import pandas

        itself = {
            f"NLL at T={self.temperature:.3g}": _cells(self.tempered),
            "KL from truth": _cells(self.kl),
            "KL of two orders": _cells(self.order),
        }
        for name, error in {"log Z": self.normalizer_error, **self.reference_error}.items():
            itself[f"error of {name}"] = [f"{value:.1e}" for value in error.mean(1)]
        tables = {
            "Negative log-likelihood, nats ± standard error": {
                name: _cells(scores) for name, scores in self.nll.items()
            },
            "Model minus reference, paired over tasks (below 0: the model is better)": {
                name: _cells(self.nll["model"] - self.nll[name]) for name in self.references
            },
            "The model itself": itself,
        }
        size = f"{self.tasks} tasks, {self.points} held-out points each, seed {self.seed}"
        columns = pandas.Index(self.contexts, name="n")
        return f"{self.prior}\n{size}" + "".join(
            f"\n\n{heading}\n{pandas.DataFrame(rows, columns).T.to_string()}"
            for heading, rows in tables.items()
        )

    def to_frame(self) -> pandas.DataFrame:
        """Return a pandas frame with a row for each context size and task."""
        import pandas

        index = pandas.MultiIndex.from_product(
            [self.contexts, range(self.tasks)], names=["context", "task"]
        )
        arrays = {f"nll_{name}": scores for name, scores in self.nll.items()}
        arrays |= {"nll_tempered": self.tempered, "kl": self.kl}
        arrays |= {"normalizer_error": self.normalizer_error, "order": self.order}
        arrays |= {f"error_{name}": error for name, error in self.reference_error.items()}
        columns = {}
        for name, each in arrays.items():  # some are known for the first tasks only
            missing = ((0, 0), (0, self.tasks - each.shape[1]))
            columns[name] = np.pad(each, missing, constant_values=np.nan).ravel()
        return pandas.DataFrame(columns, index).reset_index()

    def to_json(self, path: str | Path | None = None) -> str:
        """Return everything as JSON, for :meth:`from_json`, and write it if a path is given."""
        text = json.dumps(asdict(self), default=np.ndarray.tolist)
        # JSON has no NaN and no infinities: they become null.
        text = json.dumps(json.loads(text, parse_constant=lambda name: None)) + "\n"
        if path is not None:
            write_atomically(path, text)
        return text

    @classmethod
    def from_json(cls, path: str | Path) -> Evaluation:
        """Read the file of :meth:`to_json`."""
        with reading(path, "evaluation") as place:
            content = json.loads(place.read_text(encoding="utf-8"))
            content.pop("descent", None)  # of earlier versions
            content["contexts"] = tuple(content["contexts"])
            if content["temperature"] is None:
                content["temperature"] = math.nan
            array = partial(np.array, dtype=float)
            content |= {name: array(content[name]) for name in ARRAYS}
            for name in ("nll", "reference_error"):
                content[name] = {key: array(rows) for key, rows in content[name].items()}
            return cls(**content)


def _standard_error(scores: FloatArray) -> FloatArray:
    import pandas

    return pandas.DataFrame(scores).sem(axis=1, skipna=False).to_numpy()


def _cells(scores: FloatArray) -> list[str]:
    """Return the mean and its standard error over tasks for each context size, as text."""
    if scores.shape[1] == 0:
        return ["-"] * len(scores)
    pairs = zip(scores.mean(1), _standard_error(scores), strict=True)
    return ["-" if np.isnan(mean) else f"{mean:.3f} ± {error:.3f}" for mean, error in pairs]


@torch.no_grad()
def evaluate(
    model: Any,
    prior: GaussianMixtures,
    *,
    contexts: Sequence[int] = CONTEXTS,
    tasks: int = 100,
    points: int = 64,
    seed: int = 0,
    references: Sequence[str | Reference] | None = None,
    grid: Grid | None = None,
    probes: int = 20,
    progress: bool | None = None,
) -> Evaluation:
    """Evaluate an in-context model on fresh tasks.

    In one or two dimensions densities are normalised by quadrature. In more, by annealed importance
    sampling: the divergence is then an estimate, and other temperatures and orders are NaN.

    Parameters
    ----------
    model : ICLEBM or alike
        ``model.condition`` of points (B, n, D) returns an Energy; ``model.config`` has ``dim``, and
        ``box``, a half-width or None.
    prior : GaussianMixtures
        Distribution of the tasks.
    contexts, tasks, points, seed
        Context sizes, numbers of datasets and of held-out points of each, and their seed.
    references : sequence of names or Reference, optional
        Default: all that exist for the prior (:data:`isthmus.incontext.references.REFERENCES`).
    grid : Grid, optional
        Default: :func:`~isthmus.incontext.evaluation.grid_for` the model and the prior.
    probes : int
        Number of tasks on which another order of contexts is tried.
    progress : bool, optional
        Show a progress bar on stderr. Default: on a terminal, once the run takes long.

    Examples
    --------
    >>> from isthmus.incontext import ICLEBM, ICLEBMConfig
    >>> from isthmus.incontext.priors import prior
    >>> model = ICLEBM(ICLEBMConfig(layers=1, heads=1, width=4, box=5.5))
    >>> found = evaluate(
    ...     model, prior("compact"), contexts=(0, 4), tasks=2, points=8, references=["kde-best"]
    ... )
    >>> found.references, found.mean("model").shape
    (('truth', 'kde-best'), (2,))
    """
    tasks, probes = as_count(tasks, "tasks"), as_count(probes, "probes", at_least=0)
    chosen = known_references(prior) if references is None else references
    rivals = [reference(each, prior) if isinstance(each, str) else each for each in chosen]
    sizes = tuple(sorted({as_count(size, "contexts", at_least=0) for size in contexts}))
    if not sizes:
        raise InvalidInputError("contexts is empty: name at least one context size, such as 0.")
    if model.config.dim != prior.dim:
        raise InvalidInputError(
            f"The model has {model.config.dim} coordinates, the prior {prior.dim}."
        )
    if grid is None and prior.dim <= 2:
        grid = grid_for(model, prior)
    generator = torch.Generator().manual_seed(as_seed(seed))
    drawn = prior.draw(tasks, generator, dtype=torch.float64)
    sequence = drawn.sample(sizes[-1], generator)
    held_out = drawn.sample(as_count(points, "points"), generator)
    ranks = torch.rand(sequence.shape[:2], generator=generator)  # of a random order
    with show_progress("evaluating", tasks * len(sizes) + len(rivals), show=progress) as report:
        parts, done = [], 0
        for block in torch.arange(tasks).split(TASKS_AT_ONCE):
            some = ranks[block[: max(0, probes - int(block[0]))]]
            data = drawn[block], sequence[block], held_out[block], some
            parts.append(_score_model(model, *data, sizes, grid, prior.box))
            report(done := done + len(block) * len(sizes))
        found = {key: np.concatenate([part[key] for part in parts], axis=1) for key in parts[0]}
        truth = -drawn.log_prob(held_out).mean(1).expand(len(sizes), -1)
        nll = {"model": found.pop("nll"), "truth": truth.numpy().copy()}
        errors = {}
        for rival in rivals:
            if isinstance(rival, BayesPredictive):
                predictions = rival.predictions(sequence, sizes, held_out)
                log_probs = [each.log_prob for each in predictions]
                errors[rival.name] = torch.stack([each.error for each in predictions]).numpy()
            else:
                log_probs = rival.nested(sequence, sizes, held_out)
            nll[rival.name] = -torch.stack(log_probs).mean(-1).numpy()
            report(done := done + 1)
    tempered = found.pop("tempered")  # (contexts, tasks, temperatures)
    best = int(np.argmin(tempered.mean((0, 1))))
    return Evaluation(
        prior=repr(prior),
        seed=seed,
        points=points,
        contexts=sizes,
        nll=nll,
        temperature=TEMPERATURES[best] if grid else float("nan"),
        tempered=tempered[..., best],
        reference_error=errors,
        **found,
    )


def _score_model(
    model: Any,
    tasks: MixtureTasks,
    sequence: Tensor,
    points: Tensor,
    ranks: Tensor,
    sizes: Sequence[int],
    grid: Grid | None,
    box: float,
) -> dict[str, np.ndarray]:
    """Return the arrays of :class:`Evaluation` for a few tasks, each (contexts, tasks, ...)."""
    rows, probes = [], len(ranks)
    truth = tasks.log_prob(points if grid is None else grid.nodes.expand(len(tasks), -1, -1))
    for size in sizes:
        context = sequence[:, :size]
        order = torch.zeros(probes, dtype=torch.float64)
        if grid is None:
            energy = model.condition(context)
            drawn = annealed_log_normalizer(energy, scale=box / 2, batch=len(context), seed=size)
            nll = _scaled(energy, points).mean(1) + drawn.value
            unknown = nll.new_full((len(context), len(TEMPERATURES)), torch.nan)
            row = {"nll": nll, "tempered": unknown, "normalizer_error": drawn.error}
            row["kl"], order[:] = nll + truth.mean(1), torch.nan
        else:
            density = GridDensity(model, context, grid)
            row = {**density.scores(points), "kl": density.kl_from(truth)}
            if probes and size > 1:
                index = ranks[:, :size].argsort(1)[..., None]
                again = GridDensity(model, context[:probes].take_along_dim(index, 1), grid)
                order = again.kl_from(density.log_prob[:probes])
        rows.append({**row, "order": order})
    return {key: torch.stack([row[key] for row in rows]).numpy() for key in rows[0]}


def grid_for(model: Any, prior: GaussianMixtures) -> Grid:
    """Return a grid that holds the model's density, walls included, and resolves the prior's."""
    # Lines are 0.8 standard deviations of the sharpest component apart; for other priors, whose
    # details a model trained on mixtures does not have, 1/45 of the box.
    box = max(model.config.box or 0.0, prior.box)
    wall = getattr(model.config, "wall", box / 10)
    spacing = 0.8 * prior.std_low if isinstance(prior, GaussianMixtures) else prior.box / 45
    return Grid.with_spacing(prior.dim, box + 5 * wall, spacing)


class GridDensity:
    """The density of a model for contexts (B, n, D), normalised exactly on a grid."""

    def __init__(self, model: Any, context: Tensor, grid: Grid) -> None:
        self.grid = grid
        self.energy = model.condition(context)
        self.log_values = -_scaled(self.energy, grid.nodes.expand(len(context), -1, -1))  # (B, G)
        self.log_normalizer = grid.integrate(self.log_values)
        self.log_prob = self.log_values - self.log_normalizer.value[:, None]

    def nll(self, points: Tensor) -> Tensor:
        """Return the mean negative log-likelihood of points (B, M, D): (B,)."""
        return _scaled(self.energy, points).mean(1) + self.log_normalizer.value

    def scores(self, points: Tensor) -> dict[str, Tensor]:
        """Return scores of points (B, M, D), at temperature 1 and at :data:`TEMPERATURES`."""
        nll, error = self.nll(points), self.log_normalizer.error
        mean = nll - self.log_normalizer.value
        tempered = [
            mean / T + torch.logsumexp(self.log_values / T + self.grid.log_weights, dim=-1)
            for T in TEMPERATURES
        ]
        return {"nll": nll, "tempered": torch.stack(tempered, 1), "normalizer_error": error}

    def kl_from(self, log_prob: Tensor) -> Tensor:
        """Return the divergence of this density from another, given at the nodes (B, G): (B,)."""
        mass = (log_prob + self.grid.log_weights).softmax(-1)
        gap = torch.where(mass > 0, log_prob - self.log_prob, 0.0)  # no 0 times infinity
        return (mass * gap).sum(-1)


def _scaled(energy: Energy, x: Tensor) -> Tensor:
    """Return energy times inverse temperature in float64. (B, M, D) -> (B, M)."""
    return (energy.inverse_temperature * energy.energy(x)).double()


def held_out_score(prior: GaussianMixtures, length: int) -> Callable[[ICLEBM], float]:
    """Return a score in nats on fixed datasets of a prior; NaN in more than two dimensions."""
    generator = torch.Generator().manual_seed(HELD_OUT_SEED)
    drawn = prior.draw(HELD_OUT_TASKS, generator)
    sizes = [size for size in HELD_OUT_CONTEXTS if size < length]
    sequence, points = (drawn.sample(n, generator) for n in (max(sizes), HELD_OUT_POINTS))

    @torch.no_grad()
    def score(model: ICLEBM) -> float:
        if prior.dim > 2:
            return math.nan
        grid = grid_for(model, prior)
        densities = (GridDensity(model, sequence[:, :size], grid) for size in sizes)
        return fmean(float(each.nll(points).mean()) for each in densities)

    return score
