"""Checkpoints of a training run: one file, replaced in one go, that runs no code when read."""

from __future__ import annotations

import io
import pickle
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isthmus.errors import InvalidInputError
from isthmus.files import write_atomically

__all__ = ["Checkpoint"]

VERSION = 2


@dataclass(frozen=True)
class Checkpoint:
    """A training run between two updates.

    Random numbers need no place in it: those of each update follow from the seed and its number.

    Attributes
    ----------
    settings : dict of str
        The settings, printed, to refuse going on with others.
    updates : int
        Updates done.
    cpu_seconds : float
        What they took.
    model, optimizer : state dictionaries
    objective : list of dict
        What the objective of each process remembers; empty for most.
    rows : list of dict
        The metrics so far.
    """

    settings: dict[str, str]
    updates: int
    cpu_seconds: float
    model: dict[str, Tensor]
    optimizer: dict[str, Any]
    objective: list[dict[str, Tensor]]
    rows: list[dict[str, float]]

    def save(self, path: Path) -> None:
        """Write the checkpoint; whoever reads the file sees the old one or the new one, whole."""
        buffer = io.BytesIO()
        torch.save({"version": VERSION, **self.__dict__}, buffer)
        write_atomically(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> Checkpoint:
        """Read what :meth:`save` wrote."""
        try:
            content = torch.load(path, map_location="cpu", weights_only=True)
            version = content.pop("version")
        except (RuntimeError, EOFError, OSError, KeyError, AttributeError,
                pickle.UnpicklingError, zipfile.BadZipFile) as error:  # fmt: skip
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise InvalidInputError(
                f"{path} is not a readable checkpoint ({reason}). Remove it to start anew."
            ) from None
        if version != VERSION:
            raise InvalidInputError(
                f"{path} is a checkpoint of version {version}; this isthmus reads {VERSION}. "
                "Go on with the isthmus that wrote it, or remove it to start anew."
            )
        return cls(**content)
