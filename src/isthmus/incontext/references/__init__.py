"""Reference predictors, from the Bayes predictive to common estimators.

Each returns log-densities (B, M) of points (B, M, D) given contexts (B, n, D).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from isthmus.errors import InvalidInputError
from isthmus.incontext.priors import GaussianMixtures, Prior
from isthmus.incontext.references.bayes import BayesPredictive, Prediction
from isthmus.incontext.references.estimators import FittedMixture, KernelDensity, Reference
from isthmus.validation import as_choice

__all__ = [
    "REFERENCES",
    "BayesPredictive",
    "FittedMixture",
    "KernelDensity",
    "Prediction",
    "Reference",
    "known_references",
    "reference",
]


def _components(prior: Prior) -> int:
    if not isinstance(prior, GaussianMixtures):
        raise InvalidInputError(
            "The number of components is known for GaussianMixtures only, not for "
            f"{type(prior).__name__}. Leave out the mixture references, or pass a FittedMixture."
        )
    return prior.components


REFERENCES: dict[str, Callable[[Any], Reference]] = {
    "bayes": BayesPredictive,
    "kde-best": lambda prior: KernelDensity("best"),
    "kde-silverman": lambda prior: KernelDensity("silverman"),
    "em-0.001": lambda prior: FittedMixture(_components(prior), regularizer=1e-3),
    "em-0.1": lambda prior: FittedMixture(_components(prior), regularizer=0.1),
}
"""The references that :func:`reference` returns by name, each as a function of a prior."""


def reference(name: str, prior: Prior) -> Reference:
    """Return the reference of that name in :data:`REFERENCES`, for tasks of a prior.

    Examples
    --------
    >>> from isthmus.incontext.priors import prior
    >>> from isthmus.incontext.references import reference
    >>> reference("em-0.1", prior("compact")).components
    3
    """
    return REFERENCES[as_choice(name, "reference", REFERENCES)](prior)


def known_references(prior: Prior) -> tuple[str, ...]:
    """Return the names of all references that exist for a prior."""
    if isinstance(prior, GaussianMixtures):
        return tuple(REFERENCES)
    return ("kde-best", "kde-silverman")
