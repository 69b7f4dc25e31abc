"""TableClassifier and TableRegressor keep the contract of scikit-learn, and predict well."""

import numpy as np
import pandas as pd
import pytest
from scipy.stats import norm
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.preprocessing import OneHotEncoder, StandardScaler
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


@pytest.fixture(scope="module")
def mixed():
    rng = np.random.default_rng(1)
    frame = pd.DataFrame({"x": rng.normal(5, 9, 120), "kind": rng.choice(["a", "b", "c"], 120)})
    y = 0.1 * frame["x"] + (frame["kind"] == "b") + rng.normal(size=120)
    steps = make_column_transformer((StandardScaler(), ["x"]), (OneHotEncoder(), ["kind"]))
    return frame, y.to_numpy(), steps.fit(frame[:80])


def test_probabilities_are_the_mean_of_those_in_context_and_of_a_logistic_regression(mixed):
    frame, y, steps = mixed
    labels = np.digitize(y, [0, 1])
    ours = TableClassifier().fit(frame[:80], labels[:80])
    rows = frame[80:].set_axis([0, 1], axis=1)
    context = ours.table_.predict("(target)", rows)[["class 0", "class 1", "class 2"]]
    logistic = LogisticRegression().fit(steps.transform(frame[:80]), labels[:80])
    expected = (context.to_numpy() + logistic.predict_proba(steps.transform(frame[80:]))) / 2
    np.testing.assert_allclose(ours.predict_proba(frame[80:]), expected, atol=2e-3)


def test_means_are_averaged_by_precision_with_a_ridge_and_quantiles_move_with_them(mixed):
    frame, y, steps = mixed
    ours = TableRegressor().fit(frame[:80], y[:80])
    rows = frame[80:].set_axis([0, 1], axis=1)
    ridge = RidgeCV(np.geomspace(0.01, 1000, 16)).fit(steps.transform(frame[:80]), y[:80])
    low, high = ours.table_.interval("(target)", 0.9, rows)
    precisions = np.stack(
        [(norm.ppf(0.95) * 2 / (high - low)) ** 2, 0 * low - 1 / ridge.best_score_]
    )
    means = ours.table_.predict("(target)", rows), ridge.predict(steps.transform(frame[80:]))
    expected = np.average(means, axis=0, weights=precisions)
    np.testing.assert_allclose(ours.predict(frame[80:]), expected, rtol=1e-2, atol=1e-3)
    moved = ours.predict_quantile(frame[80:], 0.3) - ours.table_.quantile("(target)", 0.3, rows)
    np.testing.assert_allclose(moved, expected - means[0], rtol=1e-2, atol=1e-3)


def test_far_rows_and_equal_targets_have_finite_answers(mixed):
    frame, y, _ = mixed
    far = frame[:2].assign(x=[1e9, -1e9])
    labels = y > 0
    assert np.isfinite(TableRegressor().fit(frame, y).predict(far)).all()
    assert np.isfinite(TableClassifier().fit(frame, labels).predict_proba(far)).all()
    assert (TableClassifier().fit(frame, 0 * labels).predict(frame) == 0).all()
