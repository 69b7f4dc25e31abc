"""In-context energies: landscapes, samples, likelihoods, and what was recorded.

``python benchmarks/incontext_records.py`` writes the records.
"""

from __future__ import annotations

import json
from dataclasses import replace
from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

import isthmus as ist
from isthmus.figures import context_landscapes, context_samples, nll_against_context
from isthmus.incontext import ICLEBM, ICLEBMConfig, preset, pretrained, train
from isthmus.incontext.evaluation import Grid, GridDensity, evaluate
from isthmus.incontext.priors import Tasks, prior
from isthmus.incontext.sampling import starting_points
from isthmus.paper.report.registry import recorded
from isthmus.paper.report.section import Section, judged

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
# The small model trained by the paper's objective: its settings, and the tasks it is tried on.
SMALL: dict[str, Any] = {"updates": 150, "batch": 16, "micro_batch": 16, "length": 24}
SMALL_TASKS, WIDE_GRID = 8, Grid(2, 15.0, 41)
# The model has learned if it is at most this many nats above Bayes' rule on average.
NEAR_BAYES = 0.1
# Draws are close if they are at most this many times as far from the truth as fresh points.
CLOSE = 2.0
PAPER, OURS = "contrastive divergence", "ranking NCE"


def _tasks(seed: int, full: bool) -> Tasks:
    count = FULL_TASKS if full else TASKS
    return prior(PRIOR).draw(count, torch.Generator().manual_seed(seed))


def incontext_landscapes(seed: int, full: bool = False) -> Section:
    """Draw the energies that the shipped model infers from new datasets."""
    model, tasks = pretrained(MODEL), _tasks(seed, full)
    divergence, spread, swapped = sharpness(model, tasks, seed + 1)
    least, most = str(DRAWN_CONTEXTS[0]), str(DRAWN_CONTEXTS[-1])
    return Section(
        f"One transformer with fixed parameters, given {DRAWN_TASKS} new datasets, one in each "
        "row: 0, 2, 8 and 32 points (orange) of a mixture of three Gaussians. Its energy, which is "
        "-log p, sharpens towards the true one.",
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
                f"The mean entropy falls from {spread[least]:.2f} nats without context to "
                f"{spread[most]:.2f} with {most} points, and the divergence from the true density "
                f"from {divergence[least]:.2f} to {divergence[most]:.2f}, at every step drawn.",
                bool(np.diff([[*spread.values()], [*divergence.values()]]).max() < 0),
            ),
            judged(
                "adapt",
                f"Given {most} points of the dataset itself, the divergence from its density is "
                f"{divergence[most]:.2f} nats; given points of another dataset, {swapped:.2f}.",
                divergence[most] < 0.5 * swapped,
            ),
            judged(
                "first",
                "The output space does differ. But prior-data fitted networks (Müller et al., "
                "2022) and transformers that fit functions in context (Garg et al., 2022) came "
                "before; new is a density without labels.",
                False,
                corrected=True,
            ),
        ),
    )


def incontext_samples(seed: int, full: bool = False) -> Section:
    """Draw from the shipped model given a context, and by the printed pair where it was trained."""
    model, tasks = pretrained(MODEL), _tasks(seed, full)
    drawn, thrown, numbers = sampled(model, tasks, seed + 1)
    pair, exact, density_off = pair_where_it_was_trained(seed)
    figure = context_samples(
        model,
        tasks[:DRAWN_TASKS],
        SAMPLED_CONTEXT,
        draws=DRAWS,
        drawn=drawn[:DRAWN_TASKS],
        others={"Step 3.16, noise 0.01": ("after one step", thrown[:DRAWN_TASKS])},
        seed=seed + 1,
        resolution=RESOLUTION,
    )
    outside, ours, fresh = numbers.values()
    return Section(
        f"Above, {DRAWN_TASKS} densities and {DRAWS} points of each. In the middle, the model's "
        f"density given {SAMPLED_CONTEXT} points (orange), and as many points drawn from it by "
        "Langevin dynamics at temperature 1. Below, the printed pair, from the same starts.",
        figure,
        {"tasks": len(tasks), **numbers, "energy_distance_of_the_small_model": density_off},
        (
            judged(
                "langevin",
                "On an energy trained by contrastive divergence with this pair, for "
                f"{SMALL['updates']} updates, its chains end at an energy distance of {pair:.2g} "
                f"from that energy's own density; exact draws are up to {exact:.2g} apart (up to "
                f"{CLOSE:g} times that counts). They descend (E22). From the shipped model it "
                f"throws {outside:.0%} out of the box in a step; a small step at temperature 1 "
                f"samples: {ours:.3f} from the truth, fresh points up to {fresh:.3f}.",
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
    nll = {name: _by_size(found.mean(name)) for name in found.nll}
    model = nll["model"]
    first, last = model[str(CONTEXTS[0])], model[str(CONTEXTS[-1])]
    rivals = [(size, nll[name][size]) for name in RIVALS if name in nll for size in model]
    won = [model[size] < value for size, value in rivals if value is not None]
    return Section(
        "The negative log-likelihood of new points against the number of points in context. Bayes' "
        "rule knows the prior; the bandwidth of kernel density estimates is Silverman's, or the "
        f"best for the test points; EM fits three Gaussians to the context. Over {tasks} tasks.",
        nll_against_context(found),
        {
            "tasks": tasks,
            "nll_by_predictor_and_n": nll,
            "nats_above_bayes_by_n": _by_size(excess),
            "standard_error_of_nats_above_bayes_by_n": _by_size(error),
        },
        (
            judged(
                "learning",
                f"The negative log-likelihood falls from {first:.2f} nats without context to "
                f"{last:.2f} with {CONTEXTS[-1]} points, on average {above_bayes:.3f} above the "
                f"best possible (up to {NEAR_BAYES:g} counts). It is below kernel density "
                f"estimates and EM in {sum(won)} of {len(won)} comparisons.",
                last < first and above_bayes <= NEAR_BAYES and 2 * sum(won) > len(won),
            ),
        ),
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


def energy_distance(first: Tensor, second: Tensor) -> float:
    """Return Székely's distance between sets of draws (B, n, D), as the mean over pairs."""
    first, second = first.double(), second.double()
    between, *within = (
        torch.cdist(*pair).mean((-1, -2))
        for pair in ((first, second), (first, first), (second, second))
    )
    return float((2 * between - sum(within)).mean())


def chains(
    energy: ist.Energy, sampler: ist.Langevin, state: Tensor, steps: int, seed: torch.Generator
) -> Tensor:
    """Return where chains of a sampler are after some steps."""
    chain = sampler.init(energy, state)
    for _ in range(steps):
        chain, _ = sampler.step(energy, chain, seed)
    return chain.position


def sampled(model: ICLEBM, tasks: Tasks, seed: int) -> tuple[Tensor, Tensor, dict[str, float]]:
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
    energy = model.condition(contexts)
    drawn = chains(energy, ist.Langevin(STEP), starts, STEPS, generator)
    thrown = chains(energy, ist.Langevin.paper(), starts, 1, generator)
    fresh = [energy_distance(tasks.sample(DRAWS, generator), reference) for _ in range(REPEATS)]
    outside = (thrown.abs() > (model.config.box or torch.inf)).any(-1)
    numbers = {
        "share_outside_the_box_after_one_step": float(outside.double().mean()),
        "energy_distance_of_the_model": energy_distance(drawn, reference),
        "largest_energy_distance_of_fresh_points": max(fresh),
    }
    return drawn, thrown, numbers


def pair_where_it_was_trained(seed: int) -> tuple[float, float, float]:
    """Train a small model by contrastive divergence with the printed pair, and draw by the pair.

    Returns the energy distances of its chains, after the paper's 15 steps from uniform starts, from
    the model's own density; the largest one of sets of exact draws; and of these from the truth.
    """
    paper, generator = preset("paper"), torch.Generator().manual_seed(seed)
    network = ICLEBMConfig(layers=2, heads=2, width=32)
    settings = replace(paper, model=network, precision="32-true", seed=seed, **SMALL)
    model = train(settings, progress=False, evaluate_every=10**6).model.eval()
    both = settings.prior.draw(SMALL_TASKS, generator).sample(SAMPLED_CONTEXT + DRAWS, generator)
    contexts, reference = both[:, :SAMPLED_CONTEXT], both[:, SAMPLED_CONTEXT:]
    density = GridDensity(model, contexts, WIDE_GRID)
    mass = (density.log_prob + WIDE_GRID.log_weights).softmax(-1)
    nodes, *others = (
        WIDE_GRID.nodes[torch.multinomial(mass, DRAWS, replacement=True, generator=generator)]
        for _ in range(1 + REPEATS)
    )
    starts = 30 * torch.rand(nodes.shape, generator=generator) - 15
    ends = chains(model.condition(contexts), ist.Langevin.paper(), starts, 15, generator)
    exact = max(energy_distance(nodes, each) for each in others)
    return energy_distance(ends, nodes), exact, energy_distance(nodes, reference)


def incontext_objectives(seed: int, full: bool = False) -> Section:
    """Show what the paper's objective and ranking NCE reach with the paper's model and data."""
    record = json.loads(recorded("benchmarks/results/incontext-objectives.json").read_text())
    runs, bounds = by_objective(record), record["references"]
    paper = [run["evaluations"][-1] for run in runs[PAPER]]
    seconds = fmean(each["cpu_seconds"] for each in paper)
    # The evaluation of ranking NCE that took at most as much time, else the first one.
    ours = [
        ([each for each in run["evaluations"] if each["cpu_seconds"] <= seconds] or [first])[-1]
        for run in runs[OURS]
        for first in run["evaluations"][:1]
    ]
    planned, batch = runs[PAPER][0]["planned"], runs[PAPER][0]["settings"]["batch"]
    # The context must help, beyond the prior, by three standard errors, for every seed.
    as_printed, tempered = (
        all(
            each[scores][-1] + 3 * each["standard_error"][-1]
            < min(each[scores][0], bounds["bayes"][0])
            for each in paper
        )
        for scores in ("nll", "tempered")
    )
    groups = {PAPER: paper, OURS: ours} | {
        name: [run["evaluations"][-1] for run in found]
        for name, found in runs.items()
        if name not in (PAPER, OURS)
    }
    spreads: dict[str, Any] = {"mean": np.mean, "least": np.min, "largest": np.max}
    curves = {
        f"{name}, {words}, {spread}": spreads[spread]([each[scores] for each in found], 0).tolist()
        for name, found in groups.items()
        for scores, words in (("nll", "temperature 1"), ("tempered", "best temperature"))
        for spread in (spreads if len(found) > 1 else ["mean"])
    }
    first, last = (spread_of([each["nll"][place] for each in paper]) for place in (0, -1))
    seeds = "one seed" if len(paper) == 1 else f"{len(paper)} seeds"
    updates = min(each["update"] for each in paper)
    return Section(
        f"The paper's own setting (`isthmus icl train --preset paper --batch {batch}`) after "
        f"{updates:,} of {planned:,} updates, {seeds}, with the regulariser of the "
        "authors' code; and the same with ranking NCE (`--preset paper-nce`). Each model is also "
        "shown at the best temperature for the test points. From `python "
        f"benchmarks/incontext_records.py objectives`, over {record['tasks']} tasks.",
        None,
        {
            "seeds": {name: len(found) for name, found in groups.items()},
            "nll_by_reference_and_n": _rows_by_size(record, bounds),
            "nll_by_objective_and_n": _rows_by_size(record, curves),
        },
        (
            judged(
                "contrastive-divergence",
                f"The negative log-likelihood falls from {first} nats without context to {last} "
                f"with {record['contexts'][-1]} points, below the {bounds['bayes'][0]:.2f} of the "
                "prior alone, which is what counts here. It is no useful density: the best kernel "
                f"estimate has {bounds['kde-best'][-1]:.2f}, Bayes' rule "
                f"{bounds['bayes'][-1]:.2f}, ranking NCE "
                f"{spread_of([each['nll'][-1] for each in ours])}.",
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


def _by_size(values: Any) -> dict[str, Any]:
    """Return values by context size; None where a predictor is not defined."""
    pairs = zip(CONTEXTS, values.tolist(), strict=True)
    return {str(size): None if value != value else value for size, value in pairs}


def _rows_by_size(record: dict[str, Any], rows: dict[str, list[Any]]) -> dict[str, dict[str, Any]]:
    sizes = [str(size) for size in record["contexts"]]
    return {name: dict(zip(sizes, values, strict=True)) for name, values in rows.items()}
