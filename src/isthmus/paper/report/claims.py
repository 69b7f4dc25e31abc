"""The claims of the paper, each once, as ``claims.toml`` has them."""

from __future__ import annotations

import tomllib
from pathlib import Path

from isthmus.paper.report.section import Finding, judge

_LISTED = tomllib.loads(Path(__file__).with_name("claims.toml").read_text(encoding="utf-8"))
CLAIMS: dict[str, str] = {name: claim for name, (claim, _) in _LISTED.items()}
"""The claims by name, as the page states them."""
PLACES: dict[str, str] = dict(_LISTED.values())
"""The place of each claim in the paper, with its own words."""


def judged(name: str, because: str, *, as_printed: bool | None, corrected: bool = False) -> Finding:
    """Return the finding on a claim of the list; other parameters as in :func:`judge`."""
    return judge(CLAIMS[name], because, as_printed=as_printed, corrected=corrected)
