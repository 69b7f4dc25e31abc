"""The four clusterers, and data that all of them can cluster."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.datasets import make_blobs

from isthmus.cluster import ClAM, ClAMCRP, ClAMCRPELBO, ClAMELBO

MakeEstimator = Callable[..., Any]


def with_defaults(kind: Any, **defaults: Any) -> MakeEstimator:
    return partial(kind, random_state=0, **defaults)


PARAMETRIC = {
    "ClAM": with_defaults(ClAM, n_clusters=3, n_init=2, tol=0.01),
    "ClAMELBO": with_defaults(ClAMELBO, n_clusters=3, n_init=2),
}
NONPARAMETRIC = {kind.__name__: with_defaults(kind, n_init=1) for kind in (ClAMCRP, ClAMCRPELBO)}
# Choosing beta takes most of the time; it has tests of its own. The data below have 0.5.
ALL = PARAMETRIC | {name: partial(make, beta=0.5) for name, make in NONPARAMETRIC.items()}


@pytest.fixture(params=ALL)
def make(request: pytest.FixtureRequest) -> MakeEstimator:
    """Each of the four, as a function of its settings."""
    return ALL[request.param]


@pytest.fixture(params=PARAMETRIC)
def make_parametric(request: pytest.FixtureRequest) -> MakeEstimator:
    """The two that are told how many memories to learn."""
    return PARAMETRIC[request.param]


@pytest.fixture(params=NONPARAMETRIC)
def make_crp(request: pytest.FixtureRequest) -> MakeEstimator:
    """The two that find out, and choose beta by themselves."""
    return NONPARAMETRIC[request.param]


@pytest.fixture
def blobs() -> NDArray[Any]:
    """Ninety rows in three clear clusters. (90, 2)."""
    centres = [[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]]
    rows: NDArray[Any] = make_blobs([30, 30, 30], centers=centres, random_state=0)[0]
    return rows


@pytest.fixture
def overlapping() -> NDArray[Any]:
    """A hundred and fifty rows in three clusters that overlap, not centred. (150, 3)."""
    noise = np.random.default_rng(1).normal(size=(150, 3))
    centres = np.array([[0.0, 0.0, 0.0], [2.2, 0.0, 1.0], [0.0, 2.6, -1.0]])
    return 5.0 + centres[np.arange(150) % 3] + noise


@pytest.fixture
def with_gaps(overlapping: NDArray[Any]) -> NDArray[Any]:
    """The same, with every fifth value unknown and one row unknown altogether. (150, 3)."""
    rows = overlapping.copy()
    rows[np.random.default_rng(2).random(rows.shape) < 0.2] = np.nan
    rows[7] = np.nan
    return rows
