"""Write ``llms.txt``: every page of these docs with its first sentence, read from the pages."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).parent
EXAMPLES = DOCS.parent / "examples"

TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
TOCTREE_RST = re.compile(r"^\.\. toctree::\n((?:\n|   .*\n)+)", re.MULTILINE)
UNDERLINED = re.compile(r"^(.+)\n([=\-])\2{2,}\n", re.MULTILINE)
# What starts a block that is not prose: fences, tables, pictures, lists, HTML, directives.
NOT_PROSE = ("```", "|", "!", "* ", "- ", "<", "..", "#", ">", "   ")


class Page(NamedTuple):
    """A page: its address below the root of the site, its title and its first sentence."""

    address: str
    title: str
    summary: str


def sections(docs: Path = DOCS, examples: Path = EXAMPLES) -> dict[str, list[Page]]:
    """Return the pages of each table of contents of the front page, in their order."""
    found: dict[str, list[Page]] = {}
    for block in TOCTREE.findall((docs / "index.md").read_text("utf-8")):
        caption = re.search(r"^:caption: (.+)$", block, re.MULTILINE)
        pages = found.setdefault(caption[1] if caption else "Pages", [])
        for name in re.findall(r"^(?!:)(\S+)$", block, re.MULTILINE):
            if name == "gallery/index":
                found["Gallery"] = [_example(path) for path in sorted(examples.glob("plot_*.py"))]
            elif name == "api/index":
                pages.append(_page(docs, name))
                entries = TOCTREE_RST.findall((docs / "api" / "index.rst").read_text("utf-8"))
                inner = re.findall(r"^   ([\w-]+)$", "\n".join(entries), re.MULTILINE)
                pages += [_page(docs, f"api/{each}") for each in inner]
            else:
                pages.append(_page(docs, name))
    return found


def llms_text(docs: Path = DOCS, examples: Path = EXAMPLES) -> str:
    """Return the text of ``llms.txt``, as https://llmstxt.org describes it."""
    front = _page(docs, "index")
    parts = [f"# {front.title}", f"> {front.summary}"]
    for caption, pages in sections(docs, examples).items():
        lines = [f"- [{page.title}]({page.address}): {page.summary}" for page in pages]
        parts.append("\n".join([f"## {caption}", "", *lines]))
    return "\n\n".join(parts) + "\n"


def _page(docs: Path, name: str) -> Page:
    path = next(path for suffix in (".md", ".rst") if (path := docs / f"{name}{suffix}").exists())
    text = path.read_text("utf-8")
    address = f"{name}.html"
    if path.suffix == ".md":
        title = re.search(r"^# (.+)$", text, re.MULTILINE)
        if title is None:
            raise ValueError(f"{path} has no title")
        return Page(address, _plain(title[1]), _first_words(text[title.end() :]))
    return _underlined(address, text)


def _example(path: Path) -> Page:
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    return _underlined(f"gallery/{path.stem}.html", text + "\n")


def _underlined(address: str, text: str) -> Page:
    title = UNDERLINED.search(text)
    if title is None:
        raise ValueError(f"The page of {address} has no title")
    return Page(address, _plain(title[1]), _first_words(text[title.end() :]))


def _first_words(text: str) -> str:
    """Return the first sentence of prose, or two if the first is short."""
    for paragraph in re.split(r"\n\s*\n", re.sub(r"(?ms)^```.*?^```$", "", text)):
        words = _plain(" ".join(paragraph.split()))
        if words and not paragraph.startswith(NOT_PROSE):
            sentences = re.split(r"(?<=[.!?:]) (?=[A-Z`])", words)
            # Sentences of the reference that lead to another page say nothing here.
            sentences = [each for each in sentences if "../" not in each]
            sentences = [each for each in sentences if not each.endswith("xamples:")] or [""]
            return sentences[0] if len(sentences[0]) > 60 else " ".join(sentences[:2])
    return ""


def _plain(text: str) -> str:
    """Return text without the links, roles and emphasis of Markdown and reStructuredText."""
    text = re.sub(r":\w+:`~?([^`<]+?)(?: <[^>]*>)?`", r"\1", text)
    text = re.sub(r"`([^`<]+?) <[^>]*>`_+", r"\1", text)
    text = re.sub(r"\[([^\]]+)\]\([^)]*\)", r"\1", text)
    return re.sub(r"\*+([^*]+)\*+", r"\1", text).replace("``", "`").strip()
