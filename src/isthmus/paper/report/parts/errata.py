"""The errata of the paper: what is printed, what is right, and the number that shows it.

An erratum of ``errata.toml`` is "wrong" (the printed form fails and the right one passes), "loose"
(right on a condition that is not stated), "harmless" (both forms agree) or "notation". Those
without a proof of a line or two are measured, by checks beside the parts of their chapters.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from isthmus.paper.report.section import Finding, Section, TextTable, judged, value_text

# Formulas that agree differ by less than this.
EXACT = 1e-9
MODULES = ("attention", "capacity", "clustering_errata", "energies")
LISTED: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).parents[1].joinpath("errata.toml").read_text(encoding="utf-8")
)

Check = tuple[dict[str, Any], bool]
"""The numbers of a check, and whether they confirm the erratum."""


@dataclass(frozen=True)
class Erratum:
    """An error in the paper's text; `confirmed` is None if it is proved, or of notation."""

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
    def where(self) -> str:
        """The place, and the versions that have it if the paper does not."""
        return f"{self.place} ({self.only_in} only)" if self.only_in else self.place

    @property
    def outcome(self) -> str:
        """The kind and whether it was proved or confirmed, in words."""
        if self.kind == "notation":
            return "notation only"
        words = {None: "proved", True: "confirmed", False: "not confirmed"}
        return f"{self.kind}, {words[self.confirmed]}"


CheckedErratum = Callable[[torch.Generator], Erratum]
CHECKS: dict[str, CheckedErratum] = {}
"""The checks of the errata that are measured."""


def erratum(name: str) -> Callable[[Callable[[torch.Generator], Check]], CheckedErratum]:
    """Register the check of an erratum; calling it then returns the erratum."""

    def register(check: Callable[[torch.Generator], Check]) -> CheckedErratum:
        @wraps(check)
        def checked(generator: torch.Generator) -> Erratum:
            numbers, confirmed = check(generator)
            words = (f"{key.replace('_', ' ')} {value_text(numbers[key])}" for key in numbers)
            shown = f"{(check.__doc__ or '').splitlines()[0]} Result: {'; '.join(words)}."
            return Erratum(name, shown=shown, numbers=numbers, confirmed=confirmed, **LISTED[name])

        CHECKS[name] = checked
        return checked

    return register


def normal(generator: torch.Generator, *shape: int) -> torch.Tensor:
    """Draw standard normal numbers in float64."""
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def largest_gap(first: torch.Tensor, second: torch.Tensor | float) -> float:
    """Return the largest absolute difference of two tensors."""
    return float((first - second).detach().abs().max())


def grid(reach: float, step: float, dim: int) -> tuple[torch.Tensor, float]:
    """Return points (n, dim) that fill [-reach, reach)^dim, and the volume of each."""
    axis = torch.arange(-reach, reach, step, dtype=torch.float64)
    return torch.cartesian_prod(*[axis] * dim).reshape(-1, dim), step**dim


def corrected_by(claim: str, found: Erratum) -> Finding:
    """Return the finding on a claim that needs the correction of an erratum, if it is confirmed."""
    because = f"{found.shown} ({found.name})"
    return judged(claim, because, not found.confirmed, corrected=True)


def all_errata(seed: int) -> list[Erratum]:
    """Return all errata in order, each measured now if it has a check."""
    for module in MODULES:
        import_module(f"isthmus.paper.report.parts.{module}")
    return [
        CHECKS[name](torch.Generator().manual_seed(seed))
        if name in CHECKS
        else Erratum(name, **each)
        for name, each in LISTED.items()
    ]


def errata(seed: int, full: bool = False) -> Section:
    """List the errata with their proofs or measurements; count those of the published paper."""
    found = all_errata(seed)
    standing = [each for each in found if each.confirmed is not False]
    kinds = Counter(each.kind for each in standing if not each.only_in)
    outcomes = Counter(each.confirmed for each in found)
    numbers = {
        "errata": len(found),
        "measured": outcomes[True] + outcomes[False],
        "confirmed": outcomes[True],
        **{kind: kinds[kind] for kind in ("wrong", "loose", "harmless", "notation")},
        "outside_the_paper": sum(bool(each.only_in) for each in standing),
    }
    return Section(
        "Errata of the published paper: {wrong} wrong, {loose} loose (right on a condition that is "
        "not stated), {harmless} harmless, {notation} of notation; {outside_the_paper} more stand "
        "only in other versions. {confirmed} of {measured} that are measured are confirmed; the "
        "others are proved.".format(**numbers),
        numbers=numbers | {"checks": {e.name: {"outcome": e.outcome, **e.numbers} for e in found}},
        table=TextTable(
            ("#", "Location", "Printed", "Correct", "Evidence", "Outcome"),
            tuple((e.name, e.where, e.printed, e.right, e.shown, e.outcome) for e in found),
        ),
    )
