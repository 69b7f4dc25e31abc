"""`isthmus reproduce`: the whole report, and options that are refused."""

import json

import pytest

from isthmus.cli.main import main
from isthmus.report import PARTS


def test_parts_are_listed_even_where_none_can_be_written(tmp_path, capsys) -> None:
    place = tmp_path / "file"
    place.touch()
    assert main(["reproduce", "--out", str(place), "--list", "--json"]) == 0
    assert not any(part["done"] for part in json.loads(capsys.readouterr().out))
    assert main(["reproduce", "--out", str(place)]) == 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_parts_are_done(tmp_path) -> None:
    assert main(["reproduce", "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["summary"]["parts"] == {"done": len(PARTS), "failed": 0, "missing": 0}
    assert sum(results["summary"]["verdicts"].values()) > 0
