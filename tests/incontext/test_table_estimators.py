"""TableClassifier and TableRegressor keep the contract of scikit-learn, and predict well."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from isthmus.incontext import TableClassifier, TableRegressor


@parametrize_with_checks([TableClassifier(), TableRegressor()])
def test_contract_of_scikit_learn(estimator, check):
    check(estimator)
