"""The errata of the paper: what is printed, what is right, and the number that shows it.

``errata.toml`` lists them; the checks stand beside the parts of their chapters. An erratum is
"wrong" (following the print leads to errors), "loose" (right on a condition that is not stated),
"harmless" (right, with a term that does nothing) or "notation" (nothing to measure). A check
confirms what is wrong if the printed form fails and the right one passes; what is loose if the
printed form passes on the condition and fails without it; what is harmless if both agree.
"""

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

from isthmus.paper.report.claims import judged
from isthmus.paper.report.section import Finding, Section, TextTable

# Formulas that agree differ by less than this.
EXACT = 1e-9
# The modules of parts that check errata.
MODULES = ("attention", "capacity", "clustering", "energies")
KINDS = ("wrong", "loose", "harmless", "notation")
LISTED: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).parents[1].joinpath("errata.toml").read_text(encoding="utf-8")
)

Check = tuple[dict[str, Any], bool, str]
"""The numbers of a check, whether it confirms the erratum, and the evidence in words."""


@dataclass(frozen=True)
class Erratum:
    """An error in the paper's text; `confirmed` is None if there is nothing to check."""

    name: str
    kind: str
    place: str
    printed: str
    right: str
    shown: str
    only_in: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    confirmed: bool | None = None

    @property
    def outcome(self) -> str:
        """The kind and whether it was confirmed, in words."""
        if self.confirmed is None:
            return "notation only"
        return f"{self.kind}, confirmed" if self.confirmed else "not confirmed"


CheckedErratum = Callable[[torch.Generator], Erratum]
CHECKS: dict[str, CheckedErratum] = {}
"""The check of each erratum, in the order in which they draw random numbers."""


def erratum(name: str) -> Callable[[Callable[[torch.Generator], Check]], CheckedErratum]:
    """Register the check of an erratum; calling it then returns the erratum."""

    def register(check: Callable[[torch.Generator], Check]) -> CheckedErratum:
        @wraps(check)
        def checked(generator: torch.Generator) -> Erratum:
            numbers, confirmed, shown = check(generator)
            listed = LISTED[name] | {"right": LISTED[name]["right"].format(**numbers)}
            return Erratum(name, shown=shown, numbers=numbers, confirmed=confirmed, **listed)

        CHECKS[name] = checked
        return checked

    return register


def normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Draw standard normal numbers in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def largest_gap(first: torch.Tensor, second: torch.Tensor) -> float:
    """Return the largest absolute difference of two tensors."""
    return float((first - second).detach().abs().max())


def grid(reach: float, step: float, dim: int) -> tuple[torch.Tensor, float]:
    """Return points (n, dim) that fill [-reach, reach)^dim, and the volume of each."""
    axis = torch.arange(-reach, reach, step, dtype=torch.float64)
    return torch.cartesian_prod(*[axis] * dim).reshape(-1, dim), step**dim


def corrected_by(claim: str, found: Erratum, preface: str = "") -> Finding:
    """Return the finding on a claim that needs the correction of an erratum, if it is confirmed."""
    because = f"{preface}{found.shown} ({found.name})"
    return judged(claim, because, as_printed=not found.confirmed, corrected=True)


def all_errata(seed: int) -> list[Erratum]:
    """Return all errata in order, each checked now."""
    for module in MODULES:
        import_module(f"isthmus.paper.report.parts.{module}")
    # The checks of one module share a stream of random numbers.
    streams = defaultdict[str, torch.Generator](lambda: torch.Generator().manual_seed(seed))
    checked = {name: check(streams[check.__module__]) for name, check in CHECKS.items()}
    return [checked.get(name) or Erratum(name, **LISTED[name]) for name in LISTED]


def errata(seed: int, full: bool = False) -> Section:
    """Check every erratum, list them, and count those of the published paper."""
    errata = all_errata(seed)
    found = [each for each in errata if each.confirmed is not False]
    kinds = Counter(each.kind for each in found if not each.only_in)
    measured = sum(each.confirmed is not None for each in errata)
    confirmed = sum(bool(each.confirmed) for each in errata)
    outside = sum(bool(each.only_in) for each in found)
    rows = tuple(
        (
            each.name,
            f"{each.place} ({each.only_in} only)" if each.only_in else each.place,
            *(each.printed, each.right, each.shown, each.outcome),
        )
        for each in errata
    )
    return Section(
        f"Errata of the published paper: {kinds['wrong']} wrong (an implementation that follows "
        f"the print is incorrect), {kinds['loose']} loose (right on a condition that is not "
        f"stated), {kinds['harmless']} harmless, {kinds['notation']} of notation. {outside} more "
        "stand only in the workshop text, on the poster or in comments of the source. "
        f"{measured} of all {len(errata)} were tested on small problems drawn from the seed: "
        f"{confirmed} are confirmed. The code follows the corrected forms.",
        numbers={
            "errata": len(errata),
            "measured": measured,
            "confirmed": confirmed,
            **{kind: kinds[kind] for kind in KINDS},
            "outside_the_paper": outside,
            "checks": {each.name: {"outcome": each.outcome, **each.numbers} for each in errata},
        },
        table=TextTable(("#", "Location", "Printed", "Correct", "Evidence", "Outcome"), rows),
    )
