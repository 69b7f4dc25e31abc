"""`isthmus bench [NAME [argument ...]]`: run a benchmark of the documentation from a clone."""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys

from isthmus.cli import options
from isthmus.errors import InvalidInputError
from isthmus.io.files import shipped
from isthmus.printing import definitions


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    folder = shipped("benchmarks")
    texts = {} if folder is None else {path: path.read_text() for path in folder.glob("*.py")}
    scripts = {path.stem: text for path, text in sorted(texts.items()) if "__main__" in text}
    if folder is None or not scripts:
        raise InvalidInputError(
            "The benchmarks are scripts in a clone of the repository, in `benchmarks`; install "
            "isthmus from there, with `pip install -e .`."
        )
    if arguments.list or arguments.name is None:
        docs = {name: ast.get_docstring(ast.parse(text)) or "" for name, text in scripts.items()}
        print(f"Scripts in {folder}:", "", sep="\n")
        print(*definitions({name: doc.partition("\n")[0] for name, doc in docs.items()}), sep="\n")
        return 0
    if arguments.name not in scripts:
        near = options.did_you_mean(arguments.name, scripts)
        raise InvalidInputError(f"{arguments.name!r} is not a benchmark; {near}")
    command = [sys.executable, str(folder / f"{arguments.name}.py"), *arguments.arguments]
    return subprocess.run(command, check=False).returncode


def parser() -> options.Parser:
    """Return the parser of the command."""
    parser = options.make_parser("bench", run)
    parser.add_argument("--list", action="store_true", help="list the benchmarks (default)")
    parser.add_argument("name", nargs="?", metavar="NAME", help="the script to run")
    words = "of the script; `isthmus bench NAME --help` lists them"
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="argument", help=words)
    return parser
