"""evaluate: compare a model with the truth, the Bayes predictive and common estimators."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from isthmus.errors import InvalidInputError
from isthmus.incontext.evaluation.descent import descent_error
from isthmus.incontext.evaluation.normalizer import Grid
from isthmus.incontext.evaluation.report import Evaluation
from isthmus.incontext.evaluation.scoring import (
    TEMPERATURES,
    GridDensity,
    InContextModel,
    annealed_scores,
    grid_for,
)
from isthmus.incontext.priors import Prior, Tasks
from isthmus.incontext.references import BayesPredictive, Reference, known_references, reference
from isthmus.progress import progress as show_progress
from isthmus.validation import as_count

__all__ = ["evaluate"]

CONTEXTS = (0, 1, 2, 4, 8, 16, 32, 64)
TASKS_AT_ONCE = 4
STARTS = 16
# The authors start descents in three quarters of the cube that holds nearly all of their data.
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
    """Evaluate an in-context model on fresh tasks.

    In one or two dimensions densities are normalised exactly, by quadrature. In more, by annealed
    importance sampling: the divergence from the truth is then estimated on the held-out points,
    and other temperatures and orders are NaN.

    Parameters
    ----------
    model : InContextModel
        Anything with ``condition`` and a ``config`` that has ``dim`` and ``box``.
    prior : Prior
        Distribution of the tasks.
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
        Number of tasks on which the order of contexts and the end points of descent are tried.
    progress : bool, optional
        Show a progress bar on stderr. Default: on a terminal, once the run takes long.

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
    trial = _Trial.draw(prior, tasks, sizes[-1], points, seed)
    total = len(trial.tasks) * len(sizes) + len(rivals)
    with show_progress("evaluating", total, show=progress) as report:
        parts, done = [], 0
        for block in torch.arange(len(trial.tasks)).split(TASKS_AT_ONCE):
            some = max(0, min(len(block), probes - int(block[0])))
            parts.append(_score_model(model, trial[block], sizes, grid, some))
            report(done := done + len(block) * len(sizes))
        found = {key: np.concatenate([part[key] for part in parts], axis=1) for key in parts[0]}
        truth = -trial.tasks.log_prob(trial.points).mean(1).expand(len(sizes), -1)
        nll = {"model": found.pop("nll"), "truth": truth.numpy().copy()}
        errors = {}
        for rival in rivals:
            if isinstance(rival, BayesPredictive):
                predictions = rival.predictions(trial.sequence, sizes, trial.points)
                log_probs = [each.log_prob for each in predictions]
                errors[rival.name] = torch.stack([each.error for each in predictions]).numpy()
            else:
                log_probs = rival.nested(trial.sequence, sizes, trial.points)
            nll[rival.name] = -torch.stack(log_probs).mean(-1).numpy()
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


@dataclass(frozen=True)
class _Trial:
    """Tasks, each with a sequence, held-out points, a random order and starts of descents."""

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
        ranks = torch.rand((len(drawn), length), generator=generator)
        shape = (len(drawn), STARTS, prior.dim)
        unit = torch.rand(shape, generator=generator, dtype=torch.float64)
        starts = (2 * unit - 1) * START_SHARE * prior.box
        return cls(drawn, sequence, held_out, ranks, starts, prior.box)

    def __getitem__(self, index: Tensor) -> _Trial:
        rows = (self.sequence[index], self.points[index], self.ranks[index], self.starts[index])
        return _Trial(self.tasks[index], *rows, self.box)

    def shuffled(self, size: int) -> Tensor:
        """Return contexts of that size in another order. (B, size, D)."""
        order = self.ranks[:, :size].argsort(1)
        return self.sequence.gather(1, order[..., None].expand(-1, -1, self.sequence.shape[2]))


def _score_model(
    model: InContextModel, trial: _Trial, sizes: Sequence[int], grid: Grid | None, probes: int
) -> dict[str, np.ndarray]:
    """Return the arrays of :class:`Evaluation` for a few tasks, each (contexts, tasks, ...)."""
    rows: list[dict[str, Tensor]] = []
    nodes = trial.points if grid is None else grid.nodes.expand(len(trial.sequence), -1, -1)
    truth = trial.tasks.log_prob(nodes)
    for size in sizes:
        context = trial.sequence[:, :size]
        order = torch.zeros(probes, dtype=torch.float64)
        if grid is None:
            row = annealed_scores(model, context, trial.points, scale=trial.box / 2, seed=size)
            row["kl"], order[:] = row["nll"] + truth.mean(1), torch.nan
        else:
            density = GridDensity(model, context, grid)
            row = {**density.scores(trial.points), "kl": density.kl_from(truth)}
            if probes and size > 1:
                again = GridDensity(model, trial.shuffled(size)[:probes], grid)
                order = again.kl_from(density.log_prob[:probes])
        row |= {"order": order, "descent": torch.zeros(0, dtype=torch.float64)}
        if probes:
            energy, some = model.condition(context[:probes]), trial[torch.arange(probes)]
            row["descent"] = descent_error(energy, some.tasks, some.starts, box=trial.box)
        rows.append(row)
    return {key: torch.stack([row[key] for row in rows]).numpy() for key in rows[0]}
