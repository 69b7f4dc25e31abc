"""TableClassifier and TableRegressor keep the contract of scikit-learn, and predict well."""

import numpy as np
import pandas as pd
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from isthmus.errors import InvalidInputError
from isthmus.incontext import TableClassifier, TableRegressor


@parametrize_with_checks([TableClassifier(), TableRegressor()])
def test_contract_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.parametrize("gap", [None, pd.NA, 1])
def test_classes_with_gaps_or_of_several_kinds_are_refused(gap):
    with pytest.raises(InvalidInputError):
        TableClassifier().fit(np.eye(6), np.array(["a", gap] * 3, dtype=object))
