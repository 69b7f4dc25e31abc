"""`isthmus play [DATA]`: an energy landscape in the browser."""

from __future__ import annotations

import argparse
from functools import partial

from isthmus.cli import options


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    from isthmus.play.data import Columns
    from isthmus.play.launch import serve
    from isthmus.play.playground import Playground

    columns = None
    if arguments.data is not None:
        table = options.load_table(arguments, missing=True)
        columns = Columns.of_table(table, arguments.standardise)
    playground = Playground(columns)
    options.print_notes(playground.start["notes"], arguments.quiet)
    announce = partial(print, flush=True)
    serve(playground, port=arguments.port, browser=arguments.browser, announce=announce)
    return 0
