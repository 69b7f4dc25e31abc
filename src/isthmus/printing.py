"""Text that results print: counts, lists of names, and aligned tables."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any


def printable(text: str) -> str:
    r"""Return a text with control characters written out, since terminals obey some.

    >>> print(printable("a\x1b[31mb"))
    a\x1b[31mb
    """
    return re.sub(
        r"[^\n\x20-\x7e\xa0-\ud7ff\ue000-\U0010ffff]", lambda found: ascii(found[0])[1:-1], text
    )


def counted(number: int, noun: str) -> str:
    """Return a number and its noun: "1 row", "2,000 rows"."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def listed(names: Sequence[str], most: int = 12) -> str:
    """Return names separated by commas; beyond `most`, "and 2 more"."""
    shown = ", ".join(names[:most])
    return f"{shown}, and {len(names) - most} more" if len(names) > most else shown


def aligned(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> list[str]:
    r"""Return rows of cells as lines with aligned columns; those in `left` are flush left.

    >>> print(*aligned([["name", "size"], ["a", "10"]]), sep="\n")
    name  size
    a       10
    """
    widths = [max(map(len, cells)) for cells in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def definitions(facts: Mapping[str, str]) -> list[str]:
    """Return a line for each fact: its name, and its text in one column."""
    return aligned(list(facts.items()), left=(0, 1))


class Summarised:
    """Gives a result with a `summary` the method `to_dict`."""

    @property
    def summary(self) -> dict[str, Any]:
        """The contents of the printed summary."""
        raise NotImplementedError

    def to_dict(self) -> dict[str, Any]:
        """Return the summary as plain numbers and words: the keys that ``--json`` prints."""
        return dict(self.summary)
