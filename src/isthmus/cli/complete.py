"""`isthmus complete DATA`: fill the missing cells of a table."""

from __future__ import annotations

import argparse

from isthmus.cli import options
from isthmus.printing import listed

# Part of the note of a table on its columns of text, which are learned from here.
WORDS = "since most cells are not numbers"


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    options.check_outputs(arguments, arguments.memory, arguments.data, ending="completed")
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

    found = fill_gaps(
        table.X,
        columns=table.columns,
        memory=memory,
        model=None if arguments.model is None else TableModel.load(arguments.model),
        words=table.words if learns_itself else None,
        show_progress=arguments.progress,
        **options.settings(arguments, "energy sigma how fill standardise seed"),
    )
    filled = table.filled(found.X, found.words)
    learned = () if found.words is None else tuple(found.words)
    copied = [name for name in table.left_out if name not in learned]
    notes = [note for note in table.notes if not learned or WORDS not in note]
    if learned and copied:
        notes.append(f"Copied, and not learned from: {listed(copied)}.")
    notes += found.notes
    left = {name: count for name, count in filled.gaps_of_text.items() if name not in learned}
    if left:
        names = listed([f"{name} ({count:,})" for name, count in left.items()], 5)
        reason = "dates, text that hardly repeats and columns set apart are not filled"
        notes.append(f"Gaps are left in {names}: {reason}.")
    return options.finish(arguments, found, found.summary, notes, filled, table)
