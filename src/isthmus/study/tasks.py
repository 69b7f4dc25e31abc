"""What there is to do: one task is one fit, with an id that depends on nothing else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isthmus.errors import InvalidInputError
from isthmus.study.methods import Method

__all__ = ["Task", "make_tasks"]


@dataclass(frozen=True)
class Task:
    """One fit: which data, which method with which settings, which seed.

    Examples
    --------
    >>> Task("iris", "KMeans", '{"n_init": 10}', 0, 5000).id
    '5056d517d5476dee'
    """

    dataset: str
    method: str
    parameters: str
    """The settings as JSON, keys in order."""
    seed: int
    rows: int
    """At most so many rows of the dataset; 0 stands for all."""

    @property
    def id(self) -> str:
        """The same for the same task, in every run and on every machine."""
        fields = [self.dataset, self.method, self.parameters, self.seed, self.rows]
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:16]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as a dictionary."""
        settings: dict[str, Any] = json.loads(self.parameters)
        return settings


def make_tasks(
    datasets: Iterable[str],
    methods: Mapping[str, Method],
    seeds: Sequence[int] = (0,),
    rows: int = 0,
    entries: int | None = None,
) -> list[Task]:
    """All tasks of a study, dataset by dataset.

    Parameters
    ----------
    datasets : iterable of str
    methods : mapping of str to Method
    seeds : sequence of int
        Methods that draw nothing at random get the first only.
    rows : int
        At most so many rows of each dataset; 0 for all.
    entries : int, optional
        Only so many entries of each grid: the defaults, and others spread over the grid.
    """
    tasks = []
    for dataset in dict.fromkeys(datasets):
        for method in methods.values():
            for settings in _spread(method.grid, entries):
                for seed in seeds if method.seeded else seeds[:1]:
                    tasks.append(Task(dataset, method.name, _written(method, settings), seed, rows))
    if len({task.id for task in tasks}) < len(tasks):
        raise InvalidInputError("A grid holds the same settings twice; list each once.")
    return tasks


def _spread(grid: tuple[dict[str, Any], ...], entries: int | None) -> list[dict[str, Any]]:
    if entries is None or entries >= len(grid):
        return list(grid)
    return [grid[place * len(grid) // entries] for place in range(entries)]


def _written(method: Method, settings: Mapping[str, Any]) -> str:
    try:
        return json.dumps(settings, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"The grid of {method.name} must hold plain numbers, words and lists, not {settings}; "
            "make anything else of them in its factory."
        ) from None
