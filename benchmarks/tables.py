"""Time to read a table of numbers, beside ``pandas.read_csv`` on the same file.

    python benchmarks/tables.py
    python benchmarks/tables.py --sizes small

CPU seconds of the fastest of several readings, in turns. ``read_table`` also finds the layout of
the file, checks every value and builds the matrix.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from measuring import Row, cpu_seconds, print_rows

from isthmus.tables import read_table, write_table

COLUMNS = 20
ROWS, FEW_ROWS = 1_000_000, 100_000


def measure(full: bool = True, seed: int = 0, repeats: int = 3) -> Iterator[Row]:
    """Yield the times of both readers for a complete table and for one with gaps."""
    count = ROWS if full else FEW_ROWS
    generator = np.random.default_rng(seed)
    X = generator.standard_normal((count, COLUMNS))
    names = [f"c{place}" for place in range(COLUMNS)]
    for missing in (0.0, 0.01):
        X[generator.random(X.shape) < missing] = np.nan
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "table.csv")
            write_table(pd.DataFrame(X, columns=names), path)
            readers = {"pandas": pd.read_csv, "isthmus": read_table}
            seconds = dict.fromkeys(readers, float("inf"))
            for _ in range(repeats):
                for name, reader in readers.items():
                    seconds[name] = min(seconds[name], cpu_seconds(partial(reader, path)))
        yield {
            "rows": count,
            "columns": COLUMNS,
            "missing": f"{missing:.0%}",
            **seconds,
            "ratio": seconds["isthmus"] / seconds["pandas"],
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sizes", choices=["small", "all"], default="all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    print_rows(measure(options.sizes == "all", options.seed, options.repeats))


if __name__ == "__main__":
    main()
