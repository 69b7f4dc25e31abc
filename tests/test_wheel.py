"""The built wheel holds everything that the package reads, and works outside of the clone."""

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the contents of a freshly built wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("isthmus-*-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(installed: Path, folder: Path, *arguments: str) -> str:
    """Run Python with the unpacked wheel before every other isthmus."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "MPLBACKEND": "Agg"}
    command = [sys.executable, "-P", *arguments]
    done = subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout


def test_the_wheel_has_every_file_of_the_package(installed: Path) -> None:
    package = ROOT / "src"
    expected = {
        path.relative_to(package)
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected <= {path.relative_to(installed) for path in installed.rglob("*")}
    assert not list((installed / "isthmus/_shipped/benchmarks").glob("*.py"))
    assert (installed / "isthmus/_shipped/docs/study/results.sqlite").is_file()


def test_the_first_example_of_the_readme_runs_from_the_wheel(
    installed: Path, tmp_path: Path
) -> None:
    text = (ROOT / "README.md").read_text()
    example = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[0]
    shown = run(installed, tmp_path, "-c", f"{example}\nprint(ist.__file__)")
    assert str(installed) in shown
    assert "GaussianKDE" in shown


def test_the_command_line_runs_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    assert "incontext-likelihood" in run(
        installed, tmp_path, "-m", "isthmus", "reproduce", "--list"
    )


SCRIPT = """
import numpy as np
import isthmus as ist
from isthmus.cluster import BasinFlow

X = np.random.default_rng(0).normal(size=(50, 2))
memory = ist.GaussianKDE(X, sigma=0.5)
state = ist.retrieve(memory, X[:3]).state
low, high = memory.interval(0.9, column=0)
labels = BasinFlow(random_state=0).fit(X).labels_
print(memory.as_distribution().mean, state, low, high, labels, ist.plot(memory))
"""


def test_a_script_of_a_user_is_typed(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "user.py").write_text(SCRIPT)
    options = ["--strict", "--follow-imports=silent", "--config-file=", "user.py"]
    environment = {**os.environ, "MYPYPATH": str(installed)}
    found = subprocess.run(
        [sys.executable, "-m", "mypy", *options],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout
