"""Files of training runs: checkpoints, and metrics that survive an interruption."""

from __future__ import annotations

import ast
import hashlib
import io
import json
import pickletools
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_origin, get_type_hints

import torch
from torch import Tensor

from isthmus.incontext.model import ICLEBM
from isthmus.incontext.storage import restored
from isthmus.incontext.tables.model import ICLTables
from isthmus.incontext.tables.network import TableConfig
from isthmus.io.files import append_line, write_atomically
from isthmus.io.reading import reading

# A checkpoint starts with this, the digest of the rest in hexadecimal, and a line feed.
CHECKPOINT_START = b"isthmus checkpoint 3 "
# The names in the code of a checkpoint: an ordered dictionary, a tensor, and types of its storage.
TENSOR = re.compile(
    r"collections OrderedDict|torch\._utils _rebuild_(tensor_v2|parameter)|torch \w+Storage"
)
COLUMNS = ["update", "loss", "held_out_nll", "learning_rate", "cpu_seconds"]

Row = dict[str, float]
Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run between two updates; their seeds follow from their numbers."""

    settings: dict[str, str]  # the repr of every setting, to refuse a run with others
    updates: int
    cpu_seconds: float
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    objective: list[dict[str, Tensor]]  # its state in each process; mostly empty
    rows: list[dict[str, float]]  # the metrics so far

    def save(self, path: Path) -> None:
        """Write the checkpoint atomically."""
        buffer = io.BytesIO()
        torch.save(self.__dict__, buffer)
        write_atomically(path, _digest_line(buffer.getvalue()) + buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read the file of :meth:`save`; refuse one that is damaged."""
        with reading(path, "checkpoint", "Remove it to start again."):
            start, _, content = path.read_bytes().partition(b"\n")
            if start.startswith(b"PK"):
                raise ValueError("continue an earlier version's with the isthmus that wrote it")
            if start + b"\n" != _digest_line(content):
                raise ValueError("it is damaged, or not one of isthmus")
            _require_plain(content)
            found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            return cls(**found)._checked(len(content))

    def _checked(self, size: int) -> Checkpoint:
        """Return the checkpoint, if its parts are of the right types."""
        kinds = get_type_hints(type(self))
        wrong = [
            name
            for name, value in vars(self).items()
            if not isinstance(value, get_origin(kinds[name]) or kinds[name])
        ]
        if wrong or "updates" not in self.settings:
            raise ValueError(f"{', '.join(wrong) or 'settings'} cannot be used")
        tensors = [each for part in (self.model, *self.objective) for each in part.values()]
        if sum(each.numel() * each.element_size() for each in tensors) > size:
            raise ValueError("its tensors are larger than the file")
        return self

    def restored(self) -> ICLEBM | ICLTables:
        """Return the model as it was after the last update."""
        call = cast(ast.Call, ast.parse(self.settings["model"], mode="eval").body)
        config = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
        if cast(ast.Name, call.func).id == TableConfig.__name__:
            prefix = "module."
            average = {
                name.removeprefix(prefix): value
                for name, value in self.objective[0].items()
                if name.startswith(prefix)
            }
            # A run of an energy head, which models had, kept the whole model.
            if not config.get("head_layers"):
                average = {f"network.{name}": value for name, value in average.items()}
            return cast(ICLTables, restored(ICLTables, config, average)).double()
        return cast(ICLEBM, restored(ICLEBM, config, self.model))


def _require_plain(content: bytes) -> None:
    """Raise unless an archive is one that torch.save could write of tensors, as large as they are.

    A compressed member, or a call of another name, could take any memory.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = archive.infolist()
        total = sum(max(each.file_size, each.compress_size) for each in members)
        if total > len(content) or any(each.compress_type for each in members):
            raise ValueError("its members are compressed, or larger than the file")
        code = next(each for each in members if each.filename.endswith("/data.pkl"))
        for operation, name, _ in pickletools.genops(archive.read(code)):
            if "GLOBAL" in operation.name and not TENSOR.fullmatch(str(name)):
                raise ValueError(f"it names {name}")


def _digest_line(content: bytes) -> bytes:
    return CHECKPOINT_START + hashlib.sha256(content).hexdigest().encode() + b"\n"


@contextmanager
def metrics_log(
    folder: Path | None, rows: list[dict[str, float]]
) -> Iterator[Callable[[dict[str, float]], None]]:
    """Yield a function that appends a row to `rows` and to the files of a run, if it has a folder.

    ``metrics.jsonl`` starts with the given rows, which drops those that a killed run wrote after
    its checkpoint, and grows with each call. ``metrics.csv`` is written at the end.
    """
    if folder is None:
        yield rows.append
        return
    import pandas

    path = folder / "metrics.jsonl"
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))

    def add(row: dict[str, float]) -> None:
        rows.append(row)
        append_line(path, json.dumps(row))

    try:
        yield add
    finally:
        columns = list(dict.fromkeys([*COLUMNS, *(name for row in rows for name in row)]))
        table = pandas.DataFrame(rows, columns=columns).to_csv(index=False)
        write_atomically(folder / "metrics.csv", table)
