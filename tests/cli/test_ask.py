"""`isthmus ask`: a question to a table, and one line for bad input."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest


@pytest.fixture(autouse=True)
def houses(run) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rooms = rng.integers(1, 7, 60)
    kind = np.where(rooms > 3, "house", "flat")
    frame = pd.DataFrame({"rooms": rooms, "kind": kind, "price": 60 * rooms + rng.normal(0, 9, 60)})
    frame.to_csv("houses.csv", index=False)
    return frame


def test_numbers_and_categories(run) -> None:
    command = "ask houses.csv --json --quiet --predict"
    found = json.loads(run(f"{command} price --given rooms=3").out)
    low, high = found["interval"]
    assert low < found["median"] < high
    assert found["given"] == {"rooms": 3.0}
    assert abs(found["mean"] - 180) < 40
    shares = json.loads(run(f"{command} kind --given rooms=6").out)["probabilities"]
    assert shares["house"] > 0.8
    assert sum(shares.values()) == pytest.approx(1)
    assert "house" in run("ask houses.csv --predict kind --given rooms=6").out


def test_missing_text_is_no_answer_and_a_value_that_no_row_has_is_noted(run, houses) -> None:
    gaps = houses.assign(kind=houses.kind.where(houses.index % 5 > 0))
    gaps.to_csv("houses.csv", index=False)
    found = json.loads(run("ask houses.csv --predict kind --json").out)
    assert set(found["probabilities"]) == {"house", "flat"}
    noted = run("ask houses.csv --predict price --given kind=hut").err
    assert "kind=hut: no row has this value; known are flat, house" in noted


@pytest.mark.parametrize("rooms", [0, 1, 6, 1000])
def test_a_number_outside_the_range_of_its_column_is_noted(run, rooms) -> None:
    noted = run(f"ask houses.csv --predict price --given rooms={rooms}").err
    words = f"rooms={rooms} is outside the range of its column, 1 to 6."
    assert (words in noted) is (rooms not in (1, 6))
    assert ("outside" in noted) is (rooms not in (1, 6))


@pytest.mark.parametrize(
    ("cell", "mark"), [("{:.1f} cm", "."), ("${:,.2f}", "."), ("€{:.1f}", ","), ("{:.0f}%", ".")]
)
def test_values_are_given_as_the_file_writes_them(run, houses, cell, mark) -> None:
    swap = str.maketrans(",.", ".,") if mark == "," else {}
    cells = houses.price.add(900).map(cell.format).str.translate(swap)
    houses.assign(price=cells).to_csv("units.csv", index=False, sep=";")
    value = cell.format(1123).translate(swap)
    found = run("ask units.csv --predict rooms --json --quiet --given", f"price={value}")
    assert json.loads(found.out)["given"] == {"price": 1123}
    ends = "..".join(cell.format(end).translate(swap) for end in (1000, 1100))
    run("sample units.csv -n 9 --no-check --quiet -o drawn.csv --given", f"price={ends}")
    drawn = pd.read_csv("drawn.csv", sep=";").price.str.translate(swap)
    assert drawn.str.replace(r"[^\d.]", "", regex=True).astype(float).between(1000, 1100).all()
    wrong = run("ask units.csv --predict rooms --given", "price=1100 kg", code=2)
    assert "write a number" in wrong.err


@pytest.mark.parametrize("spelling", [("0", "1"), ("no", "yes"), ("FALSE", "TRUE")])
def test_truth_values_are_predicted_by_probabilities(run, spelling) -> None:
    lines = [f"{spelling[row % 2]},{row % 2 * 9 + row % 7}" for row in range(40)]
    Path("flags.csv").write_text("\n".join(["sold,price", *lines, ",3"]))
    found = json.loads(run("ask flags.csv --predict sold --json --given price=14").out)
    assert len(found["probabilities"]) == 2
    assert max(found["probabilities"], key=found["probabilities"].get).upper() in "1 YES TRUE"


def test_truth_values_are_given_as_they_are_written(run) -> None:
    lines = [f"{'true' if row % 2 else 'false'},{row % 2 * 9 + row % 7}" for row in range(40)]
    Path("flags.csv").write_text("\n".join(["sold,price", *lines]))
    command = "ask flags.csv --predict price --json --quiet --given"
    assert json.loads(run(f"{command} sold=True").out)["mean"] > 8
    assert json.loads(run(f"{command} sold=True").out)["given"] == {"sold": True}
    assert "--given" in run("ask flags.csv --predict price").err
    run(f"{command} sold=maybe", code=2)
    found = json.loads(run("ask flags.csv --predict sold --given price=12 --json --quiet").out)
    assert found["probabilities"]["true"] > 0.8
