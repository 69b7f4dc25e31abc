"""`isthmus complete DATA`: fill the missing cells of a table."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

from isthmus.cli import options
from isthmus.printing import listed
from isthmus.tables.files import Table, default_output


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    if arguments.output is None:
        arguments.output = default_output(arguments.data, "completed")
    options.check_outputs(arguments, arguments.data, arguments.memory)
    if arguments.model is not None:
        fitting = "memory energy sigma no-standardise"
        options.refuse(arguments, fitting, "--model is fitted already.")
    table = options.load_table(arguments, missing=True, as_written=True)
    learns_itself, memory = arguments.model is None and arguments.memory is None, None
    if arguments.memory is not None:
        # Columns are matched by name, so a column that looks like ids is like any other.
        memory = options.load_beside(arguments, arguments.memory, id="none").frame
    from isthmus.cluster import TableModel
    from isthmus.impute import fill_gaps

    same = ("energy", "sigma", "how", "fill", "standardise", "seed")
    found = fill_gaps(
        table.X,
        columns=table.columns,
        memory=memory,
        model=None if arguments.model is None else TableModel.load(arguments.model),
        words=table.words if learns_itself else None,
        show_progress=False if arguments.quiet else None,
        **{name: getattr(arguments, name) for name in same},
    )
    filled = table.filled(found.X, found.words)
    notes = _notes(table, filled, found.notes, () if found.words is None else [*found.words])
    return options.finish(arguments, found, found.summary, notes, filled, table)


def _notes(
    table: Table, filled: Table, found: Iterable[str], learned: Iterable[str]
) -> Iterator[str]:
    """Yield the notes of a result, with columns of text that are `learned` from, and gaps left."""
    for note in table.notes:
        if not learned or "since most cells are not numbers" not in note:
            yield note
        elif copied := [name for name in table.left_out if name not in learned]:
            yield f"Copied, and not learned from: {listed(copied)}."
    yield from found
    left = {name: count for name, count in filled.gaps_of_text.items() if name not in learned}
    if left:
        names = listed([f"{name} ({count:,})" for name, count in left.items()], 5)
        reason = "dates, text that hardly repeats and columns set apart are not filled"
        yield f"Gaps are left in {names}: {reason}."
