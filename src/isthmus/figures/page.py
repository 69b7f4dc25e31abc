"""A report as one self-contained web page: claims, verdicts, figures, numbers."""

from __future__ import annotations

import base64
import re
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal

from isthmus.figures.numbers import Grid, grids
from isthmus.figures.page_style import STYLE
from isthmus.figures.section import VERDICTS, Finding, Section, Table, Verdict

__all__ = ["Entry", "Finding", "Section", "Status", "Table", "Verdict", "page"]

Status = Literal["done", "failed", "missing"]

SIGNS: dict[Verdict, str] = {"held": "✓", "held with a correction": "≈", "did not hold": "✗"}
CLASSES: dict[Verdict, str] = {
    "held": "held",
    "held with a correction": "corrected",
    "did not hold": "refuted",
}
# How the rows of a table are numbered for findings to refer to.
MARK = re.compile(r"\bE\d+\b")


@dataclass(frozen=True)
class Entry:
    """What a part of the report came to.

    Attributes
    ----------
    name : str
        Its place on the page: a link to ``#name`` leads there.
    title : str
    chapter : str
    command : str
        That made it, or would.
    status : {"done", "failed", "missing"}
    message : str
        Why it failed, or is missing.
    caption, numbers, findings, observations, table
        As in :class:`Section`.
    picture : bytes or None
        Its figure, a PNG.
    seconds : float or None
        How long it took.
    log : str
        Where what it printed is, from the page.
    """

    name: str
    title: str
    chapter: str
    command: str
    status: Status = "done"
    message: str = ""
    caption: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    observations: tuple[str, ...] = ()
    table: Table | None = None
    picture: bytes | None = None
    seconds: float | None = None
    log: str = ""


def page(
    title: str,
    introduction: str,
    entries: Sequence[Entry],
    *,
    chapters: Mapping[str, str],
    facts: Sequence[str] = (),
) -> str:
    """Return a web page that needs no other file, light or dark as its reader's device is.

    Parameters
    ----------
    title, introduction : str
        Plain text, as all text is; what stands between backticks is shown as code.
    entries : sequence of Entry
        In the order of the page, but for the chapters.
    chapters : mapping
        From the chapters of the entries to their titles, in the order of the page.
    facts : sequence of str
        About the whole: versions, the seed.

    Returns
    -------
    str
        HTML, the figures inline.
    """
    by_chapter = {
        chapter: inside
        for chapter in chapters
        if (inside := [entry for entry in entries if entry.chapter == chapter])
    }
    marks = _marks(entries)
    body = "\n".join(
        f'<section id="chapter-{escape(chapter)}">\n'
        f"<h2>{_text(chapters[chapter])}{_anchor(f'chapter-{chapter}')}</h2>\n"
        + "\n".join(_article(entry, marks) for entry in inside)
        + "\n</section>"
        for chapter, inside in by_chapter.items()
    )
    return _PAGE.format(
        title=escape(title),
        introduction=_text(introduction),
        facts=" · ".join(map(_text, facts)),
        style=STYLE,
        contents=_contents(by_chapter, chapters),
        notices=_notices(entries),
        anchor=_anchor("claims"),
        claims=_claims(by_chapter, chapters),
        body=body,
    )


def _marks(entries: Sequence[Entry]) -> frozenset[str]:
    """Numbers of rows, such as E7, that stand at the head of one row of all tables."""
    heads = Counter(row[0] for entry in entries if entry.table for row in entry.table.rows)
    return frozenset(head for head, count in heads.items() if count == 1 and MARK.fullmatch(head))


def _contents(by_chapter: Mapping[str, Sequence[Entry]], chapters: Mapping[str, str]) -> str:
    items = []
    for chapter, inside in by_chapter.items():
        links = "".join(
            f'<li><a href="#{escape(entry.name)}">{_text(entry.title)}</a>'
            f"{'' if entry.status == 'done' else f' ({entry.status})'}</li>"
            for entry in inside
        )
        head = f'<a href="#chapter-{escape(chapter)}">{_text(chapters[chapter])}</a>'
        items.append(f"<li>{head}<ul>{links}</ul></li>")
    return "\n".join(['<li><a href="#claims">Claims</a></li>', *items])


def _notices(entries: Sequence[Entry]) -> str:
    """A word on top about what is not there."""
    said = []
    for status, words in (("failed", "failed"), ("missing", "not made yet")):
        names = [entry for entry in entries if entry.status == status]
        if names:
            links = ", ".join(f'<a href="#{escape(e.name)}">{_text(e.title)}</a>' for e in names)
            count = f"{len(names)} of {len(entries)} parts"
            said.append(
                f'<div class="notice {status}"><p><b>{count} {words}:</b> {links}.</p></div>'
            )
    return "\n".join(said)


def _claims(by_chapter: Mapping[str, Sequence[Entry]], chapters: Mapping[str, str]) -> str:
    """How many claims held, and all of them, each a link to where it is looked at."""
    found = {
        chapter: [(entry, finding) for entry in inside for finding in entry.findings]
        for chapter, inside in by_chapter.items()
    }
    counts = Counter(finding.verdict for pairs in found.values() for _, finding in pairs)
    if not counts:
        return "<p>No part that has been made yet speaks of a claim.</p>"
    tally = "\n".join(
        f'<li class="{CLASSES[verdict]}"><b>{counts[verdict]}</b>{SIGNS[verdict]} {verdict}</li>'
        for verdict in VERDICTS
    )
    groups = "\n".join(
        f'<tbody>\n<tr><th scope="rowgroup" colspan="2">{_text(chapters[chapter])}</th></tr>\n'
        + "\n".join(
            f"<tr><td>{_badge(finding.verdict)}</td>"
            f'<td><a href="#{escape(entry.name)}">{_text(finding.claim)}</a></td></tr>'
            for entry, finding in pairs
        )
        + "\n</tbody>"
        for chapter, pairs in found.items()
        if pairs
    )
    return (
        f'<ul class="tally">\n{tally}\n</ul>\n<table class="claims">\n<thead><tr>'
        f'<th scope="col">Verdict</th><th scope="col">Claim</th></tr></thead>\n{groups}\n</table>'
    )


def _article(entry: Entry, marks: frozenset[str]) -> str:
    name = escape(entry.name)
    head = f"<h3>{_text(entry.title)}{_anchor(entry.name)}</h3>"
    made = [f"<code>{escape(entry.command)}</code>"]
    if entry.seconds is not None:
        made.append(_duration(entry.seconds))
    if entry.status == "done":
        inside = _content(entry, marks)
    else:
        inside = _failure(entry) if entry.status == "failed" else _gap(entry)
    return (
        f'<article id="{name}">\n{head}\n{inside}\n<p class="made">{" · ".join(made)}</p>\n'
        "</article>"
    )


def _failure(entry: Entry) -> str:
    log = f"What it printed is in <code>{escape(entry.log)}</code>. " if entry.log else ""
    return (
        f'<div class="notice failed"><p><b>✗ This part failed:</b> '
        f"<code>{escape(entry.message)}</code></p>\n"
        f"<p>{log}The command below tries it again.</p></div>"
    )


def _gap(entry: Entry) -> str:
    why = _text(entry.message or "It has not been made yet.")
    return f'<div class="notice missing"><p>{why} The command below makes it.</p></div>'


def _content(entry: Entry, marks: frozenset[str]) -> str:
    pieces = [_figure(entry)]
    if entry.table is not None:
        pieces.append(_table(entry.table, marks))
    said = [_finding(finding, marks) for finding in entry.findings]
    said += [_observation(words, marks) for words in entry.observations]
    if said:
        items = "\n".join(said)
        pieces.append(f'<ul class="findings">\n{items}\n</ul>')
    tables = "\n".join(map(_grid, grids(entry.numbers)))
    if tables:
        pieces.append(f"<details>\n<summary>Numbers</summary>\n{tables}\n</details>")
    return "\n".join(pieces)


def _figure(entry: Entry) -> str:
    if entry.picture is None:
        return f"<p>{_text(entry.caption)}</p>"
    data = base64.b64encode(entry.picture).decode("ascii")
    # The size of a PNG stands in its first bytes; with it, the page does not jump as it loads.
    width, height = struct.unpack(">II", entry.picture[16:24])
    first = re.split(r"(?<=[.!?])\s", entry.caption, maxsplit=1)[0]
    described = escape(f"{entry.title}. {first}".replace("`", "").strip())
    return (
        f'<figure>\n<div class="picture" tabindex="0" role="group" '
        f'aria-label="Figure: {escape(entry.title)}">'
        f'<img alt="{described}" width="{width}" height="{height}" '
        f'src="data:image/png;base64,{data}"></div>\n'
        f"<figcaption>{_text(entry.caption)}</figcaption>\n</figure>"
    )


def _finding(finding: Finding, marks: frozenset[str]) -> str:
    return (
        f"<li>{_badge(finding.verdict)} <strong>{_text(finding.claim)}</strong>"
        f"<p>{_linked(finding.because, marks)}</p></li>"
    )


def _observation(words: str, marks: frozenset[str]) -> str:
    return f'<li><span class="badge seen">beyond the paper</span> {_linked(words, marks)}</li>'


def _linked(words: str, marks: frozenset[str]) -> str:
    """Text in which the numbers of rows are links to them."""
    return MARK.sub(
        lambda found: f'<a href="#{found[0]}">{found[0]}</a>' if found[0] in marks else found[0],
        _text(words),
    )


def _badge(verdict: Verdict) -> str:
    return (
        f'<span class="badge {CLASSES[verdict]}"><span aria-hidden="true">{SIGNS[verdict]}</span> '
        f'<span class="word">{verdict}</span></span>'
    )


def _table(table: Table, marks: frozenset[str]) -> str:
    heads = "".join(f'<th scope="col">{_text(head)}</th>' for head in table.columns)
    rows = "\n".join(
        (f'<tr id="{row[0]}">' if row[0] in marks else "<tr>")
        + "".join(
            f'<td data-head="{escape(head)}">{_text(cell)}</td>'
            for head, cell in zip(table.columns, row, strict=True)
        )
        + "</tr>"
        for row in table.rows
    )
    head = f"<thead><tr>{heads}</tr></thead>"
    return _scroll(f'<table class="text">\n{head}\n<tbody>\n{rows}\n</tbody>\n</table>')


def _grid(grid: Grid) -> str:
    title = f"<caption>{_text(grid.title)}</caption>\n" if grid.title else ""
    columns = "".join(f'<th scope="col">{_text(head)}</th>' for head in grid.columns)
    head = f"<thead><tr><td></td>{columns}</tr></thead>\n" if grid.columns else ""
    rows = "\n".join(
        f'<tr><th scope="row">{_text(name)}</th>{_cells(cells)}</tr>' for name, cells in grid.rows
    )
    kind = ' class="grid"' if grid.columns else ""
    return _scroll(
        f"<table{kind}>\n{title}{head}<tbody>\n{rows}\n</tbody>\n</table>", kind="scroll numbers"
    )


def _scroll(table: str, kind: str = "scroll") -> str:
    return f'<div class="{kind}" tabindex="0" role="group" aria-label="Table">\n{table}\n</div>'


def _cells(cells: Iterable[str]) -> str:
    return "".join(f"<td>{_text(cell)}</td>" for cell in cells)


def _anchor(name: str) -> str:
    return f' <a class="anchor" href="#{escape(name)}" aria-label="Link to this part">#</a>'


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 100 else f"{minutes / 60:.1f} h"


def _text(text: str) -> str:
    """Plain text for the page; what stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))


_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="isthmus">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
<a class="skip" href="#report">Skip to the report</a>
<header>
<h1>{title}</h1>
<p class="lead">{introduction}</p>
<p class="facts">{facts}</p>
</header>
<nav aria-label="Contents">
<ul>
{contents}
</ul>
</nav>
<main id="report">
{notices}
<section id="claims">
<h2>What became of the claims{anchor}</h2>
{claims}
</section>
{body}
</main>
</body>
</html>
"""
