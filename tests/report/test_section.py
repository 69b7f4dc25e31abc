"""Sections: what JSON can hold, and files that are read as they were written."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure

from isthmus.errors import InvalidInputError
from isthmus.report import Finding, Section, TextTable

leaves = st.none() | st.booleans() | st.integers() | st.text()
leaves |= st.floats(allow_nan=False, allow_infinity=False)
values = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8
)


@settings(max_examples=25)
@given(st.dictionaries(st.text(), values), st.text(), st.binary() | st.none())
def test_a_section_is_read_as_it_was_written(
    numbers: dict[str, Any], caption: str, figure: bytes | None
) -> None:
    table = TextTable(("a", "b"), (("1", "2"),))
    section = Section(
        caption, figure, numbers, (Finding("a", "held", "b"),), table, ("c",), seconds=0.5
    )
    assert Section.from_json(section.to_json(), figure) == section


def test_a_figure_becomes_a_png_and_belongs_to_its_section() -> None:
    section = Section("A", Figure(figsize=(1, 1)))
    assert isinstance(section.figure, bytes)
    assert section.figure.startswith(b"\x89PNG")
    with pytest.raises(InvalidInputError, match="figure"):
        Section.from_json(section.to_json(), None)
    failed = Section(status="failed", message="no")
    assert Section.from_json(failed.to_json(), section.figure) == failed


def test_numpy_values_become_plain_ones() -> None:
    value = {1: (np.float64(0.5), np.int64(2)), "text": [True, None, "x", {"y": np.float32(0.25)}]}
    expected = {"1": [0.5, 2], "text": [True, None, "x", {"y": 0.25}]}
    assert json.dumps(Section(numbers=value).numbers) == json.dumps(expected)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": [1.0, float("inf")]}, r"numbers\.a"),
        ({"a": {"b": np.float64("nan")}}, r"numbers\.a"),
        ({"a": np.zeros(2)}, r"numbers\.a"),
        ({"a": 1j}, r"numbers\.a"),
    ],
)
def test_a_value_that_json_cannot_hold_is_named(value: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        Section("A", numbers=value)
