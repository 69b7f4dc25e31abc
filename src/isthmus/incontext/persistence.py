"""Models on disk: a folder with safetensors and JSON, in which nothing can execute."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from isthmus.errors import InvalidInputError
from isthmus.files import write_atomically
from isthmus.incontext.config import ICLEBMConfig

if TYPE_CHECKING:
    from isthmus.incontext.model import ICLEBM

__all__ = ["read_model", "write_model"]

FORMAT = "isthmus-iclebm"
VERSION = 1
WEIGHTS, CONFIG = "model.safetensors", "config.json"


def write_model(model: ICLEBM, folder: str | Path) -> None:
    """Write ``model.safetensors`` and ``config.json``, which names the weights' digest."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = save({name: t.detach().cpu().contiguous() for name, t in model.state_dict().items()})
    description = {
        "format": FORMAT,
        "version": VERSION,
        "config": model.config.to_dict(),
        "sha256": hashlib.sha256(weights).hexdigest(),
    }
    write_atomically(folder / WEIGHTS, weights)
    write_atomically(folder / CONFIG, json.dumps(description, indent=2) + "\n")


def read_model(folder: str | Path) -> tuple[ICLEBMConfig, dict[str, Tensor]]:
    """Read the settings and the weights; what is not exactly as it was written is refused."""
    folder = Path(folder)
    description = _read_description(folder / CONFIG)
    try:
        weights = (folder / WEIGHTS).read_bytes()
    except OSError as error:
        raise InvalidInputError(f"{folder / WEIGHTS} cannot be read: {error.strerror}.") from None
    if hashlib.sha256(weights).hexdigest() != description.get("sha256"):
        raise InvalidInputError(
            f"{folder / WEIGHTS} is cut short or was altered: its digest is not the one in "
            f"{CONFIG}. Get the files anew."
        )
    try:
        return ICLEBMConfig.from_dict(description["config"]), load(weights)
    except (KeyError, TypeError, SafetensorError, InvalidInputError) as error:
        raise InvalidInputError(f"{folder} is not a model that can be read: {error}") from None


def _read_description(path: Path) -> dict[str, Any]:
    try:
        description = json.loads(path.read_text())
    except OSError as error:
        raise InvalidInputError(
            f"{path} cannot be read: {error.strerror}. Name a folder that save_pretrained wrote."
        ) from None
    except ValueError as error:
        raise InvalidInputError(f"{path} is not JSON ({error}). Get the files anew.") from None
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise InvalidInputError(f"{path} does not describe an isthmus in-context model.")
    if description.get("version") != VERSION:
        raise InvalidInputError(
            f"{path} is of version {description.get('version')}, and this isthmus reads version "
            f"{VERSION}. Upgrade isthmus."
        )
    return description
