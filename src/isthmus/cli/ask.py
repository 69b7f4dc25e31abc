"""`isthmus ask DATA`: predict a column of a table, given values of others."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import pandas as pd

from isthmus.cli import options
from isthmus.cli.sample import parse_given
from isthmus.errors import InvalidInputError
from isthmus.printing import listed
from isthmus.tables.categories import with_categories


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    table = options.load_table(arguments, missing=True, as_written=True, numbers=False)
    frame, notes = with_categories(table)
    truths = table.truths
    for name, spelling in truths.items():
        frame[name] = frame[name].map(dict(enumerate(spelling))).astype(object)
    if arguments.predict not in frame:
        names = ", ".join(map(str, frame))
        raise InvalidInputError(f"--predict {arguments.predict} is not one of {names}.")
    asked = frame[arguments.predict]
    if asked.dtype.kind in "iuf" and set(asked.dropna()) == {0, 1}:
        frame[arguments.predict] = asked.astype("Int64").astype(object).where(asked.notna(), None)
        notes += (f"{arguments.predict} holds 0 and 1 only, and is read as a truth value.",)
    given = parse_given(arguments.given, frame, table)
    if arguments.predict in given:
        raise InvalidInputError(f"--given has {arguments.predict}, the column to predict.")
    if ranges := [name for name, value in given.items() if isinstance(value, tuple)]:
        raise InvalidInputError(f"--given {ranges[0]}=LOW..HIGH: name one value.")
    notes += (*_notes_on_given(given, frame),)
    from isthmus.incontext import pretrained

    density = pretrained("tables").condition(frame, target=arguments.predict)
    found = density.ask(arguments.predict, given, level=arguments.level)
    summary = found.summary
    for name in truths.keys() & given.keys():
        summary["given"][name] = given[name] == truths[name][1]
    if not given:
        notes += ("--given COLUMN=VALUE predicts it for rows with this value.",)
    arguments.output = None
    return options.finish(arguments, found, summary, notes)


def _notes_on_given(given: dict[str, Any], frame: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence on each value that no row has, or that is outside the range of numbers."""
    for name, value in given.items():
        known = frame[name].dropna()
        if known.dtype.kind not in "iuf":
            values = sorted(map(str, known.unique()))
            if str(value) not in values:
                yield f"--given {name}={value}: no row has this value; known are {listed(values)}."
        elif not known.min() <= value <= known.max():
            ends = f"{known.min():.10g} to {known.max():.10g}"
            yield f"--given {name}={value:.10g} is outside the range of its column, {ends}."
