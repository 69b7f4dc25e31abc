"""Build the report: parts in processes of their own, stored as they finish, on one page."""

from __future__ import annotations

import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, get_args

import isthmus
from isthmus.errors import InvalidInputError
from isthmus.files import write_atomically
from isthmus.processes import Call, Limits, Outcome, run_all
from isthmus.progress import ReportProgress, progress
from isthmus.report import registry
from isthmus.report.make import import_packages, make
from isthmus.report.registry import CHAPTERS, Part, select
from isthmus.report.section import VERDICTS, Section, Status
from isthmus.report.sources import changes, environment, source_digests
from isthmus.report.store import SectionStore
from isthmus.validation import as_count, as_flag, as_number

__all__ = ["BuiltReport", "build", "finished"]

SHORT_LIMIT, FULL_LIMIT = 1800.0, 7 * 86400.0
"""Seconds for one part: half an hour, or a week at the paper's own sizes."""
LARGEST_SEED = 2**32 - 1
RESULTS = (
    *("title", "chapter", "status", "message", "command", "caption", "figure", "findings"),
    *("observations", "table", "numbers"),
)
"""What results.json has of a section."""


@dataclass(frozen=True)
class BuiltReport:
    """A report on disk.

    Attributes
    ----------
    page, results : Path
        ``index.html`` and ``results.json``.
    logs : Path
        The directory of the parts' output.
    sections : tuple of Section
        All parts in the order of the page, made or not.
    requested : tuple of str
        The names of the parts that were asked for.
    """

    page: Path
    results: Path
    logs: Path
    sections: tuple[Section, ...]
    requested: tuple[str, ...]

    @property
    def summary(self) -> dict[str, dict[str, int]]:
        """The number of parts of each status, and of findings of each verdict."""
        statuses = Counter(section.status for section in self.sections)
        verdicts = Counter(
            finding.verdict for section in self.sections for finding in section.findings
        )
        return {
            "parts": {status: statuses[status] for status in get_args(Status)},
            "verdicts": {verdict: verdicts[verdict] for verdict in VERDICTS},
        }

    @property
    def failed(self) -> list[Section]:
        """The requested parts that failed."""
        return [
            section
            for section in self.sections
            if section.name in self.requested and section.status == "failed"
        ]


def build(
    out: str | Path = "report",
    parts: Iterable[str] | None = None,
    full: bool = False,
    seed: int = 0,
    *,
    jobs: int | None = None,
    limit: float | None = None,
    fresh: bool = False,
    show_progress: bool | None = None,
) -> BuiltReport:
    """Compute the parts that are not up to date, and write the page and the results.

    Each part runs in a process of its own on one thread. A part that fails, crashes or exceeds
    its limit is shown as failed; the others still run. Finished parts are kept in `out`, so that
    an interrupted call can be repeated.

    Parameters
    ----------
    out : str or Path
        Directory of the report.
    parts : iterable of str, optional
        Names of parts or chapters. Default: all.
    full : bool
        Use the paper's own sizes and run the whole study: hours, not minutes.
    seed : int
        Seed of everything random.
    jobs : int, optional
        Number of parts at a time. Default: the number of cores.
    limit : float, optional
        Seconds that one part may take. Default: half an hour, or a week with `full`.
    fresh : bool
        Compute parts again that are up to date.
    show_progress : bool, optional
        Default: on a terminal.

    Returns
    -------
    BuiltReport

    Examples
    --------
    >>> from isthmus.report import build
    >>> report = build("my-report", parts=["capacity", "hero"])  # doctest: +SKIP
    >>> report.page  # doctest: +SKIP
    PosixPath('my-report/index.html')
    """
    chosen = select(parts, registry.PARTS)
    full = as_flag(full, "full")
    seed = as_count(seed, "seed", at_least=0, at_most=LARGEST_SEED)
    jobs = _cores() if jobs is None else as_count(jobs, "jobs")
    if limit is None:
        limit = FULL_LIMIT if full else SHORT_LIMIT
    limit = as_number(limit, "limit", above=0)
    work = _Work(_directory(Path(out)), full, seed)
    with work.store.writing():
        waiting = [part for part in chosen if fresh or not work.is_done(part)]
        before = len(chosen) - len(waiting)
        with progress("isthmus reproduce", len(chosen), show=show_progress) as report:
            work.make(waiting, jobs, limit, lambda done, note="": report(before + done, note))
        return work.write(tuple(part.name for part in chosen))


def finished(
    out: str | Path = "report",
    parts: Iterable[str] | None = None,
    full: bool = False,
    seed: int = 0,
) -> dict[str, bool]:
    """Return for each part whether it is up to date in `out`; parameters as in :func:`build`."""
    work = _Work(Path(out), full, seed)
    return {part.name: work.is_done(part) for part in select(parts, registry.PARTS)}


class _Work:
    """One build: its inputs and its store."""

    def __init__(self, out: Path, full: bool, seed: int) -> None:
        self.store = SectionStore(out, full)
        self.full, self.seed = full, seed
        self.versions = {"isthmus": isthmus.__version__, **environment()}
        # Taken before any part runs: a file that is edited meanwhile makes its parts run again.
        self.digests = source_digests(part.shows for part in registry.PARTS)

    def inputs(self, part: Part, sources: Iterable[str] = ()) -> dict[str, Any]:
        """Return the inputs of a part that was computed from these source files."""
        return {
            "function": part.function,
            "text": [part.caption, part.findings, part.notes],
            "seed": self.seed,
            "full": self.full,
            **self.versions,
            "sources": {path: self.digests.get(path, "") for path in sources},
        }

    def section(self, part: Part) -> Section:
        """Return the stored section of a part, or one that says why there is none."""
        section = self.store.read(part.name) or Section(status="missing")
        current = self.inputs(part, section.inputs.get("sources", ()))
        if section.status != "missing" and (changed := changes(section.inputs, current)):
            names = ", ".join(changed[:3]) + (" and others" if len(changed) > 3 else "")
            message = f"The stored part was made with a different {names}."
            section = Section(status="missing", message=message)
        option = " --full" if self.full else ""
        return replace(
            section,
            name=part.name,
            title=part.title,
            chapter=part.chapter,
            command=f"isthmus reproduce --only {part.name} --seed {self.seed}{option}",
            log=self.store.link(part.name, "log"),
        )

    def is_done(self, part: Part) -> bool:
        """Return whether the stored section is up to date."""
        return self.section(part).status == "done"

    def make(self, parts: Sequence[Part], jobs: int, limit: float, report: ReportProgress) -> None:
        """Compute and store parts, each in a process of its own."""
        needed = list(dict.fromkeys(part.needs for part in parts if part.needs))
        calls = [self._call(need, need, limit) for need in needed]
        calls += [self._call(part.name, part.function, limit, part.needs) for part in parts]
        by_name = {part.name: part for part in parts}
        began: dict[str, float] = {}
        unprepared: dict[str | None, str] = {}
        over = 0

        def started(call: Call) -> None:
            began[call.name] = time.monotonic()
            if call.name in by_name:
                self.store.path(call.name, "json").unlink(missing_ok=True)
            report(over, ", ".join(began))

        for call, outcome in run_all(calls, jobs=jobs, started=started):
            seconds = time.monotonic() - began.pop(call.name)
            if call.log is not None and Path(call.log).stat().st_size == 0:
                Path(call.log).unlink()
            message = _problem(outcome, limit)
            if call.name in needed:
                if message:
                    unprepared[call.name] = f"{call.name} failed: {message}"
                continue
            part, over = by_name[call.name], over + 1
            problem = unprepared.get(part.needs) or message
            if problem:
                section = Section(status="failed", message=problem)
                sources: list[str] = []
            else:
                section = outcome.value
                sources = [*section.inputs["sources"], *([part.shows] if part.shows else [])]
            inputs = self.inputs(part, sources)
            self.store.write(part.name, replace(section, seconds=seconds, inputs=inputs))
            report(over, ", ".join(began))

    def _call(self, name: str, function: str, limit: float, after: str | None = None) -> Call:
        return Call(
            name,
            make,
            (function, self.seed, self.full),
            Limits(math.inf, math.inf, limit),
            self.store.path(name.rpartition(":")[2], "log"),
            import_packages,
            () if after is None else (after,),
        )

    def write(self, requested: tuple[str, ...]) -> BuiltReport:
        """Write the page and the results."""
        from isthmus.report.html import page

        sections = tuple(map(self.section, registry.PARTS))
        versions = ", ".join(
            f"{name} {version}" for name, version in self.versions.items() if name != "isthmus"
        )
        size = "the paper's own sizes" if self.full else "quick sizes"
        facts = (f"isthmus {isthmus.__version__}", f"seed {self.seed}", size, versions)
        html = page(registry.TITLE, registry.INTRODUCTION, sections, chapters=CHAPTERS, facts=facts)
        out = self.store.out
        built = BuiltReport(
            out / "index.html", out / "results.json", self.store.directory, sections, requested
        )
        results = {
            "version": isthmus.__version__,
            "seed": self.seed,
            "full": self.full,
            "environment": environment(),
            "summary": built.summary,
            "parts": {section.name: self._results(section) for section in sections},
            "seconds": {
                section.name: round(section.seconds, 3)
                for section in sections
                if section.seconds is not None
            },
        }
        text = json.dumps(results, indent=2, allow_nan=False, ensure_ascii=False) + "\n"
        write_atomically(built.results, text)
        write_atomically(built.page, html)
        return built

    def _results(self, section: Section) -> dict[str, Any]:
        """Return a section for results.json, which is equal for equal inputs."""
        content = asdict(section)
        content["figure"] = section.figure and self.store.link(section.name, "png")
        return {name: content[name] for name in RESULTS}


def _problem(outcome: Outcome, limit: float) -> str:
    if outcome.status == "timeout":
        return f"Not done after {limit:g} s. A higher limit gives it more time."
    return "" if outcome.status == "ok" else outcome.message


def _directory(out: Path) -> Path:
    """Make the report's directory, before any work is done."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise InvalidInputError(f"{out} is a file; choose a directory.") from None
    except OSError as error:
        raise InvalidInputError(f"{out} cannot be created: {error.strerror}.") from None
    if not os.access(out, os.W_OK | os.X_OK):
        raise InvalidInputError(f"{out} is not writable; choose another directory.")
    return out


def _cores() -> int:
    """Return the number of cores that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # does not exist on macOS
    return len(affinity(0)) if affinity else os.cpu_count() or 1
