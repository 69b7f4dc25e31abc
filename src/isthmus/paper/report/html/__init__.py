"""A report as one self-contained web page, from a template."""

from __future__ import annotations

import base64
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from isthmus.paper.report.claims import PLACES
from isthmus.paper.report.section import VERDICTS, Section, Verdict

# The sign, the style class and the meaning of each verdict.
SIGNS: dict[Verdict, tuple[str, str, str]] = {
    "held": ("✓", "held", "as printed, within its stated conditions"),
    "held with a correction": ("≈", "corrected", "but for a constant, a condition or a sign"),
    "did not hold": ("✗", "refuted", "false as printed, and no small change saves it"),
    "open": ("?", "open", "neither shown nor refuted"),
}
# Labels of table rows that findings may refer to.
ROW_LABEL = re.compile(r"\bE\d+\b")


def page(
    title: str,
    introduction: str,
    sections: Sequence[Section],
    *,
    chapters: Mapping[str, str],
    facts: Sequence[str] = (),
) -> str:
    """Return the sections as an HTML page that loads no other file.

    All text is plain; text between backticks is shown as code. `chapters` are titles by name, in
    the order of the page; `facts` are about the whole report, such as versions and the seed.
    """
    rows = Counter(row[0] for section in sections if section.table for row in section.table.rows)
    targets = {head for head, count in rows.items() if count == 1 and ROW_LABEL.fullmatch(head)}

    def link(found: re.Match[str]) -> str:
        return f'<a href="#{found[0]}">{found[0]}</a>' if found[0] in targets else found[0]

    environment = Environment(
        loader=PackageLoader("isthmus.paper.report.html", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= {
        "rich": rich_text,
        "linked": lambda words: Markup(ROW_LABEL.sub(link, rich_text(words))),
        "duration": duration,
        "tables": number_tables,
        "base64": lambda data: base64.b64encode(data).decode("ascii"),
        # The first bytes of a PNG hold its size, which keeps the page from jumping as it loads.
        "size": lambda data: struct.unpack(">II", data[16:24]),
        "first_sentence": lambda text: re.split(r"(?<=[.!?])\s", text, maxsplit=1)[0],
    }
    verdicts = Counter(finding.verdict for section in sections for finding in section.findings)
    return environment.get_template("page.html.jinja").render(
        title=title,
        introduction=introduction,
        facts=facts,
        sections=sections,
        chapters=[
            (name, words, inside)
            for name, words in chapters.items()
            if (inside := [section for section in sections if section.chapter == name])
        ],
        counts={verdict: verdicts[verdict] for verdict in VERDICTS},
        signs=SIGNS,
        places=PLACES,
        targets=targets,
    )


def rich_text(text: str) -> Markup:
    """Escape text for the page; text between backticks becomes code."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))


def duration(seconds: float) -> str:
    """Return a time in words.

    >>> duration(12.34), duration(600), duration(7200)
    ('12.3 s', '10 min', '2.0 h')
    """
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"


class NumberTable(NamedTuple):
    """A table of values: headings of columns, if any, and the name and the cells of each row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


def value_text(value: Any) -> str:
    """Return a value as text with four significant digits.

    >>> value_text(2 / 3), value_text(None), value_text(True), value_text([1, 2.5])
    ('0.6667', '–', 'yes', '1, 2.5')
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, value)) or "none"
    return str(value)


def number_tables(numbers: Mapping[str, Any], title: str = "") -> Iterator[NumberTable]:
    """Arrange nested numbers in tables: one of the single values, and one for each mapping."""
    single = {name: value for name, value in numbers.items() if not isinstance(value, Mapping)}
    if single:
        cells = tuple((_words(name), (value_text(value),)) for name, value in single.items())
        yield NumberTable(title, (), cells)
    inner = {name: value for name, value in numbers.items() if isinstance(value, Mapping) and value}
    flat = [not any(isinstance(v, Mapping) for v in value.values()) for value in inner.values()]
    keys = list(dict.fromkeys(key for value in inner.values() for key in value))
    if len(inner) > 1 and all(flat) and all(len(value) > len(keys) / 2 for value in inner.values()):
        rows = tuple(
            (_words(name), tuple(value_text(value[key]) if key in value else "" for key in keys))
            for name, value in inner.items()
        )
        yield NumberTable(title, tuple(map(_words, keys)), rows)
        return
    for name, value in inner.items():
        yield from number_tables(value, f"{title}: {_words(name)}" if title else _words(name))


def _words(name: str) -> str:
    """Return the name of a number in words, capitalised."""
    words = name.replace("_", " ")
    return words[:1].upper() + words[1:]
