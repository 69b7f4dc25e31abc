"""The part of `isthmus reproduce` about attention says what it should."""

import pytest

from isthmus.report.parts.attention import heads_as_mixtures


@pytest.fixture(scope="module")
def section():
    return heads_as_mixtures(0)


def test_the_corrected_theorem_is_exact_and_the_printed_one_is_not(section):
    assert section.numbers["largest_difference_to_attention_weights"] < 1e-12
    assert section.numbers["largest_difference_as_printed"] > 0.05


def test_the_transformer_has_learned_something(section):
    assert section.numbers["loss"] < 1.5


def test_normalisers_tie_mixing_to_concentration(section):
    assert min(section.numbers["correlation_with_log_mixing_by_head"]) > 0.8
