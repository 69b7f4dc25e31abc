"""A report as one self-contained web page, from a template."""

from __future__ import annotations

import base64
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from isthmus.paper.report.section import CLAIMS, VERDICTS, Section, Verdict, value_text

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
        "named": named_values,
        "base64": lambda data: base64.b64encode(data).decode("ascii"),
    }
    verdicts = Counter(finding.verdict for section in sections for finding in section.findings)
    inside = {name: [each for each in sections if each.chapter == name] for name in chapters}
    return environment.get_template("page.html.jinja").render(
        title=title,
        introduction=introduction,
        facts=facts,
        sections=sections,
        chapters=[(name, words, inside[name]) for name, words in chapters.items() if inside[name]],
        counts={verdict: verdicts[verdict] for verdict in VERDICTS},
        signs=SIGNS,
        places=dict(CLAIMS.values()),
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


def named_values(numbers: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the names and values of a table; innermost mappings of single values have one row.

    >>> [*named_values({"most_by_D": {"2": 3, "4": 5}, "seeds": 2})]
    [('most by D', '2: 3; 4: 5'), ('seeds', '2')]
    """
    for name, value in numbers.items():
        words = name.replace("_", " ")
        if not isinstance(value, Mapping):
            yield words, value_text(value)
        elif any(isinstance(each, Mapping) for each in value.values()):
            yield from ((f"{words}, {inner}", each) for inner, each in named_values(value))
        else:
            cells = (f"{key.replace('_', ' ')}: {value_text(each)}" for key, each in value.items())
            yield words, "; ".join(cells)
