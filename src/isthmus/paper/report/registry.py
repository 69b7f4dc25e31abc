"""The parts of the report, read from ``report.toml``, and sections with their text."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from isthmus.errors import InvalidInputError
from isthmus.io.files import shipped
from isthmus.paper.report.section import Section, TextTable, judge

Check = bool | tuple[bool, bool] | None


class Listed(tuple[Any, ...]):
    """Values that text lists one after the other, each in the format of the field."""

    def __format__(self, form: str) -> str:
        words = [format(value, form) for value in self]
        return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def fill(text: str, values: Mapping[str, Any]) -> str:
    """Fill the fields of a text, and join its lines."""
    lists = {name: Listed(each) for name, each in values.items() if isinstance(each, list | tuple)}
    return " ".join(text.format(**{**values, **lists}).split())


@dataclass(frozen=True)
class Part:
    """One part of the report; ``report.toml`` describes the attributes.

    ``name`` is that of its files, of its entry in results.json and of its place on the page;
    ``function`` and ``needs`` are ``module:name``.
    """

    name: str
    title: str
    chapter: str
    function: str
    needs: str | None = None
    shows: str | None = None
    caption: str = ""
    findings: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)
    observations: tuple[str, ...] = ()


_CONTENT = tomllib.loads(Path(__file__).with_name("report.toml").read_text(encoding="utf-8"))
TITLE: str = _CONTENT["title"]
INTRODUCTION: str = _CONTENT["introduction"]
CHAPTERS: dict[str, str] = _CONTENT["chapters"]
RULE: dict[str, str] = _CONTENT["verdicts"]
"""The meaning of each verdict."""
WORDS: dict[str, str] = _CONTENT["words"]
"""The spelling of words, or of whole names, in the names of numbers."""
PARTS = tuple(Part(name, **entry) for name, entry in _CONTENT["parts"].items())


def text_of(name: str) -> Part:
    """Return a part by its name."""
    return next(part for part in PARTS if part.name == name)


def recorded(name: str) -> Path:
    """Return the path of the recorded results that a part shows."""
    place = text_of(name).shows
    path = shipped(place) if place else None
    if path is None:
        raise InvalidInputError(
            f"The recorded results {place} are missing from this installation. Install isthmus "
            "again, or use full=True (--full), which computes them now."
        )
    return path


def compose(
    name: str,
    figure: Any = None,
    numbers: Mapping[str, Any] | None = None,
    checks: Mapping[str, Check] | None = None,
    *,
    table: TextTable | None = None,
    observations: tuple[str, ...] = (),
    **values: Any,
) -> Section:
    """Return the section of a part, with the text of ``report.toml``.

    Parameters
    ----------
    name : str
        The part.
    figure, numbers, table, observations
        As in :class:`isthmus.report.Section`.
    checks : mapping
        For each finding of the part, whether the claim passed its check, None if that is open; or
        a pair: as printed, and in its corrected form.
    **values
        For the fields of the text, in addition to the numbers.
    """
    part = text_of(name)
    values = {**(numbers or {}), **values}
    findings = []
    for key, check in (checks or {}).items():
        printed, corrected = check if isinstance(check, tuple) else (check, False)
        because = fill(part.findings[key]["because"], values)
        claim = part.findings[key]["claim"]
        findings.append(judge(claim, because, as_printed=printed, corrected=corrected))
    seen = (*(fill(words, values) for words in part.observations), *observations)
    caption = fill(part.caption, values)
    return Section(caption, figure, numbers or {}, tuple(findings), table, seen)


def select(names: Iterable[str] | None, parts: tuple[Part, ...] = PARTS) -> list[Part]:
    """Return the parts with these names or chapters, in the order of the page; None is all."""
    if names is None:
        return [*parts]
    wanted = {names} if isinstance(names, str) else set(names)
    unknown = sorted(wanted - {part.name for part in parts} - {part.chapter for part in parts})
    if unknown:
        chapters = ", ".join(dict.fromkeys(part.chapter for part in parts))
        listed = ", ".join(part.name for part in parts)
        raise InvalidInputError(
            f"There is no part or chapter {', '.join(map(repr, unknown))}. Chapters: {chapters}. "
            f"Parts: {listed}."
        )
    return [part for part in parts if {part.name, part.chapter} & wanted]
