"""Tools that the benchmarks share: CPU time, peak memory, fresh processes, and tables of rows."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

__all__ = [
    "Row",
    "cpu_seconds",
    "in_fresh_process",
    "memory_megabytes",
    "peak_megabytes",
    "print_rows",
    "timed",
    "write_rows",
]

Row = dict[str, Any]
"""One measurement by column. ``table`` names the table that it belongs to."""


def timed(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return the CPU seconds of one call, over all threads, and its result."""
    start = time.process_time()
    result = function()
    return time.process_time() - start, result


def cpu_seconds(function: Callable[[], object], repeats: int = 1) -> float:
    """Return the CPU seconds of the fastest of several calls."""
    return min(timed(function)[0] for _ in range(repeats))


def memory_megabytes(field: str) -> float:
    """Return a field of this process's memory use, such as VmHWM. Linux only."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1]) / 1024


def peak_megabytes(function: Callable[[], Any]) -> tuple[float, Any]:
    """Return how far one call raises the peak memory of this process, and its result."""
    before = memory_megabytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    result = function()
    return memory_megabytes("VmHWM") - before, result


def in_fresh_process(script: str, *arguments: object) -> Any:
    """Run a script, and return the JSON that it prints."""
    command = [sys.executable, script, *map(str, arguments)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=os.environ)
    return json.loads(done.stdout)


def print_rows(rows: Iterable[Row]) -> None:
    """Print rows as Markdown tables as soon as each is measured, one for each ``table``."""
    columns: list[str] = []
    table = None
    for row in rows:
        cells = {name: _cell(value) for name, value in row.items() if name != "table"}
        if list(cells) != columns or row.get("table") != table:
            before = columns
            columns, table = list(cells), row.get("table")
            print("\n" * bool(before) + (f"{table}\n\n" if table else ""), end="")
            print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}")
        print(f"| {' | '.join(cells.values())} |", flush=True)


def write_rows(name: str, rows: Iterable[Row]) -> None:
    """Put tables into RESULTS.md, in place of those between `<!-- name -->` and `<!-- end -->`."""
    tables = io.StringIO()
    with redirect_stdout(tables):
        print_rows(rows)
    begin, end = f"<!-- {name} -->\n", "\n<!-- end -->"
    section = re.compile(f"{begin}.*?{end}", re.DOTALL)
    path = Path(__file__).with_name("RESULTS.md")
    path.write_text(section.sub(lambda _: begin + tables.getvalue().strip() + end,
                                path.read_text()))  # fmt: skip


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.0f}" if 100 <= abs(value) < 1e6 else f"{value:.3g}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {_cell(each)}" for name, each in value.items())
    if isinstance(value, list):
        return " / ".join(map(_cell, value))
    return str(value)
