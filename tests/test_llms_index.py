"""llms.txt, which `make docs` writes, names every page of the docs and says what is on it."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
SPEC = importlib.util.spec_from_file_location("llms_index", DOCS / "llms_index.py")
llms_index = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(llms_index)

LINE = re.compile(r"^- \[(.+?)\]\(([\w/.-]+)\): (.+)$")


def test_every_page_and_example_is_listed_once_with_a_sentence() -> None:
    lines = [line for line in llms_index.llms_text().splitlines() if line.startswith("- ")]
    entries = [LINE.match(line) for line in lines]
    assert all(entries), lines
    pages = [path.relative_to(DOCS).with_suffix(".html") for path in DOCS.glob("*.md")]
    pages += [path.relative_to(DOCS).with_suffix(".html") for path in DOCS.glob("api/*.rst")]
    pages += [Path("gallery") / f"{path.stem}.html" for path in (ROOT / "examples").glob("plot_*")]
    expected = sorted(page.as_posix() for page in pages if page.name != "index.html")
    assert sorted(entry[2] for entry in entries) == sorted([*expected, "api/index.html"])
    assert all(len(entry[3]) > 20 for entry in entries)


def test_it_starts_with_the_title_and_what_the_library_is() -> None:
    title, _, summary, *_ = llms_index.llms_text().splitlines()
    assert title == "# isthmus"
    assert summary.startswith("> An associative memory")


def test_it_follows_the_pages(tmp_path: Path) -> None:
    (tmp_path / "index.md").write_text(
        "# A *site*\n\nWhat it is.\n\n```{toctree}\n:caption: Start\n\nfirst\napi/index\n```\n"
    )
    (tmp_path / "first.md").write_text(
        "# One\n\n![A picture](x.png)\n\nSee [the other](b.md) `page`, which is a long sentence "
        "of more words than sixty characters. And more.\n"
    )
    (tmp_path / "api").mkdir()
    (tmp_path / "api" / "index.rst").write_text(
        "All\n===\n\nEvery name.\n\n.. toctree::\n   :hidden:\n\n   names\n\nend\n"
    )
    (tmp_path / "api" / "names.rst").write_text("Names\n=====\n\nOf :class:`~a.B` and ``c``.\n")
    assert llms_index.llms_text(tmp_path, tmp_path) == (
        "# A site\n\n> What it is.\n\n## Start\n\n"
        "- [One](first.html): See the other `page`, which is a long sentence of more words than "
        "sixty characters.\n"
        "- [All](api/index.html): Every name.\n"
        "- [Names](api/names.html): Of a.B and `c`.\n"
    )
