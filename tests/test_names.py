"""Documented modules are attributes of the package."""

import re
import subprocess
import sys
from pathlib import Path


def test_documented_modules_need_no_import_of_their_own() -> None:
    pages = Path(__file__).parents[1].joinpath("docs", "api").glob("*.rst")
    found = re.findall(
        r"(?:auto|current)module:: (isthmus\.\w+)", "\n".join(map(Path.read_text, pages))
    )
    assert "isthmus.synthesis" in found
    script = "import isthmus; print(" + ", ".join(sorted(set(found))) + ")"
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
