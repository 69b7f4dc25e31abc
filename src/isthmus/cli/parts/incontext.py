"""In-context energies: landscapes that sharpen, samples, and what they are worth."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

import isthmus as ist
from isthmus.cli.parts.sampling import energy_distance
from isthmus.cli.parts.verdicts import finding
from isthmus.figures import (
    Finding,
    Section,
    context_landscapes,
    context_samples,
    nll_against_context,
)
from isthmus.incontext import ICLEBM, pretrained
from isthmus.incontext.evaluation import Grid, evaluate, grid_for
from isthmus.incontext.evaluation.scoring import OnGrid
from isthmus.incontext.priors import Tasks, prior
from isthmus.incontext.sampling import draw

__all__ = ["landscapes_in_context", "likelihood_in_context", "samples_in_context"]

MODEL, PRIOR = "mixtures-2d", "compact"
DRAWN_TASKS, DRAWN_CONTEXTS = 3, (0, 2, 8, 32)
RESOLUTION = 61
TASKS, FULL_TASKS, CONTEXTS = 8, 100, (0, 1, 2, 4, 8, 16, 32)
SAMPLED_CONTEXT, DRAWS, REPEATS = 32, 200, 10
STEP = 0.02
# Nats above Bayes' rule, on average, that still count as having learned.
NEAR_BAYES = 0.1
# Draws may be so many times as far from the truth's as fresh draws of the truth are.
CLOSE = 2.0


def landscapes_in_context(seed: int, full: bool = False) -> Section:
    """Show the shipped model fresh datasets, and draw what it makes of them."""
    model = pretrained(MODEL)
    tasks = prior(PRIOR).draw(DRAWN_TASKS, torch.Generator().manual_seed(seed))
    figure = context_landscapes(model, tasks, DRAWN_CONTEXTS, seed=seed + 1, resolution=RESOLUTION)
    divergence = divergences(model, tasks, seed + 1)
    spread = entropies(model, tasks, seed + 1)
    swapped = swapped_divergence(model, tasks, seed + 1)
    caption = (
        f"One transformer, no parameter changed, and {DRAWN_TASKS} datasets that it has never "
        "seen, one a row: mixtures of three Gaussians of which it is shown 0, 2, 8 and 32 points "
        "(orange). Its energy, which is -log p, sharpens from left to right towards the true one. "
        "Mean divergence from the true density: "
        + ", ".join(f"{mean:.2f} nats at n = {size}" for size, mean in divergence.items())
        + "."
    )
    numbers = {
        "kl_from_truth_by_n": divergence,
        "entropy_by_n": spread,
        "kl_with_the_context_of_another_dataset": swapped,
    }
    least, most = str(DRAWN_CONTEXTS[0]), str(DRAWN_CONTEXTS[-1])
    findings = (
        finding(
            "Energy landscapes sharpen as more data are conditioned upon.",
            f"The mean entropy of the model's density falls from {spread[least]:.2f} nats without "
            f"context to {spread[most]:.2f} with {most} points, and its divergence from the true "
            f"density from {divergence[least]:.2f} to {divergence[most]:.2f}, at every step drawn.",
            as_printed=_falls(spread) and _falls(divergence),
        ),
        finding(
            "Frozen transformers adapt their energy to new in-context datasets.",
            f"Given {most} points of the dataset itself, the divergence from its density is "
            f"{divergence[most]:.2f} nats; given those of another, with the same parameters, "
            f"{swapped:.2f}.",
            as_printed=divergence[most] < 0.5 * swapped,
        ),
    )
    return Section(caption, figure, numbers, findings)


def samples_in_context(seed: int, full: bool = False) -> Section:
    """Draw from the model given a context, and compare with draws of the truth."""
    model = pretrained(MODEL)
    tasks = prior(PRIOR).draw(DRAWN_TASKS, torch.Generator().manual_seed(seed))
    drawn, numbers = sampled(model, tasks, seed + 1)
    printed, cold = (
        numbers["energy_distance_at_the_printed_temperature"],
        ist.Langevin.paper().temperature,
    )
    ours = numbers["energy_distance_of_the_model"]
    fresh, most = (numbers[f"{which}energy_distance_of_fresh_points"] for which in ("", "largest_"))
    figure = context_samples(
        model,
        tasks,
        SAMPLED_CONTEXT,
        draws=DRAWS,
        drawn=drawn,
        seed=seed + 1,
        resolution=RESOLUTION,
    )
    caption = (
        f"Above, {DRAWN_TASKS} densities and {DRAWS} points of each. Below, what the model makes "
        f"of {SAMPLED_CONTEXT} points (orange): its density, and as many points drawn from it by "
        "Langevin dynamics at temperature 1. Their energy distance from points of the truth is "
        f"{ours:.3f} on average; fresh points of the truth come to {fresh:.3f}."
    )
    findings = (
        finding(
            "In-context energies can be sampled from by Langevin dynamics with step 3.16 and "
            "noise 0.01.",
            f"That pair has a temperature of {cold:.1e}. At it, energy distances from points of "
            f"the truth are {printed:.3f} on average; at temperature 1, {ours:.3f}. "
            f"Fresh points of the truth come to {fresh:.3f}; up to {CLOSE:g} times "
            f"their largest mean, {most:.3f}, counts as sampled (E22).",
            as_printed=printed <= CLOSE * most,
            corrected=ours <= CLOSE * most,
        ),
    )
    return Section(caption, figure, numbers, findings)


def likelihood_in_context(seed: int, full: bool = False) -> Section:
    """Compare the shipped model with the truth, the Bayes predictive and everyday estimates."""
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
    numbers: dict[str, Any] = {
        "tasks": tasks,
        "nll_by_predictor_and_n": {name: _by_size(found.mean(name)) for name in found.nll},
        "nats_above_bayes_by_n": _by_size(above_bayes),
        "standard_error_of_nats_above_bayes_by_n": _by_size(error),
    }
    caption = (
        "The negative log-likelihood of fresh points, exactly normalised, against the number of "
        "points in context. No predictor can be better on average than Bayes' rule, which is told "
        "the prior; the model has only seen datasets. Over these contexts it is "
        f"{above_bayes.mean():.3f} nats above on average. Kernel density estimates have their "
        "bandwidth by Silverman's rule, or chosen with the test points in hand, which no rival "
        f"should be allowed; EM is a mixture of three Gaussians fitted to the context. Over "
        f"{tasks} tasks; `isthmus icl eval --tasks 100` narrows the error bars."
    )
    return Section(
        caption,
        nll_against_context(found),
        numbers,
        _learning(numbers, float(above_bayes.mean())),
    )


def _learning(numbers: dict[str, Any], above_bayes: float) -> tuple[Finding, ...]:
    """What likelihoods say of in-context learning."""
    nll = numbers["nll_by_predictor_and_n"]
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
    return (
        finding(
            "The energies of frozen models display in-context learning.",
            f"Held-out negative log-likelihood falls from {model[first]:.2f} nats without context "
            f"to {model[last]:.2f} with {last} points, {above_bayes:.3f} above the best that is "
            f"possible on average ({NEAR_BAYES:g} would count). It is below kernel density "
            f"estimates and EM mixtures in {won} of {len(cells)} comparisons.",
            as_printed=model[last] < model[first]
            and above_bayes <= NEAR_BAYES
            and 2 * won > len(cells),
        ),
    )


@torch.no_grad()
def divergences(model: ICLEBM, tasks: Tasks, seed: int) -> dict[str, float]:
    """Mean Kullback-Leibler divergence from the true densities at each context size drawn."""
    grid, contexts, truth = _setting(model, tasks, seed)
    return {
        str(size): float(OnGrid(model, contexts[:, :size], grid).kl_from(truth).mean())
        for size in DRAWN_CONTEXTS
    }


@torch.no_grad()
def swapped_divergence(model: ICLEBM, tasks: Tasks, seed: int) -> float:
    """The same with all points in context, but those of the next dataset."""
    grid, contexts, truth = _setting(model, tasks, seed)
    return float(OnGrid(model, contexts.roll(1, 0), grid).kl_from(truth).mean())


@torch.no_grad()
def entropies(model: ICLEBM, tasks: Tasks, seed: int) -> dict[str, float]:
    """Mean differential entropy of the model's density, in nats, at each context size drawn."""
    grid, contexts, _ = _setting(model, tasks, seed)
    found = {}
    for size in DRAWN_CONTEXTS:
        log_prob = OnGrid(model, contexts[:, :size], grid).log_prob
        mass = (log_prob + grid.log_weights).softmax(-1)
        found[str(size)] = float(-(mass * log_prob).sum(-1).mean())
    return found


def _setting(model: ICLEBM, tasks: Tasks, seed: int) -> tuple[Grid, Tensor, Tensor]:
    """A grid (G, D), contexts (B, n, D) and the true log-densities on the grid (B, G)."""
    grid = grid_for(model, prior(PRIOR))
    contexts = tasks.sample(DRAWN_CONTEXTS[-1], torch.Generator().manual_seed(seed))
    truth = tasks.to(torch.float64).log_prob(grid.nodes.expand(len(tasks), -1, -1))
    return grid, contexts, truth


def sampled(model: ICLEBM, tasks: Tasks, seed: int) -> tuple[Tensor, dict[str, float]]:
    """Draws of the model for each task (B, DRAWS, D), and energy distances from the truth's."""
    generator = torch.Generator().manual_seed(seed)
    both = tasks.sample(SAMPLED_CONTEXT + DRAWS, generator)
    contexts, reference = both[:, :SAMPLED_CONTEXT], both[:, SAMPLED_CONTEXT:]
    energies = [model.condition(context) for context in contexts]
    # The paper's step is longer than these energies can take; its temperature is not.
    cold = ist.Langevin(STEP, temperature=ist.Langevin.paper().temperature)
    drawn, printed = (
        [
            draw(energy, DRAWS, sampler, seed=seed + 1 + number, progress=False)
            for number, energy in enumerate(energies)
        ]
        for sampler in (ist.Langevin(STEP), cold)
    )

    def distances(draws: Iterable[Tensor]) -> list[float]:
        pairs = zip(draws, reference, strict=True)
        return [energy_distance(first.double(), second.double()) for first, second in pairs]

    fresh = [distances(tasks.sample(DRAWS, generator)) for _ in range(REPEATS)]
    numbers = {
        "energy_distance_of_the_model": fmean(distances(drawn)),
        "energy_distance_at_the_printed_temperature": fmean(distances(printed)),
        "energy_distance_of_fresh_points": fmean(map(fmean, fresh)),
        "largest_energy_distance_of_fresh_points": max(map(fmean, fresh)),
    }
    return torch.stack(drawn), numbers


def _falls(values: dict[str, float]) -> bool:
    ordered = list(values.values())
    return all(after < before for before, after in pairwise(ordered))


def _by_size(values: Any) -> dict[str, float | None]:
    """Values by context size, for JSON: none where a predictor is not defined."""
    pairs = zip(CONTEXTS, values.tolist(), strict=True)
    return {str(size): None if value != value else value for size, value in pairs}
