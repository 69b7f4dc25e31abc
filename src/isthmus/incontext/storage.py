"""Models as folders: weights in safetensors, settings and a digest in JSON, no code in either."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, ClassVar, Self

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import nn

from isthmus.errors import InvalidInputError
from isthmus.files import write_atomically
from isthmus.incontext.config import CheckedFields

VERSION = 1
WEIGHTS, CONFIG = "model.safetensors", "config.json"


class StoredModel(nn.Module):
    """A network that is made from its settings, and can be written to a folder and read back."""

    format: ClassVar[str]
    """The name of the kind of model in its description."""
    config_type: ClassVar[type[CheckedFields]]

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config

    def save_pretrained(self, folder: str | Path) -> None:
        """Write weights (safetensors), and settings with a digest (JSON), into a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        state = self.state_dict().items()
        weights = save({name: tensor.detach().cpu().contiguous() for name, tensor in state})
        description = {
            "format": self.format,
            "version": VERSION,
            "config": self.config.to_dict(),
            "sha256": hashlib.sha256(weights).hexdigest(),
        }
        write_atomically(folder / WEIGHTS, weights)
        write_atomically(folder / CONFIG, json.dumps(description, indent=2) + "\n")

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> Self:
        """Read a model; truncated or changed files, or those of a newer version, raise."""
        folder = Path(folder)
        description = read_description(folder)
        if description.get("format") != cls.format:
            raise InvalidInputError(
                f"{folder / CONFIG} does not describe an isthmus in-context model "
                f"of the format {cls.format}."
            )
        if description.get("version") != VERSION:
            raise InvalidInputError(
                f"{folder / CONFIG} has version {description.get('version')}, but this isthmus "
                f"reads version {VERSION}. Upgrade isthmus."
            )
        weights = _read(folder / WEIGHTS)
        if hashlib.sha256(weights).hexdigest() != description.get("sha256"):
            raise InvalidInputError(
                f"{folder / WEIGHTS} is truncated or was changed: its digest is not the one in "
                f"{CONFIG}. Copy the files again."
            )
        try:
            model = cls(cls.config_type.from_dict(description["config"]))
            model.load_state_dict(load(weights))
        except (KeyError, TypeError, RuntimeError, SafetensorError, InvalidInputError) as error:
            raise InvalidInputError(f"{folder} does not hold a readable model: {error}") from None
        return model


def read_description(folder: Path) -> dict[str, Any]:
    """Return the description of a stored model."""
    place = folder / CONFIG
    try:
        description = json.loads(_read(place))
    except ValueError as error:
        raise InvalidInputError(f"{place} is not JSON ({error}). Copy the files again.") from None
    return description if isinstance(description, dict) else {}


def _read(place: Path) -> bytes:
    try:
        return place.read_bytes()
    except OSError as error:
        raise InvalidInputError(
            f"{place} cannot be read: {error.strerror}. Name a folder that save_pretrained wrote."
        ) from None
