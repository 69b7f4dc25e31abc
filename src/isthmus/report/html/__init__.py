"""A report as one self-contained web page, from a template."""

from __future__ import annotations

import base64
import re
import struct
from collections import Counter
from collections.abc import Mapping, Sequence

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from isthmus.report.html.numbers import number_tables
from isthmus.report.section import VERDICTS, Section, Verdict

# The sign and the style class of each verdict.
SIGNS: dict[Verdict, tuple[str, str]] = {
    "held": ("✓", "held"),
    "held with a correction": ("≈", "corrected"),
    "did not hold": ("✗", "refuted"),
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

    Parameters
    ----------
    title, introduction : str
        Plain text, as all text here is; text between backticks is shown as code.
    sections : sequence of Section
        In the order of the page within each chapter.
    chapters : mapping
        From the chapters of the sections to their titles, in the order of the page.
    facts : sequence of str
        Facts about the whole report: versions, the seed.
    """
    rows = Counter(row[0] for section in sections if section.table for row in section.table.rows)
    targets = {head for head, count in rows.items() if count == 1 and ROW_LABEL.fullmatch(head)}

    def link(found: re.Match[str]) -> str:
        return f'<a href="#{found[0]}">{found[0]}</a>' if found[0] in targets else found[0]

    environment = Environment(
        loader=PackageLoader("isthmus.report.html", ""),
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
