"""What only looks like numbers is refused, and numbers of any kind are read."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import isthmus as ist
from isthmus.attention import vmf_view
from isthmus.capacity import basins, capacity_curve, certify, choose_sigma, merge_tree
from isthmus.cluster import BasinFlow, ClAM, ClAMCRP, ClAMCRPELBO, ClAMELBO, GaussianMeanShift
from isthmus.errors import DtypeError, InvalidInputError
from isthmus.impute import MemoryImputer
from isthmus.scaling import as_table
from isthmus.validation import as_numbers

DATES = np.array([["2020-01-01", "2020-01-02"], ["2020-02-01", "2020-01-05"]], "datetime64[D]")
NOT_NUMBERS = {
    "dates": DATES,
    "durations": DATES - DATES[0],
    "text of digits": np.array([["1", "2"], ["3", "4"]]),
    "a list of digits": [["1", "2"], ["3", "4"]],
    "objects of digits": np.array([["1", "2"], ["3", "4"]], dtype=object),
    "dates in objects": DATES.astype(object),
    "records": np.zeros(3, dtype=[("a", float), ("b", float)]),
}
TAKES_A_TABLE = {
    "certify": lambda X: certify(X, 1.0),
    "choose_sigma": choose_sigma,
    "capacity_curve": lambda X: capacity_curve(X, [1.0]),
    "basins": lambda X: basins(X, 1.0),
    "merge_tree": merge_tree,
    "GaussianKDE": ist.GaussianKDE,
    "energy": lambda X: ist.GaussianKDE(np.eye(2)).energy(X),
    "complete": lambda X: ist.complete(ist.GaussianKDE(np.eye(2)), X),
    "GaussianMeanShift": lambda X: GaussianMeanShift().fit(X),
    "ClAM": lambda X: ClAM(2).fit(X),
    "BasinFlow": lambda X: BasinFlow().fit(X),
    "MemoryImputer": lambda X: MemoryImputer().fit(X),
    "as_table": as_table,
}


@pytest.mark.parametrize("kind", NOT_NUMBERS)
@pytest.mark.parametrize("function", TAKES_A_TABLE)
def test_text_dates_and_records_are_not_numbers(function, kind):
    with pytest.raises(InvalidInputError, match=r"number|text"):
        TAKES_A_TABLE[function](NOT_NUMBERS[kind])


def test_masked_counts_and_masks():
    with pytest.raises(InvalidInputError, match="finite"):
        ist.CRPMixture(np.eye(2), np.ma.masked_equal([3, -9999], -9999))
    seen = np.ma.array([[True, True]], mask=[[False, True]])  # the second is not known to be known
    kde = ist.GaussianKDE(np.array([[0.0, 0.0], [5.0, 7.0]]))
    np.testing.assert_allclose(
        kde.conditional_mean([[5.0, -9999.0]], seen), [[5.0, 7.0]], atol=1e-3
    )
    weights = np.ma.masked_equal([1.0, 1.0, -9999.0], -9999.0)
    with pytest.raises(ValueError, match="NaN"):
        ClAM(2).fit(np.eye(3), sample_weight=weights)


def test_numbers_of_any_kind_are_read():
    expected = np.array([[1.0, 0.0], [0.0, 1.0]])
    frame = pd.DataFrame({"a": [1, 0], "b": pd.array([0, 1], dtype="Int64")})
    for kind in (bool, np.int8, np.uint64, np.float16, np.longdouble, object):
        np.testing.assert_array_equal(as_numbers(expected.astype(kind), "X"), expected)
    for given in (frame, torch.eye(2, dtype=torch.bfloat16), torch.eye(2, dtype=torch.int32)):
        np.testing.assert_array_equal(as_numbers(given, "X"), expected)
    assert np.isnan(as_numbers([[1.0, None]], "X")[0, 1])


@pytest.mark.parametrize("unit", [1e-308, 1e-200, 1e200, 1e300])
@pytest.mark.parametrize(
    "make",
    [GaussianMeanShift, BasinFlow, ClAMCRP, ClAMCRPELBO, lambda: ClAM(2), lambda: ClAMELBO(2)],
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


def test_masks_of_attention_may_be_arrays():
    norm, attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)
    x, mask = torch.randn(1, 6, 8), np.triu(np.ones((6, 6), bool), 1)
    found = vmf_view(norm, attention, x, mask=mask).responsibilities()
    expected = vmf_view(norm, attention, x, mask=torch.from_numpy(mask)).responsibilities()
    torch.testing.assert_close(found, expected)
    for bad in (np.array([["a"]]), [[1, 2], [3]], np.ones((6, 6), int)):
        with pytest.raises(DtypeError, match="mask"):
            vmf_view(norm, attention, x, mask=bad)


@pytest.mark.parametrize("energy", [ist.GaussianKDE, ist.ModernHopfield, ist.Mixture])
def test_points_of_gaussian_memories_that_cannot_be_squared_are_refused(energy):
    memory = energy(np.eye(2))
    for method in (memory.energy, memory.step, memory.responsibilities, memory.log_prob):
        with pytest.raises(InvalidInputError, match="overflow"):
            method([[1e308, 1.0]])
    assert np.isfinite(memory.step([[1e100, 1.0]])).all()
    gap = memory.conditional_mean([[1.0, np.nan]], [[True, False]])
    assert np.isfinite(gap).all()


def test_frames_of_categories_without_names_are_filled():
    frame = pd.DataFrame([[True, 1.0], [False, 2.0], [True, np.nan], [None, 1.5]] * 6)
    filled = MemoryImputer().fit_transform(frame)
    assert not pd.DataFrame(filled).isna().to_numpy().any()
