"""The errata table: what the paper prints, what is right, and the number that shows it."""

from __future__ import annotations

from isthmus.cli.parts.errata.attention import attention_errata
from isthmus.cli.parts.errata.capacity import capacity_errata
from isthmus.cli.parts.errata.clustering import clustering_errata
from isthmus.cli.parts.errata.erratum import Erratum
from isthmus.cli.parts.errata.sampling import sampling_errata
from isthmus.cli.parts.verdicts import finding
from isthmus.figures import Finding, Section, Table

__all__ = ["Erratum", "all_errata", "table_of_errata"]

COLUMNS = ("#", "Where", "Printed", "Right", "The number that shows it", "Outcome")


def all_errata(seed: int) -> list[Erratum]:
    """E1 to E30 in order, each checked now."""
    found = [
        *clustering_errata(seed),
        *capacity_errata(seed),
        *attention_errata(seed),
        *sampling_errata(seed),
    ]
    return sorted(found, key=lambda erratum: erratum.number)


def table_of_errata(seed: int, full: bool = False) -> Section:
    """Check every erratum and list them."""
    errata = all_errata(seed)
    measured = [each for each in errata if each.confirmed is not None]
    confirmed = [each for each in measured if each.confirmed]
    by_kind = {
        kind: [each.name for each in confirmed if each.kind == kind]
        for kind in ("wrong", "loose", "harmless")
    }
    rows = tuple(
        (each.name, each.place, each.printed, each.right, each.shown, each.outcome)
        for each in errata
    )
    numbers = {
        "errata": len(errata),
        "measured": len(measured),
        "confirmed": len(confirmed),
        **{kind: len(names) for kind, names in by_kind.items()},
        "checks": {each.name: {"outcome": each.outcome, **dict(each.numbers)} for each in errata},
    }
    caption = (
        f"{len(errata)} places where the paper's text is wrong, loose or silent. {len(measured)} "
        "of them were put to a test just now, on small problems drawn from the seed: "
        f"{len(confirmed)} are confirmed. "
        f"{len(errata) - len(measured)} concern notation only. The code follows the corrected "
        "forms."
    )
    return Section(
        caption,
        numbers=numbers,
        table=Table(COLUMNS, rows),
        findings=(_formulas(by_kind, len(confirmed) == len(measured)),),
    )


def _formulas(by_kind: dict[str, list[str]], all_confirmed: bool) -> Finding:
    """What becomes of the paper's formulas, given the names of confirmed errata of each kind."""
    words = {
        "wrong": "wrong, failing a numerical test that the corrected form passed",
        "loose": "loose, right only on a condition that is not stated",
        "harmless": "harmless, right with a term that does nothing",
    }
    said = "; ".join(
        f"{len(names)} {words[kind]} ({', '.join(names)})"
        for kind, names in by_kind.items()
        if names
    )
    return finding(
        "The paper's formulas are right.",
        f"Of those in the table, as printed: {said}." if said else "No erratum was confirmed.",
        as_printed=not (by_kind["wrong"] or by_kind["loose"]),
        corrected=all_confirmed,
    )
