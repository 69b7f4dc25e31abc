from pathlib import Path

from isthmus.tables import read_table


def test_csv_is_read(tmp_path: Path) -> None:
    path = tmp_path / "data.csv"
    path.write_text("a,b\n1,2\n3,\n")
    assert read_table(path).columns == ("a", "b")
