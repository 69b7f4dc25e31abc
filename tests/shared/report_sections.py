"""Sections of the report, each made once for all tests."""

from functools import cache

from isthmus.paper.report.builder import make
from isthmus.paper.report.registry import select
from isthmus.report import Section


@cache
def section_of(name: str) -> Section:
    """Return the section of a part for seed 0, made here."""
    section: Section = make(select(name)[0].function, 0, False)
    return section
