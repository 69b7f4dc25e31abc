"""Tables on their way into a fit: units, distinct rows, columns that are not numbers."""

import numpy as np

from isthmus.cluster.data import distinct_rows


def test_rows_stay_distinct_beside_a_column_of_huge_numbers():
    generator = np.random.default_rng(0)
    dates = np.repeat([1.6e18, 1.7e18], 150) + generator.integers(0, 86_400, 300) * 1e9
    labels = np.arange(300) // 75
    table = np.c_[dates, labels % 2 + 0.05 * generator.normal(size=300)]
    table[::7, 1] = -table[::7, 1]
    table = np.concatenate([table, [[0.0, 1.0], [-0.0, 1.0]]])
    assert len(distinct_rows(table, np.ones(302))[0]) == 301
