"""The part of the study that a run covers, and its tasks: a task is one fit."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from isthmus.errors import DatasetNotFoundError, InvalidInputError
from isthmus.paper.datasets.loading import load
from isthmus.paper.datasets.manifest import entry, names
from isthmus.paper.processes import Limits
from isthmus.paper.study.methods import METHODS, Method
from isthmus.validation import as_choice, as_count, require_kind

# On datasets with more cells than this, the standard study does only so many fits of each method.
LARGE_CELLS, FEW_FITS = 250_000, 6
# The largest seed of NumPy's generators.
LARGEST_SEED = 2**32 - 1


@dataclass(frozen=True)
class Task:
    """One fit: a dataset, a method with its settings, and a seed.

    `parameters` are the settings as JSON with sorted keys, `entry` is their position in the grid,
    and `rows` the largest number of rows of the dataset, 0 for all.
    """

    dataset: str
    method: str
    parameters: str
    seed: int
    rows: int
    entry: int = field(default=0, compare=False)

    @property
    def id(self) -> str:
        """Digest of the task, equal in every run and on every machine."""
        fields = [self.dataset, self.method, self.parameters, self.seed, self.rows]
        return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:16]

    @property
    def settings(self) -> dict[str, Any]:
        """The settings as a dictionary."""
        return dict(json.loads(self.parameters))


def cells(dataset: str, rows: int) -> int:
    """Return the size of the table that fits on at most `rows` rows use; 0 stands for all."""
    known = entry(dataset)
    return min(known.n_samples, rows or known.n_samples) * known.n_features


@dataclass(frozen=True)
class Settings:
    """The datasets, methods, seeds and limits of a run.

    Parameters
    ----------
    datasets : sequence of str, optional
        Default: all 15.
    methods : sequence of str or Method, optional
        Names of methods, and methods of your own. Default: all of METHODS.
    seeds : sequence of int
        Methods that are not `seeded` get the first only.
    rows : int
        Largest number of rows of each dataset, the same for all methods; 0 for all.
    entries : int, optional
        Number of entries of each grid: the defaults, and others spread over the grid. Default: the
        whole grid; on tables of more than 250,000 cells, as many as make six fits of a method.
    limits : Limits
        Limits on each fit.
    """

    datasets: Sequence[str] | None = None
    methods: Sequence[str | Method] | None = None
    seeds: Sequence[int] = (0, 1, 2)
    rows: int = 5000
    entries: int | None = None
    limits: Limits = field(default_factory=Limits)

    def tasks(self) -> list[Task]:
        """Return all fits, dataset by dataset; raise if a setting is invalid."""
        require_kind(self.limits, "limits", Limits)
        datasets = names() if self.datasets is None else _as_tuple("datasets", self.datasets)
        tasks = [
            task
            for dataset in dict.fromkeys(entry(name).name for name in datasets)
            for method in self.chosen.values()
            for task in self._tasks_of(dataset, method)
        ]
        if len({task.id for task in tasks}) < len(tasks):
            raise InvalidInputError("A grid or the seeds hold the same twice; list each once.")
        return tasks

    def _tasks_of(self, dataset: str, method: Method) -> Iterator[Task]:
        rows = as_count(self.rows, "rows", at_least=0)
        seeds = [
            as_count(seed, "a seed", at_least=0, at_most=LARGEST_SEED)
            for seed in _as_tuple("seeds", self.seeds)
        ]
        seeds = seeds if method.seeded else seeds[:1]
        grid = list(enumerate(method.grid))
        kept = len(grid) if self.entries is None else as_count(self.entries, "entries")
        if self.entries is None and cells(dataset, rows) > LARGE_CELLS:
            kept = max(1, FEW_FITS // len(seeds))
        kept = min(kept, len(grid))
        for place, settings in (grid[number * len(grid) // kept] for number in range(kept)):
            try:
                text = json.dumps(settings, sort_keys=True, allow_nan=False)
            except (TypeError, ValueError):
                raise InvalidInputError(
                    f"The grid of {method.name} must hold plain numbers, strings and lists."
                ) from None
            for seed in seeds:
                yield Task(dataset, method.name, text, seed, rows, place)

    @property
    def chosen(self) -> dict[str, Method]:
        """The methods by name."""
        chosen = METHODS if self.methods is None else _as_tuple("methods", self.methods)
        methods = [
            METHODS[as_choice(each, "methods", METHODS)] if isinstance(each, str) else each
            for each in chosen
        ]
        for method in methods:
            require_kind(method, "A method", Method)
        return {method.name: method for method in methods}

    def available(self, data_home: str | Path | None = None) -> Settings:
        """Return the settings without the datasets that can be neither found nor downloaded."""
        kept = []
        for name in names() if self.datasets is None else self.datasets:
            with suppress(DatasetNotFoundError):
                load(name, data_home)
                kept.append(name)
        return replace(self, datasets=tuple(kept))


def _as_tuple(name: str, values: Any) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise InvalidInputError(f"{name} must be a list, not {values!r}.")
    listed = tuple(values)
    if not listed:
        raise InvalidInputError(f"{name} must have at least one.")
    return listed


QUICK = Settings(
    datasets=("iris", "wine", "wisconsin_breast_cancer", "zoo", "ecoli"),
    seeds=(0,),
    rows=1000,
    entries=3,
    limits=Limits(seconds=30, megabytes=2048),
)
"""A short run: five small datasets, three entries of each grid, one seed. The first three datasets
come with scikit-learn."""
