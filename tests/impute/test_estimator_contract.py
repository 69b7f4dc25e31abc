"""MemoryImputer keeps the contract of scikit-learn's transformers, without exceptions."""

from sklearn.utils.estimator_checks import parametrize_with_checks

from isthmus.impute import MemoryImputer


@parametrize_with_checks([MemoryImputer()])
def test_scikit_learn_checks(estimator, check) -> None:
    check(estimator)
