"""Files that are larger than memory are clustered row group by row group."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from isthmus.cli.main import main
from isthmus.cluster import TableModel, cluster_file, streamed

X = np.repeat([[0.0, 0.0, 4.0], [90.0, 0.0, 5.0], [0.0, 7.0, 9.0]], 100, axis=0)
X = (X + np.random.default_rng(0).normal(size=X.shape))[np.random.default_rng(1).permutation(300)]


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    frame["name"], frame["key"] = "x", np.arange(300) + 1000
    frame.to_parquet(tmp_path / "rows.parquet", row_group_size=70)
    return tmp_path / "rows.parquet"


@pytest.mark.parametrize("method", ["elbo", "basin-flow"])
def test_the_clusters_are_those_of_the_table_in_memory(method: str, rows: Path) -> None:
    settings = {"method": method, "n_clusters": 3}
    found = cluster_file(rows, rows.with_suffix(".csv"), id="key", **settings)
    expected = TableModel.fit(X, columns=["a", "b", "c"], **settings).describe(X)
    written = pd.read_csv(rows.with_suffix(".csv"))
    np.testing.assert_array_equal(written["cluster"], expected.labels + 1)
    np.testing.assert_array_equal(written["key"], np.arange(300) + 1000)
    np.testing.assert_allclose(written["log_density"], expected.log_density, rtol=1e-6)
    assert found.summary["share_sure"] == expected.summary["share_sure"]
    assert [one["size"] for one in found.summary["clusters"]] == [100, 100, 100]


def test_columns_ids_and_labels_are_those_of_the_table_in_memory(
    rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(rows.parent)
    frame = pd.read_parquet(rows).drop(columns="key")
    frame.insert(0, "customer_id", 7 * np.arange(300)[::-1])
    frame["left"], frame["kind"] = frame["a"] > 40, np.where(frame["b"] > 3, "u", "v")
    frame["none"] = None
    path = rows.with_name("shop.parquet")
    frame.to_parquet(path, row_group_size=70)
    shown = []
    for name in ("memory.csv", "stream.csv"):
        output = path.with_name(name)
        options = ["--label", "kind", "--drop", "c", "-o", str(output), "--json"]
        assert main(["cluster", str(path), "-k", "3", *options]) == 0
        printed = capsys.readouterr()
        shown.append((json.loads(printed.out)["clusters"][0]["memory"], printed.err))
        monkeypatch.setattr(streamed, "MEMORY_SHARE", 1e-9)
    assert list(shown[1][0]) == ["a", "b", "left"]
    assert shown[1][0] == pytest.approx(shown[0][0])
    assert shown[0][1] in shown[1][1]
    memory, stream = (pd.read_csv(path.with_name(f"{name}.csv")) for name in ("memory", "stream"))
    assert list(stream.columns[:2]) == ["customer_id", "kind"]
    pd.testing.assert_frame_equal(memory, stream)
    assert main(["cluster", str(path), "--bandwidth", "2"]) == 2
    assert "bandwidth" in capsys.readouterr().err
    assert main(["cluster", str(path), "--id", "none", "-k", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["features"] == 5
