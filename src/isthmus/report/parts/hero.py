"""The opening figure: three uses of one energy."""

from __future__ import annotations

import numpy as np

import isthmus as ist
from isthmus.figures import hero
from isthmus.figures.landscape_2d import ring
from isthmus.report.parts.completion import DIGIT_SHAPE, completed_digits
from isthmus.report.parts.landscapes import plane_memories
from isthmus.report.registry import compose
from isthmus.report.section import Section

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
    return compose("hero", figure)
