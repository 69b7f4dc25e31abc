"""Selection by each method's own objective never sees labels; other views say what they are."""

from typing import Any

import numpy as np
import pytest

from isthmus.paper.study.comparison import compare


def fit(entry: int, seed: int, ari: float | None, objective: float | None, **more: Any) -> dict:
    fields = {"dataset": "iris", "method": "m", "kind": "K given", "status": "ok"}
    scores = {"ari": ari, "davies_bouldin": None if ari is None else 1 - ari}
    return {**fields, **scores, "entry": entry, "seed": seed, "objective": objective, **more}


ROWS = [
    fit(0, 0, 0.5, 3.0),
    fit(1, 0, 0.9, 2.0),
    fit(2, 0, 0.7, 1.0),
    fit(0, 1, 0.1, 1.0),
    fit(1, 1, 0.3, 2.0),
    fit(2, 1, None, None, status="timeout"),
]


def test_each_view_of_a_hand_computed_grid() -> None:
    table = {view: compare(ROWS, "ari", "K given", view) for view in ("grid", "selected")}
    assert table["grid"].scores.m.item() == pytest.approx(0.5)
    assert table["selected"].scores.m.item() == pytest.approx((0.7 + 0.1) / 2)
    oracle = compare(ROWS, "ari", "K given", "oracle")
    assert oracle.scores.m.item() == pytest.approx(0.9)


@pytest.mark.parametrize("seed", range(4))
def test_no_fit_and_no_other_view_is_above_the_oracle(seed: int) -> None:
    rng = np.random.default_rng(seed)
    rows = [fit(entry, s, *rng.random(2)) for s in range(3) for entry in range(4 if s else 1)]
    for metric in ("ari", "davies_bouldin"):
        grid, selected, oracle = (
            compare(rows, metric, "K given", view).oriented.m.item()
            for view in ("grid", "selected", "oracle")
        )
        sign = 1 if metric == "ari" else -1
        assert oracle == max(sign * row[metric] for row in rows)
        assert oracle >= max(grid, selected)


def test_selection_does_not_change_with_the_labels() -> None:
    turned = [{**row, "ari": None if row["ari"] is None else 1 - row["ari"]} for row in ROWS]
    before, after = (compare(rows, "ari", "K given").scores for rows in (ROWS, turned))
    np.testing.assert_allclose(after, 1 - before)


def test_without_an_objective_the_first_settings_stand_for_the_method() -> None:
    rows = [{**row, "objective": None} for row in ROWS]
    assert compare(rows, "ari", "K given").scores.m.item() == pytest.approx((0.5 + 0.1) / 2)
