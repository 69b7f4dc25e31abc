"""One erratum: the text of ``errata.toml`` joined with the numbers of its check."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

TEXTS: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("errata.toml").read_text(encoding="utf-8")
)
Kind = Literal["wrong", "loose", "harmless", "notation"]


class Check(NamedTuple):
    """The result of a check."""

    numbers: Mapping[str, float]
    confirmed: bool
    words: Mapping[str, Any] = {}
    """Other values for the text."""


@dataclass(frozen=True)
class Erratum:
    """An error in the paper's text; see errata.toml for what the fields mean."""

    name: str
    kind: Kind
    place: str
    printed: str
    right: str
    shown: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    confirmed: bool | None = None
    """None for notation, where there is nothing to check."""

    @property
    def outcome(self) -> str:
        """The kind and whether it was confirmed, in words."""
        if self.confirmed is None:
            return "notation only"
        return f"{self.kind}, confirmed" if self.confirmed else "not confirmed"

    @property
    def check(self) -> tuple[bool, bool]:
        """The check of a claim that rests on the printed text: as printed, and corrected."""
        return not self.confirmed, bool(self.confirmed)


CheckedErratum = Callable[[torch.Generator], Erratum]
CHECKS: dict[str, CheckedErratum] = {}
"""The check of each erratum, in the order in which they draw random numbers."""


def erratum(name: str) -> Callable[[Callable[[torch.Generator], Check]], CheckedErratum]:
    """Register a check; calling it then returns the erratum with its text."""

    def register(check: Callable[[torch.Generator], Check]) -> CheckedErratum:
        @wraps(check)
        def checked(generator: torch.Generator) -> Erratum:
            numbers, confirmed, words = check(generator)
            values = {**numbers, **words}
            text = {key: value.format(**values) for key, value in TEXTS[name].items()}
            return Erratum(name, **text, numbers=numbers, confirmed=bool(confirmed))

        CHECKS[name] = checked
        return checked

    return register


def normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Draw standard normal numbers in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)
