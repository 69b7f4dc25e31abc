"""Ramsauer et al.'s theorems for random patterns: their own values, and what they promise."""

import math

import numpy as np
import pytest

from isthmus.capacity import (
    minimal_angle_probability,
    random_pattern_capacity,
    random_pattern_dimension,
    required_separation,
)


@pytest.mark.parametrize(
    ("factor", "dim", "exponent", "base", "count"),
    [(3, 20, 1.2733, 3.15461, 7.41), (1, 75, -0.9409, 1.37188, 10.97)],
)
def test_values_of_theorem_a5(factor, dim, exponent, base, count):
    found = random_pattern_capacity(dim, max_norm=factor * math.sqrt(dim - 1), failure=1e-3)
    assert found.a + math.log(found.b) == pytest.approx(exponent, abs=1e-4)
    assert found.c == pytest.approx(base, abs=1e-5)
    assert math.exp(found.log_count) == pytest.approx(count, abs=0.01)
    assert found.applies


@pytest.mark.parametrize(("factor", "dim"), [(3, 20), (1, 75), (2, 50), (0.5, 40), (2, 1000)])
def test_the_dimension_for_a_base_inverts_the_base_for_a_dimension(factor, dim):
    found = random_pattern_capacity(dim, max_norm=factor * math.sqrt(dim - 1))
    back = random_pattern_dimension(found.c, factor)
    again = random_pattern_capacity(back, max_norm=factor * math.sqrt(back - 1))
    assert again.c == pytest.approx(found.c, rel=1e-9)


def test_random_patterns_are_as_separated_as_the_theorem_says():
    dim, norm = 50, 14.0
    count = math.floor(math.exp(random_pattern_capacity(dim, max_norm=norm).log_count))
    points = np.random.default_rng(0).normal(size=(count, dim))
    points *= norm / np.linalg.norm(points, axis=1, keepdims=True)
    gram = points @ points.T
    np.fill_diagonal(gram, -math.inf)
    assert norm**2 - gram.max() >= required_separation(count, norm)


@pytest.mark.parametrize(("count", "dim", "angle"), [(8, 3, 0.1), (30, 6, 0.3), (5, 2, 0.05)])
def test_minimal_angle_probability_is_a_lower_bound(count, dim, angle):
    points = np.random.default_rng(0).normal(size=(4000, count, dim))
    points /= np.linalg.norm(points, axis=2, keepdims=True)
    cosine = points @ points.transpose(0, 2, 1)
    cosine[:, np.arange(count), np.arange(count)] = -1
    share = np.mean(np.arccos(np.minimum(cosine.max((1, 2)), 1)) >= angle)
    bound = minimal_angle_probability(count, dim, angle)
    assert 0.1 < bound < 1
    assert bound <= share + 4 * math.sqrt(share * (1 - share) / len(points))
    # It loses only the overlap of pairs and the step from N (N - 1) to N^2.
    assert 1 - bound < 1.5 * (1 - share)
