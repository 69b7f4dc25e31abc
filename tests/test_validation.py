"""Input becomes checked tensors, whatever memory layout it came in."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from isthmus.errors import DtypeError, InvalidInputError, ShapeError
from isthmus.scaling import as_table
from isthmus.validation import (
    as_array,
    as_count,
    as_log_weights,
    as_mask,
    as_number,
    as_numbers,
    as_points,
    as_positive,
    as_tensor,
    require_finite,
)

TABLE = np.arange(12, dtype=np.float64).reshape(4, 3)
LIKE = torch.zeros(2, dtype=torch.float32)


def read_only() -> np.ndarray:
    array = TABLE.copy()
    array.flags.writeable = False
    return array


def packed_field() -> np.ndarray:
    records = np.zeros((4, 3), dtype=[("flag", "i1"), ("value", "f8")])
    records["value"] = TABLE
    return records["value"]


LAYOUTS = {
    "read-only": read_only(),
    "strided": np.repeat(TABLE, 2, axis=1)[:, ::2],
    "negative-strides": TABLE[::-1, ::-1].copy()[::-1, ::-1],
    "fortran": np.asfortranarray(TABLE),
    "big-endian": TABLE.astype(">f8"),
    "broadcast": np.broadcast_to(TABLE, (1, 4, 3))[0],
    "unaligned": packed_field(),
    "list": TABLE.tolist(),
    "tensor": torch.from_numpy(TABLE),
}


@pytest.mark.parametrize("value", LAYOUTS.values(), ids=LAYOUTS)
def test_any_memory_layout_gives_the_same_tensor(value):
    found = as_tensor(value, "x")
    assert found.dtype == torch.float64
    np.testing.assert_array_equal(found.numpy(), TABLE)


WRONG_DTYPES = {
    "booleans": np.array([True, False]),
    "complex": np.array([1j]),
    "wide complex": np.array([1j], dtype=np.clongdouble),
    "complex tensor": torch.tensor([1j]),
    "half": np.ones(3, dtype=np.float16),
    "bfloat16": torch.ones(3, dtype=torch.bfloat16),
    "long double": np.ones(3, dtype=np.longdouble),
    "text": np.array(["a", "b"]),
    "one string": "some text",
    "objects": np.array([1.0, "b"], dtype=object),
    "dates": np.array(["2024-01-01"], dtype="datetime64[D]"),
    "none": None,
}


@pytest.mark.parametrize("value", WRONG_DTYPES.values(), ids=WRONG_DTYPES)
def test_what_is_not_float32_or_float64_is_named_and_refused(value):
    with pytest.raises(DtypeError, match="my_table holds"):
        as_tensor(value, "my_table")


def test_finite_numbers_with_an_overflowing_sum_are_fine():
    require_finite(torch.full((10,), 3e38), "x", "")
    require_finite(torch.zeros(0), "x", "")


def test_masks_broadcast_from_any_layout():
    x = torch.zeros(4, 3)
    backwards = np.array([True, False, False])[::-1]
    frozen = np.array([False, False, True])
    frozen.flags.writeable = False
    for mask in (backwards, frozen, [False, False, True], torch.tensor([False, False, True])):
        found = as_mask(mask, "observed", x)
        assert found.shape == x.shape
        assert found.sum(0).tolist() == [0, 0, 4]


def test_log_weights_may_leave_memories_out_but_not_all():
    memories = torch.zeros(3, 2)
    assert as_log_weights([0.0, -np.inf, 1.0], "bias", memories).dtype == torch.float32
    for wrong in ([0.0, np.nan, 0.0], [0.0, np.inf, 0.0], [-np.inf] * 3):
        with pytest.raises(InvalidInputError, match="logarithms"):
            as_log_weights(wrong, "bias", memories)
    with pytest.raises(ShapeError, match="one per memory"):
        as_log_weights([0.0, 1.0], "bias", memories)


def test_masked_values_are_unknown():
    masked = np.ma.array(TABLE, mask=TABLE == 4)
    found = as_points(masked, "x", allow_nan=True).numpy()
    assert np.isnan(found).sum() == 1
    assert np.isnan(found[1, 1])
    assert np.isnan(as_table(masked.astype(int))[0][1, 1])
    for check in (as_points, as_array):
        with pytest.raises(InvalidInputError, match="NaN"):
            check(masked, "x")


@pytest.mark.parametrize(
    "value", [7, np.int64(7), np.uint8(7), 7.0, np.float32(7), torch.tensor(7)]
)
def test_counts_are_whole_numbers_of_any_numeric_type(value):
    found = as_count(value, "n", at_most=7)
    assert found == 7
    assert type(found) is int


def test_large_counts_are_exact():
    assert as_count(2**63 + 1, "n") == 2**63 + 1


@pytest.mark.parametrize(
    ("bounds", "good", "bad", "words"),
    [
        ({"above": 0}, 1e-300, 0, "above 0"),
        ({"at_least": 0}, 0, -1e-300, "at least 0"),
        ({"above": 0, "below": 1}, 0.5, 1, "above 0 and below 1"),
        ({"above": 0, "at_most": 1}, 1, 1.5, "above 0 and at most 1"),
        ({}, -5, np.inf, ", not"),
    ],
)
def test_numbers_are_finite_and_within_their_bounds(bounds, good, bad, words):
    assert as_number(good, "share", **bounds) == good
    for wrong in (bad, np.nan):
        with pytest.raises(InvalidInputError, match=f"share must be a finite number.*{words}"):
            as_number(wrong, "share", **bounds)


def test_scalar_checks_do_not_import_torch():
    code = "import sys, isthmus.validation; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("kind", [np.int8, np.uint16, np.int64])
def test_whole_numbers_become_floats(kind: type) -> None:
    rows = np.array([[1, 2], [3, 4]], dtype=kind)
    expected = torch.tensor([[1.0, 2], [3, 4]], dtype=torch.float64)
    assert torch.equal(as_tensor(rows, "X"), expected)
    assert torch.equal(as_tensor(rows.tolist(), "X"), expected)
    assert as_tensor(expected.long(), "X").dtype == torch.get_default_dtype()
    like = torch.zeros(2)
    assert as_points(rows, "X", like=like).dtype == torch.float32


def test_nullable_columns_are_numbers_and_their_gaps_nan() -> None:
    whole, real = pd.array([1, 2], dtype="Int64"), pd.array([0.5, None], dtype="Float64")
    frame = pd.DataFrame({"a": whole, "b": real})
    for form in (frame, frame.convert_dtypes(dtype_backend="pyarrow")):
        for found in (as_tensor(form, "x").numpy(), as_numbers(form, "x")):
            np.testing.assert_array_equal(found, [[1, 0.5], [2, np.nan]])
    flags = pd.DataFrame({"a": pd.array([True, None], dtype="boolean")})
    np.testing.assert_array_equal(as_numbers(flags, "x"), [[1], [np.nan]])
    words = pd.DataFrame({"a": pd.array(["1", None], dtype="string")})
    for check in (as_tensor, as_numbers):
        with pytest.raises(DtypeError, match="x"):
            check(words, "x")


@pytest.mark.parametrize(
    "value",
    [
        "3",
        b"3",
        True,
        np.True_,
        2 + 3j,
        np.complex64(2 + 3j),
        np.array("3"),
        np.array(True),
        torch.tensor(True),
        torch.tensor(1j),
        np.datetime64("2020-01-01"),
        None,
        [1.0],
    ],
    ids=repr,
)
def test_what_is_no_number_is_refused_as_one(value):
    for call in (lambda: as_positive(value, "beta", LIKE), lambda: as_number(value, "beta")):
        with pytest.raises(InvalidInputError, match="beta"):
            call()
