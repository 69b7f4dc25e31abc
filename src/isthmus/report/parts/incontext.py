"""In-context energies: landscapes, samples, and likelihoods."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

import isthmus as ist
from isthmus.figures import context_landscapes, context_samples, nll_against_context
from isthmus.incontext import ICLEBM, pretrained
from isthmus.incontext.evaluation import Grid, evaluate, grid_for
from isthmus.incontext.evaluation.scoring import GridDensity
from isthmus.incontext.priors import Tasks, prior
from isthmus.incontext.sampling import draw
from isthmus.report.parts.sampling import energy_distance
from isthmus.report.section import Finding, Section, judge

__all__ = ["landscapes_in_context", "likelihood_in_context", "samples_in_context"]

MODEL, PRIOR = "mixtures-2d", "compact"
DRAWN_TASKS, DRAWN_CONTEXTS = 3, (0, 2, 8, 32)
RESOLUTION = 61
TASKS, FULL_TASKS, CONTEXTS = 8, 100, (0, 1, 2, 4, 8, 16, 32)
SAMPLED_CONTEXT, DRAWS, REPEATS = 32, 200, 10
STEP = 0.02
# The model has learned if it is at most this many nats above Bayes' rule on average.
NEAR_BAYES = 0.1
# Draws are close if they are at most this many times as far from the truth as fresh points.
CLOSE = 2.0


def _tasks(seed: int) -> Tasks:
    return prior(PRIOR).draw(DRAWN_TASKS, torch.Generator().manual_seed(seed))


def landscapes_in_context(seed: int, full: bool = False) -> Section:
    """Draw the energies that the shipped model infers from new datasets."""
    model, tasks = pretrained(MODEL), _tasks(seed)
    divergence = divergences(model, tasks, seed + 1)
    spread = entropies(model, tasks, seed + 1)
    swapped = swapped_divergence(model, tasks, seed + 1)
    least, most = str(DRAWN_CONTEXTS[0]), str(DRAWN_CONTEXTS[-1])
    listed = ", ".join(f"{mean:.2f} nats at n = {size}" for size, mean in divergence.items())
    return Section(
        f"One transformer with fixed parameters, given {DRAWN_TASKS} new datasets, one in each "
        "row: 0, 2, 8 and 32 points (orange) of a mixture of three Gaussians. From left to right "
        "its energy, which is -log p, sharpens towards the true one. Mean divergence from the "
        f"true density: {listed}.",
        context_landscapes(model, tasks, DRAWN_CONTEXTS, seed=seed + 1, resolution=RESOLUTION),
        {
            "kl_from_truth_by_n": divergence,
            "entropy_by_n": spread,
            "kl_with_the_context_of_another_dataset": swapped,
        },
        (
            judge(
                "Energy landscapes sharpen as more data are conditioned upon.",
                f"The mean entropy of the model's density falls from {spread[least]:.2f} nats "
                f"without context to {spread[most]:.2f} with {most} points, and its divergence "
                f"from the true density from {divergence[least]:.2f} to {divergence[most]:.2f}, at "
                "every step drawn.",
                as_printed=_falls(spread) and _falls(divergence),
            ),
            judge(
                "Frozen transformers adapt their energy to new in-context datasets.",
                f"Given {most} points of the dataset itself, the divergence from its density is "
                f"{divergence[most]:.2f} nats; given points of another dataset, with the same "
                f"parameters, {swapped:.2f}.",
                as_printed=divergence[most] < 0.5 * swapped,
            ),
        ),
    )


def samples_in_context(seed: int, full: bool = False) -> Section:
    """Draw from the model given a context, and compare with draws of the truth."""
    model, tasks = pretrained(MODEL), _tasks(seed)
    drawn, numbers = sampled(model, tasks, seed + 1)
    ours, printed, fresh, most = numbers.values()
    figure = context_samples(
        model,
        tasks,
        SAMPLED_CONTEXT,
        draws=DRAWS,
        drawn=drawn,
        seed=seed + 1,
        resolution=RESOLUTION,
    )
    return Section(
        f"Above, {DRAWN_TASKS} densities and {DRAWS} points of each. Below, the model's density "
        f"given {SAMPLED_CONTEXT} points (orange), and as many points drawn from it by Langevin "
        "dynamics at temperature 1. Their energy distance from points of the truth is "
        f"{ours:.3f} on average; for fresh points of the truth it is {fresh:.3f}.",
        figure,
        numbers,
        (
            judge(
                "In-context energies can be sampled from by Langevin dynamics with step 3.16 and "
                "noise 0.01.",
                f"That pair has a temperature of {ist.Langevin.paper().temperature:.1e}. At it, "
                f"energy distances from points of the truth are {printed:.3f} on average; at "
                f"temperature 1, {ours:.3f}. For fresh points of the truth the mean is "
                f"{fresh:.3f}; up to {CLOSE:g} times their largest mean, {most:.3f}, counts as "
                "sampled (E22).",
                as_printed=printed <= CLOSE * most,
                corrected=ours <= CLOSE * most,
            ),
        ),
    )


def likelihood_in_context(seed: int, full: bool = False) -> Section:
    """Compare the shipped model with the truth, the Bayes predictive and common estimators."""
    tasks = FULL_TASKS if full else TASKS
    found = evaluate(
        pretrained(MODEL),
        prior(PRIOR),
        contexts=CONTEXTS,
        tasks=tasks,
        seed=seed,
        probes=0,
        progress=False,
    )
    above_bayes, error = found.difference("bayes")
    nll = {name: _by_size(found.mean(name)) for name in found.nll}
    return Section(
        "The negative log-likelihood of new points, exactly normalised, against the number of "
        "points in context. No predictor is better on average than Bayes' rule, which knows the "
        "prior; the model has only seen datasets. Over these contexts it is "
        f"{above_bayes.mean():.3f} nats above Bayes' rule on average. The bandwidth of kernel "
        "density estimates is Silverman's, or the best for the test points, which no fair rival "
        f"could know; EM is a mixture of three Gaussians fitted to the context. Over {tasks} "
        "tasks; `isthmus icl eval --tasks 100` narrows the error bars.",
        nll_against_context(found),
        {
            "tasks": tasks,
            "nll_by_predictor_and_n": nll,
            "nats_above_bayes_by_n": _by_size(above_bayes),
            "standard_error_of_nats_above_bayes_by_n": _by_size(error),
        },
        (_learning(nll, float(above_bayes.mean())),),
    )


def _learning(nll: dict[str, dict[str, Any]], above_bayes: float) -> Finding:
    """Judge in-context learning by negative log-likelihoods."""
    model = nll["model"]
    first, last = str(CONTEXTS[0]), str(CONTEXTS[-1])
    rivals = [name for name in ("kde-best", "kde-silverman", "em-0.1", "em-0.001") if name in nll]
    cells = [
        (model[size], nll[name][size])
        for name in rivals
        for size in model
        if nll[name][size] is not None
    ]
    won = sum(ours < theirs for ours, theirs in cells)
    return judge(
        "The energies of frozen models display in-context learning.",
        f"Held-out negative log-likelihood falls from {model[first]:.2f} nats without context to "
        f"{model[last]:.2f} with {last} points, on average {above_bayes:.3f} above the best "
        f"possible (up to {NEAR_BAYES:g} counts). It is below kernel density estimates and EM "
        f"mixtures in {won} of {len(cells)} comparisons.",
        as_printed=model[last] < model[first]
        and above_bayes <= NEAR_BAYES
        and 2 * won > len(cells),
    )


@torch.no_grad()
def divergences(model: ICLEBM, tasks: Tasks, seed: int) -> dict[str, float]:
    """Return the mean divergence from the true densities at each context size drawn, in nats."""
    grid, contexts, truth = _setting(model, tasks, seed)
    return {
        str(size): float(GridDensity(model, contexts[:, :size], grid).kl_from(truth).mean())
        for size in DRAWN_CONTEXTS
    }


@torch.no_grad()
def swapped_divergence(model: ICLEBM, tasks: Tasks, seed: int) -> float:
    """Return the mean divergence with all points in context, but those of the next dataset."""
    grid, contexts, truth = _setting(model, tasks, seed)
    return float(GridDensity(model, contexts.roll(1, 0), grid).kl_from(truth).mean())


@torch.no_grad()
def entropies(model: ICLEBM, tasks: Tasks, seed: int) -> dict[str, float]:
    """Return the mean entropy of the model's density at each context size drawn, in nats."""
    grid, contexts, _ = _setting(model, tasks, seed)
    found = {}
    for size in DRAWN_CONTEXTS:
        log_prob = GridDensity(model, contexts[:, :size], grid).log_prob
        mass = (log_prob + grid.log_weights).softmax(-1)
        found[str(size)] = float(-(mass * log_prob).sum(-1).mean())
    return found


def _setting(model: ICLEBM, tasks: Tasks, seed: int) -> tuple[Grid, Tensor, Tensor]:
    """Return a grid (G, D), contexts (B, n, D) and true log-densities on the grid (B, G)."""
    grid = grid_for(model, prior(PRIOR))
    contexts = tasks.sample(DRAWN_CONTEXTS[-1], torch.Generator().manual_seed(seed))
    truth = tasks.to(torch.float64).log_prob(grid.nodes.expand(len(tasks), -1, -1))
    return grid, contexts, truth


def sampled(model: ICLEBM, tasks: Tasks, seed: int) -> tuple[Tensor, dict[str, float]]:
    """Return draws of the model for each task (B, DRAWS, D), and energy distances to the truth."""
    generator = torch.Generator().manual_seed(seed)
    both = tasks.sample(SAMPLED_CONTEXT + DRAWS, generator)
    contexts, reference = both[:, :SAMPLED_CONTEXT], both[:, SAMPLED_CONTEXT:]
    energies = [model.condition(context) for context in contexts]
    # These energies do not allow the paper's step, but they allow its temperature.
    cold = ist.Langevin(STEP, temperature=ist.Langevin.paper().temperature)
    drawn, printed = (
        [
            draw(energy, DRAWS, sampler, seed=seed + 1 + number, progress=False)
            for number, energy in enumerate(energies)
        ]
        for sampler in (ist.Langevin(STEP), cold)
    )

    def distances(draws: Iterable[Tensor]) -> float:
        pairs = zip(draws, reference, strict=True)
        return fmean(energy_distance(first.double(), second.double()) for first, second in pairs)

    fresh = [distances(tasks.sample(DRAWS, generator)) for _ in range(REPEATS)]
    return torch.stack(drawn), {
        "energy_distance_of_the_model": distances(drawn),
        "energy_distance_at_the_printed_temperature": distances(printed),
        "energy_distance_of_fresh_points": fmean(fresh),
        "largest_energy_distance_of_fresh_points": max(fresh),
    }


def _falls(values: dict[str, float]) -> bool:
    return all(after < before for before, after in pairwise(values.values()))


def _by_size(values: Any) -> dict[str, float | None]:
    """Return values by context size; None where a predictor is not defined."""
    pairs = zip(CONTEXTS, values.tolist(), strict=True)
    return {str(size): None if value != value else value for size, value in pairs}
