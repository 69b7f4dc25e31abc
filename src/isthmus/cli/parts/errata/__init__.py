"""The errata table: what the paper prints, what is right, and the number that shows it."""

from __future__ import annotations

from isthmus.cli.parts.errata.attention import attention_errata
from isthmus.cli.parts.errata.capacity import capacity_errata
from isthmus.cli.parts.errata.clustering import clustering_errata
from isthmus.cli.parts.errata.erratum import Erratum
from isthmus.cli.parts.errata.sampling import sampling_errata
from isthmus.cli.parts.verdicts import finding
from isthmus.figures import Section, Table

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
    rows = tuple(
        (each.name, each.place, each.printed, each.right, each.shown, each.outcome)
        for each in errata
    )
    numbers = {
        "errata": len(errata),
        "measured": len(measured),
        "confirmed": len(confirmed),
        "by_erratum": {
            each.name: {"outcome": each.outcome, **dict(each.numbers)} for each in errata
        },
    }
    caption = (
        f"{len(errata)} places where the paper's text is wrong, loose or silent. For each of "
        f"{len(measured)} the printed form and the corrected one were both put to a test just now, "
        f"on small problems drawn from the seed: {len(confirmed)} are confirmed. "
        f"{len(errata) - len(measured)} concern notation only. The code follows the corrected "
        "forms."
    )
    return Section(
        "Errata",
        caption,
        numbers=numbers,
        table=Table(COLUMNS, rows),
        findings=(
            finding(
                "The formulas hold as they are printed.",
                f"{len(confirmed)} of {len(measured)} printed forms failed a numerical test that "
                "their corrected forms passed.",
                as_printed=not confirmed,
                corrected=len(confirmed) == len(measured),
            ),
        ),
    )
