"""MetricsLog: the numbers of a training run, as JSON lines, as CSV, and for TensorBoard."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from isthmus.errors import InvalidInputError
from isthmus.files import write_atomically

__all__ = ["MetricsLog"]

COLUMNS = ("update", "loss", "held_out_nll", "learning_rate", "cpu_seconds")


class MetricsLog:
    """Rows of numbers: in ``metrics.jsonl`` as they come, in ``metrics.csv`` at the end.

    Parameters
    ----------
    folder : Path, optional
        Where to write. Default: only keep the rows.
    rows : list of dict
        Those of the run so far. What a killed run wrote after its checkpoint is dropped.
    tensorboard : bool
        Whether to write event files, too.
    """

    def __init__(
        self, folder: Path | None, rows: list[dict[str, float]], *, tensorboard: bool = False
    ) -> None:
        self.folder = folder
        self.rows = list(rows)
        self._writer: Any = _tensorboard(folder) if tensorboard and folder else None

    def __enter__(self) -> Self:
        self._file = None
        if self.folder is not None:
            path = self.folder / "metrics.jsonl"
            write_atomically(path, "".join(json.dumps(row) + "\n" for row in self.rows))
            self._file = path.open("a")
        return self

    def add(self, row: dict[str, float]) -> None:
        """Append a row."""
        self.rows.append(row)
        if self._file is not None:
            self._file.write(json.dumps(row) + "\n")
            self._file.flush()
        if self._writer is not None:
            for name, value in row.items():
                self._writer.add_scalar(name, value, int(row["update"]))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None and self.folder is not None:
            self._file.close()
            text = io.StringIO()
            table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
            table.writeheader()
            table.writerows(self.rows)
            write_atomically(self.folder / "metrics.csv", text.getvalue())
        if self._writer is not None:
            self._writer.close()


def _tensorboard(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise InvalidInputError(
            "tensorboard=True needs TensorBoard: pip install tensorboard, or leave it out; "
            "metrics.jsonl and metrics.csv are written in any case."
        ) from None
    return SummaryWriter(str(folder))
