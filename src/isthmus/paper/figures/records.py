"""Figures of recorded experiments: training objectives, and training at high rates."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from isthmus.figures.incontext import PREDICTORS
from isthmus.figures.style import (
    CURVE,
    GREEN,
    INK,
    MEMORY,
    MUTED,
    PAPER,
    PURPLE,
    RULE,
    SKY,
    heading,
    new_figure,
    note_at,
    styled,
)
from isthmus.paper.attention import Experiment


@styled
def likelihood_by_objective(record: Mapping[str, Any]) -> Figure:
    """Draw what two training objectives reach: against the context, and against CPU time."""
    figure = new_figure(5.2)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    sizes, bounds = record["contexts"], record["references"]
    places = range(len(sizes))
    colours = dict(zip(record["runs"], (PURPLE, CURVE), strict=True))
    for name, run in record["runs"].items():
        last = run["evaluations"][-1]
        label = f"{name}, {last['update']:,} updates, T = "
        look = {"color": colours[name], "ms": 6, "mec": PAPER, "mew": 0.5}
        left.plot(places, last["nll"], "-o", lw=2.2, label=f"{label}1", **look)
        left.plot(places, last["tempered"], ":s", lw=1.6,
                  label=f"{label}{last['temperature']:.2g} (best)", **look)  # fmt: skip
        seconds = [each["cpu_seconds"] for each in run["evaluations"]]
        for field, line in (("nll", "-o"), ("tempered", ":s")):
            ends = [each[field][-1] for each in run["evaluations"]]
            right.plot(seconds, ends, line, lw=1.6, **look)
    references = {"bayes": (GREEN, "--"), "kde-best": (MEMORY, "-"), "truth": (INK, "--")}
    for name, (colour, line) in references.items():
        values = [np.nan if each is None else each for each in bounds[name]]
        left.plot(places, values, ls=line, color=colour, lw=1.5, label=PREDICTORS[name][-1])
        right.axhline(values[-1], ls=line, color=colour, lw=1.2)
    for axes in (left, right):
        axes.axhline(bounds["bayes"][0], color=SKY, lw=1.2, label="no context at all (prior)")
        axes.set_ylabel("nats")
    left.set_xticks(places, [str(size) for size in sizes])
    left.set_xlabel("points in context n")
    figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    right.set_xlabel("CPU seconds of training")
    right.set_xlim(0, 1.15 * right.dataLim.x1)
    heading(left, "Negative log-likelihood of fresh points", f"{record['tasks']} tasks.", lines=1)
    heading(right, f"At n = {sizes[-1]}", "Each evaluated checkpoint.", lines=1)
    return figure


def _finite(values: Sequence[float]) -> NDArray[Any]:
    """Return the values, NaN where they are not finite, so that they are not drawn."""
    return np.where(np.isfinite(values), values, np.nan)


SHADES = {"pre-norm": (INK, "o"), "QK-norm": (CURVE, "s"), "SALN": (MEMORY, "^")}


@styled
def attention_experiment(experiment: Experiment) -> Figure:
    """Draw loss, fraction of diverged runs and largest logit against the learning rate.

    Lines are medians over seeds, small marks the seeds themselves.
    """
    figure = new_figure(3.9, gap=0.05)
    loss, share, logit = figure.subplots(1, 3, sharex=True)
    rates = experiment.learning_rates
    for number, variant in enumerate(experiment.variants):
        colour, marker = SHADES[variant]
        look = {"color": colour, "marker": marker, "ms": 5, "lw": 1.6, "mec": PAPER, "mew": 0.5}
        for axes, measure in ((loss, "loss"), (logit, "largest_logit")):
            middle = [experiment.median(measure, variant, rate) for rate in rates]
            axes.plot(rates, _finite(middle), label=variant, zorder=3, **look)
            runs = [run for run in experiment.runs if run.variant == variant]
            seeds = _finite([run.value(measure) for run in runs])
            each = [run.learning_rate for run in runs]
            axes.plot(each, seeds, marker, color=colour, ms=3, alpha=0.45, mew=0)
        # Side by side, so that equal shares do not hide each other.
        shifted = np.array(rates) * 1.12 ** (number - 1)
        share.plot(shifted, [experiment.fraction_diverged(variant, r) for r in rates], **look)
    guess = math.log(10)
    loss.axhline(guess, color=RULE, lw=1, zorder=0)
    note_at(loss, "guessing", (rates[0], guess), (0, 3), fontsize=8.5, color=MUTED)
    for axes in (loss, logit):
        axes.set_yscale("log")
    for axes in (loss, share, logit):
        axes.set(xscale="log", xlabel="learning rate")
    share.set_ylim(-0.05, 1.05)
    share.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    loss.legend(loc="lower right")
    heading(loss, "Training loss", "At the end.", characters=40, lines=1)
    heading(share, "Runs that diverged", "Ended no better than guessing.", lines=1)
    heading(logit, "Largest attention logit", "In any block, during training.", lines=1)
    return figure
