"""A report as one self-contained web page: sections with a figure, a caption and numbers."""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any, Literal

from matplotlib.figure import Figure

from isthmus.figures.files import png_bytes

__all__ = ["Finding", "Section", "Verdict", "page"]

Verdict = Literal["held", "held with a correction", "did not hold"]


@dataclass(frozen=True)
class Finding:
    """A claim of the paper, and what became of it.

    Attributes
    ----------
    claim : str
        What the paper says, in a sentence.
    verdict : {"held", "held with a correction", "did not hold"}
    because : str
        The number that says so; where there is a correction, which.
    """

    claim: str
    verdict: Verdict
    because: str


@dataclass(frozen=True)
class Section:
    """One figure of a report, and what there is to say about it.

    Attributes
    ----------
    title : str
    caption : str
        A few sentences in plain words.
    figure : Figure
    numbers : mapping
        What was measured, for machines too: numbers, text, None, lists, and mappings of them.
    findings : tuple of Finding
        What it says about the paper's claims.
    """

    title: str
    caption: str
    figure: Figure
    numbers: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()


def page(title: str, introduction: str, sections: Sequence[Section]) -> str:
    """Return a web page that needs no other file, light or dark as its reader's device is.

    Parameters
    ----------
    title, introduction : str
        Plain text.
    sections : sequence of Section
        In the order of the page.

    Returns
    -------
    str
        HTML, the figures inline.
    """
    body = "\n".join(_section(section) for section in sections)
    return _PAGE.format(
        title=escape(title), introduction=escape(introduction), style=_STYLE, body=body
    )


def _section(section: Section) -> str:
    title, caption = escape(section.title), escape(section.caption)
    picture = base64.b64encode(png_bytes(section.figure)).decode("ascii")
    rows = "\n".join(
        f"<tr><td>{escape(name)}</td><td>{escape(value)}</td></tr>"
        for name, value in _rows(section.numbers)
    )
    table = f"<details><summary>Numbers</summary><table>{rows}</table></details>" if rows else ""
    return (
        f"<section>\n<h2>{title}</h2>\n<figure>\n"
        f'<div class="picture" tabindex="0"><img alt="{title}" '
        f'src="data:image/png;base64,{picture}"></div>\n'
        f"<figcaption>{caption}</figcaption>\n</figure>\n{table}\n</section>"
    )


def _rows(numbers: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Names and values as text, those of inner mappings after the name of the outer one."""
    for name, value in numbers.items():
        label = f"{before}{str(name).replace('_', ' ')}"
        if isinstance(value, Mapping):
            yield from _rows(value, f"{label}: ")
        elif isinstance(value, float):
            yield label, f"{value:.4g}"
        else:
            yield label, "none" if value is None else str(value)


_STYLE = """\
:root { color-scheme: light dark;
  --ink: #22303c; --muted: #5c6b7a; --rule: #d5dce3; --paper: #fff; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6ebf0; --muted: #a3b1be; --rule: #35424e; --paper: #12181e; }
}
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 60rem; padding: 1.5rem 1rem 4rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.6 system-ui, sans-serif; }
h1 { font-size: 1.75rem; line-height: 1.25; margin: 0.5rem 0; text-wrap: balance; }
h2 { font-size: 1.25rem; margin: 2.5rem 0 0.75rem; }
p, figcaption { max-width: 44rem; }
figure { margin: 0; }
figcaption { margin-top: 0.75rem; }
.picture { overflow-x: auto; background: #fff; border: 1px solid var(--rule);
  border-radius: 0.5rem; padding: 0.75rem; }
.picture img { display: block; width: 100%; min-width: 42rem; height: auto; }
details { margin-top: 0.5rem; color: var(--muted); }
summary { cursor: pointer; }
table { border-collapse: collapse; margin-top: 0.5rem; font-size: 0.875rem; }
td { border-top: 1px solid var(--rule); padding: 0.25rem 1.5rem 0.25rem 0; }
td:last-child { font-variant-numeric: tabular-nums; padding-right: 0; }"""

_PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{introduction}</p>
{body}
</body>
</html>
"""
