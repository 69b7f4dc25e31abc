"""What counts in a directory: for each dataset and method, the fits the newest run asked for."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from isthmus.errors import InvalidInputError
from isthmus.files import write_atomically
from isthmus.study.tasks import Task

__all__ = ["Plan", "read_plan", "updated", "write_plan"]

Plan = dict[tuple[str, str], dict[str, int | None]]
"""By dataset and method, the ids of the fits that count, each with its settings' place in the
grid; None stands for the place that is stored with the result."""

NAME = "plan.json"
# Where a plan of an earlier form, a list of ids, has those whose dataset nobody knows any more.
UNPLACED = ("", "")


def read_plan(directory: Path) -> Plan | None:
    """The plan of a directory, if it has one."""
    path = directory / NAME
    try:
        found = json.loads(path.read_text())
        if isinstance(found, list):
            return {UNPLACED: dict.fromkeys(found)}
        return {
            (dataset, method): dict(ids)
            for dataset, methods in found.items()
            for method, ids in methods.items()
        }
    except FileNotFoundError:
        return None
    except (ValueError, AttributeError, TypeError):
        raise InvalidInputError(
            f"{path} is not the plan of a study. Remove it; the same `isthmus study run` then "
            "writes it again, and does no fit twice."
        ) from None


def write_plan(directory: Path, plan: Plan) -> None:
    """Store a plan, all or nothing."""
    written: dict[str, dict[str, dict[str, int | None]]] = defaultdict(dict)
    for (dataset, method), ids in plan.items():
        written[dataset][method] = ids
    write_atomically(directory / NAME, json.dumps(written) + "\n")


def updated(
    before: Plan | None,
    tasks: Iterable[Task],
    places: Mapping[tuple[str, str], int],
    rows: Iterable[Mapping[str, Any]],
) -> Plan:
    """The plan with one more run: what it asks for replaces what its pairs had, and no others.

    Parameters
    ----------
    before : Plan or None
        None if there was none: then whatever there are results of counts.
    tasks : iterable of Task
        Of the new run.
    places : mapping
        Where in its method's grid each of the settings stands, by method and settings.
    rows : iterable of mapping
        All results, which tell what the ids of an earlier form of plan belong to.
    """
    new: Plan = defaultdict(dict)
    for task in tasks:
        new[task.dataset, task.method][task.id] = places[task.method, task.parameters]
    asked = {key for ids in new.values() for key in ids}
    origin = {row["id"]: (row["dataset"], row["method"]) for row in rows}
    if before is None:
        before = {UNPLACED: dict.fromkeys(origin)}
    kept: Plan = defaultdict(dict)
    for pair, ids in before.items():
        for key, place in ids.items():
            home = origin.get(key, pair) if pair == UNPLACED else pair
            if home not in new and key not in asked:
                kept[home][key] = place
    return {**kept, **new}
