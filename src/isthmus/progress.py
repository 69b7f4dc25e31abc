"""The progress display of all long work: one bar on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

# Seconds before a bar appears, unless it was asked for, and between two updates of it.
PATIENCE = 2.0
REFRESH = 0.1


ReportProgress = Callable[..., None]
"""``report(done, note="")`` sets the amount of finished work and a note on the current item."""


@contextmanager
def progress(
    title: str,
    total: float | None = None,
    *,
    show: bool | None = None,
) -> Iterator[ReportProgress]:
    """Show a progress bar on stderr while the block runs, and restore the terminal after it.

    `total` is the amount of work at 100 %, if known. By default the bar appears on a terminal,
    once the block has run for two seconds. The yielded callback updates it.

    >>> with progress("fitting", 100, show=False) as report:
    ...     for step in range(100):
    ...         report(step + 1)
    """
    bar: Progress | None = None
    wanted = sys.stderr is not None and sys.stderr.isatty() if show is None else show
    due = time.monotonic() + (0.0 if show else PATIENCE)

    def report(done: float, note: str = "") -> None:
        nonlocal bar, due
        if not wanted or time.monotonic() < due:
            return
        bar = bar or _open_bar(title, total)
        bar.update(bar.task_ids[0], completed=done, note=note)
        due = time.monotonic() + REFRESH

    try:
        yield report
    finally:
        if bar is not None:
            bar.stop()


def _open_bar(title: str, total: float | None) -> Progress:
    # Imported here: most runs are short, and importing rich takes longer than many of them.
    import rich.progress as parts
    from rich.console import Console

    console = Console(stderr=True)
    bar = parts.Progress(
        parts.TextColumn("{task.description}"),
        parts.BarColumn(),
        parts.MofNCompleteColumn(),
        parts.TimeRemainingColumn(),
        parts.TextColumn("{task.fields[note]}"),
        console=console,
        transient=console.is_terminal,  # a file keeps the last state of the bar
    )
    bar.add_task(title, total=total, note="")
    bar.start()
    return bar
