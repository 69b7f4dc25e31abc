"""scikit-learn's own battery, with no expected failures."""

from typing import Any

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from isthmus.cluster import BasinFlow, ClAM, ClAMCRP, ClAMCRPELBO, ClAMELBO, GaussianMeanShift


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [ClAM(), ClAMELBO(), ClAMCRP(), ClAMCRPELBO(), GaussianMeanShift(), BasinFlow()]
)
def test_scikit_learn_check(estimator: Any, check: Any) -> None:
    check(estimator)
