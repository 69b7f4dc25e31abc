"""Small studies, and methods that misbehave."""

from collections.abc import Sequence

import pytest

from isthmus.paper.datasets.manifest import entry
from isthmus.paper.processes import Call, Outcome
from isthmus.paper.study import runner
from isthmus.paper.study.runner import Outcomes
from isthmus.study import Limits, Method, Settings, combinations


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
