"""Input becomes checked tensors, whatever memory layout it came in."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from isthmus import errors
from isthmus.errors import DtypeError, InvalidInputError, IsthmusError, ShapeError
from isthmus.scaling import as_table
from isthmus.validation import (
    as_array,
    as_choice,
    as_count,
    as_flag,
    as_log_weights,
    as_mask,
    as_number,
    as_numbers,
    as_points,
    as_positive,
    as_tensor,
    is_transforming,
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


def test_a_writable_array_is_not_copied():
    array = TABLE.copy()
    assert as_tensor(array, "x").data_ptr() == array.ctypes.data


def test_a_tensor_is_returned_as_it_is():
    tensor = torch.randn(3, requires_grad=True)
    assert as_tensor(tensor, "x") is tensor


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


def test_ragged_rows_are_refused():
    with pytest.raises(ShapeError, match="not a rectangular array"):
        as_tensor([[1.0, 2.0], [3.0]], "x")


def test_sparse_tensors_are_refused_with_the_remedy():
    with pytest.raises(InvalidInputError, match="to_dense"):
        as_tensor(torch.eye(3).to_sparse(), "x")


def test_require_finite_counts_what_is_wrong():
    with pytest.raises(InvalidInputError, match="values"):
        require_finite(torch.tensor([1.0, np.nan, np.nan]), "x", "Do this")
    with pytest.raises(InvalidInputError, match=r"x has 1 infinite value\."):
        require_finite(torch.tensor([1.0, -np.inf]), "x", "")
    with pytest.raises(InvalidInputError, match="infinite"):  # whose sum is NaN
        require_finite(torch.tensor([np.inf, -np.inf]), "x", "")


def test_finite_numbers_with_an_overflowing_sum_are_fine():
    require_finite(torch.full((10,), 3e38), "x", "")
    require_finite(torch.zeros(0), "x", "")


def test_points_take_the_dtype_that_is_asked_for():
    assert as_points(TABLE, "x", like=LIKE).dtype == torch.float32
    assert as_points(TABLE, "x").dtype == torch.float64


@pytest.mark.parametrize(
    ("value", "complaint"), [(3.0, "single number"), (TABLE, r"3 coordinates.*has\s+4")]
)
def test_points_of_another_dimension_are_refused(value, complaint):
    with pytest.raises(ShapeError, match=complaint):
        as_points(value, "x", dim=4)


def test_nan_is_a_mistake_unless_it_marks_the_unknown():
    unknown = np.array([1.0, np.nan])
    with pytest.raises(InvalidInputError, match=r"isthmus\.complete"):
        as_points(unknown, "x")
    assert torch.isnan(as_points(unknown, "x", allow_nan=True)).tolist() == [False, True]
    with pytest.raises(InvalidInputError, match="coordinates"):
        as_points(np.array([np.inf, np.nan]), "x", allow_nan=True)


@pytest.mark.parametrize(
    "value",
    [0, -1.0, np.nan, np.inf, "wide", None, 1j, torch.tensor(-2.0), torch.tensor(1j), [1.0, 2.0]],
)
def test_scales_must_be_positive_finite_numbers(value):
    with pytest.raises(InvalidInputError, match="width"):
        as_positive(value, "width", LIKE)


def test_a_scale_is_one_number():
    with pytest.raises(ShapeError, match="single number"):
        as_positive(torch.ones(2), "width", LIKE)


def test_zero_passes_where_it_is_allowed_and_less_does_not():
    assert as_positive(0.0, "alpha", LIKE, allow_zero=True) == 0
    with pytest.raises(InvalidInputError, match="at least zero"):
        as_positive(-1e-9, "alpha", LIKE, allow_zero=True)


def test_a_scale_takes_dtype_from_its_company_and_keeps_its_graph():
    leaf = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    scale = as_positive(leaf, "beta", LIKE)
    assert scale.dtype == torch.float32
    scale.square().backward()
    assert leaf.grad == 4
    assert as_positive(torch.tensor(3), "beta", LIKE).dtype == torch.float32


def test_a_fitting_parameter_is_returned_itself():
    parameter = torch.nn.Parameter(torch.tensor(2.0))
    assert as_positive(parameter, "beta", LIKE) is parameter


def test_masks_broadcast_from_any_layout():
    x = torch.zeros(4, 3)
    backwards = np.array([True, False, False])[::-1]
    frozen = np.array([False, False, True])
    frozen.flags.writeable = False
    for mask in (backwards, frozen, [False, False, True], torch.tensor([False, False, True])):
        found = as_mask(mask, "observed", x)
        assert found.shape == x.shape
        assert found.sum(0).tolist() == [0, 0, 4]


@pytest.mark.parametrize("mask", [np.ones(3), [1, 0, 1], ["a"], torch.ones(3), None])
def test_masks_are_boolean(mask):
    with pytest.raises(DtypeError, match="boolean mask"):
        as_mask(mask, "observed", torch.zeros(4, 3))


def test_masks_of_another_shape_are_refused():
    with pytest.raises(ShapeError, match=r"\(2,\) does not broadcast to \(4, 3\)"):
        as_mask([True, False], "observed", torch.zeros(4, 3))


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


def test_transforms_are_noticed():
    seen = []
    torch.func.vmap(lambda x: seen.append(is_transforming()) or x)(torch.zeros(2))
    assert seen == [True]
    assert not is_transforming()


def test_every_error_is_an_isthmus_error_and_a_value_or_type_error():
    named = [value for value in vars(errors).values() if isinstance(value, type)]
    assert len(named) == 15
    assert all(issubclass(error, IsthmusError) for error in named)
    assert all(
        issubclass(error, (ValueError, TypeError)) for error in named if error is not IsthmusError
    )


@pytest.mark.parametrize(
    "value", [7, np.int64(7), np.uint8(7), 7.0, np.float32(7), torch.tensor(7)]
)
def test_counts_are_whole_numbers_of_any_numeric_type(value):
    found = as_count(value, "n", at_most=7)
    assert found == 7
    assert type(found) is int


def test_large_counts_are_exact():
    assert as_count(2**63 + 1, "n") == 2**63 + 1


@pytest.mark.parametrize("value", [0, -1, 8, 2.5, np.nan, np.inf, 10**400])
def test_counts_outside_their_range_are_refused(value):
    with pytest.raises(InvalidInputError, match="number"):
        as_count(value, "n", at_most=7)


@pytest.mark.parametrize("value", [True, np.True_, "7", None, 1j, [7, 7], torch.ones(2)])
@pytest.mark.parametrize("check", [as_count, as_number])
def test_what_is_not_a_number_is_refused(check, value):
    with pytest.raises(DtypeError, match="n must be a"):
        check(value, "n")


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


def test_choices_and_flags_are_checked():
    assert as_choice("a", "kind", ["a", "b"]) == "a"
    assert as_flag(np.True_, "full") is True
    with pytest.raises(InvalidInputError, match="kind must be one of 'a', 'b', not 'c'"):
        as_choice("c", "kind", ["a", "b"])
    with pytest.raises(InvalidInputError, match="False"):
        as_flag(1, "full")


def test_arrays_of_numbers_have_no_nan():
    assert as_array([[1, np.inf]], "separation").dtype == np.float64
    with pytest.raises(InvalidInputError, match="must not contain NaN"):
        as_array([np.nan], "separation")
    with pytest.raises(InvalidInputError, match="negative"):
        as_array([3, -1], "separation", allow_negative=False)
    with pytest.raises(DtypeError, match="separation"):
        as_array(["a"], "separation")


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
