"""`isthmus ask`: a question to a table, and one line for bad input."""

import json

import numpy as np
import pandas as pd
import pytest

from isthmus.cli.main import main


@pytest.fixture
def houses(tmp_path) -> str:
    rng = np.random.default_rng(0)
    rooms = rng.integers(1, 7, 60)
    kind = np.where(rooms > 3, "house", "flat")
    frame = pd.DataFrame({"rooms": rooms, "kind": kind, "price": 60 * rooms + rng.normal(0, 9, 60)})
    frame.to_csv(tmp_path / "houses.csv", index=False)
    return str(tmp_path / "houses.csv")


def test_numbers_and_categories(houses, capsys) -> None:
    assert (
        main(["ask", houses, "--predict", "price", "--given", "rooms=3", "--json", "--quiet"]) == 0
    )
    found = json.loads(capsys.readouterr().out)
    low, high = found["interval"]
    assert low < found["median"] < high
    assert found["given"] == {"rooms": 3.0}
    assert abs(found["mean"] - 180) < 40
    assert (
        main(["ask", houses, "--predict", "kind", "--given", "rooms=6", "--json", "--quiet"]) == 0
    )
    shares = json.loads(capsys.readouterr().out)["probabilities"]
    assert shares["house"] > 0.8
    assert sum(shares.values()) == pytest.approx(1)
    assert main(["ask", houses, "--predict", "kind", "--given", "rooms=6"]) == 0
    assert "house" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        "--predict size",
        "--predict price --given rooms",
        "--predict price --given rooms=many",
        "--predict price --given rom=3",
        "--predict price --given price=3",
        "",
    ],
)
def test_bad_questions_are_one_line(houses, words, capsys) -> None:
    assert main(["ask", houses, *words.split()]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_missing_text_is_no_answer_and_a_value_that_no_row_has_is_noted(houses, capsys) -> None:
    frame = pd.read_csv(houses)
    frame.assign(kind=frame.kind.where(frame.index % 5 > 0)).to_csv(houses, index=False)
    assert main(["ask", houses, "--predict", "kind", "--json"]) == 0
    assert set(json.loads(capsys.readouterr().out)["probabilities"]) == {"house", "flat"}
    assert main(["ask", houses, "--predict", "price", "--given", "kind=hut"]) == 0
    assert "kind=hut" in capsys.readouterr().err


def test_truth_values_are_given_as_they_are_written(tmp_path, capsys) -> None:
    path = tmp_path / "flags.csv"
    lines = [f"{'true' if row % 2 else 'false'},{row % 2 * 9 + row % 7}" for row in range(40)]
    path.write_text("\n".join(["sold,price", *lines]))
    words = ["ask", str(path), "--predict", "price", "--json", "--quiet", "--given"]
    assert main([*words, "sold=True"]) == 0
    assert json.loads(capsys.readouterr().out)["mean"] > 8
    assert main([*words, "sold=maybe"]) == 2
