"""`isthmus.plot` and the `plot` of estimators: axes in, axes out."""

from functools import cache, partial

import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import isthmus as ist
from isthmus.capacity import certify
from isthmus.cluster import BasinFlow, ClAM, GaussianMeanShift
from isthmus.errors import InvalidInputError
from isthmus.impute import MemoryImputer

RNG = np.random.default_rng(0)
ROWS = np.concatenate([RNG.normal(size=(30, 3)), RNG.normal(size=(30, 3)) + 6])
FRAME = pd.DataFrame(ROWS, columns=["a", "b", "c"])
GAPS = FRAME.mask(RNG.random(FRAME.shape) < 0.1).assign(kind=["u", "v"] * 30)


@cache
def drawings() -> dict[str, tuple]:
    """Return what to draw, with its rows and options."""
    flow = BasinFlow(random_state=0).fit(FRAME)
    return {
        "line": (ist.GaussianKDE(ROWS[:5, :1], 0.5), None, {"queries": [[0.2]]}),
        "plane": (ist.GaussianKDE(ROWS[:5, :2], 0.5), ROWS[:, :2], {"queries": [[0.2, 1.0]]}),
        "support": (ist.EpanechnikovKDE(ROWS[:5, :2], 0.5), None, {}),
        "pair": (ist.GaussianKDE(ROWS, 0.5), None, {"columns": (0, 2)}),
        "map": (flow, FRAME, {}),
        "gap": (flow, None, {"kind": "gap"}),
        "tree": (flow, None, {"kind": "tree"}),
        "clam": (ClAM(2, random_state=0).fit(ROWS), ROWS, {}),
        "shift": (GaussianMeanShift(1.5).fit(ROWS), ROWS, {}),
        "gaps": (MemoryImputer().fit(GAPS), GAPS, {"draws": 2}),
        "certificate": (certify(ROWS[:, :2], 0.2), ROWS[:, :2], {}),
    }


NAMES = "line plane support pair map gap tree clam shift gaps certificate"


@pytest.mark.parametrize("name", NAMES.split())
def test_axes_in_and_out(name: str) -> None:
    thing, X, options = drawings()[name]
    new = ist.plot(thing, X, **options)
    assert isinstance(new, Axes)
    given = Figure().subplots()
    draw = partial(ist.plot, thing) if isinstance(thing, ist.Energy) else thing.plot
    assert draw(X, axes=given, **options) is given
    assert given.has_data()
    for axes in (new, given):
        axes.figure.canvas.draw()


def test_basins_are_parted_half_way_between_two_equal_memories() -> None:
    axes = ist.plot(ist.GaussianKDE([[-2.0], [2.0]], 0.5))
    (border,) = [line.get_xdata()[0] for line in axes.lines if line.get_linestyle() == ":"]
    assert border == pytest.approx(0, abs=0.02)


def test_pairs_have_axes_for_each() -> None:
    grid = ist.plot(ist.GaussianKDE(ROWS, 0.5), ROWS)
    assert grid.shape == (3, 3)
    assert not grid[0, 1].axison
    (curve,) = grid[0, 0].lines
    x, density = curve.get_data()
    expected = ist.GaussianKDE(ROWS[:, :1], 0.5).log_prob(x[:, None])
    assert np.log(density) == pytest.approx(expected, abs=1e-6)


def test_what_has_no_picture_is_refused() -> None:
    flow = ClAM(2, random_state=0).fit(ROWS)
    for call in (
        lambda: ist.plot("words"),
        lambda: flow.plot(),
        lambda: flow.plot(ROWS, kind="gap"),
        lambda: ist.plot(ist.GaussianKDE(ROWS, 1.0), axes=Figure().subplots()),
        lambda: MemoryImputer().fit(FRAME).plot(FRAME),
    ):
        with pytest.raises(InvalidInputError):
            call()
