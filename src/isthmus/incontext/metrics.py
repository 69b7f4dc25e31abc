"""MetricsLog: the metrics of a training run as JSON lines, as CSV, and for TensorBoard."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from isthmus.errors import InvalidInputError
from isthmus.files import write_atomically

__all__ = ["metrics_log"]

COLUMNS = ("update", "loss", "held_out_nll", "learning_rate", "cpu_seconds")


@contextmanager
def metrics_log(
    folder: Path | None, rows: list[dict[str, float]], *, tensorboard: bool = False
) -> Iterator[Callable[[dict[str, float]], None]]:
    """Yield a function that appends a row to `rows` and to the files of a run.

    ``metrics.jsonl`` starts with the given rows, so that rows which a killed run wrote after its
    checkpoint are dropped, and grows with each call. ``metrics.csv`` is written at the end.

    Parameters
    ----------
    folder : Path, optional
        Default: write no files.
    rows : list of dict
    tensorboard : bool
        Also write event files.
    """
    if folder is None:
        yield rows.append
        return
    writer: Any = _tensorboard_writer(folder) if tensorboard else None
    path = folder / "metrics.jsonl"
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))
    with path.open("a", buffering=1) as lines:

        def add(row: dict[str, float]) -> None:
            rows.append(row)
            lines.write(json.dumps(row) + "\n")
            if writer is not None:
                for name, value in row.items():
                    writer.add_scalar(name, value, int(row["update"]))

        try:
            yield add
        finally:
            text = io.StringIO()
            table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
            table.writeheader()
            table.writerows(rows)
            write_atomically(folder / "metrics.csv", text.getvalue())
            if writer is not None:
                writer.close()


def _tensorboard_writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InvalidInputError(
            "tensorboard=True needs TensorBoard: pip install tensorboard, or leave it out; "
            "metrics.jsonl and metrics.csv are always written."
        ) from None
    return SummaryWriter(str(folder))
