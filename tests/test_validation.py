"""Input becomes checked tensors, whatever memory layout it came in; other things are refused."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch

import isthmus as ist
from isthmus import nn
from isthmus.cluster import BasinFlow, ClAM, ClAMCRP, ClAMELBO, GaussianMeanShift
from isthmus.errors import DtypeError, InvalidInputError, IsthmusError
from isthmus.impute import MemoryImputer
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
    require_values,
)

TABLE = np.arange(12, dtype=np.float64).reshape(4, 3)


def test_any_memory_layout_gives_the_same_tensor():
    frozen = TABLE.copy()
    frozen.flags.writeable = False
    records = np.zeros((4, 3), dtype=[("flag", "i1"), ("value", "f8")])
    records["value"] = TABLE
    layouts = [frozen, np.asfortranarray(TABLE), TABLE.astype(">f8"), TABLE.tolist()]
    layouts += [np.repeat(TABLE, 2, axis=1)[:, ::2], TABLE[::-1, ::-1].copy()[::-1, ::-1]]
    layouts += [np.broadcast_to(TABLE, (1, 4, 3))[0], records["value"], torch.from_numpy(TABLE)]
    for value in layouts:
        found = as_tensor(value, "x")
        assert found.dtype == torch.float64
        np.testing.assert_array_equal(found.numpy(), TABLE)


def test_text_dates_and_records_are_not_numbers() -> None:
    dates = np.array([["2020-01-01"], ["2020-02-01"]], "datetime64[D]")
    digits = np.array([["1", "2"], ["3", "4"]])
    others = [np.zeros(3, dtype=[("a", float), ("b", float)]), digits.astype(object)]
    for values in (dates, dates - dates[0], dates.astype(object), digits, *others):
        for function in (as_tensor, as_numbers, lambda X, name: as_table(X)):
            with pytest.raises(InvalidInputError, match=r"number|text"):
                function(values, "X")


def test_finite_numbers_with_an_overflowing_sum_are_fine():
    require_finite(torch.full((10,), 3e38), "x", "")
    require_finite(torch.zeros(0), "x", "")


def test_masks_broadcast_from_any_layout():
    x = torch.zeros(4, 3)
    backwards = np.array([True, False, False])[::-1]
    for mask in (backwards, [False, False, True], torch.tensor([False, False, True])):
        assert as_mask(mask, "observed", x).sum(0).tolist() == [0, 0, 4]


def test_log_weights_may_leave_memories_out_but_not_all():
    memories = torch.zeros(3, 2)
    assert as_log_weights([0.0, -np.inf, 1.0], "bias", memories).dtype == torch.float32
    for wrong in ([0.0, np.nan, 0.0], [0.0, np.inf, 0.0], [-np.inf] * 3, [0.0, 1.0]):
        with pytest.raises(InvalidInputError, match="bias"):
            as_log_weights(wrong, "bias", memories)


def test_masked_values_are_unknown():
    masked = np.ma.array(TABLE, mask=TABLE == 4)
    found = as_points(masked, "x", allow_nan=True).numpy()
    assert np.isnan(found).sum() == 1
    assert np.isnan(found[1, 1])
    assert np.isnan(as_table(masked.astype(int))[0][1, 1])
    for check in (as_points, as_array):
        with pytest.raises(InvalidInputError, match="NaN"):
            check(masked, "x")
    with pytest.raises(InvalidInputError, match="finite"):
        ist.CRPMixture(np.eye(2), np.ma.masked_equal([3, -9999], -9999))
    seen = np.ma.array([[True, True]], mask=[[False, True]])  # the second is not known to be known
    kde = ist.GaussianKDE(np.array([[0.0, 0.0], [5.0, 7.0]]), 1.0)
    filled = kde.conditional_mean([[5.0, -9999.0]], seen)
    np.testing.assert_allclose(filled, [[5.0, 7.0]], atol=1e-3)
    with pytest.raises(ValueError, match="NaN"):
        ClAM(2).fit(np.eye(3), sample_weight=np.ma.masked_equal([1.0, 1.0, -9.0], -9.0))


def test_counts_are_whole_numbers_of_any_numeric_type():
    for value in (7, np.int64(7), np.uint8(7), 7.0, np.float32(7), torch.tensor(7)):
        found = as_count(value, "n", at_most=7)
        assert found == 7
        assert type(found) is int
    for whole in (2**63 + 1, torch.tensor(2**63 + 1, dtype=torch.uint64)):
        assert as_count(whole, "n") == 2**63 + 1
    for value in (0, -1, 8, 2.5, np.nan, np.inf, 10**400):
        with pytest.raises(InvalidInputError, match="n must be"):
            as_count(value, "n", at_most=7)
    for several in ([7], np.array([7]), torch.tensor([7.0])):
        with pytest.raises(DtypeError):
            as_count(several, "n")


@pytest.mark.parametrize(
    ("bounds", "good", "bad"),
    [
        ({"above": 0}, 1e-140, 0),
        ({"at_least": 0}, 0, -1e-140),
        ({"above": 0, "below": 1}, 0.5, 1),
        ({"above": 0, "at_most": 1}, 1, 1.5),
        ({}, -5, np.inf),
    ],
)
def test_numbers_are_finite_and_within_their_bounds(bounds, good, bad):
    assert as_number(good, "share", **bounds) == good
    for wrong in (bad, np.nan):
        with pytest.raises(InvalidInputError, match="share"):
            as_number(wrong, "share", **bounds)


def test_what_is_no_number_is_refused_as_one():
    values = ["3", b"3", True, np.True_, 2 + 3j, np.array("3"), np.array(True), None, [1.0]]
    values += [torch.tensor(True), torch.tensor(1j), np.datetime64("2020-01-01")]
    for value in values:
        with pytest.raises(InvalidInputError, match="beta"):
            as_positive(value, "beta", torch.zeros(2))
        with pytest.raises(InvalidInputError, match="beta"):
            as_number(value, "beta")


def test_scalar_checks_do_not_import_torch():
    code = "import sys, isthmus.validation; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_numbers_of_any_kind_are_read():
    expected = np.array([[1.0, 0.0], [0.0, 1.0]])
    for kind in (bool, np.int8, np.uint64, np.float16, np.longdouble, object):
        np.testing.assert_array_equal(as_numbers(expected.astype(kind), "X"), expected)
    for given in (torch.eye(2, dtype=torch.bfloat16), torch.eye(2, dtype=torch.int32)):
        np.testing.assert_array_equal(as_numbers(given, "X"), expected)
    assert np.isnan(as_numbers([[1.0, None]], "X")[0, 1])
    whole = expected.astype(np.int8)
    assert torch.equal(as_tensor(whole, "X"), torch.from_numpy(expected))
    assert as_points(whole, "X", like=torch.zeros(2)).dtype == torch.float32


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


@pytest.mark.parametrize("unit", [1e-308, 1e300])
@pytest.mark.parametrize(
    "make", [GaussianMeanShift, BasinFlow, ClAMCRP, lambda: ClAM(2), lambda: ClAMELBO(2)]
)
def test_tables_that_cannot_be_squared_are_refused(make, unit):
    rows = unit * np.random.default_rng(0).normal(size=(30, 2))
    with pytest.raises(InvalidInputError, match=r"squared|finite and above zero"):
        make().fit(rows)


@pytest.mark.parametrize("unit", [1e-100, 1e100])
def test_large_and_small_units_do_not_change_clusters(unit):
    rows = np.concatenate([np.zeros((9, 2)), np.ones((9, 2))])
    rows = rows + 0.05 * np.random.default_rng(0).normal(size=rows.shape)
    assert (ClAM(2, random_state=0).fit(unit * rows).labels_.reshape(2, 9).std(1) == 0).all()


def test_frames_of_categories_without_names_are_filled():
    frame = pd.DataFrame([[True, 1.0], [False, 2.0], [True, np.nan], [None, 1.5]] * 6)
    filled = MemoryImputer().fit_transform(frame)
    assert not pd.DataFrame(filled).isna().to_numpy().any()


def test_positive_numbers_can_be_squared() -> None:
    assert as_number(1e140, "sigma", above=0) == 1e140
    for value in (1e-308, 1e200):
        with pytest.raises(InvalidInputError, match="square"):
            as_number(value, "sigma", above=0)


def test_sparse_and_empty_tensors_are_refused() -> None:
    sparse = torch.zeros(4, 4).to_sparse()
    for call in (
        lambda: require_values(sparse, "x"),
        lambda: as_number(sparse[0], "tol"),
        lambda: nn.HopfieldPooling(4)(sparse),
        lambda: nn.ClAMLoss(2, 2)(torch.zeros(0, 2)),
    ):
        with pytest.raises(IsthmusError):
            call()
