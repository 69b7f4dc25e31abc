"""Text tables are read as their authors meant them, or refused with the place and the reason."""

import io
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from isthmus.errors import InvalidInputError
from isthmus.scaling import count_decimals
from isthmus.tables import FileFormat, read_table, write_table
from isthmus.tables.columns import NumberStyle

NAN = float("nan")


def written(folder: Path, content: str | bytes, name: str = "data.csv") -> Path:
    target = folder / name
    target.write_bytes(content if isinstance(content, bytes) else content.encode())
    return target


def same(found: np.ndarray, wanted: object) -> bool:
    return np.array_equal(found, np.array(wanted, dtype=float), equal_nan=True)


@pytest.mark.parametrize("separator", [",", ";", "\t", "|", " ", "  "])
@pytest.mark.parametrize("names", [True, False])
@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_separator_and_names_are_detected(tmp_path, separator, names, ending) -> None:
    lines = [["a", "b", "c"]] * names + [["1", "2.5", "-3e2"], ["4", "5", "6"]]
    path = written(tmp_path, ending.join(separator.join(line) for line in lines), "data.txt")
    table = read_table(path)
    assert same(table.X, [[1, 2.5, -300], [4, 5, 6]])
    assert table.columns == (("a", "b", "c") if names else ("x1", "x2", "x3"))
    assert (table.id_name, list(table.ids)) == ("row", [1, 2])


@pytest.mark.parametrize(
    ("content", "X", "columns"),
    [
        ("a;b\n1,5;2\n-0,25;1e1\n", [[1.5, 2], [-0.25, 10]], "ab"),
        ('\ufeff"first, one",b\n\n1,"2"\n   \n" 3 ",4\n\n', [[1, 2], [3, 4]], ["first, one", "b"]),
        ("a,b\n1,true\n2,False\n", [[1, 1], [2, 0]], "ab"),
        ("a,flag\n1,TRUE\n2,\n", [[1, 1], [2, NAN]], ["a", "flag"]),
        ("0,1,2\n5,9,7\n", [[0, 1, 2], [5, 9, 7]], ["x1", "x2", "x3"]),  # all whole: no names
        ("2019,2020\n1.5,2\n", [[1.5, 2]], ["2019", "2020"]),
        ("a, b\n1,  2\n 3, NA\n", [[1, 2], [3, NAN]], "ab"),
        ('"a" "b"\n"r1" 1 2\n"r2" 3 4\n', [[1, 2], [3, 4]], "ab"),  # row names of R
        ("index\n1\n2\n3\n", [[1], [2], [3]], ["index"]),  # the only column is a feature
        ('a\n1\n  \n""\n3\n', [[1], [NAN], [3]], "a"),
        ("# made by x, y\n#\n\na,b\n1,2\n", [[1, 2]], "ab"),
        ("## one\n#a,b\n1,2\n", [[1, 2]], "ab"),
        ("# units: cm\n#a;b\n1,5;2\n", [[1.5, 2]], "ab"),
        ("# no names\n1,2\n", [[1, 2]], ["x1", "x2"]),
        ("a,a,,a.2\n1,2,3,4\n", [[1, 2, 3, 4]], ["a", "a.3", "x3", "a.2"]),
        ('a,b\n1,2\n"3","4"\n5,\n', [[1, 2], [3, 4], [5, NAN]], "ab"),
    ],
)
def test_layouts_are_understood(tmp_path, content, X, columns) -> None:
    table = read_table(written(tmp_path, content))
    assert same(table.X, X)
    assert table.columns == tuple(columns)


@pytest.mark.parametrize(
    "content", ["a\tb\n950\t2\n1,200\t3\n", "a;b\n950;2\n1,234,567;3\n1,200;4\n"]
)
def test_commas_that_may_separate_thousands_are_refused(tmp_path, content) -> None:
    path = written(tmp_path, content)
    with pytest.raises(InvalidInputError, match="line 3, column 'a'.*drop a"):
        read_table(path)
    assert read_table(path, drop=["a"]).columns == ("b",)
    assert read_table(path, id="a").ids[0] == "950"
    if "567" not in content:
        assert same(read_table(path, decimal=",").X[1], [1.2, 3])
    german = written(tmp_path, "a;b\n1.200;1\n950;2\n3,5;3\n")
    assert same(read_table(german, decimal=",").X[:, 0], [1200, 950, 3.5])


def test_commas_separate_thousands_where_a_number_of_the_column_has_a_point_too(tmp_path) -> None:
    cells = '"$1,234.50",1\n"$12,000",2\n$999,3\n,4\n"-$1,000,000.5",5\n'
    table = read_table(written(tmp_path, "a,b\n" + cells), as_written=True)
    assert same(table.X[:, 0], [1234.5, 12000, 999, NAN, -1000000.5])
    assert table.style("a").write(-2345678.9) == "-$2,345,678.90"
    with pytest.raises(InvalidInputError, match=r"'\$1,200' .*without separators of thousands"):
        read_table(written(tmp_path, 'a,b\n$950,2\n"$1,200",3\n$7,4\n'))


@pytest.mark.parametrize("mark", ["", "n/a", "#N/A", "NaN", "null", "None", "?", "  "])
def test_missing_cells_are_allowed_or_refused_with_their_place(tmp_path, mark) -> None:
    path = written(tmp_path, f"a,b\n1,2\n\n3,{mark}\n")
    assert same(read_table(path).X, [[1, 2], [3, NAN]])
    with pytest.raises(InvalidInputError, match="line 4, column 'b': .*missing"):
        read_table(path, missing=False)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is empty"),
        ('"\t"\n\n"\t"\n', "is empty"),
        ("a,b\n", "names, but no rows"),
        ("a,b\n1,2\n3\n", "line 3: 1 cell, but the line of names has 2"),
        ('a,b\n1,2\n"3"\n', "line 3: 1 cell, but the line of names has 2"),
        ('a,b\n1,"2\n3,4\n', "quote left open"),
        ("name\nx\ny\n", "no column of numbers to use: line 2, column 'name': 'x' is not"),
        ("a,2020,b\n1,2,3\n4,5,6\n7,8,9\n", "line 1, column 'x1': 'a' .*--header yes"),
        ("a,b\n1,2\n$2,3\n4,5\n", "line 3, column 'a': '\\$2' is not a number"),
        ("a,b\n$1,2\n2.5,3\n$4,5\n", "line 3, column 'a': '2.5' .* sign"),
        ("a,b\n1,2\n# hm\n4,5\n", "line 3: 1 cell.*remove the line"),
        ("# x\na,b\n1,2\n3,4\noops,5\n", "line 5, column 'a': 'oops'"),
        (b"\x00\x01\x02\x03" * 50, "not a text file"),
        ("größe,b\n1,2\n".encode() + b"caf\xe9,3\n", "line 3: byte 0xe9 is not UTF-8, though"),
        ("a,b\n1,2\n-1e300,3\n", r"line 3, column 'a': -1e\+300 is too large"),
        ('a\n1\n"\t"\n1e999\n', "column 'a': the value is infinite"),
        ("a,b\n1,2\n1e999,3\n", "line 3, column 'a': the value is infinite"),
        ("a,b\n1,2.5e-200\n2,-1e-200\n3,0\n", "column 'b': its values, 2.5e-200 at most, are too"),
        ('"5,1","3,5"\n"4,9","3,0"\n', "line 1, column 'x1': '5,1'"),
        ("a;b;c\n1.5;2,3;1\n2.5;3,4;2\n", "line 2, column 'b': '2,3' .* decimal point"),
        ("a\tb\n9.99\t1,200\n5.50\t950\n", "line 2, column 'b': '1,200' .* decimal point"),
        ('a,b\n1,"421,602"\n2,"360,524"\n', "line 2, column 'b': '421,602' .* decimal point"),
        ("index,who\n1,a\n2,b\n3,c\n", "no column of numbers .* id none .* makes it"),
        *(
            (f'a,b\n1,2\n2,"{cell}"\n3,4\n4,5\n', r"line 3, column 'b': .*drop b")
            for cell in ("12 years", "1_000", "1,5", "true", "5%")
        ),
    ],
)
def test_text_that_is_not_a_table_is_refused(tmp_path, content, words) -> None:
    with pytest.raises(InvalidInputError, match=words):
        read_table(written(tmp_path, content))


@pytest.mark.parametrize(
    ("row", "cell", "words"),
    [
        (24_321, "oops;1", "column 'a': 'oops'"),
        (24_999, "5", "1 cell"),
        (300, "1.200;1", r"column 'a': '1\.200' is not a number"),
    ],
)
def test_a_bad_cell_below_the_sample_is_located(tmp_path, row, cell, words) -> None:
    lines = [f"{row},5;1" for row in range(25_000)]
    lines[row] = cell
    with pytest.raises(InvalidInputError, match=f"line {row + 2}[,:] {words}"):
        read_table(written(tmp_path, "a;b\n" + "\n".join(lines)))


@pytest.mark.parametrize("mark", "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e")
def test_only_line_feeds_and_carriage_returns_end_lines(tmp_path, mark) -> None:
    table = read_table(written(tmp_path, f"a{mark}b,c,d\n1,2,x{mark}y\n3,4,z\n"))
    assert table.columns == (f"a{mark}b", "c")
    assert same(table.X, [[1, 2], [3, 4]])
    assert table.frame["d"].tolist() == [f"x{mark}y", "z"]


@pytest.mark.parametrize(
    "encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "latin-1"]
)
def test_encodings_are_detected_or_given(tmp_path, encoding) -> None:
    path = written(tmp_path, "größe,b\n1,2\n".encode(encoding))
    table = read_table(path)
    assert table.columns == ("größe", "b") == read_table(path, encoding=encoding).columns
    assert any("Latin-1" in note for note in table.notes) == (encoding == "latin-1")
    late = ("a,b\n" + "1,2\n" * 5000 + "3,größe\n" + "4,ü\n" * 9000).encode(encoding)
    assert read_table(written(tmp_path, late)).left_out == ("b",)


def test_options_overrule_detection(tmp_path) -> None:
    path = written(tmp_path, "7:2\n3.5:4\n")
    assert read_table(path, separator=":").X.shape == (2, 2)
    assert read_table(path, separator=":", header=True).columns == ("7", "2")
    assert len(read_table(written(tmp_path, "2019,2020\n3.5,4\n"), header=False)) == 2
    assert read_table(written(tmp_path, "a\tb\n1\t2\n"), separator="tab").columns == ("a", "b")
    for wrong in ({"separator": "::"}, {"decimal": ";"}, {"encoding": "nothing"}):
        with pytest.raises(InvalidInputError, match=next(iter(wrong))):
            read_table(path, **wrong)
    with pytest.raises(InvalidInputError, match="not text in ascii"):
        read_table(written(tmp_path, "größe\n1\n"), encoding="ascii")


def test_words_and_empty_columns_are_left_out_and_named(tmp_path) -> None:
    path = written(tmp_path, "who,a,when,empty\nann,1,2020-01-05,\nbob,2,2020-02-07,NA\n")
    table = read_table(path)
    assert table.columns == ("a",)
    assert table.left_out == ("who", "when", "empty")
    assert ["empty." in table.notes[0], "who, when." in table.notes[1]] == [True, True]
    few = read_table(written(tmp_path, "a,code\n1,A1\n2,77\n3,B2\n4,C9\n"))
    assert few.left_out == ("code",)


def test_ids_are_kept_as_written_and_labels_are_not_features(tmp_path) -> None:
    path = written(tmp_path, "name,a,kind,b\n007,1,x,2\n010,3,,4\n")
    for id_, label in (("name", "kind"), ("1", "3")):
        table = read_table(path, id=id_, label=label)
        assert list(table.ids) == ["007", "010"]
        assert list(table.labels) == ["x", ""]
        assert (table.id_name, table.label_name) == ("name", "kind")
        assert same(table.X, [[1, 2], [3, 4]])
    mixed = read_table(written(tmp_path, "a,k\n1,2\n2,2\n3,other\n"), label="k")
    assert list(mixed.labels) == ["2", "2", "other"]
    nameless = read_table(written(tmp_path, "r1,1,2\nr2,3,4\n"), id="1")
    assert list(nameless.ids) == ["r1", "r2"]
    large = read_table(written(tmp_path, "id,a\n12345678901234567,1\n12345678901234568,2\n"))
    assert list(large.ids) == [12345678901234567, 12345678901234568]


@pytest.mark.parametrize(
    "name", ["ID", "Index", "row", "rowid", "customer_id", "userID", "order id", "Unnamed: 0"]
)
@pytest.mark.parametrize("values", [("12", "007", "9"), ("1", "", "A3")])
def test_a_column_with_the_name_of_ids_is_used_as_ids(tmp_path, name, values) -> None:
    lines = [f"{number / 4},{value},7" for number, value in enumerate(values)]
    table = read_table(written(tmp_path, "\n".join([f"a,{name},b", *lines])))
    assert table.columns == ("a", "b")
    assert (table.id_name, tuple(table.ids)) == (name, values)
    assert repr(name) in table.notes[0]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("paid", (1, 2, 3)),  # only ends like that
        ("group_id", (1, 1, 2)),  # not distinct
        ("index", (0.5, 1.5, 2)),  # not whole
        ("parent_id", (7, "", "")),  # mostly missing
    ],
)
def test_a_column_that_cannot_be_ids_is_a_feature(tmp_path, name, values) -> None:
    lines = [f"{value},{number / 4}" for number, value in enumerate(values)]
    table = read_table(written(tmp_path, "\n".join([f"{name},a", *lines])))
    assert (table.columns, table.id_name, table.notes) == ((name, "a"), "row", ())


def test_ids_found_by_name_can_be_overruled(tmp_path) -> None:
    path = written(tmp_path, "id,order_id,a,b\n1,4,.5,x\n2,5,.7,y\n3,9,.1,z\n")
    found = read_table(path)
    assert found.columns == ("order_id", "a")
    assert any("look like ids, too: order_id" in note for note in found.notes)
    none = read_table(path, id="none")
    assert (none.columns, none.id_name) == (("id", "order_id", "a"), "row")
    assert read_table(path, id="b").columns == ("id", "order_id", "a")
    assert read_table(path, label="id").id_name == "order_id"
    assert read_table(path, drop=["id"]).id_name == "order_id"
    nameless = written(tmp_path, ",a\n7,1\n8,2\n", "nameless.csv")
    assert read_table(nameless).columns == ("a",)
    assert read_table(nameless, id="none").columns == ("id", "a")


@pytest.mark.parametrize("index", [True, False])
def test_files_of_pandas_and_numpy_come_back(tmp_path, index) -> None:
    X = np.random.default_rng(0).normal(size=(6, 3))
    pd.DataFrame(X).to_csv(tmp_path / "data.csv", index=index)
    table = read_table(tmp_path / "data.csv")
    assert np.array_equal(table.X, X)
    assert table.columns == ("0", "1", "2")
    assert list(table.ids) == (list(range(6)) if index else list(range(1, 7)))
    np.savetxt(tmp_path / "data.txt", X, header="a b c", fmt="%.17g")
    table = read_table(tmp_path / "data.txt")
    assert np.array_equal(table.X, X)
    assert table.columns == ("a", "b", "c")


def test_signs_of_currencies_and_percent_are_no_part_of_the_number(tmp_path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("a,b,c\n$1.50,2 %,3 €\n-,4.5 %,-1€\n-$3,n/a,\n")
    table = read_table(path, missing=True, as_written=True)
    nan = np.nan
    np.testing.assert_array_equal(table.X, [[1.5, 2, 3], [nan, 4.5, -1], [-3, nan, nan]])
    assert table.cells is not None
    filled = table.filled(np.full((3, 3), -2.25))
    assert filled.cells["a"].tolist() == ["$1.50", "-$2.25", "-$3"]
    assert filled.cells["b"].tolist() == ["2 %", "4.5 %", "-2.2 %"]
    assert filled.cells["c"].tolist() == ["3 €", "-1€", "-2 €"]


def test_titles_above_the_names_are_skipped(tmp_path) -> None:
    rows = "a;b;c\n1;2;3\n4;5;6\n"
    for titles in ("Report, 2024\n", "Report\nby me;\n\n", "Report;;\n;;\n"):
        table = read_table(written(tmp_path, titles + rows))
        assert (table.columns, table.X.tolist()) == (("a", "b", "c"), [[1, 2, 3], [4, 5, 6]])
        assert "skipped" in table.notes[-1]
    path = written(tmp_path, "1;2\nold;names\n" + rows)
    assert read_table(path, skip_rows=2).columns == ("a", "b", "c")
    with pytest.raises(InvalidInputError, match="line 4: 1 cell"):
        read_table(written(tmp_path, "title\n" + rows.replace("4;5;6", "4\n7;8;9\n")))
    frame = pd.DataFrame([["Report", None], ["x", "y"], [1, 2.5], [3, 4]])
    frame.to_excel(tmp_path / "t.xlsx", index=False, header=False)
    for options in ({}, {"skip_rows": 1}):
        table = read_table(tmp_path / "t.xlsx", **options)
        assert (table.columns, table.X.tolist()) == (("x", "y"), [[1, 2.5], [3, 4]])


@pytest.mark.parametrize("options", [{}, {"decimal": ","}])
def test_points_separate_thousands_where_a_number_of_the_column_has_a_comma_too(
    tmp_path, options
) -> None:
    path = written(tmp_path, "price;n\n2.986,93 €;1\n1.200 €;2\n;3\n-1.234.567,5 €;4\n")
    table = read_table(path, as_written=True, **options)
    assert same(table.X[:, 0], [2986.93, 1200, NAN, -1234567.5])
    filled = table.filled(np.full((4, 2), 7654.321))
    assert filled.cells["price"].tolist()[2] == "7.654,32 €"
    copy = write_table(filled, tmp_path / "copy.csv", like=FileFormat())
    assert '"2,986.93 €"' in copy.read_text()


@pytest.mark.parametrize(
    ("cells", "values", "new"),
    [
        (["177.3 cm", "", "180 cm"], [177.3, NAN, 180], "1.5 cm"),
        (["5mg", "", "6mg"], [5, NAN, 6], "2mg"),
        (["20 °C", "n/a", "25 °C"], [20, NAN, 25], "2 °C"),
        (["12a", "", "13a"], None, ""),
        (["12 Main", "", "13 Oak"], None, ""),
        (["1.7 m", "", "180 cm"], None, ""),
    ],
)
def test_one_unit_is_no_part_of_the_numbers(tmp_path, cells, values, new) -> None:
    lines = [f"{number},{cell}" for number, cell in enumerate(cells)]
    table = read_table(written(tmp_path, "\n".join(["n,a", *lines])), as_written=True)
    assert table.left_out == (() if values else ("a",))
    if values:
        assert same(table.X[:, 1], values)
        assert table.filled(np.full((3, 2), 1.5)).cells["a"].tolist()[1] == new


def test_stdin_is_text(monkeypatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a;b\n1;2\n")))
    assert same(read_table("-").X, [[1, 2]])


@pytest.mark.parametrize(
    ("cells", "value", "expected"),
    [
        (["1.5", "2.25", "3"], 7.128, "7.13"),
        (["1", "20"], 7.0, "7"),
        (["0", "1"], 0.3333333, "0.33"),  # a mean of whole numbers
        (["-$3", "$2.5"], -4.26, "-$4.3"),
        (["3 €", "12 €"], 4.4, "4 €"),
        (["1e-9", "2.5e-9"], 3e-10, "3e-10"),
        (["0.1234567"], 0.3333333333333, "0.3333333333333"),
        (["True", "False"], 0.7, "True"),
        (["TRUE"], 0.2, "FALSE"),
        ([], 1.25, "1.25"),
        (["1.5"], NAN, ""),
    ],
)
def test_numbers_are_written_like_other_cells(cells, value, expected) -> None:
    assert NumberStyle.of(cells, ".").write(value) == expected


@pytest.mark.parametrize(
    ("values", "expected"),
    [([1, 2], 0), ([0.1, 2.25], 2), ([1e9 + 0.5], 1), ([1e-9], None), ([np.pi], None), ([], 0)],
)
def test_decimals_are_counted(values, expected) -> None:
    assert count_decimals(np.array(values)) == expected
