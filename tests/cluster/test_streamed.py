"""Files that are larger than memory are clustered row group by row group."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from isthmus.cli.main import main
from isthmus.cluster import TableModel, cluster_file, streamed
from isthmus.errors import InvalidInputError

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
    assert "3 clusters in 300 rows, 3 features" in str(found)
    assert any("name" in note for note in found.notes)


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


def test_a_file_of_other_types_is_refused(rows: Path) -> None:
    other = pd.read_parquet(rows).astype({"b": str})
    other.to_parquet(rows.with_name("second.parquet"))
    with pytest.raises(InvalidInputError, match="other types"):
        cluster_file(rows.parent, rows.with_name("out.csv"), n_clusters=2)


def test_the_command_streams_what_would_fill_the_memory(
    rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    output = rows.with_name("clusters.parquet")
    command = ["cluster", str(rows), "-k", "3", "--drop", "key,name", "-o", str(output), "--json"]
    assert not streamed.exceeds_memory(rows)
    monkeypatch.setattr(streamed, "MEMORY_SHARE", 1e-9)
    assert streamed.exceeds_memory(rows)
    assert main(command) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["n_clusters"] == 3
    assert "read in row groups" in printed.err
    assert pd.read_parquet(output)["row"].tolist() == list(range(1, 301))
    assert main(["cluster", str(rows), "-o", "-"]) == 2
    assert "write to a file" in capsys.readouterr().err


def test_bad_files_and_columns_are_refused(rows: Path, tmp_path: Path) -> None:
    output = tmp_path / "out.csv"
    with pytest.raises(InvalidInputError, match="nothing"):
        cluster_file(rows, output, drop=["nothing"])
    with pytest.raises(InvalidInputError, match="no column of numbers"):
        cluster_file(rows, output, drop=["a", "b", "c", "key"])
    with pytest.raises(InvalidInputError, match="must end in"):
        cluster_file(rows, tmp_path / "out.xlsx", n_clusters=3)
    with pytest.raises(InvalidInputError, match="mean-shift needs all rows"):
        cluster_file(rows, output, method="mean-shift")
    rows.write_bytes(rows.read_bytes()[:200])
    with pytest.raises(InvalidInputError, match="not a readable Parquet file"):
        cluster_file(rows, output)
    assert not output.exists()
