"""Task distributions: what in-context models are trained on, and what they are tested on.

Each prior draws batches of densities, from which points come and whose log-density is exact.
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.errors import InvalidInputError
from isthmus.incontext.priors.base import Prior, Tasks
from isthmus.incontext.priors.curves import Moons, Spirals
from isthmus.incontext.priors.mixtures import GaussianMixtures, MixtureTasks
from isthmus.incontext.priors.rings import Rings
from isthmus.incontext.priors.shapes import UniformShapes

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

PRIORS: dict[str, Callable[[], Prior]] = {
    "compact": GaussianMixtures.compact,
    "paper": GaussianMixtures.paper,
    "rings": Rings,
    "moons": Moons,
    "spirals": Spirals,
    "shapes": UniformShapes,
}
"""What :func:`prior` knows by name."""


def prior(name: str) -> Prior:
    """The prior of that name in :data:`PRIORS`.

    Examples
    --------
    >>> from isthmus.incontext.priors import prior
    >>> prior("compact").box
    5.5
    """
    if name not in PRIORS:
        raise InvalidInputError(f"No prior is called {name!r}. Choose from: {', '.join(PRIORS)}.")
    return PRIORS[name]()
