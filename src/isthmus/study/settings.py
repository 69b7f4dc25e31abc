"""Which part of the study to do, and how much of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from isthmus.datasets import names
from isthmus.datasets.manifest import entry
from isthmus.errors import InvalidInputError
from isthmus.study.isolation import Limits
from isthmus.study.methods import Method, choose_methods
from isthmus.study.tasks import Task, make_tasks

__all__ = ["QUICK", "Settings", "require_count"]

# What numpy's generators can take as a seed.
LARGEST_SEED = 2**32 - 1


@dataclass(frozen=True)
class Settings:
    """Which part of the study to do, and how much of it.

    Parameters
    ----------
    datasets : sequence of str, optional
        All 15 by default.
    methods : sequence of str or Method, optional
        All twelve by default; a :class:`Method` of your own stands beside names.
    seeds : sequence of int
    rows : int
        At most so many rows of each dataset, the same for all methods; 0 for all.
    entries : int, optional
        Only so many entries of each grid.
    limits : Limits
        On each fit.
    """

    datasets: Sequence[str] | None = None
    methods: Sequence[str | Method] | None = None
    seeds: Sequence[int] = (0, 1, 2)
    rows: int = 5000
    entries: int | None = None
    limits: Limits = field(default_factory=Limits)

    def tasks(self) -> list[Task]:
        """All fits."""
        require_count("rows", self.rows, at_least=0)
        if self.entries is not None:
            require_count("entries", self.entries, at_least=1)
        if not isinstance(self.limits, Limits):
            raise InvalidInputError(f"limits must be Limits(seconds, ...), not {self.limits!r}.")
        datasets = names() if self.datasets is None else _listed("datasets", self.datasets)
        for name in datasets:
            entry(name)  # which says what is wrong with one that is not known
        return make_tasks(datasets, self.chosen, self._seeds(), self.rows, self.entries)

    @property
    def chosen(self) -> dict[str, Method]:
        """The methods by name."""
        return choose_methods(self.methods)

    def _seeds(self) -> tuple[int, ...]:
        seeds = _listed("seeds", self.seeds)
        for seed in seeds:
            require_count("a seed", seed, at_least=0, at_most=LARGEST_SEED)
        if len(set(seeds)) < len(seeds):
            raise InvalidInputError(f"seeds must differ from each other, not be {seeds}.")
        return seeds


def _listed(name: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidInputError(f"{name} must be a list, not {values!r}.")
    listed = tuple(values)
    if not listed:
        raise InvalidInputError(f"{name} must have at least one.")
    return listed


def require_count(name: str, value: Any, at_least: int, at_most: int | None = None) -> None:
    """Raise unless it is a whole number in the range."""
    # Not isthmus.validation, which imports torch: the processes that only wait need none.
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or value < at_least or (at_most is not None and value > at_most):
        end = "up" if at_most is None else f"to {at_most}"
        raise InvalidInputError(
            f"{name} must be a whole number from {at_least} {end}, not {value!r}."
        )


QUICK = Settings(
    datasets=("iris", "wine", "wisconsin_breast_cancer", "zoo", "ecoli"),
    seeds=(0,),
    rows=1000,
    entries=3,
    limits=Limits(seconds=30, megabytes=2048),
)
"""A short look: five small datasets, three entries of each grid, one seed. The first three
datasets come with scikit-learn."""
