"""New numbers are written as the others of their column."""

import numpy as np
import pytest

from isthmus.tables.styles import NumberStyle, count_decimals

CASES = {
    "decimals": (["1.5", "2.25", "3"], 7.128, "7.13"),
    "decimal commas": (["1,50", "2,5"], -0.126, "-0,13"),
    "whole numbers": (["1", "20"], 7.0, "7"),
    "a mean of whole numbers": (["0", "1"], 0.3333333, "0.33"),
    "dollars": (["$15.26", "$3"], 4.0, "$4.00"),
    "a debt": (["-$3", "$2.5"], -4.26, "-$4.3"),
    "whole euros": (["3 €", "12 €"], 4.4, "4 €"),
    "percent": (["15.3 %"], 7.77, "7.8 %"),
    "exponents": (["1e-9", "2.5e-9"], 3e-10, "3e-10"),
    "many decimals": (["0.1234567"], 0.3333333333333, "0.3333333333333"),
    "truth values": (["True", "False"], 0.7, "True"),
    "shouted truth values": (["TRUE"], 0.2, "FALSE"),
    "no cell": ([], 1.25, "1.25"),
    "a gap": (["1.5"], np.nan, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_numbers_are_written_like_other_cells(case) -> None:
    cells, value, expected = CASES[case]
    mark = "," if "commas" in case else "."
    assert NumberStyle.of(cells, mark).write(value) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1, 2], 0), ([0.1, 2.25], 2), ([1e9 + 0.5], 1), ([1e-9], None), ([np.pi], None), ([], 0)],
)
def test_decimals_are_counted(values, expected) -> None:
    assert count_decimals(np.array(values)) == expected
