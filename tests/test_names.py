"""A name stands for one class in the whole package."""

import ast
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import isthmus

# The energy, and the layer that has the name of the one it replaces: isthmus.nn.Hopfield.
SHARED = ["Hopfield"]


def test_no_two_classes_share_a_name() -> None:
    files = Path(isthmus.__file__).parent.rglob("*.py")
    nodes = [node for file in files for node in ast.parse(file.read_text()).body]
    names = Counter(node.name for node in nodes if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == SHARED


def test_documented_modules_need_no_import_of_their_own() -> None:
    pages = Path(__file__).parents[1].joinpath("docs", "api").glob("*.rst")
    found = re.findall(
        r"(?:auto|current)module:: (isthmus\.\w+)", "\n".join(map(Path.read_text, pages))
    )
    assert "isthmus.synthesis" in found
    script = "import isthmus; print(" + ", ".join(sorted(set(found))) + ")"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
