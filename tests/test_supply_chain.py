"""Nothing unpickles, evaluates, asks a shell, or takes code from the current directory."""

import ast
import importlib.metadata
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import isthmus

PACKAGE = Path(isthmus.__file__).parent
ROOT = Path(__file__).parents[1]
SOURCES = [path for path in sorted(PACKAGE.rglob("*.py")) if "_shipped" not in path.parts]
PICKLES = {"pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
# Where processes of our own send methods and results to each other; SECURITY.md says so.
EXCEPTIONS = {
    "io/reading.py": {"pickle"},
    "paper/processes.py": {"cloudpickle"},
}
FORBIDDEN = {
    *("eval", "exec", "compile", "__import__", "os.system", "os.popen", "yaml.load"),
    *("np.fromregex", "pd.read_pickle", "pandas.read_pickle", "pd.eval", "torch.jit.load"),
}
# Loaders that unpickle unless an option says otherwise.
OPTIONS = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False)}


def faults(text: str, allowed: frozenset[str] | set[str] = frozenset()) -> Iterator[str]:
    """Yield what a source file must not hold, with its line."""
    for node in ast.walk(ast.parse(text)):
        found = ""
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            names += [alias.name for alias in node.names]
            found = ", ".join({name.partition(".")[0] for name in names} & PICKLES - allowed)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            given = {each.arg: getattr(each.value, "value", None) for each in node.keywords}
            option, safe = OPTIONS.get(name, ("", None))
            unpickles = name in OPTIONS and given.get(option) is not safe
            asks = given.get("shell") or given.get("allow_pickle")
            if name in FORBIDDEN or unpickles or asks:
                found = name
        if found:
            yield f"line {node.lineno}: {found}"


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_source_file_can_run_code_of_a_file(path: Path) -> None:
    name = path.relative_to(PACKAGE).as_posix()
    assert not [*faults(path.read_text(encoding="utf-8"), EXCEPTIONS.get(name, set()))]


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from joblib import load",
        "eval('1')",
        "os.system('ls')",
        "subprocess.run('ls', shell=True)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "yaml.load(text)",
    ],
)
def test_what_the_check_finds(line: str) -> None:
    assert len([*faults(line)]) == 1


def test_actions_are_pinned_by_commit() -> None:
    workflows = (ROOT / ".github" / "workflows").glob("*.yml")
    used = [u for path in workflows for u in re.findall(r"uses: *(\S+)", path.read_text())]
    assert used
    assert not [each for each in used if not re.fullmatch(r"\./\S+|\S+@[0-9a-f]{40}", each)]


def test_every_installed_package_has_a_pinned_version() -> None:
    def plain(name: str) -> str:
        return re.sub(r"[-_.]+", "-", name).lower()

    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = {plain(one.split("==")[0]): one.split("==")[1] for one in lines if "==" in one}
    found = {plain(one.metadata["Name"]): one.version for one in importlib.metadata.distributions()}
    assert found["pytest"] == pinned["pytest"] or pytest.skip("other versions are installed")
    assert not set(found) - set(pinned) - {"isthmus"}


def run_in(folder: Path, code: str, **variables: str) -> str:
    """Run code in a directory that is not on the path of imports, and return what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE.parent), **variables}
    command = [sys.executable, "-P", "-c", code]
    found = subprocess.run(
        command, cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    return found.stdout


class Planted:
    """Leaves a file in the current directory when it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return Path.touch, (Path("ran"),)


COMPILED = "from isthmus.index.loops import _uniform as f; import numpy as np; f(np.uint64(1))"


def test_numba_takes_no_cache_from_the_current_directory(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run_in(tmp_path, COMPILED, NUMBA_CACHE_DIR=str(cache))  # a user's own variable is obeyed
    caches = list(cache.rglob("*.nbi"))
    assert caches
    for path in caches:
        path.write_bytes(pickle.dumps(Planted()))
    (tmp_path / ".numba_config.yaml").write_text("cache_dir: cache\n")
    run_in(tmp_path, COMPILED)
    assert not (tmp_path / "ran").exists()
    (tmp_path / ".numba_config.yaml").write_text("disable_jit: 1\n")
    assert "Dispatcher" in run_in(tmp_path, f"{COMPILED}; print(type(f))")


def test_figures_do_not_depend_on_matplotlibrc(tmp_path: Path) -> None:
    code = """
import hashlib, isthmus as ist, numpy as np
from isthmus.figures.style import png_bytes
memories = np.eye(2)
energies = {"kde": ist.GaussianKDE(memories, 0.5)}
figure = ist.figures.landscapes_2d(energies, memories, memories, resolution=21)
print(hashlib.sha256(png_bytes(figure, 50)).hexdigest())
"""
    before = run_in(tmp_path, code)
    rc = "text.usetex: True\nlines.linewidth: 9\nsavefig.facecolor: red\nsavefig.bbox: tight\n"
    (tmp_path / "matplotlibrc").write_text(rc)
    assert run_in(tmp_path, code) == before
