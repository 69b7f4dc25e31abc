"""`isthmus reproduce`: build the report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from isthmus.cli.files import path
from isthmus.cli.options import (
    EXIT_CODES,
    Parser,
    add_json,
    add_quiet,
    add_seed,
    make_parser,
    names,
    positive_number,
    sections,
    warn,
    whole_number,
)
from isthmus.report import build, finished, registry

__all__ = ["run"]

EXAMPLES = """
isthmus reproduce
isthmus reproduce --only capacity hero --out my-report
isthmus reproduce --full --jobs 8
"""
FILES = """
DIR/index.html    the page, which needs no other file
DIR/results.json  the same for machines
DIR/parts         finished parts, kept for the next run, and logs
"""
CODES = EXIT_CODES.replace(
    "1    a bug in isthmus",
    "1    a part failed; stderr and the page name it\n1    a bug in isthmus",
)
SOME_FAILED, INTERRUPTED = 1, 130


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().parse_args(argv)
    chosen = [name for group in arguments.only for name in group] if arguments.only else None
    common = (arguments.out, chosen, arguments.full, arguments.seed)
    if arguments.list:
        _list(finished(*common), arguments.json)
        return 0
    try:
        report = build(
            *common,
            jobs=arguments.jobs,
            limit=arguments.limit,
            fresh=arguments.fresh,
            show_progress=False if arguments.quiet else None,
        )
    except KeyboardInterrupt:
        warn("interrupted; run the same command to continue")
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
    warn(f"{count} failed ({reasons}).{logs}")
    return SOME_FAILED


def _list(done: dict[str, bool], as_json: bool) -> None:
    """Print the names of parts, their chapters, and whether they are done."""
    parts = [part for part in registry.PARTS if part.name in done]
    rows = [(part.name, part.chapter, done[part.name]) for part in parts]
    if as_json:
        keys = ("name", "chapter", "done")
        print(json.dumps([dict(zip(keys, row, strict=True)) for row in rows], indent=2))
        return
    width, wide = max(len(row[0]) for row in rows), max(len(row[1]) for row in rows)
    for name, chapter, ready in rows:
        print(f"{name:<{width}}  {chapter:<{wide}}  {'done' * ready}".rstrip())


def _parser() -> Parser:
    parser = make_parser(
        "reproduce",
        "Compute every figure and claim of the paper again, into one self-contained page.\n"
        "Finished parts are kept: the same command continues after an interruption. Failures are\n"
        "listed on the page and on stderr; other parts still run, and the exit code is 1.",
        EXAMPLES,
        FILES,
    )
    parser.epilog = sections({"files": FILES, "exit codes": CODES, "examples": EXAMPLES})
    add = parser.add_argument
    add(
        "--only",
        type=names,
        nargs="+",
        action="extend",
        metavar="NAME",
        help="parts or chapters, as --list prints them (default: all)",
    )
    add("--full", action="store_true", help="the paper's own sizes and the whole study: hours")
    add("--out", type=path, default=Path("report"), metavar="DIR", help="default: %(default)s")
    add_seed(parser)
    add(
        "--jobs",
        type=whole_number(1),
        metavar="N",
        help="parts at a time, on one core each (default: the number of cores)",
    )
    add(
        "--limit",
        type=positive_number,
        metavar="SECONDS",
        help="time for one part (default: half an hour; with --full, a week)",
    )
    add("--fresh", action="store_true", help="compute finished parts again")
    add("--list", action="store_true", help="print the names of the parts, and exit")
    add_quiet(parser)
    add_json(parser)
    return parser
