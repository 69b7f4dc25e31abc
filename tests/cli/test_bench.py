"""`isthmus bench`: finds the benchmarks of a clone and runs them."""

from isthmus.cli import bench

SCRIPT = """import sys
if __name__ == "__main__":
    sys.exit(int(sys.argv[2]) if sys.argv[1] == "--code" else 1)
"""


def test_scripts_are_listed_and_run_with_their_arguments(run, tmp_path, monkeypatch) -> None:
    (tmp_path / "attend.py").write_text(SCRIPT)
    (tmp_path / "shared.py").touch()
    monkeypatch.setattr(bench, "shipped", lambda place: tmp_path)
    for line in ("bench", "bench --list"):
        assert run(line).out.splitlines()[1:] == ["attend"]
    run("bench attend --code 7", code=7)
    assert "attend" in run("bench atend", code=2).err
