"""Verdicts, from measurements: what holds as printed, what with a correction, what not."""

from __future__ import annotations

from isthmus.figures import Finding, Verdict

__all__ = ["finding", "verdict"]


def verdict(as_printed: bool, corrected: bool = False) -> Verdict:
    """Say what became of a claim, given whether it, or its corrected form, passed its check.

    Examples
    --------
    >>> verdict(as_printed=False, corrected=True)
    'held with a correction'
    """
    if as_printed:
        return "held"
    return "held with a correction" if corrected else "did not hold"


def finding(claim: str, because: str, *, as_printed: bool, corrected: bool = False) -> Finding:
    """A claim of the paper with its verdict and the number that says so."""
    return Finding(claim, verdict(bool(as_printed), bool(corrected)), because)
