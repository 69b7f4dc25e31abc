"""`isthmus reproduce`: build the report."""

from __future__ import annotations

import argparse
import json
import sys

from isthmus.cli import options
from isthmus.paper.report import registry
from isthmus.printing import aligned
from isthmus.report import build, finished

SOME_FAILED, INTERRUPTED = 1, 130


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    chosen = [name for group in arguments.only for name in group] if arguments.only else None
    common = (arguments.out, chosen, arguments.full, arguments.seed)
    if arguments.list:
        _list(finished(*common), arguments.json)
        return 0
    try:
        report = build(
            *common,
            **options.settings(arguments, "jobs limit fresh"),
            show_progress=arguments.progress,
            # Where there is no bar, lines show that the work goes on.
            announce=None if arguments.quiet or sys.stderr.isatty() else options.warn,
        )
    except KeyboardInterrupt:
        options.warn("interrupted; run the same command to continue")
        return INTERRUPTED
    if arguments.json:
        paths = {"page": str(report.page), "results": str(report.results)}
        print(json.dumps(paths | report.summary, indent=2))
    else:
        print(report.page)
    if not report.failed:
        return 0
    reasons = "; ".join(f"{part.name}: {part.message.rstrip('.')}" for part in report.failed)
    count = "1 part" if len(report.failed) == 1 else f"{len(report.failed)} parts"
    logs = f" Logs are in {report.logs}." if any(part.log for part in report.failed) else ""
    options.warn(f"{count} failed ({reasons}).{logs}")
    return SOME_FAILED


def _list(done: dict[str, bool], as_json: bool) -> None:
    parts = [part for part in registry.PARTS if part.name in done]
    rows = [(part.name, part.chapter, done[part.name]) for part in parts]
    if as_json:
        keys = ("name", "chapter", "done")
        print(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=2))
        return
    lines = [(name, chapter, "done" * ready) for name, chapter, ready in rows]
    print(*aligned(lines, left=(0, 1, 2)), sep="\n")
