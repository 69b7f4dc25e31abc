"""Files: folders of models, checkpoints of runs, and metrics that survive an interruption."""

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
from typing import Any, ClassVar, Self, cast

import torch
from torch import Tensor, nn

from isthmus.errors import InvalidInputError
from isthmus.incontext.config import CheckedFields
from isthmus.io.archive import read_archive, write_archive
from isthmus.io.files import append_line, write_atomically
from isthmus.io.reading import reading
from isthmus.validation import require_kind

Row = dict[str, float]
Weights = dict[str, Tensor]

WEIGHTS, CONFIG = "model.safetensors", "config.json"
# A checkpoint starts with this, the digest of the rest in hexadecimal, and a line feed.
CHECKPOINT_START = b"isthmus checkpoint 3 "
# The names in the code of a checkpoint: an ordered dictionary, a tensor, and types of its storage.
TENSOR = re.compile(
    r"collections OrderedDict|torch\._utils _rebuild_(tensor_v2|parameter)|torch \w+Storage"
)
COLUMNS = ["update", "loss", "held_out_nll", "learning_rate", "cpu_seconds"]


class StoredModel(nn.Module):
    """A network that is made from its settings, and can be written to a folder and read back."""

    format: ClassVar[str]
    """The name of the kind of model in its description."""
    config_type: ClassVar[type[CheckedFields]]

    def __init__(self, config: Any) -> None:
        super().__init__()
        require_kind(config, "config", self.config_type)
        self.config = config

    def save_pretrained(self, folder: str | Path) -> None:
        """Write weights, settings and a digest into ``model.safetensors`` in a folder.

        ``config.json`` repeats the settings for people; nothing reads it.
        """
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        config = json.dumps(self.config.to_dict(), indent=2)
        state = self.state_dict().items()
        weights = {name: tensor.detach().cpu().numpy() for name, tensor in state}
        write_archive(folder / WEIGHTS, self.format, config, weights)
        write_atomically(folder / CONFIG, config + "\n")

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """Read a model; truncated or changed files, or those of another format, raise."""
        return cast(Self, read_model(folder, cls))

    @classmethod
    def assembled(cls, config: Any, weights: Weights) -> Self:
        """Return a model with given weights."""
        if isinstance(config, dict):
            config = cls.config_type.from_dict(config)
            if getattr(config, "layers", 0) > len(weights):  # making them could take for ever
                raise InvalidInputError(f"the settings name {config.layers} layers.")
        with torch.device("meta"):  # no memory, whatever width is named, and no random numbers
            model = cls(config)
        # Models of numbers lack the layers of categories, which add nothing if zero.
        of_categories = {
            name: torch.zeros(value.shape)
            for name, value in model.state_dict().items()
            if name.startswith("network.mixed.")
        }
        lacking = {} if of_categories.keys() & weights.keys() else of_categories
        model.load_state_dict(weights | lacking, assign=True)
        return model.to(torch.get_default_dtype())


def read_model(folder: str | Path, *kinds: type[StoredModel]) -> Any:
    """Read a model of one of several classes, which the format in the file tells apart."""
    path, known = Path(folder) / WEIGHTS, {kind.format: kind for kind in kinds}
    with reading(path, "model", "Name a folder that save_pretrained wrote."):
        metadata, arrays = read_archive(path, tuple(known))
        weights = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return known[metadata["format"]].assembled(json.loads(metadata["content"]), weights)


@dataclass(frozen=True)
class Checkpoint:
    """The state of a run between two updates; their seeds follow from their numbers."""

    settings: dict[str, str]  # the repr of every setting, to refuse a run with others
    updates: int
    cpu_seconds: float
    model: Weights
    optimizer: dict[str, Any]
    objective: list[Weights]  # its state in each process; mostly empty
    rows: list[Row]  # the metrics so far

    def save(self, path: Path) -> None:
        """Write the checkpoint atomically."""
        torch.save(self.__dict__, buffer := io.BytesIO())
        write_atomically(path, _digest_line(buffer.getvalue()) + buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read the file of :meth:`save`; refuse one that is damaged."""
        with reading(path, "checkpoint", "Remove it to start again."):
            start, _, content = path.read_bytes().partition(b"\n")
            if start + b"\n" != _digest_line(content):
                raise ValueError("it is damaged, or was not written by this version of isthmus")
            _require_plain(content)
            found = cls(**torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))
            parts = (found.model, *found.objective)
            if sum(each.nbytes for part in parts for each in part.values()) > len(content):
                raise ValueError("its tensors are larger than the file")
            return found

    @property
    def config(self) -> tuple[str, dict[str, Any]]:
        """The name of the class of the model's settings, and these."""
        call = cast(ast.Call, ast.parse(self.settings["model"], mode="eval").body)
        values = {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
        return cast(ast.Name, call.func).id, values


def _require_plain(content: bytes) -> None:
    """Raise unless an archive could be of torch.save and tensors; another could take any memory."""
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
def metrics_log(folder: Path | None, rows: list[Row]) -> Iterator[Callable[[Row], None]]:
    """Yield a function that appends a row to `rows`, and to the files of a run with a folder."""
    if folder is None:
        yield rows.append
        return
    import pandas

    path = folder / "metrics.jsonl"
    # Without rows that a killed run wrote after its checkpoint.
    write_atomically(path, "".join(json.dumps(row) + "\n" for row in rows))

    def add(row: Row) -> None:
        rows.append(row)
        append_line(path, json.dumps(row))

    try:
        yield add
    finally:
        columns = list(dict.fromkeys([*COLUMNS, *(name for row in rows for name in row)]))
        table = pandas.DataFrame(rows, columns=columns).to_csv(index=False)
        write_atomically(folder / "metrics.csv", table)
