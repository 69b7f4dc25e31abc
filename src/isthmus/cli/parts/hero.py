"""The picture at the top: what one energy can do."""

from __future__ import annotations

import numpy as np

import isthmus as ist
from isthmus.cli.parts.completion import DIGIT_SHAPE, completed_digits
from isthmus.cli.parts.landscapes import plane_memories
from isthmus.figures import Section, hero
from isthmus.figures.landscape_2d import ring

__all__ = ["three_uses_of_one_energy"]

DIGITS = (3, 5)


def three_uses_of_one_energy(seed: int, full: bool = False) -> Section:
    """Draw retrieval, density and completion side by side."""
    memories = plane_memories()
    energy = ist.GaussianKDE(memories, sigma=0.4)
    digits = completed_digits(seed)
    shown = [int((digits.labels == digit).nonzero()[0]) for digit in DIGITS]
    figure = hero(
        energy,
        memories,
        np.concatenate([ring(24, 3.0), ring(10, 1.1, turn=0.5)]),
        energy.sample(500, seed=seed),
        digits.masked[shown],
        digits.completed[shown],
        DIGIT_SHAPE,
    )
    caption = (
        "An energy function is a negative log-likelihood. So one object remembers: queries roll "
        "downhill to the memory they resemble. It knows probabilities: the same valleys are the "
        "peaks of a density that can be evaluated and drawn from. And it completes: with some "
        "coordinates held, the others roll downhill alone."
    )
    return Section(caption, figure)
