"""Parts that commands share: the parser, types of arguments, common options, and output."""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from isthmus.errors import InvalidInputError, IsthmusError
from isthmus.io.files import check_writable, real_path, write_atomically
from isthmus.printing import definitions, printable
from isthmus.tables.files import (
    READABLE,
    STDIN,
    WRITABLE,
    FileFormat,
    Table,
    check_output,
    default_output,
    read_table,
    write_table,
)

EXIT_CODES = """
0    success
1    a bug in isthmus: ISTHMUS_TRACEBACK=1 shows where; in reproduce, also a part that failed
2    an option, a file or its contents is invalid: one line on stderr says why; no file is left
130  interrupted; finished work that can be resumed is kept
141  the output stream was closed
"""

HELP: dict[str, dict[str, Any]] = tomllib.loads(
    Path(__file__).with_name("help.toml").read_text(encoding="utf-8")
)
SHARED, READING = HELP.pop("shared"), HELP.pop("reading")
Action = Callable[[argparse.Namespace], int]
# The largest seed that the generators of numpy and torch both accept.
LARGEST = 2**32 - 1
LABEL_NAMES = {"class", "classes", "label", "labels", "target", "species"}


class Parser(argparse.ArgumentParser):
    """A parser that raises errors in one line, and does not accept abbreviated options."""

    def __init__(self, **options: Any) -> None:
        layout = {"formatter_class": argparse.RawDescriptionHelpFormatter, "allow_abbrev": False}
        super().__init__(**{**layout, **options})

    def error(self, message: str) -> NoReturn:
        """Raise an error that `main` prints as one line."""
        raise InvalidInputError(f"{message} (see {self.prog} --help)")


def make_parser(command: str, module: Any) -> Parser:
    """Return the parser of ``isthmus COMMAND`` that help.toml describes.

    The function `run` of the module, or ``run_NAME`` of each subcommand, is the action.
    """
    text = HELP[command]
    inside = {name: one for name, one in text.items() if "summary" in one and name != "summary"}
    parser = Parser(prog=f"isthmus {command}", **_texts(text, inside))
    if not inside:
        return _with_arguments(parser, text, module.run)
    commands = parser.add_subparsers(metavar="|".join(inside), required=True)
    for name, one in inside.items():
        summary = one["summary"]
        opening = f"{summary[0].upper()}{summary[1:]}.\n\n"
        shown = _texts({"files": text.get("files", "")} | one, opening=opening)
        action = getattr(module, f"run_{name}")
        _with_arguments(commands.add_parser(name, help=summary, **shown), one, action)
    return parser


def _texts(text: dict[str, Any], inside: Any = (), opening: str = "") -> dict[str, Any]:
    """Return the description of a command, and the end of its help: files, codes, examples."""
    examples = text.get("examples") or "\n".join(text[name]["examples"] for name in inside)
    title = "examples" if "\n" in examples.strip() else "example"
    ending = {"files": text.get("files", ""), "exit codes": EXIT_CODES, title: examples}
    description = opening + text.get("description", "")
    return {"description": description.strip(), "epilog": sections(ending)}


def _with_arguments(parser: Parser, text: dict[str, Any], action: Action) -> Parser:
    """Add the arguments of a command, and those for reading DATA if it has any."""
    _add(parser, text["options"])
    if "data" in text["options"]:
        words = "COLUMN is a name, or a number from 1"
        _add(parser.add_argument_group("reading DATA", words), READING)
    for title, some in text.get("groups", {}).items():
        _add(parser.add_argument_group(title), some)
    parser.set_defaults(action=action)
    return parser


def _add(group: argparse._ActionsContainer, options: dict[str, Any]) -> None:
    exclusive = None
    for names, own in options.items():
        given = SHARED.get(names, {}) | own
        settings = {**KINDS[given.pop("kind", "text")], **given}
        if "help" in settings:
            text = settings["help"].replace("{readable}", READABLE)
            settings["help"] = text.replace("{writable}", WRITABLE)
        target = group
        if settings.pop("exclusive", False):
            target = exclusive = exclusive or group.add_mutually_exclusive_group()
        target.add_argument(*names.split(), **settings)


def sections(texts: Mapping[str, str]) -> str:
    """Return texts of several lines, indented under their titles, without empty ones."""
    return "\n\n".join(
        f"{title}:\n" + "\n".join(f"  {line}" for line in text.strip().splitlines())
        for title, text in texts.items()
        if text.strip()
    )


def path(text: str) -> Path:
    """Convert an argument to a path; an empty one would be the current directory."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def directory(text: str) -> Path:
    """Convert an argument to the path of a directory, which need not exist."""
    found = path(text)
    if found.exists() and not found.is_dir():
        raise argparse.ArgumentTypeError(f"{found} is a file; name a directory")
    return found


def _number(check: str, **bounds: float) -> Callable[[str], Any]:
    """Return a type of argument: a number that a check of `isthmus.validation` accepts."""

    def convert(text: str) -> Any:
        from isthmus import validation

        try:
            number: float = int(text) if text.strip("+-").isdecimal() else float(text)
            return getattr(validation, check)(number, "the value", **bounds)
        except IsthmusError as error:
            raise argparse.ArgumentTypeError(str(error).rstrip(".")) from None
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None

    return convert


def names(text: str) -> tuple[str, ...]:
    """Convert an argument to names, separated by commas."""
    return tuple(part.strip() for part in text.split(","))


_count = _number("as_count", at_least=1, at_most=LARGEST)
_size = _number("as_count", at_least=0, at_most=LARGEST)
_positive = _number("as_number", above=0)
KINDS: dict[str, dict[str, Any]] = {
    "text": {},
    "flag": {"action": "store_true"},
    "switch": {"action": "store_false"},
    "count": {"type": _count, "metavar": "N"},
    "size": {"type": _size, "metavar": "N"},
    "number": {"type": _positive, "metavar": "X"},
    "number or auto": {"type": lambda text: text if text == "auto" else _positive(text)},
    "noise": {"type": _number("as_number", at_least=0)},
    "percentage": {"type": _number("as_number", above=0, below=100), "metavar": "X"},
    "share": {"type": _number("as_number", above=0, at_most=1)},
    "path": {"type": path},
    "file": {"type": path, "metavar": "FILE"},
    "directory": {"type": directory, "metavar": "DIR"},
    "names": {"type": names, "metavar": "NAME,..."},
    "columns": {"type": names, "default": (), "metavar": "COLUMN,..."},
    "counts": {
        "type": lambda text: tuple(_size(part) for part in names(text)),
        "metavar": "N,N,...",
        "help": "context sizes (default: %(default)s)",
    },
    "model": {
        "default": "mixtures-2d",
        "metavar": "MODEL",
        "help": "a name, or the folder of a model or of a training run (default: %(default)s)",
    },
    "prior": {
        "default": "compact",
        "metavar": "NAME",
        "help": "of the datasets (default: %(default)s)",
    },
    "context": {
        "type": path,
        "metavar": "DATA",
        "help": "the dataset, one point per row: {readable}",
    },
}
"""Settings of ``add_argument`` for each kind of argument in help.toml."""


def settings(arguments: argparse.Namespace, names: str) -> dict[str, Any]:
    """Return the values of some options by name, for a function that has the same names."""
    return {name: getattr(arguments, name) for name in names.split()}


def require_suffix(option: str, target: Path | None, *suffixes: str) -> None:
    """Refuse the path of a figure with another suffix."""
    if target is not None and target.suffix.lower() not in suffixes:
        raise InvalidInputError(f"{option} {target} must end in {' or '.join(suffixes)}.")


def refuse(arguments: argparse.Namespace, names: str, reason: str) -> None:
    """Refuse options that were given; those called no-... are given if they are False."""
    for name in names.split():
        value = getattr(arguments, name.removeprefix("no-").replace("-", "_"))
        if value is False if name.startswith("no-") else value not in (None, False, []):
            option = f"-{name}" if len(name) == 1 else f"--{name}"
            raise InvalidInputError(f"{option} cannot be used here: {reason}")


def check_outputs(
    arguments: argparse.Namespace, *inputs: Path | None, ending: str = "", **targets: Path | None
) -> None:
    """Refuse outputs that cannot be written, or that are the same file, before any work.

    With an `ending`, the default of ``-o`` is named after the last input. `targets` are other
    outputs, by option. ``arguments.replaced`` are those that exist.
    """
    if ending and arguments.output is None:
        arguments.output = default_output([one for one in inputs if one is not None][-1], ending)
    outputs = [arguments.output, *targets.values()]
    arguments.replaced = [one for one in outputs if one is not None and one.is_file()]
    seen = {real_path(one): "DATA" for one in inputs if one is not None}
    if arguments.output == STDIN:
        if arguments.json:
            raise InvalidInputError("-o - and --json would both write to stdout; choose one.")
    elif arguments.output is not None:
        check_output(arguments.output, *seen)
        seen[real_path(arguments.output)] = "-o"
    for option, target in targets.items():
        if target is not None:
            check_writable(target, f"--{option}")
            if (other := seen.setdefault(real_path(target), option)) != option:
                raise InvalidInputError(f"--{option} {target} is taken by {other}; name another.")


def load_table(arguments: argparse.Namespace, *, missing: bool = False, **reading: Any) -> Table:
    """Read DATA, and note a column that looks like a label; `reading` are options of the reader."""
    given = settings(arguments, "id label drop array") | _layout(arguments)
    table = read_table(arguments.data, missing=missing, **given, **reading)
    alone = ("DATA has one row, so there are no others to learn from.",) * (len(table) == 1)
    return replace(table, notes=(*table.notes, *note_on_label(table), *alone))


def note_on_label(table: Table, advice: str = "--label {} keeps it apart; ") -> Iterator[str]:
    """Yield a sentence if a column has a name of labels, with the options that leave it out."""
    known = (*table.columns, *(table.left_out if advice else ()))
    names = [name for name in known if name.strip().lower() in LABEL_NAMES]
    for name in names[:1] if table.label_name is None else ():
        words = f"column {name!r} looks like a label: "
        yield f"{words}{advice.format(name)}--drop {name} leaves it out."


def load_beside(arguments: argparse.Namespace, path: Path, **given: Any) -> Table:
    """Read another table, whose text is laid out as that of DATA; `given` are its columns."""
    textual = FileFormat.of(path).kind == "text"
    return read_table(path, **given, **(_layout(arguments) if textual else {}))


def _layout(arguments: argparse.Namespace) -> dict[str, Any]:
    header = None if arguments.header is None else arguments.header == "yes"
    return settings(arguments, "separator decimal encoding skip_rows") | {"header": header}


def put(text: str, target: Path | None) -> None:
    """Print a text, or write it to a file and print the path."""
    if target is None:
        sys.stdout.write(text)
    else:
        print(write_atomically(target, text))


def finish(
    arguments: argparse.Namespace,
    text: object,
    summary: Mapping[str, Any],
    notes: Iterable[str] = (),
    rows: Any = None,
    like: Table | None = None,
    **written: Path | None,
) -> int:
    """Print notes, write rows to ``-o``, and print a result, as text or JSON, with its files."""
    print_notes(notes, arguments.quiet)
    if rows is not None and arguments.output is not None:
        write_table(rows, arguments.output, like=like)
    if arguments.output == STDIN:
        return 0
    written = {"output": arguments.output, **written}
    files = {name: str(place) for name, place in written.items() if place is not None}
    if arguments.json:
        print(json.dumps({**summary, **files}, indent=1, allow_nan=False))
        return 0
    print(printable(str(text)))
    titles = {"output": "rows written to", "plot": "figure written to", "model": "model written to"}
    shown = {
        titles[name]: f"{place}{' (replaced)' * (Path(place) in arguments.replaced)}"
        for name, place in files.items()
    }
    if files:
        print("", *definitions(shown), sep="\n")
    return 0


def as_line(message: object) -> str:
    """Return a message as one line."""
    return f"isthmus: {printable(' '.join(str(message).split()))}"


def warn(words: str) -> None:
    """Print a line on stderr."""
    print(as_line(words), file=sys.stderr, flush=True)


def print_notes(notes: Iterable[str], quiet: bool) -> None:
    """Print a line on stderr for each note, unless quiet."""
    for note in () if quiet else notes:
        warn(note)
