"""The report: every figure and claim of the paper on one page, with verdicts.

>>> import isthmus.report
>>> report = isthmus.report.build("report")  # doctest: +SKIP
>>> report.summary["verdicts"]  # doctest: +SKIP
{'held': 18, 'held with a correction': 9, 'did not hold': 6, 'open': 3}
"""

from isthmus.paper.report.builder import BuiltReport, build, finished
from isthmus.paper.report.html import page
from isthmus.paper.report.registry import CHAPTERS, PARTS, Part
from isthmus.paper.report.section import VERDICTS, Finding, Section, TextTable, Verdict, judge

__all__ = [
    "CHAPTERS",
    "PARTS",
    "VERDICTS",
    "BuiltReport",
    "Finding",
    "Part",
    "Section",
    "TextTable",
    "Verdict",
    "build",
    "finished",
    "judge",
    "page",
]
