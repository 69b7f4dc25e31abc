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


def test_frames_with_categories_and_gaps_are_predicted():
    rng = np.random.default_rng(0)
    kind, x = rng.choice(["a", "b"], 300), rng.normal(size=300)
    y = np.where(kind == "a", x, 3 - x) + 0.2 * rng.normal(size=300)
    frame = pd.DataFrame({"kind": kind, "x": x, "noise": rng.random(300) < 0.5})
    gaps = frame.mask(rng.random(frame.shape) < 0.05)
    model = TableRegressor().fit(gaps[:200], y[:200])
    low, high = model.predict_quantile(frame[200:], [0.05, 0.95]).T
    assert 0.8 < np.mean((y[200:] > low) & (y[200:] < high)) <= 1
    assert model.score(frame[200:], y[200:]) > 0.7
    classes = np.where(y > 1, "high", "low")
    classifier = TableClassifier().fit(gaps[:200], classes[:200])
    np.testing.assert_allclose(classifier.predict_proba(frame[200:]).sum(axis=1), 1)
    assert classifier.score(frame[200:], classes[200:]) > 0.8
    assert classifier.predict(frame[:1].assign(kind="c")).shape == (1,)
