"""Tables come back as they were written, in every format."""

import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from isthmus.errors import InvalidInputError
from isthmus.tables import FileFormat, check_output, read_table, write_table

NAN = float("nan")
COMPRESSED = ["", ".gz", ".bz2", ".xz", ".zip", ".zst"]
EXACT = [*(f".csv{end}" for end in COMPRESSED), ".tsv", ".json", ".jsonl", ".jsonl.gz"]
EXACT += [".parquet", ".feather"]

# pandas 2 takes the lowest of all int64 for a missing value.
LOWEST = -(2**63) + (pd.__version__ < "3")
texts = st.text(st.characters(exclude_categories=["Cs", "Cc", "Z"]), min_size=1, max_size=6)
numbers = st.floats(-1e100, 1e100, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 1e-90)


@st.composite
def frames(draw: st.DrawFn) -> pd.DataFrame:
    """Tables with ids, words, whole numbers beyond 2^53, and gaps."""
    size = draw(st.integers(2, 6))
    column = lambda cells: draw(st.lists(cells, min_size=size, max_size=size))  # noqa: E731
    return pd.DataFrame(
        {
            "key": [f"k{number}" for number in range(size)],
            "x": [0.5, *column(st.none() | numbers)[1:]],
            "whole": pd.array([2**53 + 1, *column(st.integers(LOWEST, 2**63 - 1))[1:]]),
            "gaps": pd.array(
                [None, 2**60 + 1, *column(st.none() | st.integers(0, 9))[2:]], "Int64"
            ),
            "word": [f'w{word}, "quoted" é' for word in column(texts)],
        }
    )


def comes_back(frame: pd.DataFrame, path: Path, like: FileFormat | None = None, **options) -> None:
    write_table(frame, path, like=like)
    table = read_table(path, id="key", as_written=True, **options)
    assert table.columns == ("x", "whole", "gaps")
    assert table.left_out == ("word",)
    assert table.ids.tolist() == frame["key"].tolist()
    wanted = frame[["x", "whole", "gaps"]].to_numpy(dtype=float, na_value=NAN)
    assert np.array_equal(table.X, wanted, equal_nan=True)
    for name in ("whole", "gaps"):
        found = [None if pd.isna(value) else int(value) for value in table.frame[name]]
        assert found == [None if pd.isna(value) else int(value) for value in frame[name]]
    assert table.frame["word"].tolist() == frame["word"].tolist()
    again = path.with_name(f"again-{path.name}")
    write_table(table, again, like=table)
    if like is not None:
        assert again.read_bytes() == path.read_bytes()


@settings(max_examples=6, deadline=None)
@given(frames())
@pytest.mark.parametrize("suffix", EXACT)
def test_every_value_comes_back(suffix, frame) -> None:
    with tempfile.TemporaryDirectory() as folder:
        comes_back(frame, Path(folder, f"data{suffix}"))


@settings(max_examples=15, deadline=None)
@given(
    frames(),
    st.sampled_from([";", "\t", "|", ":", ","]),
    st.sampled_from([".", ","]),
    st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
)
def test_text_is_written_as_it_was_read(frame, separator, decimal, encoding) -> None:
    decimal = "." if separator == "," else decimal
    like = FileFormat(separator=separator, decimal=decimal, encoding=encoding)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "data.csv")
        comes_back(frame, path, like, separator=separator, decimal=decimal)


def test_known_cells_stay_as_they_are_written(tmp_path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("id;a;when;b\n007;1,50;2020;12345678901234567890\n008;;NA;1\n", "latin-1")
    table = read_table(path, as_written=True, drop=["when"])
    filled = table.filled(np.nan_to_num(table.X, nan=2.25))
    write_table(filled, tmp_path / "same.csv", like=table)
    assert (tmp_path / "same.csv").read_text() == path.read_text().replace(";;", ";2,25;")
    write_table(filled, tmp_path / "other.tsv", like=table)
    assert (tmp_path / "other.tsv").read_text().splitlines()[1].startswith("007\t1,50\t2020")
    write_table(filled, tmp_path / "typed.parquet", like=table)
    assert pl.read_parquet(tmp_path / "typed.parquet")["a"].to_list() == [1.5, 2.25]
    comma = write_table(filled, tmp_path / "comma.csv", like=FileFormat())
    assert comma.read_text().splitlines()[1] == "007,1.50,2020,12345678901234567890"


@pytest.mark.parametrize("suffix", [".parquet", ".feather", ".jsonl"])
def test_large_whole_numbers_survive_the_filling_of_gaps(tmp_path, suffix) -> None:
    large = 2**60 + 1 if suffix == ".feather" else 2**63 + 2**12
    kind = "Int64" if suffix == ".feather" else "UInt64"
    frame = pd.DataFrame({"a": [1.5, 2], "n": pd.array([large, None], kind)})
    path = write_table(frame, tmp_path / f"data{suffix}")
    table = read_table(path)
    write_table(table.filled(np.nan_to_num(table.X, nan=2.6)), tmp_path / f"full{suffix}")
    assert read_table(tmp_path / f"full{suffix}").frame["n"].tolist() == [large, 3]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".xlsx"])
def test_ids_are_exact_and_may_be_floats(tmp_path, suffix) -> None:
    columns = {"id": np.array([2**64 - 1, 2**53 + 1], np.uint64), "a": [0.5, 1.5], "t": ["u", "v"]}
    path = write_table(pd.DataFrame(columns), tmp_path / f"data{suffix}")
    assert read_table(path).ids.tolist() == [2**64 - 1, 2**53 + 1]
    if suffix != ".csv":  # text stays as it is written
        assert read_table(write_table({"id": [1.0, 2], "a": [1, 3.5]}, path)).ids.tolist() == [1, 2]


@pytest.mark.parametrize("suffix", [".csv", ".xlsx", ".parquet", ".feather", ".jsonl"])
def test_truth_values_with_gaps_stay_truth_values(tmp_path, suffix) -> None:
    flags = pd.array([True, None, False, True], "boolean")
    path = tmp_path / f"data{suffix}"
    if suffix == ".xlsx":  # as pandas writes a column of objects
        pd.DataFrame({"a": [1, 2, 3, 4], "flag": flags.astype(object)}).to_excel(path, index=False)
    else:
        write_table({"a": [1, 2, 3, 4], "flag": flags}, path)
    table = read_table(path, as_written=True)
    assert table.X[[0, 2, 3], 1].tolist() == [1, 0, 1]
    assert list(table.truths) == ["flag"]
    copy = write_table(table.filled(np.full((4, 2), 0.9)), tmp_path / f"full{suffix}", like=table)
    assert read_table(copy).frame["flag"].tolist() == [True, True, False, True]


def test_stdout_gets_text_like_the_input(capsys) -> None:
    columns = {"a": [1, 2], "b": [0.5, NAN]}
    for like, wanted in [
        (None, "a,b\n1,0.5\n2,\n"),
        (FileFormat("parquet", ".parquet"), "a,b\n1,0.5\n2,\n"),
        (FileFormat(separator=";", decimal=","), "a;b\n1;0,5\n2;\n"),
        (FileFormat(separator=" "), "a b\n1 0.5\n2 NA\n"),
        (FileFormat("json", ".jsonl"), '{"a": 1, "b": 0.5}\n{"a": 2, "b": null}\n'),
    ]:
        write_table(columns, "-", like=like)
        assert capsys.readouterr().out == wanted


def test_parquet_of_pandas_and_polars(tmp_path) -> None:
    frame = pd.DataFrame(
        {
            "length": [1.5, -3.0, 1e-300],
            "species": pd.Categorical(["a", "b", "a"]),
            "level": pd.Categorical([4, 5, 4]),
            "flag": [True, False, True],
            "when": pd.Timestamp("2020-01-01"),
        },
        index=[9, 8, 7],
    )
    frame.to_parquet(tmp_path / "pandas.parquet")
    table = read_table(tmp_path / "pandas.parquet", label="species")
    assert table.columns == ("length", "level", "flag")
    assert table.X.tolist() == [[1.5, 4, 1], [-3, 5, 0], [1e-300, 4, 1]]
    assert (table.left_out, list(table.ids)) == (("when",), [9, 8, 7])
    cents = pl.Series([1, None, 3], dtype=pl.Decimal(10, 2))
    pl.DataFrame({"a": cents, "b": [0.5, NAN, 2.0]}).write_parquet(tmp_path / "p.parquet")
    found = read_table(tmp_path / "p.parquet").X
    assert np.array_equal(found, [[1, 0.5], [NAN, NAN], [3, 2]], equal_nan=True)
    with pytest.raises(InvalidInputError, match="row 2, column 'a'"):
        read_table(tmp_path / "p.parquet", missing=False)


def test_excel(tmp_path, monkeypatch) -> None:
    path = tmp_path / "data.xlsx"
    write_table({"id": [2**60 + 1, 5], "a": [0.125, NAN], "t": ["x", "y"]}, path)
    table = read_table(path)
    assert (table.columns, table.ids.tolist()) == (("a",), [2**60 + 1, 5])
    assert np.array_equal(table.X, [[0.125], [NAN]], equal_nan=True)
    with pd.ExcelWriter(path) as book:
        pd.DataFrame([[1, 2.5], [3, "oops"], [5, 4]]).to_excel(book, index=False, header=False)
        pd.DataFrame({"c": [7]}).to_excel(book, sheet_name="more", index=False)
    with pytest.raises(InvalidInputError, match="row 2, column 'x2': 'oops' is not a number"):
        read_table(path)
    assert "Only sheet 'Sheet1' is read" in read_table(path, drop=["2"]).notes[0]
    assert read_table(path, array="more").columns == ("c",)
    with pytest.raises(InvalidInputError, match="no sheet 'absent'; it has Sheet1, more"):
        read_table(path, array="absent")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for use in (read_table, check_output):
        with pytest.raises(InvalidInputError, match=r"pip install 'isthmus\[tables\]'"):
            use(path)


def test_json_lines_with_gaps_and_faults(tmp_path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"a": 1, "b": "x"}\n\n{"b": "y", "c": 2.5}\n')
    table = read_table(path)
    assert np.array_equal(table.X, [[1, NAN], [NAN, 2.5]], equal_nan=True)
    for content, words in [
        ('{"a": 1}\n{"a": oops}\n', "line 2: this is not JSON"),
        ('{"a": 1}\n3\n', "line 2: a row must be an object"),
        ('{"a": 1}\n{"a": "x"}\n{"a": 3}\n', "line 2, column 'a': 'x' is not a number"),
        ("\n", "is empty"),
        ('[\n{"a": 1},\n]', "line 3: this is not JSON"),
    ]:
        path.write_text(content)
        with pytest.raises(InvalidInputError, match=words):
            read_table(path)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint64", "bool"])
def test_arrays_of_any_kind_of_number(tmp_path, dtype) -> None:
    X = np.array([[0, 1], [1, 0], [1, 1]]).astype(dtype)
    np.save(tmp_path / "data.npy", X)
    table = read_table(tmp_path / "data.npy")
    assert np.array_equal(table.X, X)
    write_table(table, tmp_path / "copy.npy")
    assert np.load(tmp_path / "copy.npy").dtype == X.dtype
    np.save(tmp_path / "data.npy", np.arange(3.0))
    assert read_table(tmp_path / "data.npy").columns == ("x1",)
    content = (tmp_path / "data.npy").read_bytes()
    (tmp_path / "data.npy").write_bytes(content.replace(b"(3,)", b"(2,)"))
    with pytest.raises(InvalidInputError, match="holds more"):
        read_table(tmp_path / "data.npy")


def test_npz_has_a_matrix_and_labels_beside_it(tmp_path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, X=np.eye(3), y=[2, 0, 2], other=np.ones((3, 2)), feature_names=["a", "b", "c"])
    table = read_table(path, label="y")
    assert np.array_equal(table.X, np.eye(3))
    assert (table.columns, list(table.labels)) == (("a", "b", "c"), [2, 0, 2])
    copy = read_table(write_table(table, tmp_path / "copy.npz"), label="y")
    assert (copy.columns, list(copy.labels)) == (("a", "b", "c"), [2, 0, 2])
    assert read_table(path, array="other").X.shape == (3, 2)
    with pytest.raises(InvalidInputError, match="there is no 'Z'"):
        read_table(path, array="Z")
    np.savez(path, A=np.eye(3), B=np.eye(2))
    with pytest.raises(InvalidInputError, match=r"A \(3, 3\), B \(2, 2\); name one"):
        read_table(path)


def test_any_names_and_cells_are_written_or_refused(tmp_path) -> None:
    frame = pd.DataFrame({"a": [1.5, 2], "file": ["u", None], "X": ["v", "w"], "l": [[1], [2]]})
    table = read_table(write_table(frame, tmp_path / "data.npz"))
    assert table.columns == ("a",)
    assert table.frame["file"].tolist() == ["u", ""]
    assert table.frame["X.2"].tolist() == ["v", "w"]
    with pytest.raises(InvalidInputError, match="Excel"):
        write_table({"a": [1], "b": ["\x01"]}, tmp_path / "data.xlsx")
    (tmp_path / "half.json").write_text('[{"a": 1, "b": "\\ud800"}]')
    with pytest.raises(InvalidInputError, match="surrogate"):
        read_table(tmp_path / "half.json")
