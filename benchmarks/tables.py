"""Time to read a table of numbers, beside ``pandas.read_csv`` on the same file.

    python benchmarks/tables.py
    python benchmarks/tables.py --rows 100000 --columns 20

Both read the file in turn, several times; the fastest of each counts, in seconds of wall time.
The ratio is that of :func:`isthmus.tables.read_table`, which also finds the layout, checks every
value and builds the matrix, to pandas alone.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from isthmus.tables import read_table, write_table

ROWS, COLUMNS, REPEATS = 1_000_000, 20, 3
GAPS = {"complete": 0.0, "1% missing": 0.01}


def rows(count: int = ROWS, columns: int = COLUMNS, repeats: int = REPEATS) -> list[dict[str, Any]]:
    """Return a dict for each kind of table: seconds of both readers, and their ratio."""
    found = []
    X = np.random.default_rng(0).standard_normal((count, columns))
    names = [f"c{place}" for place in range(columns)]
    for kind, share in GAPS.items():
        X[np.random.default_rng(1).random(X.shape) < share] = np.nan
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "table.csv")
            write_table(pd.DataFrame(X, columns=names), path)
            seconds = _fastest([partial(pd.read_csv, path), partial(read_table, path)], repeats)
            megabytes = path.stat().st_size / 1e6
        pandas, isthmus = seconds
        found.append(
            {
                "table": f"{count:,} x {columns}, {kind}",
                "megabytes": megabytes,
                "pandas": pandas,
                "isthmus": isthmus,
                "ratio": isthmus / pandas,
            }
        )
    return found


def _fastest(functions: list[Callable[[], object]], repeats: int) -> list[float]:
    """Return the least seconds of each function; they take turns."""
    best = [float("inf")] * len(functions)
    for _ in range(repeats):
        for place, function in enumerate(functions):
            start = time.perf_counter()
            function()
            best[place] = min(best[place], time.perf_counter() - start)
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--columns", type=int, default=COLUMNS)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    arguments = parser.parse_args()
    print("| table | MB | pandas s | isthmus s | ratio |\n|---|---|---|---|---|")
    for row in rows(arguments.rows, arguments.columns, arguments.repeats):
        print(
            f"| {row['table']} | {row['megabytes']:.0f} | {row['pandas']:.2f} "
            f"| {row['isthmus']:.2f} | {row['ratio']:.2f} |"
        )


if __name__ == "__main__":
    main()
