"""Parts on disk, whole ones only."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from isthmus.cli.engine.inputs import Inputs
from isthmus.cli.engine.record import Record
from isthmus.files import exclusive, write_atomically

__all__ = ["Store"]


class Store:
    """The parts of a report: ``parts/NAME.json``, ``NAME.png`` and ``NAME.log``.

    Those with the paper's sizes, which may take days, are apart, in ``parts/full``: a quick look
    does not cost them.

    Parameters
    ----------
    out : Path
        The report's directory.
    full : bool
        Whether the parts are those with the paper's sizes.
    """

    def __init__(self, out: Path, full: bool = False) -> None:
        self.out = out
        self.directory = out / "parts" / "full" if full else out / "parts"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the report for this process alone, until it leaves, however it ends."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with exclusive(self.out):
            for leftover in [*self.out.glob(".*.part"), *self.directory.glob(".*.part")]:
                leftover.unlink(missing_ok=True)
            yield

    def read(self, name: str) -> Record | None:
        """The part as it was written; None if it is not there, or not whole."""
        picture = self.directory / f"{name}.png"
        try:
            text = (self.directory / f"{name}.json").read_text(encoding="utf-8")
            try:
                return Record.from_text(text, picture.read_bytes() if picture.exists() else None)
            except ValueError:
                return Record.from_text(text, None)  # a failure does not own the picture
        except (OSError, ValueError, TypeError, KeyError):
            return None

    def finished(self, name: str, inputs: Inputs) -> bool:
        """Whether the part is done, and from these inputs."""
        record = self.read(name)
        return record is not None and record.status == "done" and record.inputs == inputs

    def write(self, name: str, record: Record) -> None:
        """Keep the part."""
        # Killed after the picture, the record does not fit it, and the part is made again.
        if record.picture is not None:
            write_atomically(self.directory / f"{name}.png", record.picture)
        write_atomically(self.directory / f"{name}.json", record.text())

    def forget(self, name: str) -> None:
        """Have no such part, so that what is there afterwards is new."""
        (self.directory / f"{name}.json").unlink(missing_ok=True)

    def log(self, name: str) -> Path:
        """Where what the part prints goes."""
        return self.directory / f"{name}.log"
