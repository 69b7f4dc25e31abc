"""The errata of the paper: what is printed, what is right, and the number that shows it."""

from __future__ import annotations

import tomllib
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from isthmus.paper.report.registry import compose, fill
from isthmus.paper.report.section import Section, TextTable

TEXTS: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("errata.toml").read_text(encoding="utf-8")
)
# Formulas that agree differ by less than this.
EXACT = 1e-9
MODULES = ("attention", "capacity", "clustering", "energies")
"""The modules of parts that check errata."""
COLUMNS = ("#", "Location", "Printed", "Correct", "Evidence", "Outcome")
KINDS = ("wrong", "loose", "harmless", "notation")


Check = tuple[dict[str, Any], bool]
"""The numbers of a check, which also fill the text, and whether it confirms the erratum."""


@dataclass(frozen=True)
class Erratum:
    """An error in the paper's text; see errata.toml for what the fields mean."""

    name: str
    kind: str
    place: str
    printed: str
    right: str
    shown: str
    only_in: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)
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
            numbers, confirmed = check(generator)
            text = {key: fill(value, numbers) for key, value in TEXTS[name].items()}
            return Erratum(name, **text, numbers=numbers, confirmed=confirmed)

        CHECKS[name] = checked
        return checked

    return register


def normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Draw standard normal numbers in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def largest_gap(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the largest absolute difference of two tensors."""
    return float((first - second).detach().abs().max())


def all_errata(seed: int) -> list[Erratum]:
    """Return E1 to E30 in order, each checked now."""
    for module in MODULES:
        import_module(f"isthmus.paper.report.parts.{module}")
    # The checks of one module share a stream of random numbers.
    streams = defaultdict[str, torch.Generator](lambda: torch.Generator().manual_seed(seed))
    checked = {name: check(streams[check.__module__]) for name, check in CHECKS.items()}
    return [checked.get(name) or Erratum(name, **text) for name, text in TEXTS.items()]


def table_of_errata(seed: int, full: bool = False) -> Section:
    """Check every erratum, list them, and count those of the published paper."""
    errata = all_errata(seed)
    measured = [each for each in errata if each.confirmed is not None]
    found = [each for each in errata if each.confirmed is not False]
    kinds = Counter(each.kind for each in found if not each.only_in)
    rows = tuple(
        (
            each.name,
            f"{each.place} ({each.only_in} only)" if each.only_in else each.place,
            *(each.printed, each.right, each.shown, each.outcome),
        )
        for each in errata
    )
    numbers = {
        "errata": len(errata),
        "measured": len(measured),
        "confirmed": sum(bool(each.confirmed) for each in measured),
        **{kind: kinds[kind] for kind in KINDS},
        "outside_the_paper": sum(bool(each.only_in) for each in found),
        "checks": {each.name: {"outcome": each.outcome, **each.numbers} for each in errata},
    }
    return compose("errata", numbers=numbers, table=TextTable(COLUMNS, rows))
