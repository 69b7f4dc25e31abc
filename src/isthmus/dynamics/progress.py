"""A progress bar on stderr for loops that take long."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress

__all__ = ["progress_bar"]

# A run that is over sooner than this, in seconds, shows no bar unless asked to.
PATIENCE = 2.0
# Redrawing more often than this, in seconds, would cost more than many a step.
REFRESH = 0.1


@contextmanager
def progress_bar(total: int, title: str, show: bool | None) -> Iterator[Callable[[int], None]]:
    """Yield a function to be told how many of the `total` steps are done.

    With ``show=None`` the bar appears only on a terminal, and only once the run turns out to be
    long. However the block ends, by Ctrl-C too, the terminal is left as it was.
    """
    bar: Progress | None = None
    wanted = sys.stderr.isatty() if show is None else show
    due = time.monotonic() + (0.0 if show else PATIENCE)

    def report(done: int) -> None:
        nonlocal bar, due
        if not wanted or time.monotonic() < due:
            return
        bar = bar or _open_bar(total, title)
        bar.update(bar.task_ids[0], completed=done)
        due = time.monotonic() + REFRESH

    try:
        yield report
    finally:
        if bar is not None:
            bar.stop()


def _open_bar(total: int, title: str) -> Progress:
    # Here, because most runs never need it and importing it takes longer than many of them.
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Remaining())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task(title, total=total)
    bar.start()
    return bar
