"""The whole report for machines: every part, what became of it, and how the claims fared."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus import __version__
from isthmus.cli.engine.inputs import Inputs, environment, inputs_of
from isthmus.cli.engine.record import Record
from isthmus.cli.engine.store import Store
from isthmus.cli.parts import Part

if TYPE_CHECKING:
    from isthmus.figures.page import Entry, Status

__all__ = ["command_for", "entry_of", "results_of", "results_text", "summary_of"]

STATUSES: tuple[Status, ...] = ("done", "failed", "missing")


def command_for(name: str, seed: int, full: bool) -> str:
    """What to type to make a part."""
    return f"isthmus reproduce --only {name} --seed {seed}{' --full' if full else ''}"


def entry_of(part: Part, seed: int, full: bool, store: Store) -> Entry:
    """What is stored of a part, for the page; it is missing if it was made from other inputs."""
    from isthmus.figures.page import Entry
    from isthmus.figures.section import Finding, Table

    inputs, record = inputs_of(part, seed, full), store.read(part.name)
    command = command_for(part.name, seed, full)
    if record is None or record.inputs != inputs:
        why = "" if record is None else _difference(record, inputs)
        return Entry(part.name, part.title, part.chapter, command, "missing", why)
    table = None
    if record.table is not None:
        rows = tuple(tuple(row) for row in record.table["rows"])
        table = Table(tuple(record.table["columns"]), rows)
    log = store.log(part.name)
    return Entry(
        part.name,
        part.title,
        part.chapter,
        command,
        record.status,
        record.message,
        caption=record.caption,
        numbers=record.numbers,
        findings=tuple(Finding(**finding) for finding in record.findings),
        observations=tuple(record.observations),
        table=table,
        picture=record.picture,
        seconds=record.seconds,
        log=log.relative_to(store.out).as_posix() if _says_something(log) else "",
    )


def _says_something(log: Path) -> bool:
    return log.exists() and log.stat().st_size > 0


def _difference(record: Record, inputs: Inputs) -> str:
    """Say why a stored part does not count."""
    names = [name for name in inputs if record.inputs.get(name) != inputs[name]]
    said = "other source files" if names == ["source"] else f"another {', '.join(names)}"
    return f"What is stored was made with {said}."


def results_of(entries: Sequence[Entry], seed: int, full: bool, store: Store) -> dict[str, Any]:
    """All there is to know, for JSON; equal for equal inputs but for ``seconds``."""
    return {
        "version": __version__,
        "seed": seed,
        "full": full,
        "environment": environment(),
        "summary": summary_of(entries),
        "parts": {entry.name: _part(entry, store) for entry in entries},
        "seconds": {
            entry.name: round(entry.seconds, 3) for entry in entries if entry.seconds is not None
        },
    }


def summary_of(entries: Sequence[Entry]) -> dict[str, dict[str, int]]:
    """How many parts there are of each status, and findings of each verdict."""
    from isthmus.figures.section import VERDICTS

    statuses = Counter(entry.status for entry in entries)
    verdicts = Counter(finding.verdict for entry in entries for finding in entry.findings)
    return {
        "parts": {status: statuses[status] for status in STATUSES},
        "verdicts": {verdict: verdicts[verdict] for verdict in VERDICTS},
    }


def _part(entry: Entry, store: Store) -> dict[str, Any]:
    picture = store.directory / f"{entry.name}.png"
    return {
        "title": entry.title,
        "chapter": entry.chapter,
        "status": entry.status,
        "message": entry.message,
        "command": entry.command,
        "caption": entry.caption,
        "figure": None if entry.picture is None else picture.relative_to(store.out).as_posix(),
        "findings": [asdict(finding) for finding in entry.findings],
        "observations": [*entry.observations],
        "table": entry.table and asdict(entry.table),
        "numbers": entry.numbers,
    }


def results_text(results: Mapping[str, Any]) -> str:
    """As a file: strict JSON, indented."""
    return json.dumps(results, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
