"""`isthmus complete`: only gaps change, and files keep their format."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris

from isthmus.cluster import TableModel
from isthmus.impute import fill_gaps
from isthmus.tables import write_table

IRIS = load_iris(as_frame=True)
WHOLE = IRIS.data.to_numpy()
COLUMNS = ["a", "b", "c", "d"]


@pytest.fixture
def gaps(run) -> pd.DataFrame:
    """Iris with a name and a species, and a tenth of its cells missing, as gaps.csv."""
    frame = IRIS.data.set_axis(COLUMNS, axis=1)
    frame = frame.mask(np.random.default_rng(0).random(frame.shape) < 0.1)
    frame.insert(0, "name", [f"{number:03}" for number in range(150)])
    frame["species"] = [IRIS.target_names[kind] for kind in IRIS.target]
    frame.to_csv("gaps.csv", index=False)
    return frame


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ([], {}),
        (["--sigma", "0.4", "--how", "mode"], {"sigma": 0.4, "how": "mode"}),
        (["--energy", "tables"], {"energy": "tables"}),
        (["--sigma", "0.2", "--no-standardise"], {"sigma": 0.2, "standardise": False}),
        (["--memory", "whole.csv", "--sigma", "0.2"], {"memory": WHOLE, "sigma": 0.2}),
    ],
)
def test_every_option_reaches_the_library(run, gaps, options, settings) -> None:
    IRIS.data.set_axis(COLUMNS, axis=1)[COLUMNS[::-1]].to_csv("whole.csv", index=False)
    printed = run("complete gaps.csv --drop name -o o.parquet --json --quiet", *options).out
    expected = fill_gaps(gaps[COLUMNS], words=gaps[["species"]], **settings)
    rows = pd.read_parquet("o.parquet")
    np.testing.assert_allclose(rows[COLUMNS], expected.X.round(1), rtol=1e-12)
    assert list(rows.columns) == list(gaps.columns)
    assert json.loads(printed) == expected.summary | {"output": "o.parquet"}


def test_a_saved_model_completes_the_columns_that_it_knows(run, gaps) -> None:
    run("cluster gaps.csv --drop name,d --save m.safetensors -o c.csv --quiet")
    notes = run("complete gaps.csv --drop name --model m.safetensors").err
    expected = fill_gaps(gaps[COLUMNS], model=TableModel.load("m.safetensors"))
    found = pd.read_csv("gaps.completed.csv")[COLUMNS]
    np.testing.assert_allclose(found, expected.X.round(1), rtol=1e-12)
    assert expected.notes[0] in notes


def test_a_memory_may_repeat_ids(run, gaps) -> None:
    numbered = gaps[COLUMNS].assign(customer_id=range(150, 0, -1))
    numbered.to_csv("numbered.csv", index=False)
    pd.concat([numbered, numbered[:1]]).to_csv("memory.csv", index=False)
    run("complete numbered.csv --sigma 1 -o out.json --memory memory.csv")
    assert list(pd.read_json("out.json")["customer_id"]) == list(range(150, 0, -1))


@pytest.mark.slow
def test_the_page_on_the_command_line_shows_the_real_output(run) -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    exec(next(block for block in blocks if "iris.csv" in block), {})
    shown = re.findall(
        r"```sh\nisthmus ((?:cluster|complete|certify|sample) [^\n]*)\n```\n\n```text\n(.*?)```",
        page,
        re.DOTALL,
    )
    assert len(shown) == 4
    for command, expected in shown:
        assert run(command).out == expected


@pytest.mark.parametrize("suffix", [".parquet", ".jsonl", ".xlsx"])
def test_text_of_other_formats_is_learned_from_and_filled(run, gaps, suffix) -> None:
    frame = gaps.drop(columns="name").assign(species=gaps.species.mask(gaps.index % 9 == 0))
    frame.to_csv("text.csv", index=False)
    write_table(frame, f"typed{suffix}")
    assert "Gaps are left" not in run(f"complete typed{suffix} -o typed.csv").err
    run("complete text.csv -o plain.csv")
    found, expected = pd.read_csv("typed.csv"), pd.read_csv("plain.csv")
    assert found.species.tolist() == expected.species.tolist()
    assert not found.species.isna().any()


@pytest.fixture
def shop(run) -> list[list[str]]:
    """Write a table of ids, dates, amounts, truth values and text, each with gaps, as shop.csv."""
    rng = np.random.default_rng(0)
    age = rng.integers(18, 80, 120)
    pay = 30 * age + rng.normal(0, 90, 120)
    days = pd.date_range("2024-01-01", periods=120).strftime("%Y-%m-%d")
    frame = pd.DataFrame({"customer_id": [f"c{row:04}" for row in range(120)], "when": days})
    frame["age"], frame["pay"] = age.astype(str), [f"${one:.2f}" for one in pay]
    frame["rate"] = [f"{one / 30:.1f} %" for one in pay]
    frame["city"], frame["member"] = rng.choice(["Rome", "Oslo"], 120), ["true", "false"] * 60
    frame["note"], frame["hours"] = [f"text {row}" for row in range(120)], (pay / 7).round(1)
    frame = frame.astype(str).astype(object)
    marks = ["-", "n/a", "-", "", "NA", "?", "--", "null"]
    for name, mark in zip(frame.columns[1:], marks, strict=True):
        frame.loc[rng.choice(120, 6, replace=False), name] = mark
    frame.to_csv("shop.csv", index=False)
    return frame.to_numpy().tolist()


def test_fills_are_written_as_the_cells_of_their_column(run, shop) -> None:
    """Ids, dates, gaps, text and amounts: only gaps change, and what stays empty is named."""
    notes = run("complete shop.csv").err
    assert "Gaps are left in when (6), note (6)" in notes
    assert "'customer_id' is used as row ids" in notes
    found = pd.read_csv("shop.completed.csv", dtype=str, keep_default_na=False).to_numpy().tolist()
    assert "Copied, and not learned from: when, note" in notes
    patterns = [r"c\d{4}", r"[-\d]+", r"\d\d", r"\$\d+\.\d\d", r"\d+\.\d %", "Rome|Oslo"]
    patterns += ["true|false", r"text \d+|--", r"\d+\.\d"]
    changed = 0
    for before, after in zip(shop, found, strict=True):
        for old, new, pattern in zip(before, after, patterns, strict=True):
            assert re.fullmatch(pattern, new)
            changed += old != new
    assert changed == 6 * 6
