"""The errata of the paper: what is printed, what is right, and the number that shows it."""

from __future__ import annotations

from collections import defaultdict

import torch

# Imported for their checks.
from isthmus.report.parts import attention, capacity, clustering, energies  # noqa: F401
from isthmus.report.parts.erratum import CHECKS, TEXTS, Erratum
from isthmus.report.registry import compose
from isthmus.report.section import Section, TextTable

COLUMNS = ("#", "Location", "Printed", "Correct", "Evidence", "Outcome")
KINDS = {
    "wrong": "wrong, failing a numerical test that the corrected form passes",
    "loose": "loose, right only on a condition that is not stated",
    "harmless": "harmless, right with a term that does nothing",
}


def all_errata(seed: int) -> list[Erratum]:
    """Return E1 to E30 in order, each checked now."""
    # The checks of one module share a stream of random numbers.
    streams = defaultdict[str, torch.Generator](lambda: torch.Generator().manual_seed(seed))
    checked = {name: check(streams[check.__module__]) for name, check in CHECKS.items()}
    return [checked.get(name) or Erratum(name, **text) for name, text in TEXTS.items()]


def table_of_errata(seed: int, full: bool = False) -> Section:
    """Check every erratum and list them."""
    errata = all_errata(seed)
    measured = [each for each in errata if each.confirmed is not None]
    confirmed = [each for each in measured if each.confirmed]
    by_kind = {kind: [each.name for each in confirmed if each.kind == kind] for kind in KINDS}
    check, listed = _formulas(by_kind, len(confirmed) == len(measured))
    rows = tuple(
        (each.name, each.place, each.printed, each.right, each.shown, each.outcome)
        for each in errata
    )
    numbers = {
        "errata": len(errata),
        "measured": len(measured),
        "confirmed": len(confirmed),
        **{kind: len(names) for kind, names in by_kind.items()},
        "checks": {each.name: {"outcome": each.outcome, **each.numbers} for each in errata},
    }
    return compose(
        "errata",
        numbers=numbers,
        checks={"formulas": check},
        table=TextTable(COLUMNS, rows),
        notation=len(errata) - len(measured),
        listed=listed,
    )


def _formulas(by_kind: dict[str, list[str]], all_confirmed: bool) -> tuple[tuple[bool, bool], str]:
    """Check the paper's formulas, given the names of confirmed errata of each kind."""
    listed = "; ".join(
        f"{len(names)} {KINDS[kind]} ({', '.join(names)})"
        for kind, names in by_kind.items()
        if names
    )
    because = f"Of those in the table, as printed: {listed}." if listed else ""
    as_printed = not (by_kind["wrong"] or by_kind["loose"])
    return (as_printed, all_confirmed), because or "No erratum was confirmed."
