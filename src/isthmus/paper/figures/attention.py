"""The figure of training with three kinds of attention at high learning rates."""

from __future__ import annotations

import math

import numpy as np
from matplotlib.figure import Figure

from isthmus.figures.style import (
    CURVE,
    INK,
    MEMORY,
    MUTED,
    PAPER,
    RULE,
    heading,
    new_figure,
    note_at,
    styled,
)
from isthmus.paper.attention import Experiment

SHADES = {"pre-norm": (INK, "o"), "QK-norm": (CURVE, "s"), "SALN": (MEMORY, "^")}


@styled
def attention_experiment(experiment: Experiment) -> Figure:
    """Draw loss, fraction of diverged runs and largest logit against the learning rate.

    Lines are medians over seeds, small marks the seeds themselves.

    Parameters
    ----------
    experiment : Experiment
        From :func:`isthmus.paper.attention.compare_variants`.
    """
    figure = new_figure(3.9, gap=0.05)
    loss, share, logit = figure.subplots(1, 3, sharex=True)
    rates = experiment.learning_rates
    for number, variant in enumerate(experiment.variants):
        colour, marker = SHADES[variant]
        look = {"color": colour, "marker": marker, "ms": 5, "lw": 1.6, "mec": PAPER, "mew": 0.5}
        for axes, measure in ((loss, "loss"), (logit, "largest_logit")):
            middle = [experiment.median(measure, variant, rate) for rate in rates]
            middle = [value if math.isfinite(value) else math.nan for value in middle]
            axes.plot(rates, middle, label=variant, zorder=3, **look)
            each = [
                (run.learning_rate, getattr(run, measure))
                for rate in rates
                for run in experiment.of(variant, rate)
                if getattr(run, measure) is not None
            ]
            axes.plot(*zip(*each, strict=True), marker, color=colour, ms=3, alpha=0.45, mew=0)
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
