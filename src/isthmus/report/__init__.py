"""The report: every figure and claim of the paper, computed again, on one page.

>>> import isthmus.report
>>> report = isthmus.report.build("report")  # doctest: +SKIP
>>> report.summary["verdicts"]  # doctest: +SKIP
{'held': 19, 'held with a correction': 13, 'did not hold': 3}
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isthmus.report.builder import BuiltReport, build, finished
    from isthmus.report.html import page
    from isthmus.report.registry import CHAPTERS, PARTS, Part, compose
    from isthmus.report.section import VERDICTS, Finding, Section, TextTable, Verdict, judge

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
    "compose",
    "finished",
    "judge",
    "page",
]

# Imported on first use: the process of a part needs neither the page nor other parts.
_HOMES = {
    **dict.fromkeys(("BuiltReport", "build", "finished"), "builder"),
    "page": "html",
    **dict.fromkeys(("CHAPTERS", "PARTS", "Part", "compose"), "registry"),
    **dict.fromkeys(("Finding", "Section", "TextTable", "VERDICTS", "Verdict", "judge"), "section"),
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"isthmus.report.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'isthmus.report' has no attribute {name!r}")
