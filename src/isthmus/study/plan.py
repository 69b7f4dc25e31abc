"""The plan of a directory: for each dataset and method, the fits of the newest run with both."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from isthmus.errors import InvalidInputError
from isthmus.files import write_atomically
from isthmus.study.settings import Task

__all__ = ["Plan", "read_plan", "updated", "write_plan"]

Plan = dict[tuple[str, str], dict[str, int | None]]
"""By dataset and method, the ids of the fits that count, each with the position of its settings
in the grid; None stands for the position that is stored with the result."""

NAME = "plan.json"
# Key of the ids in an earlier form of the plan, a list of ids without datasets and methods.
UNPLACED = ("", "")


def read_plan(directory: Path) -> Plan | None:
    """Return the plan of a directory, or None if it has none."""
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
            f"{path} is not the plan of a study. Remove it; the same `isthmus study run` writes "
            "it again and repeats no fit."
        ) from None


def write_plan(directory: Path, plan: Plan) -> None:
    """Store a plan."""
    written: dict[str, dict[str, dict[str, int | None]]] = defaultdict(dict)
    for (dataset, method), ids in plan.items():
        written[dataset][method] = ids
    write_atomically(directory / NAME, json.dumps(written) + "\n")


def updated(before: Plan | None, tasks: Iterable[Task], rows: Iterable[Mapping[str, Any]]) -> Plan:
    """Return the plan after one more run, which replaces only the pairs that it covers.

    Parameters
    ----------
    before : Plan or None
        None if there was no plan: then all results count.
    tasks : iterable of Task
        Tasks of the new run.
    rows : iterable of mapping
        All results, which give the dataset and method of the ids in an earlier form of plan.
    """
    new: Plan = defaultdict(dict)
    for task in tasks:
        new[task.dataset, task.method][task.id] = task.entry
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
