"""evaluate: a model against the truth, the Bayes predictive and everyday estimates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from isthmus.dynamics.progress import progress_bar
from isthmus.errors import InvalidInputError
from isthmus.incontext.evaluation.descent import descent_error
from isthmus.incontext.evaluation.normalizer import Grid
from isthmus.incontext.evaluation.report import Evaluation
from isthmus.incontext.evaluation.scoring import (
    TEMPERATURES,
    InContextModel,
    OnGrid,
    score_annealed,
)
from isthmus.incontext.priors import GaussianMixtures, Prior, Tasks
from isthmus.incontext.references import (
    BayesPredictive,
    Reference,
    known_references,
    reference,
)
from isthmus.validation import as_count

__all__ = ["evaluate", "grid_for"]

CONTEXTS = (0, 1, 2, 4, 8, 16, 32, 64)
TASKS_AT_ONCE = 4
STARTS = 16
# The authors start descents in three quarters of what holds practically all of their data.
START_SHARE = 0.75


@torch.no_grad()
def evaluate(
    model: InContextModel,
    prior: Prior,
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
    """Judge an in-context model on fresh tasks.

    In one or two dimensions densities are normalised exactly, by quadrature; above, by annealed
    importance sampling, where the divergence from the truth is estimated on the held-out points
    and other temperatures and orders are left out (NaN).

    Parameters
    ----------
    model : InContextModel
        Anything with ``condition`` and a ``config`` that has ``dim`` and ``box``.
    prior : Prior
        Where the tasks come from.
    contexts : sequence of int
        Context sizes.
    tasks, points : int
        Datasets, and held-out points of each. The same for all sizes and references.
    seed : int
    references : sequence of names or Reference, optional
        Default: all that exist for the prior (:data:`isthmus.incontext.references.REFERENCES`).
    grid : Grid, optional
        Default: :func:`~isthmus.incontext.evaluation.grid_for` the model and the prior.
    probes : int
        The order of contexts and the end points of descent are tried on so many tasks only.
    progress : bool, optional
        Whether to show a bar on stderr. Default: on a terminal, once the run takes long.

    Returns
    -------
    Evaluation

    Examples
    --------
    >>> from isthmus.incontext import ICLEBM, ICLEBMConfig
    >>> from isthmus.incontext.evaluation import evaluate
    >>> from isthmus.incontext.priors import prior
    >>> model = ICLEBM(ICLEBMConfig(layers=1, heads=1, width=4, box=5.5))
    >>> found = evaluate(
    ...     model, prior("compact"), contexts=(0, 4), tasks=2, points=8, references=["kde-best"]
    ... )
    >>> found.references, found.mean("model").shape
    (('truth', 'kde-best'), (2,))
    """
    rivals = _rivals(prior, references)
    sizes = tuple(sorted({as_count(size, "contexts", at_least=0) for size in contexts}))
    if not sizes:
        raise InvalidInputError("contexts is empty: name at least one context size, such as 0.")
    if model.config.dim != prior.dim:
        raise InvalidInputError(
            f"The model has {model.config.dim} coordinates, the prior {prior.dim}."
        )
    if grid is None and prior.dim <= 2:
        grid = grid_for(model, prior)
    trial = _Trial.draw(prior, tasks, sizes[-1], points, seed)
    total = len(trial.tasks) * len(sizes)
    with progress_bar(total + len(rivals), "evaluating", progress) as report:
        parts, done = [], 0
        for block in torch.arange(len(trial.tasks)).split(TASKS_AT_ONCE):
            left = max(0, min(len(block), probes - int(block[0])))
            parts.append(_judge(model, trial[block], sizes, grid, left))
            report(done := done + len(block) * len(sizes))
        found = {key: np.concatenate([part[key] for part in parts], axis=1) for key in parts[0]}
        nll = {"model": found.pop("nll"), "truth": trial.truth(len(sizes))}
        errors = {}
        for rival in rivals:
            nll[rival.name], error = _rival_scores(rival, trial, sizes)
            if error is not None:
                errors[rival.name] = error
            report(done := done + 1)
    tempered = found.pop("tempered")  # (contexts, tasks, temperatures)
    best = int(np.argmin(tempered.mean((0, 1)))) if grid else TEMPERATURES.index(1.0)
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


def grid_for(model: InContextModel, prior: Prior) -> Grid:
    """A grid that holds the model's density, confining walls included, and resolves the prior's.

    Its lines are 0.8 standard deviations of the sharpest component apart for mixtures; for other
    priors, whose features a model trained on mixtures does not have, 1/45 of the box.
    """
    config = model.config
    box = max(config.box or 0.0, prior.box)
    wall = getattr(config, "wall", box / 10)
    spacing = 0.8 * prior.std_low if isinstance(prior, GaussianMixtures) else prior.box / 45
    return Grid.with_spacing(prior.dim, box + 5 * wall, spacing)


@dataclass(frozen=True)
class _Trial:
    """Tasks with a sequence, held-out points, shuffled places and descent starts for each."""

    tasks: Tasks
    sequence: Tensor
    points: Tensor
    ranks: Tensor
    starts: Tensor
    box: float

    @classmethod
    def draw(cls, prior: Prior, tasks: int, length: int, points: int, seed: int) -> _Trial:
        generator = torch.Generator().manual_seed(as_count(seed, "seed", at_least=0))
        drawn = prior.draw(as_count(tasks, "tasks"), generator, dtype=torch.float64)
        sequence = drawn.sample(length, generator)
        held_out = drawn.sample(as_count(points, "points"), generator)
        ranks = torch.rand((tasks, length), generator=generator)
        reach = START_SHARE * prior.box
        unit = torch.rand((tasks, STARTS, prior.dim), generator=generator, dtype=torch.float64)
        return cls(drawn, sequence, held_out, ranks, (2 * unit - 1) * reach, prior.box)

    def __getitem__(self, index: Tensor) -> _Trial:
        rows = (self.sequence[index], self.points[index], self.ranks[index], self.starts[index])
        return _Trial(self.tasks[index], *rows, self.box)

    def shuffled(self, size: int) -> Tensor:
        """Contexts of that size in another order. (B, size, D)."""
        order = self.ranks[:, :size].argsort(1)
        return self.sequence.gather(1, order[..., None].expand(-1, -1, self.sequence.shape[2]))

    def truth(self, copies: int) -> np.ndarray:
        """The true densities' negative log-likelihoods, the same for each size. (copies, B)."""
        nll = -self.tasks.log_prob(self.points).mean(1)
        return nll.expand(copies, -1).numpy().copy()


def _judge(
    model: InContextModel, trial: _Trial, sizes: Sequence[int], grid: Grid | None, probes: int
) -> dict[str, np.ndarray]:
    """Everything about the model on a few tasks, each (contexts, tasks, ...)."""
    rows: list[dict[str, Tensor]] = []
    truth = None
    if grid is not None:
        truth = trial.tasks.log_prob(grid.nodes.expand(len(trial.sequence), -1, -1))
    for size in sizes:
        context = trial.sequence[:, :size]
        if grid is not None and truth is not None:
            density = OnGrid(model, context, grid)
            scores, kl = density.scores(trial.points), density.kl_from(truth)
            order = torch.zeros(probes, dtype=torch.float64)
            if probes and size > 1:
                again = OnGrid(model, trial.shuffled(size)[:probes], grid)
                order = again.kl_from(density.log_prob[:probes])
        else:
            scale = trial.box / 2
            scores = score_annealed(model, context, trial.points, scale=scale, seed=size)
            kl = scores.nll + trial.tasks.log_prob(trial.points).mean(1)
            order = torch.full((probes,), torch.nan, dtype=torch.float64)
        descent = torch.zeros(0, dtype=torch.float64)
        if probes:
            some = torch.arange(probes)
            energy = model.condition(context[:probes])
            descent = descent_error(energy, trial.tasks[some], trial.starts[:probes], box=trial.box)
        rows.append(
            {
                "nll": scores.nll,
                "tempered": scores.tempered,
                "normalizer_error": scores.error,
                "kl": kl,
                "order": order,
                "descent": descent,
            }
        )
    return {key: torch.stack([row[key] for row in rows]).numpy() for key in rows[0]}


def _rivals(prior: Prior, references: Sequence[str | Reference] | None) -> list[Reference]:
    chosen = known_references(prior) if references is None else references
    return [reference(each, prior) if isinstance(each, str) else each for each in chosen]


def _rival_scores(
    rival: Reference, trial: _Trial, sizes: Sequence[int]
) -> tuple[np.ndarray, np.ndarray | None]:
    """Negative log-likelihoods (contexts, tasks), and Monte Carlo errors if it has any."""
    if isinstance(rival, BayesPredictive):
        found = rival.predictions(trial.sequence, sizes, trial.points)
        log_probs, error = (
            [each.log_prob for each in found],
            torch.stack([each.error for each in found]).numpy(),
        )
    else:
        log_probs, error = rival.nested(trial.sequence, sizes, trial.points), None
    return -torch.stack(log_probs).mean(-1).numpy(), error
