"""Tables are read as their writer meant them, or refused with a word on where and why."""

import csv
import gzip
import io
import json
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from isthmus.cli.options import make_parser
from isthmus.cli.outputs import default_output, output_file, write_rows
from isthmus.cli.tables import add_table_options, load_table, read_table
from isthmus.errors import InvalidInputError

NAN = float("nan")
FRAME = pd.DataFrame(
    {
        "length": [1.5, 2.25, -3.0, 1e-300],
        "species": ["a", "b", "a, quoted", 'say "c"'],
        "count": [4, 5, 6, 7],
        "flag": [True, False, True, True],
    }
)


def written(folder: Path, content: str | bytes, name: str = "data.csv") -> Path:
    target = folder / name
    target.write_bytes(content if isinstance(content, bytes) else content.encode())
    return target


def same(found: np.ndarray, wanted: object) -> bool:
    return np.array_equal(found, np.array(wanted, dtype=float), equal_nan=True)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|", " ", "  "])
@pytest.mark.parametrize("names", [True, False])
def test_separator_and_names_are_found_out(tmp_path: Path, separator: str, names: bool) -> None:
    lines = [["a", "b", "c"]] * names + [["1", "2.5", "-3e2"], ["4", "5", "6"]]
    path = written(tmp_path, "\n".join(separator.join(line) for line in lines), "data.txt")
    table = read_table(path)
    assert same(table.X, [[1, 2.5, -300], [4, 5, 6]])
    assert table.columns == (("a", "b", "c") if names else ("x1", "x2", "x3"))
    assert table.id_name == "row"
    assert list(table.ids) == [1, 2]


def test_decimal_commas_go_with_semicolons(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "a;b\n1,5;2\n-0,25;1e1\n"))
    assert same(table.X, [[1.5, 2], [-0.25, 10]])


@pytest.mark.parametrize(
    ("content", "note"),
    [
        ("a;b\n1,5;2\n3;4\n", "line 2, column 'a', 1,5 is 1.5"),
        ("a;b\n1,200;x\n0,250;y\n", "line 3, column 'a', 0,250 is 0.250"),
        ("a\tb\n-1,200\t1\n2,345\t3,1\n", "line 3, column 'b', 3,1 is 3.1"),
        ("a;b\n1.5;2\n3;4\n", ""),
        ("a;b\n1;1,200\n2;Rome\n3;Oslo\n", ""),
    ],
)
def test_decimal_commas_are_told(tmp_path: Path, content: str, note: str) -> None:
    notes = " ".join(read_table(written(tmp_path, content)).notes)
    assert ("commas in numbers are read as decimal points" in notes) == bool(note)
    assert note in notes


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a\tb\n950\t2\n1,200\t3\n", "'a': 1,200 may be 1200, or have a decimal comma"),
        ("a;b\n950;2\n1,234,567;3\n1,200;4\n", "'a': 1,234,567 may be 1234567"),
    ],
)
def test_commas_that_may_be_of_thousands_are_refused(
    tmp_path: Path, content: str, words: str
) -> None:
    path = written(tmp_path, content)
    with pytest.raises(InvalidInputError, match=rf"line 3, column {words}.* --drop a\."):
        read_table(path)
    assert read_table(path, drop=["a"]).columns == ("b",)
    assert read_table(path, id="a").ids[0] == "950"


@pytest.mark.parametrize(
    ("content", "cell"),
    [
        ("a;b;c\n1.5;2,3;1\n2.5;3,4;2\n", "2,3"),
        ("a\tb\n9.99\t1,200\n5.50\t950\n7.25\t2,300\n", "1,200"),
        ('a,b\n1,"421,602"\n2,"360,524"\n', "421,602"),
        ('a,b\n1,"5,1"\n2,"3,5"\n', "5,1"),
        ("a;b\n2,5;1.234,5\n3,5;2.345,6\n", "1.234,5"),
        ('a,b\n1,"1,234.5"\n2,"2,345.6"\n', "1,234.5"),
    ],
)
def test_numbers_with_commas_of_another_kind_are_no_reason_to_lose_a_column(
    tmp_path: Path, content: str, cell: str
) -> None:
    with pytest.raises(InvalidInputError, match=f"line 2, column 'b': '{cell}' .* decimal point"):
        read_table(written(tmp_path, content))


def test_where_commas_are_decimal_points_are_not(tmp_path: Path) -> None:
    lines = [f"{row},5;1" for row in range(300)]
    path = written(tmp_path, "\n".join(["a;b", *lines, "1.200;1"]))
    with pytest.raises(InvalidInputError, match=r"line 302, column 'a': '1\.200' is not a number"):
        read_table(path)


def test_quoted_numbers_with_commas_are_no_names(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="line 1, column 'x1': '5,1'"):
        read_table(written(tmp_path, '"5,1","3,5"\n"4,9","3,0"\n'))


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_marks_blank_lines_and_quotes_do_no_harm(tmp_path: Path, ending: str) -> None:
    text = '\ufeff"first, one",b\n\n1,"2"\n   \n" 3 ",4\n\n'.replace("\n", ending)
    table = read_table(written(tmp_path, text))
    assert table.columns == ("first, one", "b")
    assert same(table.X, [[1, 2], [3, 4]])


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings_that_announce_themselves(tmp_path: Path, encoding: str) -> None:
    table = read_table(written(tmp_path, "größe,b\n1,2\n".encode(encoding)))
    assert table.columns == ("größe", "b")


def test_gzip_and_stdin_are_text_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = written(tmp_path, gzip.compress(b"a,b\n1,2\n"), "data.csv.gz")
    assert same(read_table(packed).X, [[1, 2]])
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a;b\n1;2\n")))
    assert same(read_table(Path("-")).X, [[1, 2]])


@pytest.mark.parametrize("mark", ["", "NA", "n/a", "#N/A", "NaN", "null", "None", "?", "  "])
def test_missing_cells_are_allowed_or_told_with_their_place(tmp_path: Path, mark: str) -> None:
    path = written(tmp_path, f"a,b\n1,2\n\n3,{mark}\n")
    assert same(read_table(path, missing=True).X, [[1, 2], [3, NAN]])
    with pytest.raises(InvalidInputError, match=r"line 4, column 'b': .*isthmus complete"):
        read_table(path)


def test_values_whose_squares_overflow_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="line 3, column 'a': -1e\\+300 is too large"):
        read_table(written(tmp_path, "a,b\n1,2\n-1e300,3\n"))
    assert read_table(written(tmp_path, "a,b\n1,2\n-1e149,3\n")).X.min() == -1e149


@pytest.mark.parametrize("power", ["e-200", "e-310"])
def test_columns_whose_squares_vanish_are_refused(tmp_path: Path, power: str) -> None:
    path = written(tmp_path, f"a,b\n1,2.5{power}\n2,-1{power}\n3,0\n")
    with pytest.raises(InvalidInputError, match=f"column 'b': its values, 2.5{power} at most, are"):
        read_table(path)
    assert read_table(path, drop=["b"]).columns == ("a",)
    assert read_table(written(tmp_path, f"a,b\n0,1\n0,2{power}\n")).X[1, 1] == float(f"2{power}")


@pytest.mark.parametrize("infinite", ["inf", "-Infinity", "1e999"])
def test_infinities_are_refused_even_where_gaps_are_allowed(tmp_path: Path, infinite: str) -> None:
    with pytest.raises(InvalidInputError, match="line 3, column 'a': the value is infinite"):
        read_table(written(tmp_path, f"a,b\n1,2\n{infinite},3\n"), missing=True)


def test_text_and_dates_are_left_out_and_named(tmp_path: Path) -> None:
    path = written(tmp_path, "who,a,when,empty\nann,1,2020-01-05,\nbob,2,2020-02-07,NA\n")
    table = read_table(path, missing=True)
    assert table.columns == ("a",)
    assert table.left_out == ("who", "when", "empty")
    assert table.notes == (
        "left out, since all of their cells are missing: empty.",
        "left out, since most of their cells are not numbers: who, when.",
    )


def test_true_and_false_are_one_and_zero(tmp_path: Path) -> None:
    assert same(read_table(written(tmp_path, "a,b\n1,true\n2,False\n")).X, [[1, 1], [2, 0]])


@pytest.mark.parametrize("cell", ["12 years", "1_000", "1,5", "true", "5%"])
def test_a_bad_cell_among_numbers_is_an_error_and_not_a_lost_column(
    tmp_path: Path, cell: str
) -> None:
    path = written(tmp_path, f'a,b\n1,2\n2,"{cell}"\n3,4\n4,5\n')
    with pytest.raises(InvalidInputError, match=r"line 3, column 'b': .*--drop b"):
        read_table(path)
    assert read_table(path, drop=["b"]).columns == ("a",)


def test_a_few_numbers_do_not_make_a_column_of_words_numeric(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "a,code\n1,A1\n2,77\n3,B2\n4,C9\n"))
    assert table.left_out == ("code",)


def test_a_bad_cell_far_down_is_found(tmp_path: Path) -> None:
    lines = [f"{row},{row / 2}" for row in range(25_000)]
    lines[24_321] = "5,oops"
    with pytest.raises(InvalidInputError, match="line 24323, column 'b': 'oops'"):
        read_table(written(tmp_path, "a,b\n" + "\n".join(lines)))


def test_ids_are_kept_as_written_and_labels_are_no_features(tmp_path: Path) -> None:
    path = written(tmp_path, "name,a,kind,b\n007,1,x,2\n010,3,,4\n")
    table = read_table(path, id="name", label="kind")
    assert list(table.ids) == ["007", "010"]
    assert list(table.label) == ["x", ""]
    assert (table.id_name, table.label_name) == ("name", "kind")
    assert same(table.X, [[1, 2], [3, 4]])
    by_number = read_table(path, id="1", label="3")
    assert (by_number.id_name, by_number.label_name) == ("name", "kind")


def test_a_label_of_mostly_numbers_may_hold_a_word(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "a,k\n1,2\n2,2\n3,other\n"), label="k")
    assert list(table.label) == ["2", "2", "other"]


@pytest.mark.parametrize("index", [True, False])
def test_what_pandas_writes_comes_back(tmp_path: Path, index: bool) -> None:
    X = np.random.default_rng(0).normal(size=(6, 3))
    pd.DataFrame(X).to_csv(tmp_path / "data.csv", index=index)
    table = read_table(tmp_path / "data.csv")
    assert np.array_equal(table.X, X)
    assert table.columns == ("0", "1", "2")
    assert list(table.ids) == (list(range(6)) if index else list(range(1, 7)))


def test_whole_numbers_in_the_first_line_are_data_where_all_are_whole(tmp_path: Path) -> None:
    assert same(read_table(written(tmp_path, "0,1,2\n5,9,7\n")).X, [[0, 1, 2], [5, 9, 7]])


def test_the_option_decides_on_names(tmp_path: Path) -> None:
    path = written(tmp_path, "1,2\n3.5,4\n")
    assert read_table(path, header=True).columns == ("1", "2")
    assert len(read_table(path, header=False)) == 2
    with pytest.raises(InvalidInputError, match="line 1, column 'x1': 'a'"):
        read_table(written(tmp_path, "a,b\n1,2\n2,3\n"), header=False)


def test_ids_without_a_line_of_names(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "r1,1,2\nr2,3,4\n"), id="1")
    assert same(table.X, [[1, 2], [3, 4]])
    assert list(table.ids) == ["r1", "r2"]


def test_row_names_as_r_writes_them(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, '"a" "b"\n"r1" 1 2\n"r2" 3 4\n', "data.txt"))
    assert table.columns == ("a", "b")
    assert list(table.ids) == ["r1", "r2"]


def test_what_numpy_savetxt_writes_comes_back(tmp_path: Path) -> None:
    X = np.random.default_rng(0).normal(size=(5, 2))
    np.savetxt(tmp_path / "data.txt", X, header="a b", fmt="%.17g")
    table = read_table(tmp_path / "data.txt")
    assert np.array_equal(table.X, X)
    assert table.columns == ("a", "b")


def test_names_that_occur_twice_or_not_at_all_are_told_apart(tmp_path: Path) -> None:
    table = read_table(written(tmp_path, "a,a,,a.2\n1,2,3,4\n"))
    assert len(set(table.columns)) == 4
    assert {"a", "x3", "a.2"} <= set(table.columns)


@pytest.mark.parametrize(
    "name",
    [
        "id",
        "ID",
        "Index",
        "row",
        "rowid",
        "row_id",
        "customer_id",
        "PATIENT_ID",
        "customerId",
        "userID",
        "customer id",
        "Unnamed: 0",
    ],
)
@pytest.mark.parametrize("values", [("12", "007", "9"), ("b7", "a1", "x"), ("1", "", "A3")])
def test_a_column_called_as_ids_are_is_taken_for_them(
    tmp_path: Path, name: str, values: tuple[str, ...]
) -> None:
    lines = [f"{number / 4},{value},7" for number, value in enumerate(values)]
    path = written(tmp_path, "\n".join([f"a,{name},b", *lines]))
    table = read_table(path)
    assert table.columns == ("a", "b")
    assert (table.id_name, tuple(table.ids)) == (name, values)
    assert any(f"{name!r}, by its name, is taken for the ids" in note for note in table.notes)
    assert any("--id none" in note for note in table.notes)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("paid", (1, 2, 3)),  # only ends like that
        ("rapid", (1, 2, 3)),
        ("group_id", (1, 1, 2)),  # not distinct
        ("index", (0.5, 1.5, 2)),  # not whole
        ("parent_id", (7, "", "")),  # hardly there
    ],
)
def test_a_column_that_cannot_be_ids_is_a_feature(
    tmp_path: Path, name: str, values: tuple[object, ...]
) -> None:
    lines = [f"{value},{number / 4}" for number, value in enumerate(values)]
    table = read_table(written(tmp_path, "\n".join([f"{name},a", *lines])), missing=True)
    assert table.columns == (name, "a")
    assert table.id_name == "row"
    assert table.notes == ()


def test_ids_found_by_name_can_be_overruled(tmp_path: Path) -> None:
    path = written(tmp_path, "id,order_id,a,b\n1,4,.5,x\n2,5,.7,y\n3,9,.1,z\n")
    found = read_table(path)
    assert found.columns == ("order_id", "a")
    assert list(found.ids) == [1, 2, 3]
    assert any("look like ids, too: order_id" in note for note in found.notes)
    none = read_table(path, id="none")
    assert none.columns == ("id", "order_id", "a")
    assert list(none.ids) == [1, 2, 3]
    assert none.id_name == "row"
    assert read_table(path, id="b").columns == ("id", "order_id", "a")
    assert read_table(path, label="id").id_name == "order_id"
    assert read_table(path, drop=["id"]).id_name == "order_id"
    nameless = written(tmp_path, ",a\n7,1\n8,2\n", "nameless.csv")
    assert read_table(nameless).columns == ("a",)
    assert read_table(nameless, id="none").columns == ("id", "a")


def test_the_only_column_is_used_whatever_its_name(tmp_path: Path) -> None:
    assert read_table(written(tmp_path, "index\n1\n2\n3\n")).columns == ("index",)


def test_ids_beside_words_alone_are_nothing_to_learn_from(tmp_path: Path) -> None:
    path = written(tmp_path, "index,who\n1,a\n2,b\n3,c\n")
    with pytest.raises(InvalidInputError, match=r"no column of numbers .* --id none makes it"):
        read_table(path)
    assert read_table(path, id="none").columns == ("index",)


def test_ids_that_only_differ_in_their_last_digits_are_distinct(tmp_path: Path) -> None:
    path = written(tmp_path, "id,a\n12345678901234567,1\n12345678901234568,2\n")
    assert list(read_table(path).ids) == [12345678901234567, 12345678901234568]


@pytest.mark.parametrize(
    ("content", "columns"),
    [
        ("# made by x\na,b\n1,2\n", ("a", "b")),
        ("# made by x, y\n#\n\na,b\n1,2\n", ("a", "b")),
        ("## one\n#a,b\n1,2\n", ("a", "b")),
        ("# units: cm\n#a;b\n1,5;2\n", ("a", "b")),
        ("# no names\n1,2\n", ("x1", "x2")),
    ],
)
def test_comments_above_a_table_are_not_read(
    tmp_path: Path, content: str, columns: tuple[str, ...]
) -> None:
    table = read_table(written(tmp_path, content))
    assert table.columns == columns
    assert len(table) == 1
    end = content.splitlines()[-1]
    wrong = written(tmp_path, content + "\n".join([end, end, end.replace("2", "oops"), end]))
    with pytest.raises(InvalidInputError, match=f"line {len(content.splitlines()) + 3}, column"):
        read_table(wrong)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ("\n \n", "is empty"),
        ("a,b\n", "names, but no rows"),
        ("a,b\n1,2\n3\n", "line 3: 1 cell, but the line of names has 2"),
        ("1,2\n3,4\n5,6,7\n", "line 3: 3 cells"),
        ('a,b\n1,"2\n3,4\n', "quote left open"),
        ("name\nx\ny\n", "no column of numbers to use: line 2, column 'name': 'x' is not"),
        ("a,b\n$1.5,2%\n$3,4%\n", "to use: line 2, column 'a': '\\$1.5' is not a number"),
        ("a,2020,b\n1,2,3\n4,5,6\n7,8,9\n", "line 1, column 'x1': 'a' .*--header yes"),
        ("a,b\n1,2\n-,3\n4,5\n", "line 3, column 'a': '-' .*leave it empty .*NA"),
        ("a,b\n1,2\n# hm\n4,5\n", "line 3: 1 cell.*remove the line"),
        (b"\x00\x01\x02\x03" * 50, "not a text file"),
        (b"a,b\n1,caf\xe9\n", "not text in UTF-8"),
    ],
)
def test_text_that_is_no_table_is_refused(tmp_path: Path, content: str | bytes, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        read_table(written(tmp_path, content))


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("data.csv.gz", b"plain", "gzip"),
        ("data.csv.gz", gzip.compress(b"a,b\n1,2\n" * 99, mtime=0)[:-9], "gzip"),
        ("data.xlsx", b"PK", "must end in"),
        ("data.gz", b"", "must end in"),
        ("data.parquet", b"PAR1 but no more", "is no Parquet file, or was cut short"),
        ("data.parquet", b"PAR1 and nothing between PAR1", "is a damaged Parquet file"),
        ("data.npy", b"junk", "damaged"),
        ("data.npz", b"PK\x03\x04 cut", "not a readable .npz"),
        ("data.npz", b"", "not a readable .npz"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        read_table(written(tmp_path, content, name))


def test_absent_files_directories_and_columns_are_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="cannot be read: No such file"):
        read_table(tmp_path / "absent.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(InvalidInputError, match="cannot be read: Is a directory"):
        read_table(tmp_path / "folder.csv")
    path = written(tmp_path, "a,b\n1,2\n")
    for wrong in ({"id": "c"}, {"label": "9"}, {"drop": ["zz"]}):
        with pytest.raises(InvalidInputError, match="no such column; it has a, b"):
            read_table(path, **wrong)
    with pytest.raises(InvalidInputError, match="--array"):
        read_table(path, array="X")


def test_parquet_of_pandas_and_polars(tmp_path: Path) -> None:
    indexed = FRAME.assign(when=pd.Timestamp("2020-01-01")).set_axis([9, 8, 7, 6], axis=0)
    indexed.to_parquet(tmp_path / "pandas.parquet")
    table = read_table(tmp_path / "pandas.parquet", label="species")
    assert same(table.X, FRAME[["length", "count", "flag"]].to_numpy(dtype=float))
    assert table.left_out == ("when",)
    assert list(table.ids) == [9, 8, 7, 6]
    pl.DataFrame({"a": [1, None, 3], "b": [0.5, NAN, 2.0]}).write_parquet(tmp_path / "p.parquet")
    assert same(read_table(tmp_path / "p.parquet", missing=True).X, [[1, 0.5], [NAN, NAN], [3, 2]])
    with pytest.raises(InvalidInputError, match="row 2, column 'a'"):
        read_table(tmp_path / "p.parquet")


def test_without_pyarrow_parquet_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FRAME.to_parquet(tmp_path / "data.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidInputError, match=r"pip install 'isthmus\[study\]'"):
        read_table(tmp_path / "data.parquet")
    with pytest.raises(InvalidInputError, match=r"pip install 'isthmus\[study\]'"):
        output_file(tmp_path / "out.parquet")


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "uint64", "bool"])
def test_npy_of_any_kind_of_number(tmp_path: Path, dtype: str) -> None:
    X = np.array([[0, 1], [1, 0], [1, 1]]).astype(dtype)
    np.save(tmp_path / "data.npy", X)
    assert same(read_table(tmp_path / "data.npy").X, X)


def test_npy_of_one_dimension_is_one_column(tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", np.arange(3.0))
    table = read_table(tmp_path / "data.npy")
    assert table.X.shape == (3, 1)
    assert table.columns == ("x1",)


@pytest.mark.parametrize(
    "array", [np.zeros((2, 2, 2)), np.array(1.0), np.array(["a", "b"]), np.zeros((2, 2)) + 1j]
)
def test_npy_of_another_shape_or_kind_is_refused(tmp_path: Path, array: np.ndarray) -> None:
    np.save(tmp_path / "data.npy", array)
    with pytest.raises(InvalidInputError, match=r"must hold numbers \(n, D\)"):
        read_table(tmp_path / "data.npy")


def test_pickles_are_never_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "data.npy", np.array([1, None], dtype=object), allow_pickle=True)
    with pytest.raises(InvalidInputError, match="never loaded"):
        read_table(tmp_path / "data.npy")


def test_npz_takes_x_or_the_named_array_and_a_label_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, X=np.eye(3), y=[2, 0, 2], other=np.ones((3, 2)), feature_names=["a", "b", "c"])
    table = read_table(path, label="y")
    assert same(table.X, np.eye(3))
    assert table.columns == ("a", "b", "c")
    assert list(table.label) == [2, 0, 2]
    assert read_table(path, array="other").X.shape == (3, 2)
    with pytest.raises(InvalidInputError, match="there is no 'Z'"):
        read_table(path, array="Z")
    np.savez(path, A=np.eye(3), B=np.eye(2))
    with pytest.raises(InvalidInputError, match=r"A \(3, 3\), B \(2, 2\); name one with --array"):
        read_table(path)


def test_options_reach_the_reader(tmp_path: Path) -> None:
    parser = make_parser("try", "", "isthmus try data.csv")
    add_table_options(parser)
    path = written(tmp_path, "a,b,c,d\n1,2,3,4\n5,6,7,8\n")
    table = load_table(parser.parse_args([str(path), "--id", "a", "--label", "b", "--drop", "4"]))
    assert table.columns == ("c",)
    assert list(table.ids) == [1, 5]
    assert list(table.label) == [2, 6]


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".json"])
def test_what_is_written_is_read_back_by_others_to_the_last_digit(
    tmp_path: Path, suffix: str
) -> None:
    values = np.random.default_rng(0).normal(size=50) * 10.0 ** np.arange(-25, 25)
    values[3] = NAN
    columns = {"id": [f"r{n}, é" for n in range(50)], "v": values, "k": np.arange(50)}
    target = tmp_path / f"out{suffix}"
    write_rows(target, columns)
    if suffix == ".json":
        rows = json.loads(target.read_text())
        found = {name: [row[name] for row in rows] for name in columns}
        assert found["v"][3] is None
    elif suffix == ".parquet":
        found = {name: pl.read_parquet(target)[name].to_list() for name in columns}
    else:
        frame = pl.read_csv(target, separator="\t" if suffix == ".tsv" else ",")
        found = {name: frame[name].to_list() for name in columns}
        with target.open(newline="") as file:
            rows_of_csv = list(csv.reader(file, delimiter="\t" if suffix == ".tsv" else ","))
        assert rows_of_csv[4][1] == ""
    assert same(np.array(found["v"], dtype=float), values)
    assert found["id"] == columns["id"]
    assert found["k"] == list(range(50))


def test_without_a_target_rows_go_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(None, {"a": [1, 2], "b": [0.1, NAN]})
    assert capsys.readouterr().out == "a,b\n1,0.1\n2,\n"


def test_targets_are_checked_beforehand(tmp_path: Path) -> None:
    data = written(tmp_path, "a\n1\n")
    with pytest.raises(InvalidInputError, match="is the data itself"):
        output_file(tmp_path / "." / "data.csv", data)
    with pytest.raises(InvalidInputError, match="must end in"):
        output_file(tmp_path / "out.xlsx")
    with pytest.raises(InvalidInputError, match="make it first"):
        output_file(tmp_path / "absent" / "out.csv")


@pytest.mark.parametrize(
    ("data", "wanted"),
    [("a/iris.csv", "iris.x.csv"), ("my.data.csv.gz", "my.data.x.csv"), ("-", "stdin.x.csv")],
)
def test_default_names_follow_the_data(data: str, wanted: str) -> None:
    assert default_output(Path(data), "x.csv") == Path(wanted)
