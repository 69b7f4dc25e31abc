"""The scripts of the gallery run as they stand, draw, and warn of nothing."""

from pathlib import Path

import matplotlib
import pytest
from matplotlib import pyplot as plt

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted((ROOT / "examples").glob("*.py"))

# Lines of large examples, and what the tests run in their place.
SMALLER: dict[str, tuple[str, str]] = {
    "plot_bandwidth_and_capacity": ("REPEATS = 300, 5", "REPEATS = 40, 1"),
    "plot_deep_memory": ("UPDATES, SHOWN = 600", "UPDATES, SHOWN = 20"),
    "plot_in_context_energies": ("DATASETS = 65, 4", "DATASETS = 17, 1"),
    "plot_larger_than_memory": ("ROWS = 8, 20_000", "ROWS = 3, 500"),
    "plot_learn_an_energy": ("UPDATES = 1500, 800", "UPDATES = 200, 50"),
    "plot_million_embeddings": ("QUERIES = 2_000, 4_000", "QUERIES = 20, 200"),
    "plot_what_a_head_clusters": ("SENTENCES = 300, 400", "SENTENCES = 60, 50"),
    "plot_your_own_energy": ("CHAINS = 250, 32", "CHAINS = 20, 8"),
}

# What a script needs beyond the package itself: an extra.
NEEDS = {"plot_larger_than_memory": "distributed", "plot_what_a_head_clusters": "transformers"}


def small_source(path: Path) -> str:
    """Return the script at a size that suits a test."""
    text = path.read_text()
    large, small = SMALLER.get(path.stem, ("", ""))
    if large:
        assert text.count(large) == 1, f"{path.name} no longer has the line {large!r}"
    return text.replace(large, small) if large else text


@pytest.mark.slow
@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_script_runs_and_draws(path: Path, monkeypatch, tmp_path, capsys) -> None:
    if path.stem in NEEDS:
        pytest.importorskip(NEEDS[path.stem], reason="the extra that this script needs is missing")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(plt, "show", lambda: None)
    with matplotlib.rc_context():
        try:
            exec(compile(small_source(path), path.name, "exec"), {"__name__": "__main__"})
            figures = [plt.figure(number) for number in plt.get_fignums()]
            assert figures
            assert all(figure.axes for figure in figures)
            for figure in figures:
                figure.canvas.draw()  # labels and layouts that fail do so here
            printed = capsys.readouterr().out
            assert " 1 clusters" not in printed
            if path.stem == "first_hour":  # run as a script, where nobody may see its figure
                assert "first_hour.png" in printed
                assert Path("first_hour.png").is_file()
        finally:
            plt.close("all")
