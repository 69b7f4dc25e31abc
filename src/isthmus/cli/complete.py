"""`isthmus complete DATA`: fill the missing cells of a table."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

from isthmus.cli import options
from isthmus.errors import InvalidInputError
from isthmus.printing import listed
from isthmus.tables.files import Table, default_output


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    if arguments.output is None:
        arguments.output = default_output(arguments.data, "completed")
    options.check_outputs(arguments, arguments.data, arguments.memory)
    given = (arguments.memory, arguments.energy, arguments.sigma)
    if arguments.model is not None and (given != (None,) * 3 or not arguments.standardise):
        raise InvalidInputError(
            "--model is fitted already; leave out --memory, --energy, --sigma and --no-standardise."
        )
    table = options.load_table(arguments, missing=True, as_written=True)
    words, memory = None, None
    if arguments.model is None and arguments.memory is None:
        words = table.words
    if arguments.memory is not None:
        # Columns are matched by name, so a column that looks like ids is like any other.
        memory = options.load_beside(arguments, arguments.memory, id="none").frame
    from isthmus.cluster import TableModel
    from isthmus.impute import fill_gaps

    found = fill_gaps(
        table.X,
        columns=table.columns,
        memory=memory,
        model=None if arguments.model is None else TableModel.load(arguments.model),
        energy=arguments.energy,
        sigma=arguments.sigma,
        how=arguments.how,
        words=words,
        fill=arguments.fill,
        standardise=arguments.standardise,
        seed=arguments.seed,
        show_progress=False if arguments.quiet else None,
    )
    filled = table.filled(found.X, found.words)
    notes = (*_notes_on_reading(table, found.words), *found.notes)
    notes += (*_notes_on_the_rest(filled, () if found.words is None else found.words.columns),)
    return options.finish(arguments, found, found.summary, notes, filled, table)


def _notes_on_reading(table: Table, words: Any) -> Iterator[str]:
    """Yield the notes of a table, in which text that is learned from is not said to be copied."""
    for note in table.notes:
        if words is None or "since most cells are not numbers" not in note:
            yield note
        elif copied := [name for name in table.left_out if name not in words.columns]:
            yield f"Copied, and not learned from: {listed(copied)}."


def _notes_on_the_rest(table: Table, words: Iterable[str]) -> Iterator[str]:
    """Yield a sentence on the columns, but those of words, whose gaps are not filled."""
    left = {name: count for name, count in table.gaps_of_text.items() if name not in words}
    if left:
        names = listed([f"{name} ({count:,})" for name, count in left.items()], 5)
        reason = "dates, text that hardly repeats and columns set apart are not filled"
        yield f"Gaps are left in {names}: {reason}."


parser = partial(options.make_parser, "complete", run)
