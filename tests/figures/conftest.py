"""No figure leaves anything behind."""

from collections.abc import Iterator

import matplotlib
import matplotlib.pyplot as plt
import pytest


@pytest.fixture(autouse=True)
def _nothing_global() -> Iterator[None]:
    settings = dict(matplotlib.rcParams)
    yield
    assert plt.get_fignums() == []
    assert dict(matplotlib.rcParams) == settings
