"""The pages of docs/ hang together: contents, links to headings, and a complete reference."""

import re
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

import isthmus

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
REFERENCE = sorted((DOCS / "api").glob("*.rst"))

FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
LINK = re.compile(r"\]\((?!https?://)([^)\s#]*)#([^)\s]+)\)")
TOCTREE = re.compile(r"^```\{toctree\}\n(.*?)^```$", re.MULTILINE | re.DOTALL)  # in Markdown
TOCTREE_RST = re.compile(r"^\.\. toctree::\n((?:\n|   .*\n)+)", re.MULTILINE)


def slugs(page: Path) -> set[str]:
    """The names that GitHub, and MyST after it, give to the headings of a page."""
    headings = HEADING.findall(FENCE.sub("", page.read_text()))
    words = [re.sub(r"[^\w\- ]", "", heading.strip().lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in words}


def contents(page: Path) -> list[str]:
    """What the tables of contents of a page list, as paths without a suffix."""
    text = page.read_text()
    lines = "\n".join(TOCTREE.findall(text) + TOCTREE_RST.findall(text)).splitlines()
    entries = [line.strip() for line in lines if line.strip() and ":" not in line]
    return [(page.parent / entry).relative_to(DOCS).as_posix() for entry in entries]


def listed_names(page: Path) -> list[str]:
    """The full names in the tables of a page of the reference."""
    module, names, in_table = "", [], False
    for line in page.read_text().splitlines():
        if found := re.match(r"\.\. currentmodule:: (\S+)", line):
            module = found[1]
        if line and not line.startswith(" "):
            in_table = line.startswith(".. autosummary::")
        elif in_table and (found := re.match(r"   ([\w.]+)$", line)):
            names.append(f"{module}.{found[1]}")
    return names


def described_names(page: Path) -> set[str]:
    """The full names of the entries of a page: one by one, or all that a module exports."""
    module, names = "", set()
    directive = re.compile(r"\.\. (currentmodule|auto(?:class|function|data|module)):: (\S+)")
    for kind, name in directive.findall(page.read_text()):
        if kind == "currentmodule":
            module = name
        elif kind == "automodule":
            names |= {f"{name}.{member}" for member in exported(name)}
        else:
            names.add(name if name.startswith("isthmus.") else f"{module}.{name}")
    return names


def exported(module: str) -> list[str]:
    """The public names of a module; without a list, the classes that it defines."""
    found = import_module(module)
    own = [
        name for name, value in vars(found).items() if getattr(value, "__module__", "") == module
    ]
    return list(getattr(found, "__all__", own))


def value_of(name: str) -> object:
    """What a full name stands for."""
    parts = name.split(".")
    value: object = import_module(parts[0])
    for depth, part in enumerate(parts[1:], start=2):
        if isinstance(value, ModuleType) and not hasattr(value, part):
            import_module(".".join(parts[:depth]))
        value = getattr(value, part)
    return value


def public_modules() -> list[str]:
    """The package, and those of its modules that it names and that export something."""
    names = [name for name in dir(isthmus) if isinstance(getattr(isthmus, name), ModuleType)]
    inner = ["evaluation", "objectives", "priors", "references"]
    modules = ["isthmus", *(f"isthmus.{name}" for name in names)]
    modules += [f"isthmus.incontext.{name}" for name in inner]
    return [name for name in modules if exported(name)]


def test_every_page_is_in_the_contents() -> None:
    pages = {path.relative_to(DOCS).with_suffix("").as_posix() for path in [*PAGES[1:], *REFERENCE]}
    listed = contents(DOCS / "index.md") + contents(DOCS / "api" / "index.rst")
    gallery = {"gallery/index"}  # written by `make docs`
    assert sorted(listed) == sorted((pages | gallery) - {"index"})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_headings_lead_to_one(page: Path) -> None:
    missing = [
        f"{target}#{heading}"
        for target, heading in LINK.findall(page.read_text())
        if heading not in slugs(page.parent / target if target else page)
    ]
    assert not missing


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_say_where_they_lead_inside_docs(page: Path) -> None:
    """The built pages hold nothing of the rest of the repository but its source."""
    outside = [
        target
        for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text())
        if target.startswith("../") and not target.startswith("../src/")
    ]
    assert not outside


@pytest.mark.parametrize("module", public_modules())
def test_the_reference_has_every_public_name(module: str) -> None:
    listed = [value_of(name) for page in REFERENCE for name in listed_names(page)]
    missing = [
        name
        for name in exported(module)
        if not any(getattr(import_module(module), name) is one for one in listed)
    ]
    assert not missing


@pytest.mark.parametrize("page", REFERENCE, ids=lambda page: page.stem)
def test_every_name_in_a_table_of_the_reference_has_an_entry(page: Path) -> None:
    assert set(listed_names(page)) <= described_names(page)


def test_what_the_helpers_of_this_file_read(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A *first* one, of `two`\n```sh\n# no heading\n```\n## On E(x)\n")
    assert slugs(page) == {"a-first-one-of-two", "on-ex"}
    page.write_text(
        ".. currentmodule:: isthmus\n\n.. autosummary::\n   :x:\n\n   a\n   b.C\n\nend\n   d\n"
    )
    assert listed_names(page) == ["isthmus.a", "isthmus.b.C"]
