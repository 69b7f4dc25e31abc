"""Sections on disk: ``NAME.json`` and ``NAME.png``, and the part's output in ``NAME.log``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isthmus.files import exclusive, write_atomically
from isthmus.report.section import Section

__all__ = ["SectionStore"]


class SectionStore:
    """The stored sections of a report.

    Those of the paper's own sizes, which can take days, are kept apart in ``parts/full``, so that
    a quick run does not replace them.

    Parameters
    ----------
    out : Path
        The report's directory.
    full : bool
        Whether the sections are those of the paper's own sizes.
    """

    def __init__(self, out: Path, full: bool = False) -> None:
        self.out = out
        self.directory = out / "parts" / "full" if full else out / "parts"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the report for this process, and remove what an interrupted write has left."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with exclusive(self.out / "parts"):
            for leftover in [*self.out.glob(".*.part"), *self.directory.glob(".*.part")]:
                leftover.unlink(missing_ok=True)
            yield

    def path(self, name: str, kind: str) -> Path:
        """Return the path of a part's "json", "png" or "log" file."""
        return self.directory / f"{name}.{kind}"

    def link(self, name: str, kind: str) -> str:
        """Return the path relative to the page; empty if there is no such file."""
        path = self.path(name, kind)
        return path.relative_to(self.out).as_posix() if path.exists() else ""

    def read(self, name: str) -> Section | None:
        """Return a section as it was written; None if it is missing or damaged."""
        figure = self.path(name, "png")
        try:
            text = self.path(name, "json").read_text(encoding="utf-8")
            return Section.from_json(text, figure.read_bytes() if figure.exists() else None)
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def write(self, name: str, section: Section) -> None:
        """Store a section. An interruption in between leaves a pair that does not match."""
        if isinstance(section.figure, bytes):
            write_atomically(self.path(name, "png"), section.figure)
        write_atomically(self.path(name, "json"), section.to_json())
