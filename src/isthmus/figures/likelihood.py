"""Figure of in-context likelihoods against the size of the context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isthmus.figures.style import CURVE, INK, MEMORY, MUTED, PAPER, heading, new_figure, styled
from isthmus.incontext.evaluation import Evaluation

__all__ = ["nll_against_context"]

GREEN, PURPLE, SKY, YELLOW = "#009e73", "#cc79a7", "#56b4e9", "#e69f00"
# Colour, line, marker and name of each predictor, best first.
PREDICTORS = {
    "truth": (INK, "--", "", "true density"),
    "model": (CURVE, "-", "o", "in-context model"),
    "bayes": (GREEN, "--", "", "Bayes predictive (best possible)"),
    "em-0.1": (SKY, ":", "D", "EM, regularised 0.1"),
    "em-0.001": (YELLOW, "-.", "d", "EM, regularised 0.001"),
    "kde-best": (MEMORY, "-", "^", "KDE, best bandwidth"),
    "kde-silverman": (PURPLE, "-", "v", "KDE, Silverman"),
}
# Values this share of the range above model, Bayes and truth are off the scale.
HEADROOM = 0.35


@styled
def nll_against_context(evaluation: Evaluation) -> Figure:
    """Draw the negative log-likelihood against the size of the context, with all references.

    Left, means over tasks with standard errors. Values far above the model's are not drawn to
    scale: a mark at the upper edge stands for them, with the number. Right, what the model loses
    to the Bayes predictive, paired over tasks, where the evaluation has it; else its divergence
    from the true density.

    Parameters
    ----------
    evaluation : Evaluation

    Returns
    -------
    Figure
    """
    figure = new_figure(4.6)
    left, right = figure.subplots(1, 2, width_ratios=(1.7, 1))
    sizes = np.array(evaluation.contexts)
    low, high = _scale(evaluation)
    beyond: list[tuple[int, float, str]] = []
    for name in [*PREDICTORS, *(set(evaluation.nll) - set(PREDICTORS))]:
        if name not in evaluation.nll:
            continue
        colour, line, marker, label = PREDICTORS.get(name, (MUTED, "-", ".", name))
        mean, error = evaluation.mean(name), np.nan_to_num(evaluation.standard_error(name))
        off = mean > high
        left.errorbar(
            sizes,
            np.where(off, np.nan, mean),
            None if name == "truth" else np.where(off, 0, error),
            ls=line,
            marker=marker,
            color=colour,
            label=label,
            **_weight(name),
        )
        beyond += [(size, value, colour) for size, value in zip(sizes[off], mean[off], strict=True)]
    _draw_beyond(left, beyond)
    left.set_ylim(low, high)
    left.set_ylabel("nats")
    # Beneath the curves, where they are high, and above the truth.
    left.legend(frameon=False, fontsize=9, loc="lower left", bbox_to_anchor=(0.0, 0.11))
    note = f"Means over {evaluation.tasks} tasks, ± standard error."
    if beyond:
        note += " ▲: off the scale, with its value."
    heading(left, "Negative log-likelihood of fresh points", note, characters=75, lines=1)
    _draw_loss(right, evaluation)
    for axes in (left, right):
        _context_axis(axes, evaluation.contexts)
    return figure


def _draw_loss(axes: Axes, evaluation: Evaluation) -> None:
    sizes = np.array(evaluation.contexts)
    if "bayes" in evaluation.nll:
        mean, error = evaluation.difference("bayes")
        title, note = "Model above Bayes", "Paired over tasks, ± standard error."
    else:
        mean, error = evaluation.kl.mean(1), evaluation.difference("truth")[1]
        title, note = "Divergence from the truth", "KL(truth, model), ± standard error."
    axes.axhline(0, color=MUTED, lw=1)
    look = {**_weight("model"), "lw": 2.4}
    axes.errorbar(sizes, mean, np.nan_to_num(error), marker="o", color=CURVE, **look)
    axes.set_ylabel("nats")
    axes.margins(y=0.15)
    heading(axes, title, note, characters=45, lines=1)


def _weight(name: str) -> dict[str, Any]:
    # Bayes lies on the model, or nearly: dashes on a broad line show both.
    own = name == "model"
    return {
        "lw": {"model": 4.2, "bayes": 2.0}.get(name, 1.4),
        "ms": 8 if own else 5.5,
        "mec": PAPER,
        "mew": 0.6,
        "elinewidth": 1.2,
        "zorder": {"model": 4, "bayes": 5}.get(name, 3),
    }


def _scale(evaluation: Evaluation) -> tuple[float, float]:
    """Return limits that include model, Bayes predictive and truth, with room above."""
    main = [evaluation.mean(name) for name in ("model", "truth", "bayes") if name in evaluation.nll]
    low, high = float(np.nanmin(main)), float(np.nanmax(main))
    span = max(high - low, 0.1)
    return low - 0.08 * span, high + HEADROOM * span


def _draw_beyond(axes: Axes, beyond: list[tuple[int, float, str]]) -> None:
    """Mark values off the scale at the upper edge, with their numbers below."""
    taken: dict[int, int] = {}
    for size, value, colour in sorted(beyond, key=lambda each: -each[1]):
        level = taken.get(size, 0)
        taken[size] = level + 1
        edge = axes.get_xaxis_transform()
        if level == 0:
            axes.plot([size], [0.985], "^", transform=edge, color=MUTED, ms=6, mec=PAPER, mew=0.5)
        axes.annotate(
            f"{value:.3g}",
            (size, 0.985),
            xycoords=edge,
            xytext=(0, -15 - 10.5 * level),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            fontweight="bold",
            color=colour,
        )


def _context_axis(axes: Axes, contexts: Sequence[int]) -> None:
    """Make the axis logarithmic from 1 on, with room for 0."""
    axes.set_xscale("symlog", base=2, linthresh=1, linscale=0.8)
    axes.set_xticks(list(contexts), [str(size) for size in contexts])
    axes.minorticks_off()
    axes.set_xlim(-0.35, 1.25 * max(contexts) + 0.35)
    axes.set_xlabel("points in context n")
