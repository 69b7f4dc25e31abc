"""Priors over densities, for training in-context models and for testing them.

A prior draws a batch of densities. Each density draws points and has an exact log-density.
"""

from __future__ import annotations

from isthmus.incontext.priors.mixtures import GaussianMixtures, MixtureTasks, Prior, Tasks
from isthmus.incontext.priors.planar import Moons, Rings, Spirals, UniformShapes
from isthmus.validation import as_choice

__all__ = [
    "PRIORS",
    "GaussianMixtures",
    "MixtureTasks",
    "Moons",
    "Prior",
    "Rings",
    "Spirals",
    "Tasks",
    "UniformShapes",
    "prior",
]

PRIORS: dict[str, Prior] = {
    "compact": GaussianMixtures.compact(),
    "paper": GaussianMixtures.paper(),
    "rings": Rings(),
    "moons": Moons(),
    "spirals": Spirals(),
    "shapes": UniformShapes(),
}
"""The priors that :func:`prior` returns by name."""


def prior(name: str) -> Prior:
    """Return the prior of that name in :data:`PRIORS`.

    Examples
    --------
    >>> from isthmus.incontext.priors import prior
    >>> prior("compact").box
    5.5
    """
    return PRIORS[as_choice(name, "prior", PRIORS)]
