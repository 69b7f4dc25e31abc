"""bic, aic and the cross-validated score find a number of clusters that is known."""

import numpy as np
import pytest
from sklearn.datasets import make_blobs
from sklearn.mixture import GaussianMixture

from isthmus.cluster import ClAM, ClAMELBO
from isthmus.errors import InvalidInputError

X, Y = make_blobs(300, 3, centers=4, cluster_std=1.5, random_state=4)


def test_criteria_of_one_round_gaussian_are_those_of_scikit_learn():
    ours = ClAMELBO(1).fit(X)
    theirs = GaussianMixture(1, covariance_type="spherical", reg_covar=0).fit(X)
    assert ours.bic(X) == pytest.approx(theirs.bic(X), rel=1e-9)
    assert ours.aic(X) == pytest.approx(theirs.aic(X), rel=1e-9)
    for criterion in (ours.bic, ours.aic):
        with pytest.raises(InvalidInputError):
            criterion(X[:0])


@pytest.mark.parametrize(
    ("model", "free"),
    [
        (ClAMELBO(3, random_state=0), 3 * 3 + 1),
        (ClAMELBO(3, weights="learned", random_state=0), 3 * 3 + 1 + 2),
        (ClAMELBO(3, beta=0.5, random_state=0), 3 * 3),
        (ClAM(3, likelihood="vmf", random_state=0), 3 * 2 + 1),
    ],
)
def test_every_free_parameter_is_counted(model, free):
    model.fit(X)
    fit = -2 * model.score_samples(X).sum()
    assert model.bic(X) == pytest.approx(fit + free * np.log(300))
    assert model.aic(X) == pytest.approx(fit + 2 * free)
