"""`isthmus complete DATA`: fill the missing cells of a table, and say how well that goes."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from isthmus.cli.completion import Check, candidates, check, fill, learned_energy
from isthmus.cli.delimited import MISSING, STDIN
from isthmus.cli.files import path
from isthmus.cli.models import Scaling, TableModel, load_model
from isthmus.cli.options import (
    Parser,
    add_json,
    add_quiet,
    add_seed,
    make_parser,
    positive_number,
    show_progress,
    tell,
    warn,
)
from isthmus.cli.outputs import add_table_output, counted, default_output, output_file, write_rows
from isthmus.cli.tables import (
    Table,
    add_no_standardise,
    add_table_options,
    load_table,
    read_table,
    tidied,
)
from isthmus.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["run"]

EXAMPLES = """
isthmus complete gaps.csv
isthmus complete gaps.csv --memory whole.csv -o filled.parquet
isthmus complete gaps.csv --energy kde --how mode
isthmus complete new.csv --model groups.safetensors
"""
FILES = """
DATA      a row per thing, with gaps; columns that are not numbers are written as they are
--memory  a table with the same columns of numbers, in any order; others are not used
-o        the columns and rows of DATA, without gaps
"""
LISTED_COLUMNS = 15
# An error this close to that of column means is not worth the while.
NO_BETTER = 0.95


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    import numpy as np

    arguments = _parser().parse_args(argv)
    _check_options(arguments)
    model = None if arguments.model is None else load_model(arguments.model)
    table = load_table(arguments, missing=True, keep_cells=True)
    summary: dict[str, Any] = {
        "rows": len(table),
        "columns": len(table.columns),
        "missing": int(np.isnan(table.X).sum()),
        "rows_with_gaps": int(np.isnan(table.X).any(1).sum()),
    }
    X = table.X
    if summary["missing"] and model is not None:
        X = _by_model(model, table, arguments, summary)
    elif summary["missing"]:
        X = _by_rows(table, arguments, summary)
    tell((*table.notes, *summary.pop("notes", [])), arguments.quiet)
    summary["left_empty"] = int(np.isnan(X).sum())
    if summary["left_empty"] and not arguments.quiet:
        empty = counted(summary["left_empty"], "cell")
        warn(f"{empty} in columns that the model does not know stay empty.")
    target = None if arguments.output == STDIN else arguments.output
    as_text = target is None or target.suffix.lower() in (".csv", ".tsv")
    write_rows(target, _columns(table, X, as_text))
    if target is None:
        return 0
    summary["output"] = str(target)
    text = json.dumps(summary, indent=1) + "\n" if arguments.json else _report(summary)
    sys.stdout.write(text)
    return 0


def _check_options(arguments: argparse.Namespace) -> None:
    if arguments.output is None:
        kept = arguments.data.suffix in (".csv", ".tsv", ".parquet")
        suffix = arguments.data.suffix if kept else ".csv"
        arguments.output = default_output(arguments.data, f"completed{suffix}")
    if arguments.output == STDIN:
        if arguments.json:
            raise InvalidInputError("-o - and --json would both write to stdout; choose one.")
    else:
        output_file(arguments.output, arguments.data)
        if arguments.memory is not None:
            output_file(arguments.output, arguments.memory)
    if arguments.model is not None and (
        arguments.memory is not None
        or arguments.energy is not None
        or arguments.sigma is not None
        or not arguments.standardise
    ):
        raise InvalidInputError(
            "--model is learned already; leave out --memory, --energy, --sigma and "
            "--no-standardise."
        )
    if arguments.sigma is not None:
        if arguments.energy == "crp":
            raise InvalidInputError("--sigma is the bandwidth of --energy kde, not of crp.")
        arguments.energy = "kde"


def _by_model(
    model: TableModel, table: Table, arguments: argparse.Namespace, summary: dict[str, Any]
) -> NDArray[np.float64]:
    """Fill the columns that a saved model knows."""
    rows = model.rows(table, arguments.data)
    filled = fill(model.estimator.energy_, model.scaling.into(rows), arguments.how)
    X = table.X.copy()
    X[:, [table.columns.index(name) for name in model.columns]] = model.scaling.back(filled)
    summary |= {"energy": model.name, "how": arguments.how}
    return _only_gaps(table.X, X)


def _by_rows(
    table: Table, arguments: argparse.Namespace, summary: dict[str, Any]
) -> NDArray[np.float64]:
    """Learn from the rows themselves, or from those of another table, and fill the gaps."""
    import numpy as np

    source = table.X if arguments.memory is None else _memory(table, arguments)
    scaling = Scaling.of(source, arguments.standardise)
    Z, gaps = scaling.into(source), np.isnan(table.X)
    tried = candidates(arguments.energy or "auto", arguments.sigma)
    patterns = gaps[gaps.any(1)]
    with show_progress("hiding cells", 10, arguments.quiet) as report:
        found = check(Z, patterns, tried, arguments.how, arguments.seed, report)
    if found is None:
        chosen = tried[-1] if len(tried) == 1 or arguments.energy is None else None
        if chosen is None:
            raise InvalidInputError(
                "There are too few complete rows to choose a bandwidth; give it with --sigma, or "
                "use --energy crp."
            )
        summary["notes"] = ["too few rows to say how well the gaps are filled."]
    else:
        chosen = found.chosen
        summary["check"] = _checked(found, table, scaling)
    energy = learned_energy(chosen, Z, arguments.seed)
    summary |= {"energy": chosen.energy, "sigma": chosen.sigma, "how": arguments.how}
    filled = fill(energy, scaling.into(table.X), arguments.how)
    return _only_gaps(table.X, scaling.back(filled))


def _only_gaps(X: NDArray[np.float64], filled: NDArray[np.float64]) -> NDArray[np.float64]:
    """What was known stays to the last digit."""
    import numpy as np

    return np.where(np.isnan(X), filled, X)


def _memory(table: Table, arguments: argparse.Namespace) -> NDArray[np.float64]:
    # By name, a column of it that looks like ids is as good as another.
    memory = read_table(arguments.memory, id="none", missing=True)
    absent = [name for name in table.columns if name not in memory.columns]
    if absent:
        raise InvalidInputError(
            f"--memory {arguments.memory} has no column of numbers called "
            f"{', '.join(map(repr, absent[:5]))}, which {arguments.data} has."
        )
    return memory.X[:, [memory.columns.index(name) for name in table.columns]]


def _checked(found: Check, table: Table, scaling: Scaling) -> dict[str, Any]:
    """The errors in the units of the table, and their share of what column means leave."""
    import numpy as np

    gaps = np.isnan(table.X).sum(0)
    shown = [place for place in np.flatnonzero(gaps) if np.isfinite(found.errors[place])]
    return {
        "cells": found.cells,
        "error": found.overall,
        "error_of_column_means": found.overall_baseline,
        "columns": {
            table.columns[place]: {
                "missing": int(gaps[place]),
                "error": float(found.errors[place] * scaling.scale[place]),
                "error_of_column_mean": float(found.baseline[place] * scaling.scale[place]),
            }
            for place in shown
        },
    }


def _columns(table: Table, X: NDArray[np.float64], as_text: bool) -> dict[str, Any]:
    """All columns of the file, in its order, those with gaps filled."""
    import numpy as np

    columns: dict[str, Any] = {}
    for name, cells in table.cells.items():
        columns[name] = cells
        if name not in table.columns:
            whole = tidied(cells) if not as_text else None
            if whole is not None and whole.dtype.kind == "i":
                columns[name] = whole  # such as ids, or a column that was dropped
            continue
        values = X[:, table.columns.index(name)]
        gaps = np.isnan(table.X[:, table.columns.index(name)])
        written = len(cells) > 0 and isinstance(cells[0], str)
        if written and as_text:
            columns[name] = [
                _number(value) if gap else str(cell).strip().replace(",", ".")
                for value, cell, gap in zip(values, cells, gaps, strict=True)
            ]
        elif written or gaps.any():
            columns[name] = values
    return columns


def _number(value: float) -> str:
    return "" if math.isnan(value) else repr(float(value))


def _report(summary: dict[str, Any]) -> str:
    """The summary as a person reads it."""
    if not summary["missing"]:
        lines = [f"No cell of the {summary['rows']:,} rows is missing; they are copied."]
        return "\n".join([*lines, f"rows written to  {summary['output']}"]) + "\n"
    filled = summary["missing"] - summary["left_empty"]
    words = f"{counted(filled, 'cell')} filled in {summary['rows_with_gaps']:,} of "
    sigma = f", sigma {summary['sigma']:g}" if summary.get("sigma") else ""
    lines = [
        f"{words}{counted(summary['rows'], 'row')} ({summary['energy']}{sigma}, {summary['how']})",
        "",
    ]
    if "check" in summary:
        lines += [*_check_lines(summary["check"]), ""]
    return "\n".join([*lines, f"rows written to  {summary['output']}"]) + "\n"


def _check_lines(found: dict[str, Any]) -> list[str]:
    """An aligned table of errors, a column of the data a line."""
    ratio = found["error"] / max(found["error_of_column_means"], 1e-300)
    lines = [
        f"Checked on {counted(found['cells'], 'known cell')}, hidden as the gaps are: the error "
        f"is {ratio:.0%} of that of column means."
    ]
    if ratio > NO_BETTER:
        lines.append("Column means would do as well here: the columns say little of each other.")
    head = ("column", "missing", "typical error", "of the column's mean")
    rows = [
        (
            name[:40],
            f"{one['missing']:,}",
            f"{one['error']:.4g}",
            f"{one['error_of_column_mean']:.4g}",
        )
        for name, one in list(found["columns"].items())[:LISTED_COLUMNS]
    ]
    widths = [max(map(len, cells)) for cells in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        first, *others = (cell for cell in row)
        right = (cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True))
        lines.append("  ".join([first.ljust(widths[0]), *right]))
    if len(found["columns"]) > LISTED_COLUMNS:
        lines.append(f"... and {len(found['columns']) - LISTED_COLUMNS} more (all in --json)")
    return lines


def _parser() -> Parser:
    marks = ", ".join(sorted(mark for mark in MISSING if mark))
    parser = make_parser(
        "complete",
        "Fill the missing cells of a table from the rows that are like theirs. A cell is missing\n"
        f"if it is empty or says one of {marks}. All columns are written\n"
        "again, in their order; what was known stays as it is, text included. Known cells are\n"
        "hidden, in the pattern of the gaps, to choose the energy and to report the error that is\n"
        "to be expected.",
        EXAMPLES,
        files=FILES,
    )
    add_table_options(parser)
    group = parser.add_argument_group("completion")
    group.add_argument(
        "--energy",
        choices=("kde", "crp"),
        help="the complete rows as memories, or learned memories; default: the better of them",
    )
    group.add_argument(
        "--sigma", type=positive_number, metavar="X", help="of kde; default: the best"
    )
    group.add_argument(
        "--how",
        choices=("mean", "mode"),
        default="mean",
        help="the mean given what is known (least squared error), or the nearest valley of the "
        "energy (a value that occurs); default: mean",
    )
    group.add_argument(
        "--memory", type=path, metavar="FILE", help="learn from this table; default: from DATA"
    )
    group.add_argument(
        "--model", type=path, metavar="FILE", help="a model of `isthmus cluster --save`"
    )
    add_no_standardise(group)
    add_table_output(parser.add_argument_group("output"), "completed.csv")
    add_json(parser)
    add_seed(parser)
    add_quiet(parser)
    return parser
