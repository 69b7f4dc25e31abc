"""Raw data frames: columns that are hardly categories are named, with what to do."""

import numpy as np
import pandas as pd
import pytest

from isthmus.impute import MemoryImputer
from isthmus.synthesis import draw_rows
from isthmus.tables.frames import doubtful_columns

N = 24
NUMBERS = np.random.default_rng(0).normal(size=N)
CASES = {
    "customer_id": ([f"c{row}" for row in range(N)], "looks like row ids"),
    "rowid": (np.arange(N), "looks like row ids"),
    "price": ([f"${row}.50" for row in range(N)], "numbers as text, such as '\\$0.50'"),
    "rate": (["15.3 %", "n/a"] * (N // 2), "numbers as text, such as '15.3 %'"),
    "when": (pd.date_range("2024-01-01", periods=N).strftime("%Y-%m-%d"), "to_datetime"),
    "name": ([f"person {row}" for row in range(N)], "hardly repeats, such as 'person 0'"),
}
PLAIN = {
    "kind": ["ant", "bee", "-"] * (N // 3),
    "paid": np.arange(N),
    "id": np.linspace(0, 1, N),
    "flag": [True, False] * (N // 2),
    "objects": np.array([True, False] * (N // 2), dtype=object),
    "day": pd.date_range("2024-01-01", periods=N),
}


@pytest.mark.parametrize("name", CASES)
def test_doubtful_columns_are_named(name: str) -> None:
    values, words = CASES[name]
    frame = pd.DataFrame({"x": NUMBERS, "kind": PLAIN["kind"], name: values})
    with pytest.warns(UserWarning, match=words) as found:
        draw_rows(frame, 2, check=False)
    assert len(found) == 1
    assert f"Column {name!r}" in str(found[0].message)
    assert found[0].filename == __file__
    with pytest.warns(UserWarning, match=words):
        MemoryImputer().fit(frame)


@pytest.mark.parametrize("name", PLAIN)
def test_other_columns_are_not(name: str) -> None:
    assert not list(doubtful_columns(pd.DataFrame({name: PLAIN[name]})))
