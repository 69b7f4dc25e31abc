"""Names and cells that are markup, formulas or control sequences stay what they are: text.

tests/play/test_browser.py and tests/report/test_page.py do the same for pages.
"""

import io
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

from isthmus.cli.main import main
from isthmus.errors import InvalidInputError
from isthmus.tables import read_table, write_table

SCRIPT, IMAGE = "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>'
FORMULA, COLOUR = "$a_{$", "\x1b[31mred"
# What spreadsheet programs take for formulas.
CELLS = ["=HYPERLINK(A1)", "+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)"]


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    monkeypatch.chdir(tmp_path)
    centres = np.repeat([[0.0, 0.0], [9.0, 9.0]], 10, axis=0)
    return centres + np.random.default_rng(0).standard_normal((20, 2))


def drawn(path: str) -> tuple[set[str], str]:
    """Return the tags of an SVG file, and its text."""
    text = Path(path).read_text()
    tags = {element.tag.rsplit("}")[-1] for element in ElementTree.parse(io.StringIO(text)).iter()}
    return tags, text


def test_names_are_drawn_as_text(rows, capsys) -> None:
    frame = pd.DataFrame(rows, columns=[SCRIPT, FORMULA])
    frame[IMAGE] = np.tile([FORMULA, "<b>x</b>", "$$", COLOUR, "</svg>"], 4)
    frame.to_csv("t.csv", index=False)
    command = ["cluster", "t.csv", "-k", "2", "--label", IMAGE, "--plot", "t.svg"]
    assert main(command) == 0
    tags, text = drawn("t.svg")
    assert not {"script", "img", "b"} & tags
    for name in ("&lt;script&gt;alert(1)&lt;/script&gt;", FORMULA, r"\x1b[31mred", "$$"):
        assert f"<!-- {name} -->" in text
    assert not {"\x1b"} & set("".join(capsys.readouterr()))


def test_text_that_looks_like_a_formula_is_copied_to_csv_unchanged(rows) -> None:
    frame = pd.DataFrame(rows, columns=["a", "=b"])
    frame["@note"] = np.resize(CELLS, 20)
    frame.loc[3, "a"] = np.nan
    frame.to_csv("t.csv", index=False)
    assert main(["complete", "t.csv", "--sigma", "1", "--quiet"]) == 0
    found = pd.read_csv("t.completed.csv")
    assert list(found) == ["a", "=b", "@note"]
    assert found["@note"].to_list() == frame["@note"].to_list()


def test_text_that_looks_like_a_formula_is_text_in_excel(rows) -> None:
    openpyxl = pytest.importorskip("openpyxl")
    frame = pd.DataFrame({"=a": CELLS, "b": [1.0, 2.0, 3.0, -4.0]})
    write_table(frame, "t.xlsx")
    sheet = openpyxl.load_workbook("t.xlsx").active
    assert {cell.data_type for cell in sheet["A"]} == {"s"}
    assert [cell.value for cell in sheet["A"]] == ["=a", *CELLS]
    assert read_table("t.xlsx").X[:, 0].tolist() == [1.0, 2.0, 3.0, -4.0]
    with pytest.raises(InvalidInputError, match="Excel"):
        write_table({"a": [COLOUR]}, "t.xlsx")
