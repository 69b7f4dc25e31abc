"""One erratum: what is printed, what is right, and the numbers that show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Erratum", "Kind"]

Kind = Literal["wrong", "loose", "harmless", "notation"]
"""Who follows the print errs; the print is right on a condition that it does not state; it is
right and says more than it must; only its signs or names are mixed up."""


@dataclass(frozen=True)
class Erratum:
    """A slip in the paper's text, with its check.

    Attributes
    ----------
    number : int
        Its place in the list, E1 to E30.
    kind : {"wrong", "loose", "harmless", "notation"}
    place : str
        Where in the paper.
    printed, right : str
        What stands there, and what should.
    shown : str
        The check and what came out, in a sentence or two.
    numbers : mapping of str to float
        The same for machines.
    confirmed : bool or None
        Whether the check bore it out: if it is wrong, the print failed and the corrected form
        passed; if it is loose, the print passes on the condition and fails without; if it is
        harmless, both forms come to the same. None for notation: there is nothing to measure.
    """

    number: int
    kind: Kind
    place: str
    printed: str
    right: str
    shown: str
    numbers: Mapping[str, float] = field(default_factory=dict)
    confirmed: bool | None = None

    @property
    def name(self) -> str:
        """Such as E7."""
        return f"E{self.number}"

    @property
    def outcome(self) -> str:
        """In a word or two."""
        if self.confirmed is None:
            return "notation only"
        return f"{self.kind}, confirmed" if self.confirmed else "not confirmed"
