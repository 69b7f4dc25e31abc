"""`isthmus bench [NAME [argument ...]]`: run a benchmark of the documentation from a clone."""

from __future__ import annotations

import argparse
import subprocess
import sys

from isthmus.errors import InvalidInputError
from isthmus.io.files import shipped


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    folder = shipped("benchmarks")
    scripts = [] if folder is None else sorted(folder.glob("*.py"))
    names = [path.stem for path in scripts if "__main__" in path.read_text()]
    if folder is None or not names:
        raise InvalidInputError(
            "The benchmarks are scripts in a clone of the repository, in `benchmarks`; install "
            "isthmus from there, with `pip install -e .`."
        )
    if arguments.list or arguments.name is None:
        print(f"Scripts in {folder}:", *names, sep="\n")
        return 0
    if arguments.name not in names:
        known = ", ".join(names)
        raise InvalidInputError(f"{arguments.name!r} is not a benchmark; there are {known}.")
    command = [sys.executable, str(folder / f"{arguments.name}.py"), *arguments.arguments]
    return subprocess.run(command, check=False).returncode
