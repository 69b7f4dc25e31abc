"""Small studies, and methods that misbehave."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from isthmus.datasets.manifest import entry
from isthmus.processes import Call, Outcome
from isthmus.study import Limits, Method, Settings, combinations, runner
from isthmus.study.runner import Outcomes


def misbehaving(name: str) -> Method:
    """A method that is pickled by value, since its class is known in this function only."""

    class Bad:
        def __init__(self, n_clusters: int = 2) -> None:
            self.n_clusters = n_clusters

        def get_params(self) -> dict[str, Any]:
            return {"n_clusters": self.n_clusters}

        def set_params(self, **settings: Any) -> Any:
            return Bad(**settings)

        def fit_predict(self, X: Any) -> Any:
            import os
            import signal
            import sys

            import numpy as np

            if name == "raises":
                raise ValueError("no luck")
            if name == "crashes":
                os.kill(os.getpid(), signal.SIGSEGV)
            if name == "exits":
                sys.exit("licence missing")
            if name == "spins":
                while True:
                    pass
            if name == "eats":
                return np.ones(10**9)
            print("noise on stdout")
            return np.arange(len(X)) % self.n_clusters

    return Method(name, Bad, seeded=False)


@pytest.fixture
def bad_methods() -> Callable[[str], Method]:
    return misbehaving


@pytest.fixture
def instant(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fits that succeed at once in this process and record the number of their rows."""

    def run_all(calls: Sequence[Call], jobs: int) -> Outcomes:
        for call in calls:
            task = call.args[0]
            rows = min(task.rows, entry(task.dataset).n_samples)
            yield call, Outcome("ok", {"n_rows": rows})

    monkeypatch.setattr(runner, "run_all", run_all)


@pytest.fixture
def small() -> Settings:
    """Twelve fits on two datasets that scikit-learn brings along."""
    return Settings(
        datasets=("iris", "wine"),
        methods=(
            "KMeans",
            "DP-means",
            Method(
                "Ward",
                "sklearn.cluster:AgglomerativeClustering",
                combinations(linkage=["ward", "average"]),
                seeded=False,
            ),
        ),
        seeds=(0, 1),
        entries=1,
        limits=Limits(seconds=20, megabytes=1024),
    )
