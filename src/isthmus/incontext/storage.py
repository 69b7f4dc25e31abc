"""Files of models and of training runs. None of them can execute code when read."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import pickle
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from isthmus.errors import InvalidInputError
from isthmus.files import write_atomically
from isthmus.incontext.config import ICLEBMConfig

if TYPE_CHECKING:
    from isthmus.incontext.model import ICLEBM

FORMAT = "isthmus-iclebm"
MODEL_VERSION, CHECKPOINT_VERSION = 1, 2
WEIGHTS, CONFIG = "model.safetensors", "config.json"
COLUMNS = ("update", "loss", "held_out_nll", "learning_rate", "cpu_seconds")


def write_model(model: ICLEBM, folder: str | Path) -> None:
    """Write ``model.safetensors``, and ``config.json`` with the digest of the weights."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = save({name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()})
    description = {
        "format": FORMAT,
        "version": MODEL_VERSION,
        "config": model.config.to_dict(),
        "sha256": hashlib.sha256(weights).hexdigest(),
    }
    write_atomically(folder / WEIGHTS, weights)
    write_atomically(folder / CONFIG, json.dumps(description, indent=2) + "\n")


def read_model(folder: str | Path) -> tuple[ICLEBMConfig, dict[str, Tensor]]:
    """Read the settings and the weights; refuse files that have changed since."""
    place, folder = Path(folder) / CONFIG, Path(folder)
    try:
        description = json.loads(place.read_text())
        place = folder / WEIGHTS
        weights = place.read_bytes()
    except OSError as error:
        raise InvalidInputError(
            f"{place} cannot be read: {error.strerror}. Name a folder that save_pretrained wrote."
        ) from None
    except ValueError as error:
        raise InvalidInputError(f"{place} is not JSON ({error}). Copy the files again.") from None
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise InvalidInputError(f"{folder / CONFIG} does not describe an isthmus in-context model.")
    if description.get("version") != MODEL_VERSION:
        raise InvalidInputError(
            f"{folder / CONFIG} has version {description.get('version')}, but this isthmus reads "
            f"version {MODEL_VERSION}. Upgrade isthmus."
        )
    if hashlib.sha256(weights).hexdigest() != description.get("sha256"):
        raise InvalidInputError(
            f"{place} is truncated or was changed: its digest is not the one in {CONFIG}. "
            "Copy the files again."
        )
    try:
        return ICLEBMConfig.from_dict(description["config"]), load(weights)
    except (KeyError, TypeError, SafetensorError, InvalidInputError) as error:
        raise InvalidInputError(f"{folder} does not hold a readable model: {error}") from None


@dataclass(frozen=True)
class Checkpoint:
    """The state of a training run between two updates.

    It holds no random generators: those of an update follow from the seed and its number.
    """

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
        torch.save({"version": CHECKPOINT_VERSION, **self.__dict__}, buffer)
        write_atomically(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read the file of :meth:`save`."""
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
            version = content.pop("version")
        except (RuntimeError, EOFError, OSError, KeyError, AttributeError,
                pickle.UnpicklingError, zipfile.BadZipFile) as error:  # fmt: skip
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InvalidInputError(
                f"{path} is not a readable checkpoint ({reason}). Remove it to start again."
            ) from None
        if version != CHECKPOINT_VERSION:
            raise InvalidInputError(
                f"{path} is a checkpoint of version {version}; this isthmus reads version "
                f"{CHECKPOINT_VERSION}. Continue with the isthmus that wrote it, or remove it to "
                "start again."
            )
        return cls(**content)


@contextmanager
def metrics_log(
    folder: Path | None, rows: list[dict[str, float]], *, tensorboard: bool = False
) -> Iterator[Callable[[dict[str, float]], None]]:
    """Yield a function that appends a row to `rows` and to the files of a run, if it has a folder.

    ``metrics.jsonl`` starts with the given rows, which drops those that a killed run wrote after
    its checkpoint, and grows with each call. ``metrics.csv`` is written at the end.
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
