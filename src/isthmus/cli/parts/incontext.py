"""In-context energies: landscapes that sharpen with the context, and what they are worth."""

from __future__ import annotations

from typing import Any

import torch

from isthmus.figures import Section, context_landscapes, nll_against_context
from isthmus.incontext import ICLEBM, pretrained
from isthmus.incontext.evaluation import evaluate, grid_for
from isthmus.incontext.evaluation.scoring import OnGrid
from isthmus.incontext.priors import Tasks, prior

__all__ = ["landscapes_in_context", "likelihood_in_context"]

MODEL, PRIOR = "mixtures-2d", "compact"
DRAWN_TASKS, DRAWN_CONTEXTS = 3, (0, 2, 8, 32)
RESOLUTION = 61
TASKS, CONTEXTS = 8, (0, 1, 2, 4, 8, 16, 32)


def landscapes_in_context(seed: int, full: bool = False) -> Section:
    """Show the shipped model fresh datasets, and draw what it makes of them."""
    model = pretrained(MODEL)
    tasks = prior(PRIOR).draw(DRAWN_TASKS, torch.Generator().manual_seed(seed))
    figure = context_landscapes(model, tasks, DRAWN_CONTEXTS, seed=seed + 1, resolution=RESOLUTION)
    divergence = divergences(model, tasks, seed + 1)
    caption = (
        f"One transformer, no parameter changed, and {DRAWN_TASKS} datasets that it has never "
        "seen, one a row: mixtures of three Gaussians of which it is shown 0, 2, 8 and 32 points "
        "(orange). Its energy, which is -log p, sharpens from left to right towards the true one. "
        "Mean divergence from the true density: "
        + ", ".join(f"{mean:.2f} nats at n = {size}" for size, mean in divergence.items())
        + "."
    )
    numbers = {"kl_from_truth": divergence}
    return Section("An energy of any dataset, in context", caption, figure, numbers)


def likelihood_in_context(seed: int, full: bool = False) -> Section:
    """Compare the shipped model with the truth, the Bayes predictive and everyday estimates."""
    found = evaluate(
        pretrained(MODEL),
        prior(PRIOR),
        contexts=CONTEXTS,
        tasks=TASKS,
        seed=seed,
        probes=0,
        progress=False,
    )
    above_bayes, error = found.difference("bayes")
    numbers: dict[str, Any] = {
        "tasks": TASKS,
        "nll": {name: _by_size(found.mean(name)) for name in found.nll},
        "above_bayes": _by_size(above_bayes),
        "standard_error_of_above_bayes": _by_size(error),
    }
    caption = (
        "The negative log-likelihood of fresh points, exactly normalised, against the number of "
        "points in context. No predictor can be better on average than Bayes' rule, which is told "
        "the prior; the model has only seen datasets. Over these contexts it is "
        f"{above_bayes.mean():.3f} nats above on average. Kernel density estimates have their "
        "bandwidth by Silverman's rule, or chosen with the test points in hand, which no rival "
        f"should be allowed. With only {TASKS} tasks the error bars are wide; "
        "`isthmus icl eval --tasks 100` narrows them."
    )
    return Section(
        "What in-context energies are worth", caption, nll_against_context(found), numbers
    )


@torch.no_grad()
def divergences(model: ICLEBM, tasks: Tasks, seed: int) -> dict[str, float]:
    """Mean Kullback-Leibler divergence from the true densities at each context size drawn."""
    grid = grid_for(model, prior(PRIOR))
    contexts = tasks.sample(DRAWN_CONTEXTS[-1], torch.Generator().manual_seed(seed))
    truth = tasks.to(torch.float64).log_prob(grid.nodes.expand(len(tasks), -1, -1))
    return {
        str(size): float(OnGrid(model, contexts[:, :size], grid).kl_from(truth).mean())
        for size in DRAWN_CONTEXTS
    }


def _by_size(values: Any) -> dict[str, float | None]:
    """Values by context size, for JSON: none where a predictor is not defined."""
    pairs = zip(CONTEXTS, values.tolist(), strict=True)
    return {str(size): None if value != value else value for size, value in pairs}
