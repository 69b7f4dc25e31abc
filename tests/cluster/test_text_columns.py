"""Text and dates in a table are refused by the name of their column."""

import numpy as np
import pandas as pd
import polars as pl
import pytest

from isthmus.cluster import ClAMELBO, GaussianMeanShift
from isthmus.errors import InvalidInputError

COLUMNS = {
    "height": [1.0, 2.0, 3.0, 4.0],
    "name": ["a", "b", "c", "d"],
    "born": np.array(["2000-01-01"] * 4, dtype="datetime64[ns]"),
}


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
@pytest.mark.parametrize("estimator", [ClAMELBO(n_clusters=2), GaussianMeanShift()])
def test_columns_without_numbers_are_named(frame, estimator):
    with pytest.raises(InvalidInputError, match="Column 'name', 'born' of X"):
        estimator.fit(frame(COLUMNS))


def test_other_errors_of_a_frame_stay_as_they_are():
    with pytest.raises(ValueError, match="infinity"):
        GaussianMeanShift().fit(pd.DataFrame({"a": [1.0, np.inf]}))


def test_numbers_kept_as_objects_are_numbers():
    frame = pd.DataFrame({"a": pd.Series([0, 1, 9, 10], dtype=object)})
    assert len(GaussianMeanShift(1.0).fit(frame).cluster_centers_) == 2
