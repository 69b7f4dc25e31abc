"""Models as folders: one safetensors file with weights, settings and a digest, and no code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
from torch import nn

from isthmus.archive import read_archive, write_archive
from isthmus.errors import InvalidInputError
from isthmus.files import write_atomically
from isthmus.incontext.config import CheckedFields

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


def read_model(folder: str | Path, *kinds: type[StoredModel]) -> Any:
    """Read a model of one of several classes, which the format in the file tells apart."""
    path, known = Path(folder) / WEIGHTS, {kind.format: kind for kind in kinds}
    try:
        metadata, arrays = read_archive(path, tuple(known))
        kind = known[metadata["format"]]
        config = kind.config_type.from_dict(json.loads(metadata["content"]))
        layers = getattr(config, "layers", 0)
        if layers > len(arrays):  # making them could take for ever
            raise InvalidInputError(f"the settings name {layers} layers.")
        model = kind(config)
        model.load_state_dict({name: torch.from_numpy(array) for name, array in arrays.items()})
    except FileNotFoundError:
        raise InvalidInputError(
            f"{path} cannot be read. Name a folder that save_pretrained wrote."
        ) from None
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        if isinstance(error, InvalidInputError) and str(path) in str(error):
            raise
        raise InvalidInputError(f"{path} does not hold a readable model: {error}") from None
    return model
