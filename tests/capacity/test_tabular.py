"""certify_table: the library's certificates, with a bandwidth that is chosen, and a summary."""

import numpy as np
import pytest

import isthmus as ist
from isthmus.capacity import certify, certify_table, choose_sigma
from isthmus.errors import InvalidInputError

X = np.random.default_rng(3).uniform(-8, 8, (30, 2))


def test_columns_are_those_of_the_certificate_and_separations_those_of_brute_force() -> None:
    found, expected = certify_table(X, sigma=0.5).to_columns(), certify(X, 0.5)
    squared = ((X[:, None] - X) ** 2).sum(-1)
    np.fill_diagonal(squared, np.inf)
    np.testing.assert_allclose(found["separation"], 0.5 * squared.min(1), rtol=1e-9)
    for name in ("guaranteed_radius", "retrieval_error", "stored", "decided", "basin"):
        np.testing.assert_array_equal(found[name], getattr(expected, name))
    bounds = np.where(np.isfinite(expected.error_bound), expected.error_bound, np.nan)
    np.testing.assert_array_equal(found["error_bound"], bounds)


def test_the_default_bandwidth_is_the_largest_that_stores_enough() -> None:
    found = certify_table(X).summary
    assert found["sigma_chosen"] is True
    assert found["sigma"] == choose_sigma(X, 29 / 30).sigma  # 0.95 of 30, rounded up
    assert found["stored"] >= 29
    assert certify(X, 1.05 * found["sigma"]).stored.sum() < 29
    fewer = certify_table(X, stored=0.5).summary
    assert fewer["sigma"] > found["sigma"]
    assert 15 <= fewer["stored"] < 29


def test_the_summary_counts_the_rows_of_the_certificate() -> None:
    table, certificate = certify_table(X, sigma=0.8, columns=["a", "b"]), certify(X, 0.8)
    found = table.summary
    assert (found["rows"], found["columns"]) == (30, ["a", "b"])
    assert found["stored"] == certificate.stored.sum()
    assert found["proved"] == (certificate.decided == "proved").sum()
    assert found["proved"] + found["found_by_iterating"] == found["stored"]
    assert found["basins"] == len(set(certificate.basin))
    radii = certificate.guaranteed_radius[certificate.decided == "proved"]
    assert found["guaranteed_radius"]["median"] == pytest.approx(np.median(radii))
    assert str(table).startswith(f"{found['stored']} of 30 rows are stored")
    assert f"off by {np.median(radii):.3g} (median" in str(table)


def test_a_hopfield_network_is_that_of_the_library() -> None:
    found = certify_table(X, model="hopfield", beta=2).summary
    expected = certify(ist.ModernHopfield(X, beta=2.0))
    assert found["model"] == "hopfield"
    assert found["beta"] == pytest.approx(2)
    assert found["stored"] == expected.stored.sum()
    assert found["proved"] == (expected.decided == "proved").sum()


def test_uneven_columns_are_noted_and_can_be_standardised() -> None:
    table = X * [1000, 1]
    found = certify_table(table, standardise=True, sigma=0.2)
    again = certify((X - X.mean(0)) / X.std(0), 0.2)
    assert (found.notes, found.standardised) == ((), True)
    assert found.summary["stored"] == again.stored.sum()
    (note,) = certify_table(table, sigma=1).notes
    assert "column 'x1' varies" in note


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sigma": 9}, "Use a smaller sigma"),
        ({"model": "hopfield", "beta": 0.001}, "raise beta"),
        ({"sigma": 9, "iterate": "none"}, "iterate all rows"),
        ({"stored": 0.1}, "as requested"),
    ],
)
def test_few_stored_rows_come_with_advice(options: dict, words: str) -> None:
    assert words in str(certify_table(X, **options)).split("\n\n")[-1]


def test_duplicates_are_counted_and_the_other_rows_stored() -> None:
    found = certify_table(np.vstack([X, X[:10]])).summary
    assert found["rows_with_a_twin"] == 20
    assert 19 <= found["stored"] <= 20
    twins = np.vstack([X, X])
    with pytest.raises(InvalidInputError, match="Every pattern has an exact duplicate"):
        certify_table(twins)
    found = certify_table(twins, sigma=0.1)
    assert found.summary["stored"] == 0
    assert "drop duplicates" in str(found)


def test_one_row_is_stored_whatever_the_query() -> None:
    found = certify_table(X[:1])
    assert str(found).startswith("1 of 1 row is stored (100.0%)")
    assert "every query ends there" in str(found)
    assert np.isnan(found.to_columns()["guaranteed_radius"]).all()


@pytest.mark.parametrize("standardise", [True, False])
def test_a_constant_column_changes_nothing(standardise: bool) -> None:
    more = np.column_stack([X, np.full(30, 7.0)])
    one, other = (certify_table(rows, standardise=standardise).summary for rows in (X, more))
    for name in ("stored", "proved", "basins"):
        assert one[name] == other[name]
    assert one["sigma"] == pytest.approx(other["sigma"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"sigma": 1, "beta": 1}, "give one"),
        ({"model": "hopfield"}, "needs beta"),
        ({"sigma": 1, "stored": 0.5}, "chosen automatically"),
        ({"model": "gpt"}, "model must be one of"),
        ({"stored": 1.5}, "stored must be in"),
        ({"beta": 0}, "beta must be a finite number above 0"),
    ],
)
def test_settings_that_do_not_belong_together_are_refused(options: dict, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        certify_table(X, **options)
