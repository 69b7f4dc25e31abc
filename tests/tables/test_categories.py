"""Columns that look like labels are pointed out, text that repeats is a category, other is not."""

import numpy as np
import pandas as pd
import pytest

from isthmus.cli.main import main
from isthmus.impute import MemoryImputer
from isthmus.synthesis import draw_rows
from isthmus.tables.categories import with_categories
from isthmus.tables.files import read_table

RNG = np.random.default_rng(0)
MEASURED = pd.DataFrame(RNG.normal(size=(60, 2)), columns=["a", "b"])


@pytest.mark.parametrize(
    "line", ["certify {} --sigma 0.1", "complete {} -o {}.out.csv", "sample {} -n 2 --no-check"]
)
def test_every_command_points_it_out_unless_told(line, tmp_path, capsys) -> None:
    path = tmp_path / "table.csv"
    MEASURED.assign(species=np.arange(60) % 3).to_csv(path, index=False)
    for more, told in (("", True), (" --label species", False), (" --drop species", False)):
        assert main((line.replace("{}", str(path)) + more).split()) == 0
        notes = capsys.readouterr().err
        for words in ("'species' looks like a label", "--label species", "--drop species"):
            assert (words in notes) is told
        assert "numbers as text" not in notes


def test_text_that_repeats_is_a_category_and_other_text_is_left_out(tmp_path) -> None:
    path = tmp_path / "table.csv"
    frame = MEASURED.assign(id=range(60), city=["Rome", "Oslo"] * 30, whole=np.arange(60) // 3)
    frame["note"] = [f"text {row}" for row in range(60)]
    frame.to_csv(path, index=False)
    found, notes = with_categories(read_table(path))
    assert list(found) == ["a", "b", "city", "whole"]
    assert found.whole.dtype == np.int64
    assert any("categories: city" in note for note in notes)
    assert any("own value" in note and "note" in note for note in notes)


def test_numbers_of_several_units_are_not_said_to_be_text(tmp_path) -> None:
    path = tmp_path / "table.csv"
    size = [f"{170 + row / 10:.1f} cm" if row % 3 else f"1.{row + 17} m" for row in range(60)]
    note = [f"text {row}" for row in range(60)]
    MEASURED.assign(size=size, note=note, town=["12 Oslo", "Rome 3"] * 30).to_csv(path, index=False)
    table = read_table(path)
    for notes in (table.notes, with_categories(table)[1]):
        assert any("several units, such as m and cm: size." in note for note in notes)
        assert not any("size" in note for note in notes if "units" not in note)
    assert "Not used, since most cells are not numbers: note, town." in table.notes


def test_missing_text_is_no_category_unless_there_is_but_one(tmp_path) -> None:
    path = tmp_path / "table.csv"
    cities, ticks = ["Rome", "Oslo", "", "NA"] * 15, ["x", ""] * 30
    MEASURED.assign(city=cities, tick=ticks).to_csv(path, index=False)
    found, _ = with_categories(read_table(path))
    assert set(found.city.dropna()) == {"Rome", "Oslo"}
    assert found.city.isna().sum() == 30
    assert set(found.tick) == {"x", ""}


def test_text_that_hardly_repeats_is_named_where_it_is_learned_from() -> None:
    dates = pd.date_range("2024-01-01", periods=60).strftime("%Y-%m-%d")
    frame = MEASURED.assign(kind=["ant", "bee", "-"] * 20, day=pd.Timestamp("2024-01-01"))
    for learn in (lambda table: draw_rows(table, 2, check=False), MemoryImputer().fit):
        learn(frame)  # without a warning
        with pytest.warns(UserWarning, match="'when' .* such as '2024-01-01'") as found:
            learn(frame.assign(when=dates))
        assert [each.filename for each in found] == [__file__]
