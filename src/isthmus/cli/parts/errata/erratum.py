"""One erratum: what is printed, what is right, and the numbers that show it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Erratum"]


@dataclass(frozen=True)
class Erratum:
    """A slip in the paper's text, with its check.

    Attributes
    ----------
    number : int
        Its place in the list, E1 to E30.
    place : str
        Where in the paper.
    printed, right : str
        What stands there, and what should.
    shown : str
        The check and what came out, in a sentence or two.
    numbers : mapping of str to float
        The same for machines.
    confirmed : bool or None
        Whether the print failed the check and the corrected form passed it. None where only
        notation is concerned and there is nothing to measure.
    """

    number: int
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
        return "confirmed" if self.confirmed else "not confirmed"
