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

from isthmus.paper.report.registry import RULE, WORDS
from isthmus.paper.report.section import VERDICTS, Section, Verdict

# The sign and the style class of each verdict.
SIGNS: dict[Verdict, tuple[str, str]] = {
    "held": ("✓", "held"),
    "held with a correction": ("≈", "corrected"),
    "did not hold": ("✗", "refuted"),
    "open": ("?", "open"),
}
# Labels of table rows that findings may refer to.
ROW_LABEL = re.compile(r"\bE\d+\b")
# Whole numbers from here on have their digits in groups of three.
GROUPED_FROM = 10_000
# A single row whose headings have more characters than this is shown as a column.
WIDEST_ROW = 60
NARROW_SPACE = "\u202f"


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
        rule=RULE,
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


def label(name: str) -> str:
    """Return the name of a number in words, capitalised.

    >>> label("log10_bounds"), label("kl_from_truth"), label("Mixture (ClAM)")
    ('Log₁₀ of bounds', 'KL divergence from truth', 'Mixture (ClAM)')
    """
    return _capitalised(_words(name))


def _capitalised(words: str) -> str:
    # A Greek capital would look Latin; p, vMF and symbols such as n keep their case.
    keeps_case = words[:1] > "z" or re.match(r"(p|vMF)\b|\w =", words)
    return words if keeps_case else words[:1].upper() + words[1:]


def _words(name: str) -> str:
    if name in WORDS or (name != name.lower() and "_" not in name):  # or written for readers
        return WORDS.get(name, name)
    words = re.split(r"([_\s-]+)", name)
    return "".join(WORDS.get(word, word.replace("_", " ")) for word in words)


def _split(name: str) -> tuple[str, list[str]]:
    """Split a name into its stem and what the keys of each level below stand for."""
    stem, found, ending = name.rpartition("_by_")
    return (stem, ending.split("_and_")) if found else (name, [])


def _heading(key: str, levels: Sequence[str]) -> str:
    """Return the heading of a row or column; a number gets the name of its quantity: D = 2."""
    if not levels or not re.fullmatch(r"[-+.\d][-+.\de]*", key):
        return label(key)
    word = _words(levels[0])
    return f"{word} = {key}" if len(word) == 1 else f"{word} {key}"


def value_text(value: Any) -> str:
    """Return a value as text with four significant digits.

    >>> value_text(2 / 3), value_text(None), value_text(True), value_text([1, 2.5])
    ('0.6667', '–', 'yes', '1, 2.5')
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace(",", NARROW_SPACE) if abs(value) >= GROUPED_FROM else str(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, value)) or "none"
    return str(value)


def number_tables(
    numbers: Mapping[str, Any], title: str = "", levels: Sequence[str] = ()
) -> Iterator[NumberTable]:
    """Arrange nested numbers in as few tables as possible.

    Single values share a table; neighbouring mappings with similar keys become its rows. A name
    that ends in ``_by_D_and_N`` says what the keys of the next levels stand for; `levels` says so
    for this level and those below.
    """
    opened = {name: _opened(name, value) for name, value in numbers.items()}
    single = {name: value for name, value in opened.items() if not isinstance(value, Mapping)}
    if single:
        names = [_capitalised(_heading(name, levels)) for name in single]
        cells = [(value_text(value),) for value in single.values()]
        yield NumberTable(title, (), tuple(zip(names, cells, strict=True)))
    groups: list[dict[str, Any]] = []
    for name, value in opened.items():
        if name in single or not value:
            continue
        if not groups or not _share_columns(next(reversed(groups[-1].items())), (name, value)):
            groups.append({})
        groups[-1][name] = value
    for group in groups:
        yield from _tables_of(group, title, levels)


def _tables_of(
    group: Mapping[str, Any], title: str, levels: Sequence[str]
) -> Iterator[NumberTable]:
    """Yield one table of flat mappings, or the tables inside nested ones."""
    inner = {name: _split(name)[1] or levels[1:] for name in group}
    headings = {name: _heading(_split(name)[0], levels) for name in group}
    titles = {name: f"{title}: {head}" if title else head for name, head in headings.items()}
    if all(_is_flat(value) for value in group.values()):
        columns = list(dict.fromkeys(key for value in group.values() for key in value))
        first = next(iter(group))
        shown = tuple(_heading(key, inner[first]) for key in columns)
        if len(group) == 1 and sum(map(len, shown)) > WIDEST_ROW:
            yield from number_tables(group[first], titles[first], inner[first])
            return
        rows = tuple(
            (headings[name], tuple(value_text(v[key]) if key in v else "" for key in columns))
            for name, v in group.items()
        )
        yield NumberTable(title, shown, rows)
        return
    for name, value in group.items():
        yield from number_tables(value, titles[name], inner[name])


def _share_columns(one: tuple[str, Any], other: tuple[str, Any]) -> bool:
    """Return whether two named mappings have most of their keys in common."""
    if not (_is_flat(one[1]) and _is_flat(other[1])) or _split(one[0])[1] != _split(other[0])[1]:
        return False
    first, second = set(one[1]), set(other[1])
    return 2 * len(first & second) >= len(first | second)


def _opened(name: str, value: Any) -> Any:
    """Return a mapping for a list that is nested, or whose name says what its positions mean."""
    if isinstance(value, list | tuple):
        if not _split(name)[1] and not any(isinstance(v, list | tuple | Mapping) for v in value):
            return value
        value = {str(number): each for number, each in enumerate(value, start=1)}
    if not isinstance(value, Mapping):
        return value
    return {key: _opened(key, each) for key, each in value.items()}


def _is_flat(value: Mapping[str, Any]) -> bool:
    return not any(isinstance(each, Mapping) for each in value.values())
