"""What a part of a report says: a caption, a figure or a table, numbers, findings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, get_args

from isthmus.errors import InvalidInputError, ShapeError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["VERDICTS", "Finding", "Section", "Table", "Verdict"]

Verdict = Literal["held", "held with a correction", "did not hold"]
"""What became of a claim."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)


@dataclass(frozen=True)
class Finding:
    """A claim of the paper, and what became of it.

    Attributes
    ----------
    claim : str
        What the paper says, in a sentence.
    verdict : {"held", "held with a correction", "did not hold"}
    because : str
        The number that says so; where there is a correction, which.
    """

    claim: str
    verdict: Verdict
    because: str

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise InvalidInputError(
                f"{self.verdict!r} is not a verdict; take one of {', '.join(VERDICTS)}."
            )


@dataclass(frozen=True)
class Table:
    """Text in rows and columns, for what a figure cannot show.

    Attributes
    ----------
    columns : tuple of str
        The heads of the columns.
    rows : tuple of tuple of str
        As many cells in each as there are columns.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows, start=1):
            if len(row) != len(self.columns):
                raise ShapeError(
                    f"Row {number} of the table has {len(row)} cells for {len(self.columns)} "
                    "columns."
                )


@dataclass(frozen=True)
class Section:
    """One figure or table of a report, and what there is to say about it.

    Attributes
    ----------
    caption : str
        A few sentences in plain words; what stands between backticks is shown as code.
    figure : Figure or None
    numbers : mapping
        What was measured, for machines too: numbers, text, None, lists, and mappings of them. A
        name such as ``basins_by_sigma_and_N`` says what the names inside of it stand for.
    findings : tuple of Finding
        What it says about the paper's claims.
    table : Table or None
    observations : tuple of str
        What was seen where the paper claims nothing, with its numbers: sentences without a verdict.
    """

    caption: str
    figure: Figure | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    table: Table | None = None
    observations: tuple[str, ...] = ()
