"""Build the report: parts in worker processes, stored as they finish, on one page."""

from __future__ import annotations

import json
import math
import platform
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields, replace
from importlib.metadata import version
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, get_args

import isthmus
from isthmus.errors import InvalidInputError
from isthmus.io.files import exclusive, make_directory, write_atomically
from isthmus.io.reading import reading, require_regular
from isthmus.paper.processes import Call, Limits, cores, run_all
from isthmus.paper.report import registry
from isthmus.paper.report.html import duration, page
from isthmus.paper.report.registry import Part, select
from isthmus.paper.report.section import VERDICTS, Section, Status
from isthmus.progress import progress
from isthmus.validation import as_count, as_flag, as_number

# Seconds for one part: half an hour, or a week at the paper's own sizes.
SHORT_LIMIT, FULL_LIMIT = 1800.0, 7 * 86400.0
LARGEST_SEED = 2**32 - 1
# Packages whose version can change a number or a figure.
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "matplotlib")


@dataclass(frozen=True)
class BuiltReport:
    """A report on disk: its page, its ``results.json`` and the directory of the parts' output.

    ``sections`` are all parts, made or not; ``requested`` names those that were asked for.
    """

    page: Path
    results: Path
    logs: Path
    sections: tuple[Section, ...]
    requested: tuple[str, ...]

    @property
    def summary(self) -> dict[str, dict[str, int]]:
        """The number of parts of each status, and of findings of each verdict."""
        statuses = Counter(each.status for each in self.sections)
        verdicts = Counter(found.verdict for each in self.sections for found in each.findings)
        return {
            "parts": {status: statuses[status] for status in get_args(Status)},
            "verdicts": {verdict: verdicts[verdict] for verdict in VERDICTS},
        }

    @property
    def failed(self) -> list[Section]:
        """The requested parts that failed."""
        asked = [each for each in self.sections if each.name in self.requested]
        return [each for each in asked if each.status == "failed"]


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
    announce: Callable[[str], object] | None = None,
) -> BuiltReport:
    """Compute the parts that are not up to date, and write the page and the results.

    Parts run in worker processes with one thread. One that fails, crashes or exceeds its
    limit is shown as failed; the others still run. Finished parts are kept in `out`.

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
        Show a bar. Default: on a terminal.
    announce : callable, optional
        Called with a line when the work begins, and whenever a part ends; ``print``, for example.

    Examples
    --------
    >>> from isthmus.report import build
    >>> build("my-report", parts=["capacity", "hero"]).page  # doctest: +SKIP
    PosixPath('my-report/index.html')
    """
    chosen, full = select(parts, registry.PARTS), as_flag(full, "full")
    seed = as_count(seed, "seed", at_least=0, at_most=LARGEST_SEED)
    jobs = cores() if jobs is None else as_count(jobs, "jobs")
    longest = FULL_LIMIT if full else SHORT_LIMIT
    limit = longest if limit is None else as_number(limit, "limit", above=0)
    workspace = Workspace(make_directory(out, "out"), full, seed)
    workspace.directory.mkdir(parents=True, exist_ok=True)
    with exclusive(workspace.out / "parts"):
        waiting = [part for part in chosen if fresh or workspace.section(part).status != "done"]
        done = len(chosen) - len(waiting)
        announce = announce or (lambda line: None)
        announce(f"{done} of {len(chosen)} parts are up to date")
        with progress("isthmus reproduce", len(chosen), show=show_progress) as report:
            made = workspace.make(waiting, jobs, limit, lambda note: report(done, note))
            for name, section in made:
                done += 1
                taken = duration(section.seconds or 0.0)
                announce(f"{name}: {section.status} after {taken} ({done} of {len(chosen)})")
        return workspace.write(tuple(part.name for part in chosen))


def finished(
    out: str | Path = "report",
    parts: Iterable[str] | None = None,
    full: bool = False,
    seed: int = 0,
) -> dict[str, bool]:
    """Return for each part whether it is up to date in `out`; parameters as in :func:`build`."""
    stored = map(Workspace(Path(out), full, seed).section, select(parts, registry.PARTS))
    return {section.name: section.status == "done" for section in stored}


class Workspace:
    """The directory of a report, with ``NAME.json``, ``NAME.png`` and ``NAME.log`` of its parts.

    Those of the paper's own sizes are in ``parts/full``: a quick run does not replace them.
    """

    def __init__(self, out: Path, full: bool = False, seed: int = 0) -> None:
        self.out, self.full, self.seed = out, full, seed
        self.directory = out / "parts" / "full" if full else out / "parts"
        self.inputs = {"seed": seed, "full": full, "isthmus": isthmus.__version__, **environment()}

    def read(self, name: str) -> Section:
        """Return a section as it was stored, or one that says that it is missing or damaged."""
        figure = self.directory / f"{name}.png"
        with suppress(InvalidInputError), reading(self.directory / f"{name}.json", "part") as path:
            if figure.exists():
                require_regular(figure)
            text = path.read_text(encoding="utf-8")
            return Section.from_json(text, figure.read_bytes() if figure.exists() else None)
        return Section(status="missing", inputs=self.inputs)

    def section(self, part: Part) -> Section:
        """Return the stored section of a part, or one that says why there is none."""
        section = self.read(part.name)
        changed = [name for name, value in self.inputs.items() if section.inputs.get(name) != value]
        if changed:
            message = f"The stored part was made with a different {', '.join(changed)}."
            section = Section(status="missing", message=message)
        command = f"isthmus reproduce --only {part.name} --seed {self.seed}" + " --full" * self.full
        log = self.link(f"{part.name}.log")
        section = replace(section, name=part.name, title=part.title, chapter=part.chapter)
        return replace(section, command=command, log=log)

    def make(
        self, parts: Sequence[Part], jobs: int, limit: float, report: Callable[[str], None]
    ) -> Iterator[tuple[str, Section]]:
        """Compute and store parts, yield them as they end, and report the names of the others."""
        left = [part.name for part in parts]
        for name in left:
            (self.directory / f"{name}.json").unlink(missing_ok=True)
        report(", ".join(left))
        limits = Limits(math.inf, math.inf, limit)
        calls = [
            Call(
                part.name,
                make,
                (part.function, self.seed, self.full),
                limits,
                self.directory / f"{part.name}.log",
            )
            for part in parts
        ]
        for call, outcome in run_all(calls, jobs=jobs):
            problem, section = outcome.message, outcome.value
            if outcome.status == "timeout":
                problem = f"Not done after {limit:g} s. Raise the limit."
            elif not (problem or isinstance(section, Section)):
                problem = f"The part returned {section!r:.50}, which is not a Section."
            if problem:
                section = Section(status="failed", message=problem)
            elif call.log is not None:
                Path(call.log).unlink()
            section, path = replace(section, inputs=self.inputs), self.directory / call.name
            if isinstance(section.figure, bytes):
                write_atomically(path.with_suffix(".png"), section.figure)
            write_atomically(path.with_suffix(".json"), section.to_json())
            yield call.name, section
            left.remove(call.name)
            report(", ".join(left))

    def write(self, requested: tuple[str, ...]) -> BuiltReport:
        """Write the page and the results."""
        sections = tuple(map(self.section, registry.PARTS))
        index, data = self.out / "index.html", self.out / "results.json"
        built = BuiltReport(index, data, self.directory, sections, requested)
        left_out = ("name", "log", "seconds", "inputs")
        kept = [each.name for each in fields(Section) if each.name not in left_out]
        results = {
            "version": isthmus.__version__,
            "seed": self.seed,
            "full": self.full,
            "environment": environment(),
            "summary": built.summary,
            "parts": {
                section.name: {name: getattr(section, name) for name in kept}
                | {"figure": section.figure and self.link(f"{section.name}.png")}
                for section in sections
            },
            "seconds": {each.name: round(each.seconds, 3) for each in sections if each.seconds},
        }
        content = json.dumps(results, indent=2, allow_nan=False, ensure_ascii=False, default=asdict)
        size = "the paper's own sizes" if self.full else "quick sizes"
        versions = ", ".join(f"{name} {version}" for name, version in environment().items())
        facts = (f"isthmus {isthmus.__version__}", f"seed {self.seed}", size, versions)
        html = page(
            registry.TITLE, registry.INTRODUCTION, sections, chapters=registry.CHAPTERS, facts=facts
        )
        write_atomically(data, content + "\n")
        write_atomically(index, html)
        return built

    def link(self, name: str) -> str:
        """Return the path of a file relative to the page; empty if there is none."""
        path = self.directory / name
        return path.relative_to(self.out).as_posix() if path.exists() else ""


def make(function: str, seed: int, full: bool) -> Any:
    """Call a function by name, and note the time that it took."""
    start = time.monotonic()
    section = resolve_name(function)(seed, full)
    taken = time.monotonic() - start
    return replace(section, seconds=taken) if isinstance(section, Section) else section


def environment() -> dict[str, str]:
    """Return the versions of Python and of the packages that matter, without importing them."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}
