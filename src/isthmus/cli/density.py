"""`isthmus density DATA`: how likely rows are, given a table."""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import pandas as pd

from isthmus.cli import options
from isthmus.errors import InvalidInputError
from isthmus.tables.categories import with_categories
from isthmus.tables.columns import is_missing


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    options.check_outputs(arguments, arguments.data, arguments.score, ending="density.csv")
    table = options.load_table(arguments, missing=True, numbers=False)
    frame, notes = with_categories(table)
    frame = frame.drop(columns=[table.label_name], errors="ignore")
    rows, new = table, None
    if arguments.score is not None:
        columns = {"id": arguments.id, "label": arguments.label}
        rows = options.load_beside(arguments, arguments.score, numbers=False, **columns)
        numbers, others = dict(zip(rows.columns, rows.X.T, strict=True)), {}
        for name in (name for name in frame if name in rows.frame and name not in table.columns):
            text = rows.frame[name]
            others[name] = text.mask(is_missing(text) & ~text.isin(frame[name]), None)
        if missing := [name for name in table.columns if name not in numbers]:
            raise InvalidInputError(
                f"{arguments.score} has no column of numbers {', '.join(missing)}, as "
                f"{arguments.data} has. --drop leaves columns out."
            )
        known = others | numbers
        new = pd.DataFrame({name: known.get(name, np.full(len(rows), None)) for name in frame})
    from isthmus.incontext import score_rows

    given = options.settings(arguments, "level seed")
    found = score_rows(frame, new, show_progress=arguments.progress, **given)
    found = replace(found, ids=rows.ids)
    kernels = found.p_value is None
    notes += (f"Scored by {'kernels on the rows' if kernels else 'the in-context density'}.",)
    columns = {
        rows.id_name: rows.ids,
        "log_density": found.log_density,
        "percentile": found.percentile,
        "outlier": found.outlier.astype(int),
    }
    return options.finish(arguments, found, found.summary, notes, columns, rows)
