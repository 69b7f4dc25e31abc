"""In-context energies: landscapes, samples, and likelihoods."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import fmean
from typing import Any

import torch
from torch import Tensor

import isthmus as ist
from isthmus.figures import context_landscapes, context_samples, nll_against_context
from isthmus.incontext import ICLEBM, pretrained
from isthmus.incontext.density import GridDensity
from isthmus.incontext.evaluation import Grid, evaluate
from isthmus.incontext.priors import GaussianMixtures, Tasks, prior
from isthmus.incontext.sampling import starting_points
from isthmus.paper.report.parts.energies import energy_distance
from isthmus.paper.report.registry import compose
from isthmus.paper.report.section import Section

MODEL, PRIOR = "mixtures-2d", "compact"
# Numbers are means over all tasks; the first few are drawn.
DRAWN_TASKS, DRAWN_CONTEXTS = 3, (0, 2, 8, 32)
RESOLUTION = 61
TASKS, FULL_TASKS, CONTEXTS = 50, 100, (0, 1, 2, 4, 8, 16, 32)
# Lines 0.4 apart in the model's box and walls: log-normalisers are right to 1e-4.
GRID = Grid(2, 8.0, 41)
RIVALS = ("kde-best", "kde-silverman", "em-0.1", "em-0.001")
SAMPLED_CONTEXT, DRAWS, REPEATS = 32, 60, 10
STEP, STEPS = 0.02, 50
# Steps after which the chains of the printed pair are counted; the last is the paper's number.
PRINTED_STEPS = (1, 5, 15)
# The model has learned if it is at most this many nats above Bayes' rule on average.
NEAR_BAYES = 0.1
# Draws are close if they are at most this many times as far from the truth as fresh points.
CLOSE = 2.0


def _tasks(seed: int, full: bool) -> Tasks:
    count = FULL_TASKS if full else TASKS
    return prior(PRIOR).draw(count, torch.Generator().manual_seed(seed))


def landscapes_in_context(seed: int, full: bool = False) -> Section:
    """Draw the energies that the shipped model infers from new datasets."""
    model, tasks = pretrained(MODEL), _tasks(seed, full)
    divergence, spread, swapped = sharpness(model, tasks, seed + 1)
    least, most = str(DRAWN_CONTEXTS[0]), str(DRAWN_CONTEXTS[-1])
    checks = {
        "sharpen": _falls(spread) and _falls(divergence),
        "adapt": divergence[most] < 0.5 * swapped,
    }
    return compose(
        "incontext-landscapes",
        context_landscapes(
            model, tasks[:DRAWN_TASKS], DRAWN_CONTEXTS, seed=seed + 1, resolution=RESOLUTION
        ),
        {
            "tasks": len(tasks),
            "kl_from_truth_by_n": divergence,
            "entropy_by_n": spread,
            "kl_with_the_context_of_another_dataset": swapped,
        },
        checks,
        drawn=DRAWN_TASKS,
        listed=", ".join(f"{mean:.2f} nats at n = {size}" for size, mean in divergence.items()),
        most=most,
        entropy=(spread[least], spread[most]),
        divergence=(divergence[least], divergence[most]),
    )


def samples_in_context(seed: int, full: bool = False) -> Section:
    """Draw from the model given a context, also by the printed Langevin pair, and compare."""
    model, tasks = pretrained(MODEL), _tasks(seed, full)
    drawn, thrown, numbers = sampled(model, tasks, seed + 1)
    pair = ist.Langevin.paper()
    figure = context_samples(
        model,
        tasks[:DRAWN_TASKS],
        SAMPLED_CONTEXT,
        draws=DRAWS,
        drawn=drawn[:DRAWN_TASKS],
        others={
            "Step 3.16, noise 0.01": (
                "after one step from good starting points",
                thrown[:DRAWN_TASKS],
            )
        },
        seed=seed + 1,
        resolution=RESOLUTION,
    )
    most = CLOSE * numbers["largest_energy_distance_of_fresh_points"]
    return compose(
        "incontext-samples",
        figure,
        {"tasks": len(tasks), **numbers},
        {"langevin": numbers["energy_distance_of_the_printed_pair"] <= most},
        drawn=DRAWN_TASKS,
        draws=DRAWS,
        context=SAMPLED_CONTEXT,
        temperature=pair.temperature,
        stable=2 / pair.step_size,
        curvature=1 / GaussianMixtures.compact().std_high ** 2,
        close=CLOSE,
        outside=", ".join(
            f"{share:.0%} after {step}"
            for step, share in numbers["share_outside_the_box_by_step_of_the_pair"].items()
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
        grid=GRID,
        probes=0,
        progress=False,
    )
    excess, error = found.difference("bayes")
    above_bayes = float(excess.mean())
    nll = {name: _by_size(found.mean(name)) for name in found.nll}
    model = nll["model"]
    first, last = model[str(CONTEXTS[0])], model[str(CONTEXTS[-1])]
    cells = [
        (model[size], value)
        for name in RIVALS
        for size, value in nll.get(name, {}).items()
        if value is not None
    ]
    won = sum(ours < theirs for ours, theirs in cells)
    learned = last < first and above_bayes <= NEAR_BAYES and 2 * won > len(cells)
    return compose(
        "incontext-likelihood",
        nll_against_context(found),
        {
            "tasks": tasks,
            "nll_by_predictor_and_n": nll,
            "nats_above_bayes_by_n": _by_size(excess),
            "standard_error_of_nats_above_bayes_by_n": _by_size(error),
        },
        {"learning": learned},
        above_bayes=above_bayes,
        first=first,
        last=last,
        most=CONTEXTS[-1],
        near=NEAR_BAYES,
        won=won,
        compared=len(cells),
    )


@torch.no_grad()
def sharpness(
    model: ICLEBM, tasks: Tasks, seed: int
) -> tuple[dict[str, float], dict[str, float], float]:
    """Compare the model's densities with the true ones on a grid, in nats.

    Returns, as means over the tasks, the divergence from the truth and the entropy at each context
    size drawn, and the divergence given the largest context of the next task.
    """
    contexts = tasks.sample(DRAWN_CONTEXTS[-1], torch.Generator().manual_seed(seed))
    others = contexts.roll(1, 0)
    divergence = dict.fromkeys(map(str, DRAWN_CONTEXTS), 0.0)
    entropy, swapped = divergence.copy(), 0.0
    for number, (own, other) in enumerate(zip(contexts, others, strict=True)):
        truth = tasks[number].to(torch.float64).log_prob(GRID.nodes[None])
        for size in DRAWN_CONTEXTS:
            density = GridDensity(model, own[None, :size], GRID)
            mass = (density.log_prob + GRID.log_weights).softmax(-1)
            divergence[str(size)] += float(density.kl_from(truth)) / len(tasks)
            entropy[str(size)] -= float((mass * density.log_prob).sum()) / len(tasks)
        swapped += float(GridDensity(model, other[None], GRID).kl_from(truth)) / len(tasks)
    return divergence, entropy, swapped


def sampled(model: ICLEBM, tasks: Tasks, seed: int) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Return draws of the model for each task (B, DRAWS, D), and energy distances to the truth.

    In between, where the chains of the printed Langevin pair are after their first step. All chains
    have the same starting points.
    """
    generator = torch.Generator().manual_seed(seed)
    # The figure draws the contexts of the first tasks in the same way.
    parts = tasks[:DRAWN_TASKS], tasks[DRAWN_TASKS:]
    both = torch.cat([part.sample(SAMPLED_CONTEXT + DRAWS, generator) for part in parts])
    contexts, reference = both[:, :SAMPLED_CONTEXT], both[:, SAMPLED_CONTEXT:]
    starts = torch.stack(
        [starting_points(model.condition(each), DRAWS, seed=generator) for each in contexts]
    )
    energy, pair = model.condition(contexts), ist.Langevin.paper()

    def chains(sampler: ist.Langevin, steps: Sequence[int] = (STEPS,)) -> list[Tensor]:
        """Return where the chains are after each of some numbers of steps."""
        state, ends = sampler.init(energy, starts), []
        for step in range(1, steps[-1] + 1):
            state, _ = sampler.step(energy, state, generator)
            ends += [state.position] if step in steps else []
        return ends

    def distances(draws: Iterable[Tensor]) -> float:
        pairs = zip(draws, reference, strict=True)
        return fmean(energy_distance(first.double(), second.double()) for first, second in pairs)

    (drawn,), thrown = chains(ist.Langevin(STEP)), chains(pair, PRINTED_STEPS)
    (cold,) = chains(ist.Langevin(STEP, temperature=pair.temperature))
    box = model.config.box or math.inf
    fresh = [distances(tasks.sample(DRAWS, generator)) for _ in range(REPEATS)]
    return (
        drawn,
        thrown[0],
        {
            "energy_distance_of_the_model": distances(drawn),
            "energy_distance_of_the_printed_pair": distances(thrown[-1]),
            "share_outside_the_box_by_step_of_the_pair": {
                str(n): float((ends.abs() > box).any(-1).double().mean())
                for n, ends in zip(PRINTED_STEPS, thrown, strict=True)
            },
            "energy_distance_at_the_printed_temperature": distances(cold),
            "energy_distance_of_fresh_points": fmean(fresh),
            "largest_energy_distance_of_fresh_points": max(fresh),
        },
    )


def _falls(values: dict[str, float]) -> bool:
    return all(after < before for before, after in pairwise(values.values()))


def _by_size(values: Any) -> dict[str, Any]:
    """Return values by context size; None where a predictor is not defined."""
    pairs = zip(CONTEXTS, values.tolist(), strict=True)
    return {str(size): None if value != value else value for size, value in pairs}
