"""The library without its extras: the core works, and the rest names what to install."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from isthmus.extras import EXTRAS, advice

ROOT = Path(__file__).parents[1]
BLOCKED = sorted({name for names in EXTRAS.values() for name in names} - {"cloudpickle"})
# joblib needs cloudpickle here; the finder hides packages as if they were not installed.
START = f"""
import sys
from importlib.machinery import PathFinder
class Lean(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        blocked = name.partition(".")[0] in {BLOCKED!r}
        return None if blocked else super().find_spec(name, path, target)
sys.meta_path = [Lean if one is PathFinder else one for one in sys.meta_path]
import numpy as np, isthmus as ist
rng = np.random.default_rng(0)
X = np.concatenate([rng.normal(size=(40, 3)), rng.normal(size=(40, 3)) + 6])
gaps = X.copy(); gaps[0, 0] = np.nan
"""
CORE = """
kde = ist.GaussianKDE(X, "auto")
kde.sample(3), ist.retrieve(kde, X[:3]), ist.complete(kde, gaps), kde.as_distribution().mean
from isthmus.cluster import BasinFlow, ClAMCRP
assert BasinFlow(random_state=0).fit(gaps).n_clusters_ == 2
ClAMCRP(random_state=0).fit(X)
from isthmus.impute import MemoryImputer
assert np.isfinite(MemoryImputer().fit_transform(gaps)).all()
from isthmus.incontext import TableDensity
TableDensity().fit(X[:20]).score_samples(X)
from isthmus.capacity import certify
print(certify(X, 0.2))
import isthmus.attention, isthmus.nn, isthmus.deep, isthmus.learning, isthmus.synthesis
from isthmus.cli.main import main
assert main([]) == 0
"""
PARTS = {
    "tables": [
        "from isthmus.synthesis import draw_rows; draw_rows(X, 3)",
        "from isthmus.tables import read_table; read_table('x.csv')",
        "from isthmus.cluster import cluster_file",
        "from isthmus.capacity import certify; certify(X, 0.2).to_frame()",
        "from isthmus.impute import fill_gaps; fill_gaps(gaps)",
    ],
    "report": ["ist.plot(ist.GaussianKDE(X, 1.0))", "import isthmus.report", "ist.figures.save"],
}


def run(code: str) -> subprocess.CompletedProcess[str]:
    """Run code without the extras."""
    return subprocess.run([sys.executable, "-c", START + code], capture_output=True, text=True)


def test_the_core_needs_no_extra() -> None:
    found = run(CORE)
    assert found.returncode == 0, found.stderr


@pytest.mark.parametrize("extra", PARTS)
def test_a_missing_extra_is_named_in_one_line(extra: str) -> None:
    tries = "".join(
        f"try:\n    {code}\nexcept ImportError as error:\n    print(error)\n"
        for code in PARTS[extra]
    )
    found = run(tries)
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert len(lines) == len(PARTS[extra])
    assert all(f"isthmus[{extra}]" in line for line in lines)


def test_the_command_line_names_the_extra(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("a,b\n1,2\n3,4\n")
    words = ["cluster", str(tmp_path / "x.csv"), "-o", str(tmp_path / "y.csv")]
    found = run(f"from isthmus.cli.main import main; sys.exit(main({words!r}))")
    assert found.returncode == 2
    assert "isthmus[tables]" in found.stderr
    assert len(found.stderr.splitlines()) == 1


def test_every_extra_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = project["optional-dependencies"]
    for extra, names in EXTRAS.items():
        lines = " ".join(declared[extra]).replace("-", "_")
        assert all(name in lines for name in names)
        assert all(name not in " ".join(project["dependencies"]) for name in names)
        assert extra in declared["all"][0]
    assert "pip install unheard_of" in advice("unheard_of")
