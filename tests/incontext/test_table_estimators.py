"""Estimators of tables keep the contract of scikit-learn, and predict well."""

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.metrics import log_loss
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from isthmus.errors import InvalidInputError
from isthmus.incontext import TableClassifier, TableDensity, TableRegressor


@parametrize_with_checks([TableClassifier(), TableDensity(), TableRegressor()])
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
    frame = pd.DataFrame({"x": rng.normal(5, 9, 200), "kind": rng.choice(["a", "b", "c"], 200)})
    y = 0.1 * frame["x"] + (frame["kind"] == "b") + rng.normal(size=200)
    steps = make_column_transformer((StandardScaler(), ["x"]), (OneHotEncoder(), ["kind"]))
    return frame, y.to_numpy(), steps.fit(frame[:80])


def test_probabilities_pool_those_in_context_of_a_logistic_regression_and_of_a_forest(mixed):
    frame, y, steps = mixed
    labels = np.digitize(y, [0, 1])
    ours = TableClassifier().fit(frame[:80], labels[:80])
    rows = frame[80:].set_axis([0, 1], axis=1)
    context = ours.table_.predict("(target)", rows)[["class 0", "class 1", "class 2"]].to_numpy()
    logistic = LogisticRegression().fit(steps.transform(frame[:80]), labels[:80])
    linear = logistic.predict_proba(steps.transform(frame[80:]))
    # Trees depend on the order of columns.
    features = ours._features(frame[:80].set_axis([0, 1], axis=1))
    asked = ours._features(rows)
    forest = RandomForestClassifier(50, min_samples_leaf=2, random_state=0)
    trees = forest.fit(features, labels[:80]).predict_proba(asked)
    usual = np.bincount(labels[:80]) / 80  # those of one row more
    parts = [(80 * each + usual) / 81 for each in (context, linear, trees)]
    expected = np.exp(sum(k * np.log(each) for k, each in zip(ours.blend_, parts, strict=True)))
    expected /= expected.sum(1, keepdims=True)
    found = ours.predict_proba(frame[80:])
    np.testing.assert_allclose(found, expected, atol=2e-3)
    losses = [log_loss(labels[80:], each) for each in (*parts, found)]
    assert losses[3] < max(losses[:3])
    few = TableClassifier().fit(frame[:9], labels[:9])
    assert few.blend_.tolist() == [1 / 3] * 3


def test_a_class_of_one_row_keeps_its_probability(mixed):
    frame, _, _ = mixed
    shares = TableClassifier().fit(frame[:50], ["a"] * 49 + ["b"]).predict_proba(frame[50:])
    assert 0.002 < shares[:, 1].mean() < 0.1


def test_means_and_quantiles_are_those_of_one_moved_and_stretched_distribution(mixed):
    frame, y, steps = mixed
    ours = TableRegressor().fit(frame[:80], y[:80])
    rows = frame[80:].set_axis([0, 1], axis=1)
    ridge = RidgeCV(np.geomspace(0.01, 1000, 16)).fit(steps.transform(frame[:80]), y[:80])
    mean, linear = ours.table_.predict("(target)", rows), ridge.predict(steps.transform(frame[80:]))
    share, stretch = ours.blend_
    centre = (mean + share * (linear - mean)).to_numpy()
    np.testing.assert_allclose(ours.predict(frame[80:]), centre, rtol=1e-2, atol=1e-3)
    levels = (np.arange(2000) + 0.5) / 2000
    found = ours.predict_quantile(frame[80:90], levels)
    np.testing.assert_allclose(found.mean(1), ours.predict(frame[80:90]), atol=5e-3)
    spread = ours.table_.quantile("(target)", [0.2, 0.8], rows)
    length = np.diff(ours.predict_quantile(frame[80:], [0.2, 0.8]))
    np.testing.assert_allclose(length, stretch * np.diff(spread), rtol=1e-6)


def test_far_rows_and_equal_targets_have_finite_answers(mixed):
    frame, y, _ = mixed
    frame, y = frame[:60], y[:60]
    far, labels = frame[:2].assign(x=[1e9, -1e9]), y > 0
    assert np.isfinite(TableRegressor().fit(frame, y).predict(far)).all()
    assert np.isfinite(TableClassifier().fit(frame, labels).predict_proba(far)).all()
    assert (TableClassifier().fit(frame, 0 * labels).predict(frame) == 0).all()
