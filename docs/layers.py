"""Write the table of modules and import layers, from pyproject.toml and the modules themselves.

``make docs`` puts it into the page on the architecture; ``python docs/layers.py`` renews the copy
in ``docs/architecture.md``.
"""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
TABLE = re.compile(r"(?<=<!-- layers -->\n\n).*?(?=\n\n<!-- end of layers -->)", re.DOTALL)


def layers_table() -> str:
    """Return the import layers, highest first, with what each module says of itself."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    lines = ["| layer | module | contents |", "|---|---|---|"]
    layers = settings["tool"]["importlinter"]["contracts"][0]["layers"]
    for number, layer in enumerate(layers):
        for name in re.findall(r"\w+", layer):
            path = ROOT / "src" / "isthmus" / name
            path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
            text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
            summary = " ".join(text.partition("\n\n")[0].split())
            lines.append(f"| {len(layers) - number} | `{name}` | {summary} |")
    return "\n".join(lines)


def with_layers(page: str) -> str:
    """Return a page with the present table between its two comments."""
    return TABLE.sub(lambda _: layers_table(), page)


if __name__ == "__main__":
    PAGE.write_text(with_layers(PAGE.read_text("utf-8")), encoding="utf-8")
