"""Models as folders: one safetensors file with weights, settings and a digest, and no code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar, Self, cast

import torch
from torch import nn

from isthmus.errors import InvalidInputError
from isthmus.incontext.config import CheckedFields
from isthmus.io.archive import read_archive, write_archive
from isthmus.io.files import write_atomically
from isthmus.io.reading import reading
from isthmus.validation import require_kind

WEIGHTS, CONFIG = "model.safetensors", "config.json"


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


def read_model(folder: str | Path, *kinds: type[StoredModel]) -> Any:
    """Read a model of one of several classes, which the format in the file tells apart."""
    path, known = Path(folder) / WEIGHTS, {kind.format: kind for kind in kinds}
    with reading(path, "model", "Name a folder that save_pretrained wrote."):
        metadata, arrays = read_archive(path, tuple(known))
        config = json.loads(metadata["content"])
        weights = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return restored(known[metadata["format"]], config, weights)


def restored(
    kind: type[StoredModel], settings: dict[str, Any], weights: dict[str, torch.Tensor]
) -> Any:
    """Return a model of a class with settings and weights of a file."""
    config = kind.config_type.from_dict(settings)
    layers = getattr(config, "layers", 0)
    if layers > len(weights):  # making them could take for ever
        raise InvalidInputError(f"the settings name {layers} layers.")
    # Models of tables could have an energy head, which is not read.
    kept = {name: value for name, value in weights.items() if not name.startswith("head.")}
    return assembled(kind, config, kept)


def assembled(kind: type[StoredModel], config: Any, weights: dict[str, torch.Tensor]) -> Any:
    """Return a model of a class with given weights."""
    with torch.device("meta"):  # no memory, whatever width the settings name, and no random numbers
        model = kind(config)
    # Models of tables of numbers lack the layers of categories, which add nothing if zero.
    lacking = [name for name in model.state_dict() if name.startswith("network.mixed.")]
    if not any(name in weights for name in lacking):
        shapes = model.state_dict()
        weights = weights | {name: torch.zeros(shapes[name].shape) for name in lacking}
    model.load_state_dict(weights, assign=True)
    return model.to(torch.get_default_dtype())
