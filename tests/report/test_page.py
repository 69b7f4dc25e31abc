"""The page of a report: valid, linked, readable in both schemes, and escaped."""

import base64
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from matplotlib.figure import Figure

from isthmus.figures.style import png_bytes
from isthmus.report import Finding, Section, TextTable, page

VOID = {"meta", "link", "img", "br", "hr", "input"}
CHAPTERS = {"energies": "Energies & more", "empty": "Nothing", "errata": "Errata"}


class Page(HTMLParser):
    """Reads a page as strictly as it was written: every tag that opens is closed, in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        self.close()
        assert self.open == []
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len(dict(attrs)) == len(attrs), f"an attribute of <{tag}> twice"
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data if "style" not in self.open else ""

    def values(self, name: str) -> list[str]:
        """Return the values of an attribute, in the order of the page."""
        return [value for _, attributes in self.tags if (value := attributes.get(name))]


def sections() -> list[Section]:
    first = Section(
        "See `isthmus --help` & more. Twice.",
        png_bytes(Figure(figsize=(3, 2)), dpi=50),
        {"largest_error": 1 / 3, "of": {"<b>": {"a": None, "b": 2}, "c": {"a": 1.0, "b": 3}}},
        (
            Finding("Claim <one>", "held", "1 < 2 & `x`"),
            Finding("Claim two", "held with a correction", "by 3 (E2, E3, E22)"),
        ),
        observations=("Seen: 2 > 1 (E2).",),
        seconds=12.34,
        name="first-part",
        title="The “first” <i>",
    )
    broken = Section(status="failed", message="ValueError: <oh> no", log="parts/broken.log")
    later = Section(status="missing", message="The stored part was made with a different seed.")
    errata = Section(
        findings=(
            Finding("Claim three", "did not hold", "by 4"),
            Finding("Claim four", "open", "by 5"),
        ),
        table=TextTable(("", "Right"), (("E1", "a < b"), ("E2", "b"), ("E3", "c"), ("E3", "d"))),
        seconds=7200.0,
        title="Slips",
        command="isthmus reproduce --only errata",
    )
    return [
        replace(first, chapter="energies", command="isthmus reproduce --only first-part"),
        replace(broken, name="broken", title="Broken", chapter="energies"),
        replace(later, name="later", title="Made <later>", chapter="energies"),
        replace(errata, name="errata", chapter="errata"),
    ]


@pytest.fixture(scope="module")
def html() -> str:
    return page("A < B", "x & y", sections(), chapters=CHAPTERS, facts=("seed 0", "version <1>"))


@pytest.fixture(scope="module")
def parsed(html: str) -> Page:
    return Page(html)


def test_tags_balance_ids_are_unique_and_links_lead_somewhere(parsed: Page) -> None:
    ids = parsed.values("id")
    assert len(set(ids)) == len(ids)
    inner = [target[1:] for target in parsed.values("href") if target.startswith("#")]
    assert set(inner) <= set(ids)
    names = {"first-part", "broken", "later", "errata", "chapter-energies", "claims"}
    assert names <= set(inner)


def test_nothing_is_loaded_from_elsewhere(html: str, parsed: Page) -> None:
    assert not any(word in html for word in ("http", "@import", "url(", "<script"))
    assert all(target.startswith(("#", "data:")) for target in parsed.values("href"))
    (source,) = parsed.values("src")
    scheme, data = source.split(",")
    assert scheme == "data:image/png;base64"
    assert base64.b64decode(data) == sections()[0].figure


def test_text_is_escaped_and_backticks_are_code(html: str, parsed: Page) -> None:
    for words in ("A < B", "x & y", "Claim <one>", "ValueError: <oh> no", "a < b", "version <1>"):
        assert words in parsed.text, words
    assert "<code>isthmus --help</code> &amp; more" in html
    assert not {"i", "oh"} & {tag for tag, _ in parsed.tags}
