"""In-context energies: landscapes, samples, likelihoods, and what was recorded.

``python benchmarks/incontext_records.py`` writes the records.
"""

from __future__ import annotations

import json
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

import isthmus as ist
from isthmus.figures import context_landscapes, nll_against_context
from isthmus.figures.incontext import context_samples
from isthmus.incontext import ICLEBM, pretrained
from isthmus.incontext.evaluation import Grid, GridDensity, evaluate
from isthmus.incontext.priors import MixtureTasks, prior
from isthmus.paper.report.registry import recorded
from isthmus.paper.report.section import Section, judged

MODEL, PRIOR = "mixtures-2d", "compact"
# Numbers are means over all tasks; the first few are drawn.
DRAWN_TASKS, DRAWN_CONTEXTS, RESOLUTION = 3, (0, 2, 8, 32), 61
TASKS, FULL_TASKS, CONTEXTS = 50, 100, (0, 1, 2, 4, 8, 16, 32)
# Lines 0.4 apart in the model's box and walls: log-normalisers are right to 1e-4.
GRID = Grid(2, 8.0, 41)
RIVALS = ("kde-best", "kde-silverman", "em-0.1", "em-0.001")
SAMPLED_CONTEXT, DRAWS, REPEATS = 32, 60, 10
# Tasks on which the model of two layers is tried, and the square that holds them.
SMALL_TASKS, WIDE_GRID = 8, Grid(2, 22.5, 61)
# The model has learned if it is at most this many nats above Bayes' rule on average; draws are
# close if they are at most this many times as far from the truth as fresh points.
NEAR_BAYES, CLOSE = 0.1, 2.0
PAPER, OURS = "contrastive divergence", "ranking NCE"
PRINTED = f"{PAPER} as printed, two layers"


def _tasks(seed: int, full: bool) -> MixtureTasks:
    count = FULL_TASKS if full else TASKS
    return prior(PRIOR).draw(count, torch.Generator().manual_seed(seed))


def incontext_landscapes(seed: int, full: bool = False) -> Section:
    """Draw the energies that the shipped model infers from new datasets."""
    model, tasks = pretrained(MODEL), _tasks(seed, full)
    divergence, spread, swapped = sharpness(model, tasks, seed + 1)
    least, most = str(DRAWN_CONTEXTS[0]), str(DRAWN_CONTEXTS[-1])
    return Section(
        "The energies of one transformer with fixed parameters, given 0, 2, 8 and 32 points "
        f"(orange) of {DRAWN_TASKS} new datasets, one in each row.",
        context_landscapes(
            model, tasks[:DRAWN_TASKS], DRAWN_CONTEXTS, seed=seed + 1, resolution=RESOLUTION
        ),
        {
            "tasks": len(tasks),
            "kl_from_truth_by_n": divergence,
            "entropy_by_n": spread,
            "kl_with_the_context_of_another_dataset": swapped,
        },
        (
            judged(
                "sharpen",
                f"With {most} points the mean entropy falls from {spread[least]:.2f} nats to "
                f"{spread[most]:.2f}, and the divergence from the true density from "
                f"{divergence[least]:.2f} to {divergence[most]:.2f}, at every step drawn.",
                bool(np.diff([[*spread.values()], [*divergence.values()]]).max() < 0),
            ),
            judged(
                "adapt",
                f"Given {most} points of another dataset, the divergence is {swapped:.2f} nats "
                f"instead of {divergence[most]:.2f}.",
                divergence[most] < 0.5 * swapped,
            ),
            judged(
                "first",
                "The output space differs, but prior-data fitted networks (Müller et al., 2022) "
                "and functions learned in context (Garg et al., 2022) came before.",
                False,
                corrected=True,
            ),
        ),
    )


def incontext_samples(seed: int, full: bool = False) -> Section:
    """Draw by the printed pair from a model that was trained by contrastive divergence with it."""
    contexts, exact_draws, ends, (pair, exact, density_off) = pair_where_it_was_trained(seed)
    rows = {
        "The model's own density": ("exact draws", exact_draws),
        "Step 3.16, noise 0.01": ("after 15 steps from uniform starts", ends),
    }
    return Section(
        "Densities of a transformer of two layers that was trained exactly as printed, given "
        f"{SAMPLED_CONTEXT} points (orange), with {DRAWS} exact draws of each, and below the ends "
        "of chains with the printed step and noise.",
        context_samples(printed_model(), contexts[:DRAWN_TASKS], rows, RESOLUTION),
        {"tasks": SMALL_TASKS, "energy_distance_of_the_model_from_the_truth": density_off},
        (
            judged(
                "langevin",
                "On an energy trained with this pair, its chains end at an energy distance of "
                f"{pair:.2g} from that energy's own density (up to {CLOSE:g} times the {exact:.2g} "
                "of exact draws counts): they descend (E22).",
                pair <= CLOSE * exact,
            ),
        ),
    )


def incontext_likelihood(seed: int, full: bool = False) -> Section:
    """Compare the shipped model with the truth, the Bayes predictive and common estimators."""
    tasks = FULL_TASKS if full else TASKS
    settings: dict[str, Any] = {"contexts": CONTEXTS, "grid": GRID, "probes": 0, "progress": False}
    found = evaluate(pretrained(MODEL), prior(PRIOR), tasks=tasks, seed=seed, **settings)
    excess, error = found.difference("bayes")
    above_bayes = float(excess.mean())
    nll = {name: _by_size(CONTEXTS, found.mean(name)) for name in found.nll}
    model = nll["model"]
    first, last = model[str(CONTEXTS[0])], model[str(CONTEXTS[-1])]
    rivals = [(model[size], nll[name][size]) for name in RIVALS if name in nll for size in model]
    won = [ours < theirs for ours, theirs in rivals if theirs is not None]
    return Section(
        "The negative log-likelihood of new points against the number of points in context, over "
        f"{tasks} tasks: of the model, Bayes' rule, kernel density estimates and EM.",
        nll_against_context(found),
        {
            "tasks": tasks,
            "nll_by_predictor_and_n": nll,
            "nats_above_bayes_by_n": _by_size(CONTEXTS, excess),
            "standard_error_of_nats_above_bayes_by_n": _by_size(CONTEXTS, error),
        },
        (
            judged(
                "learning",
                f"The negative log-likelihood falls from {first:.2f} nats to {last:.2f}, on "
                f"average {above_bayes:.3f} above Bayes' rule (up to {NEAR_BAYES:g} counts), and "
                f"is below kernel estimates and EM in {sum(won)} of {len(won)} comparisons.",
                last < first and above_bayes <= NEAR_BAYES and 2 * sum(won) > len(won),
            ),
        ),
    )


def _by_size(sizes: Any, values: Any) -> dict[str, Any]:
    """Return values by context size; None where a predictor is not defined."""
    pairs = zip(sizes, np.asarray(values).tolist(), strict=True)
    return {str(size): None if value != value else value for size, value in pairs}


@torch.no_grad()
def sharpness(
    model: ICLEBM, tasks: MixtureTasks, seed: int
) -> tuple[dict[str, float], dict[str, float], float]:
    """Compare the model's densities with the true ones on a grid, in nats.

    Returns, as means over the tasks, the divergence from the truth and the entropy at each context
    size drawn, and the divergence given the largest context of the next task.
    """
    contexts = tasks.sample(DRAWN_CONTEXTS[-1], torch.Generator().manual_seed(seed))
    divergence = dict.fromkeys(map(str, DRAWN_CONTEXTS), 0.0)
    entropy, swapped = divergence.copy(), 0.0
    for number, (own, other) in enumerate(zip(contexts, contexts.roll(1, 0), strict=True)):
        truth = tasks[number].to(torch.float64).log_prob(GRID.nodes[None])
        for size in DRAWN_CONTEXTS:
            density = GridDensity(model, own[None, :size], GRID)
            mass = (density.log_prob + GRID.log_weights).softmax(-1)
            divergence[str(size)] += float(density.kl_from(truth)) / len(tasks)
            entropy[str(size)] -= float((mass * density.log_prob).sum()) / len(tasks)
        swapped += float(GridDensity(model, other[None], GRID).kl_from(truth)) / len(tasks)
    return divergence, entropy, swapped


def energy_distance(first: Tensor, second: Tensor) -> float:
    """Return Székely's distance between sets of draws (B, n, D), as the mean over pairs."""
    first, second = first.double(), second.double()
    between, *within = (
        torch.cdist(*pair).mean((-1, -2))
        for pair in ((first, second), (first, first), (second, second))
    )
    return float((2 * between - sum(within)).mean())


def pair_where_it_was_trained(
    seed: int,
) -> tuple[Tensor, Tensor, Tensor, tuple[float, float, float]]:
    """Return contexts (B, n, 2), exact draws and ends of chains of the printed pair, and distances.

    These are energy distances of the ends, after the paper's 15 steps from uniform starts, from the
    model's own density; the largest one of sets of exact draws; and of these from the truth.
    """
    generator, model = torch.Generator().manual_seed(seed), printed_model()
    tasks = prior("paper").draw(SMALL_TASKS, generator)
    both = tasks.sample(SAMPLED_CONTEXT + DRAWS, generator)
    contexts, reference = both.split((SAMPLED_CONTEXT, DRAWS), 1)
    density = GridDensity(model, contexts, WIDE_GRID)
    mass = (density.log_prob + WIDE_GRID.log_weights).softmax(-1)
    nodes, *others = (
        WIDE_GRID.nodes[torch.multinomial(mass, DRAWS, replacement=True, generator=generator)]
        for _ in range(1 + REPEATS)
    )
    energy, sampler = model.condition(contexts), ist.Langevin.paper()
    chain = sampler.init(energy, 30 * torch.rand(nodes.shape, generator=generator) - 15)
    for _ in range(15):
        chain, _ = sampler.step(energy, chain, generator)
    exact = max(energy_distance(nodes, each) for each in others)
    distances = energy_distance(chain.position, nodes), exact, energy_distance(nodes, reference)
    return contexts, nodes, chain.position, distances


def printed_model() -> ICLEBM:
    """Load the model that was trained exactly as printed."""
    return ICLEBM.from_pretrained(recorded("benchmarks/results/incontext-printed"))


def incontext_objectives(seed: int, full: bool = False) -> Section:
    """Show what the paper's objective and ranking NCE reach with the paper's model and data."""
    record = json.loads(recorded("benchmarks/results/incontext-objectives.json").read_text())
    sizes, bounds, runs = record["contexts"], record["references"], by_objective(record)
    ends = {name: [run["evaluations"][-1] for run in group] for name, group in runs.items()}
    paper, planned = ends[PAPER], runs[PAPER][0]["planned"]
    seconds = fmean(each["cpu_seconds"] for each in paper)
    for number, run in enumerate(runs[OURS]):  # after as much time, or its first evaluation
        first, *later = run["evaluations"]
        ends[OURS][number] = [first, *(e for e in later if e["cpu_seconds"] <= seconds)][-1]
    # The context must help, beyond the prior, by three standard errors, for every seed.
    as_printed, tempered = (
        all(
            each[scores][-1] + 3 * each["standard_error"][-1]
            < min(each[scores][0], bounds["bayes"][0])
            for each in ends[PRINTED] + paper
        )
        for scores in ("nll", "tempered")
    )
    start, end, small_start, small_end, ours = (
        spread_of([each["nll"][place] for each in ends[name]])
        for name, place in ((PAPER, 0), (PAPER, -1), (PRINTED, 0), (PRINTED, -1), (OURS, -1))
    )
    updates, batch = min(each["update"] for each in paper), runs[PAPER][0]["settings"]["batch"]
    tasks = prior("paper").draw(4, torch.Generator().manual_seed(seed))
    return Section(
        "The energies of a transformer of two layers, trained exactly as printed, given 0, 2, 8 "
        "and 32 points of four new datasets. Below, its scores and those of the paper's own size "
        f"(`isthmus icl train --preset paper --batch {batch}`, {updates:,} of {planned:,} updates) "
        f"over {record['tasks']} tasks, from `python benchmarks/incontext_records.py`.",
        context_landscapes(
            printed_model(),
            tasks,
            DRAWN_CONTEXTS,
            seed=seed + 1,
            resolution=RESOLUTION,
        ),
        {
            "seeds": {name: len(group) for name, group in ends.items()},
            "nll_by_reference_and_n": {
                name: _by_size(sizes, values) for name, values in bounds.items()
            },
            "nll_of_seeds_by_objective_and_n": {
                f"{name}, {words}": {
                    str(size): [each[scores][place] for each in group]
                    for place, size in enumerate(sizes)
                }
                for name, group in ends.items()
                for scores, words in (("nll", "temperature 1"), ("tempered", "best temperature"))
            },
        },
        (
            judged(
                "contrastive-divergence",
                f"With two layers, exactly as printed (seeds: {len(ends[PRINTED])}), the negative "
                f"log-likelihood falls from {small_start} nats to {small_end} with {sizes[-1]} "
                f"points; of the paper's size, with its authors' regulariser, from {start} to "
                f"{end} (seeds: {len(paper)}). The prior alone has {bounds['bayes'][0]:.2f}, the "
                f"best kernel estimate {bounds['kde-best'][-1]:.2f}, Bayes' rule "
                f"{bounds['bayes'][-1]:.2f}, ranking NCE {ours}.",
                as_printed if updates >= planned else None,
                corrected=tempered,
            ),
        ),
    )


def by_objective(record: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the runs of a record by their objectives, each with a run for every seed."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for name, run in record["runs"].items():
        groups.setdefault(name.split(", seed ")[0], []).append(run)
    return groups


def spread_of(values: list[float]) -> str:
    """Return the mean over seeds, with its range if there are several."""
    words = f"{fmean(values):.2f}"
    return words if len(values) == 1 else f"{words} ({min(values):.2f} to {max(values):.2f})"
