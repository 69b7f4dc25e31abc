"""The progress display of all long work: one bar on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["ReportProgress", "progress"]

# Seconds before a bar appears, unless it was asked for, and between two updates of it.
PATIENCE = 2.0
REFRESH = 0.1


class ReportProgress(Protocol):
    """The callback that :func:`progress` yields."""

    def __call__(self, done: float, note: str = "") -> None:
        """Set the amount of finished work and, optionally, a note on the current item."""
        ...


@contextmanager
def progress(
    title: str,
    total: float | None = None,
    *,
    show: bool | None = None,
    unit: Literal["steps", "bytes"] = "steps",
) -> Iterator[ReportProgress]:
    """Show a progress bar on stderr while the block runs.

    Parameters
    ----------
    title : str
    total : float, optional
        The amount of work at 100 %. Default: unknown.
    show : bool, optional
        Default: on a terminal, once the block has run for two seconds.
    unit : {"steps", "bytes"}

    Yields
    ------
    ReportProgress
        ``report(done, note="")`` updates the bar. The terminal is restored however the block ends.

    Examples
    --------
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
        bar = bar or _open_bar(title, total, unit)
        bar.update(bar.task_ids[0], completed=done, note=note)
        due = time.monotonic() + REFRESH

    try:
        yield report
    finally:
        if bar is not None:
            bar.stop()


def _open_bar(title: str, total: float | None, unit: str) -> Progress:
    # Imported here: most runs are short, and importing rich takes longer than many of them.
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    amount = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
    name, note = TextColumn("{task.description}"), TextColumn("{task.fields[note]}")
    columns = (name, BarColumn(), amount, TimeRemainingColumn(), note)
    console = Console(stderr=True)
    # A file keeps the last state of the bar; a terminal is left as it was.
    bar = Progress(*columns, console=console, transient=console.is_terminal)
    bar.add_task(title, total=total, note="")
    bar.start()
    return bar
