"""The code in the README and in docs/ runs as it stands, and its commands are understood."""

import re
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from isthmus.cli.options import make_parser

ROOT = Path(__file__).parents[1]
PAGES = [
    ROOT / "README.md",
    ROOT / "benchmarks" / "RESULTS.md",
    *sorted((ROOT / "docs").glob("*.md")),
]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELL = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
OTHER_PROGRAMS = {"cp", "dask", "jq", "pip"}


@pytest.mark.parametrize(
    "page",
    [PAGES[0], *(pytest.param(page, marks=pytest.mark.slow) for page in PAGES[1:])],
    ids=lambda page: page.name,
)
def test_python_blocks_run_one_after_another(page: Path, monkeypatch, tmp_path) -> None:
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, object] = {"__name__": page.stem}
    for number, block in enumerate(BLOCK.findall(page.read_text())):
        exec(compile(block, f"{page.name}, block {number + 1}", "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_have_the_files_and_options_that_they_name(page: Path) -> None:
    """Many of them train, download or measure, so that they are parsed, not run."""
    for line in "".join(SHELL.findall(page.read_text())).splitlines():
        words = shlex.split(line, comments=True)
        while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
            words.pop(0)
        if not words:
            continue
        program, *arguments = words
        if program == "isthmus":
            name, *options = arguments
            make_parser(name, import_module(f"isthmus.cli.{name}")).parse_args(options)
        elif program == "python":
            script = (ROOT / arguments[0]).read_text()
            options = [one for one in arguments[1:] if one.startswith("--")]
            assert all(f'"{option}"' in script for option in options), line
        elif program == "pytest":
            assert all((ROOT / one).exists() for one in arguments if one.endswith(".py")), line
        elif program == "make":
            assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        else:
            assert program in OTHER_PROGRAMS, line


def test_documented_modules_need_no_import_of_their_own() -> None:
    pages = (ROOT / "docs" / "api").glob("*.rst")
    found = re.findall(
        r"(?:auto|current)module:: (isthmus\.\w+)", "\n".join(map(Path.read_text, pages))
    )
    assert "isthmus.synthesis" in found
    script = "import isthmus; print(" + ", ".join(sorted(set(found))) + ")"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
