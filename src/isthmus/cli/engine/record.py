"""What a part came to, as it is kept: numbers and text as JSON, the picture beside it."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from isthmus.cli.engine.inputs import Inputs
from isthmus.errors import InvalidInputError

if TYPE_CHECKING:
    from isthmus.figures import Section

__all__ = ["Record", "plain"]


@dataclass(frozen=True)
class Record:
    """A part that was done, or that failed; all of it but the picture fits JSON."""

    inputs: Inputs
    status: Literal["done", "failed"]
    seconds: float
    message: str = ""
    """Why it failed."""
    caption: str = ""
    findings: list[dict[str, Any]] = field(default_factory=list)
    """Each with "claim", "verdict" and "because"."""
    observations: list[str] = field(default_factory=list)
    table: dict[str, Any] | None = None
    """With "columns" and "rows"."""
    numbers: dict[str, Any] = field(default_factory=dict)
    picture: bytes | None = None
    """A PNG."""

    @classmethod
    def of(cls, section: Section, inputs: Inputs, seconds: float) -> Record:
        """Make a record of what a part returned."""
        picture = None
        if section.figure is not None:
            from isthmus.figures.files import png_bytes

            picture = png_bytes(section.figure)
        table = None
        if section.table is not None:
            rows = [[*row] for row in section.table.rows]
            table = {"columns": [*section.table.columns], "rows": rows}
        return cls(
            inputs=inputs,
            status="done",
            seconds=seconds,
            caption=section.caption,
            findings=[asdict(finding) for finding in section.findings],
            observations=[*section.observations],
            table=table,
            numbers=plain(section.numbers, "numbers"),
            picture=picture,
        )

    def text(self) -> str:
        """It as JSON, with digests of it and of its picture, for :meth:`from_text`."""
        content = {name: value for name, value in vars(self).items() if name != "picture"}
        content["picture"] = self.picture and hashlib.sha256(self.picture).hexdigest()
        content["digest"] = _digest(content)
        return json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n"

    @classmethod
    def from_text(cls, text: str, picture: bytes | None) -> Record:
        """Read it; ValueError if it, or the picture, is not what was written."""
        content = json.loads(text)
        if not isinstance(content, dict) or content.pop("digest", None) != _digest(content):
            raise InvalidInputError("The record is not what was written.")
        seen = picture and hashlib.sha256(picture).hexdigest()
        if content.pop("picture") != seen:
            raise InvalidInputError("The picture is not the record's.")
        return cls(**content, picture=picture)


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def plain(value: Any, place: str) -> Any:
    """The value as JSON knows it.

    Parameters
    ----------
    value
        Of mappings, lists, tuples, text, truth values, None and finite numbers, NumPy's too.
    place : str
        Its name, for a message.
    """
    if isinstance(value, Mapping):
        return {str(key): plain(inner, f"{place}.{key}") for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner, f"{place}[{index}]") for index, inner in enumerate(value)]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        value = value.item()
    if value is None or isinstance(value, str | bool | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InvalidInputError(f"{place} is {value}, which JSON cannot hold; use None.")
        return value
    raise InvalidInputError(f"{place} is of type {type(value).__name__}, which JSON cannot hold.")
