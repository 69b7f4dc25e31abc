"""Predictors to compare an in-context model with, from the best possible to the everyday.

Each turns contexts (B, n, D) and points (B, M, D) into log-densities (B, M).
"""

from __future__ import annotations

from collections.abc import Callable

from isthmus.errors import InvalidInputError
from isthmus.incontext.priors import GaussianMixtures, Prior
from isthmus.incontext.references.base import Reference
from isthmus.incontext.references.bayes import BayesPredictive, Prediction
from isthmus.incontext.references.kernel import KernelDensity
from isthmus.incontext.references.mixture import FittedMixture

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


def _bayes(prior: Prior) -> Reference:
    if not isinstance(prior, GaussianMixtures):
        raise InvalidInputError(
            f"The Bayes predictive is known for GaussianMixtures only, not for {prior!r}."
        )
    return BayesPredictive(prior)


REFERENCES: dict[str, Callable[[Prior], Reference]] = {
    "bayes": _bayes,
    "kde-best": lambda prior: KernelDensity("best"),
    "kde-silverman": lambda prior: KernelDensity("silverman"),
    "em-0.001": lambda prior: FittedMixture(_components(prior), regularizer=1e-3),
    "em-0.1": lambda prior: FittedMixture(_components(prior), regularizer=0.1),
}
"""What :func:`reference` knows by name, each as a function of a prior."""


def reference(name: str, prior: Prior) -> Reference:
    """The reference of that name in :data:`REFERENCES`, for tasks of a prior.

    Examples
    --------
    >>> from isthmus.incontext.priors import prior
    >>> from isthmus.incontext.references import reference
    >>> reference("em-0.1", prior("compact")).components
    3
    """
    if name not in REFERENCES:
        known = ", ".join(REFERENCES)
        raise InvalidInputError(f"No reference is called {name!r}. Choose from: {known}.")
    return REFERENCES[name](prior)


def known_references(prior: Prior) -> tuple[str, ...]:
    """The names of all references that exist for a prior."""
    if isinstance(prior, GaussianMixtures):
        return tuple(REFERENCES)
    return ("kde-best", "kde-silverman")
