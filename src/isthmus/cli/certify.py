"""`isthmus certify DATA`: find the rows that an associative memory stores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from isthmus.cli.files import path, separate_files, writable_file
from isthmus.cli.options import (
    Parser,
    add_json,
    add_output,
    add_quiet,
    add_table_options,
    check_table_output,
    load_table,
    make_parser,
    positive_number,
    print_notes,
    print_result,
    share,
    whole_number,
)
from isthmus.errors import InvalidInputError
from isthmus.tables import STDIN, WRITABLE, write_table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from isthmus.capacity import TableCertificate

__all__ = ["run"]

DESCRIPTION = """
Treat the rows of a table as the patterns of an associative memory, and report which rows it
stores: a stored row is where queries near it end, and queries near other rows do not.

A Gaussian KDE of bandwidth sigma merges rows that are closer than about two sigma. By
default, sigma is the largest value that stores 95 % of the rows without an exact duplicate;
a larger sigma tolerates larger errors in a query. Proved results hold for every query within
the guaranteed radius. Where nothing is proved, the rows are iterated, which is evidence.
"""
FILES = """
DATA  a table of patterns; columns that are not numbers are left out, gaps are an error
-o    a row for each row of DATA: its id; separation, half the squared distance to the nearest
      other row (for a Hopfield network, the smallest x.(x - y)); guaranteed_radius and
      error_bound, both proved, 0 and empty where nothing is; retrieval_error, the distance
      from the row to its fixed point; stored; decided (proved, iterated or open); basin, the
      same number for rows with the same fixed point
"""
EXAMPLES = """
isthmus certify iris.csv
isthmus certify iris.csv --standardise --sigma 0.3 -o certificate.csv
isthmus certify plane.csv --plot certificate.png
isthmus certify embeddings.npy --model hopfield --beta 20 --json
"""


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().parse_args(argv)
    check_table_output(arguments, arguments.data)
    if arguments.plot is not None:
        if arguments.plot.suffix.lower() != ".png":
            raise InvalidInputError(f"--plot {arguments.plot} must end in .png.")
        writable_file(arguments.plot, "--plot")
    separate_files({"DATA": arguments.data, "-o": arguments.output, "--plot": arguments.plot})
    from isthmus.capacity import certify_table

    table = load_table(arguments)
    found = certify_table(
        table.X,
        columns=table.columns,
        model=arguments.model,
        sigma=None if arguments.sigma == "auto" else arguments.sigma,
        beta=arguments.beta,
        stored=arguments.stored,
        standardise=arguments.standardise,
        iterate=arguments.iterate,
        show_progress=False if arguments.quiet else None,
    )
    print_notes((*table.notes, *found.notes), arguments.quiet)
    found.summary["left_out"] = list(table.left_out)
    if arguments.plot is not None:
        from isthmus.figures import save

        save(_draw(found), arguments.plot)
    if arguments.output is not None:
        results = found.to_columns()
        name = f"{table.id_name}_given" if table.id_name in results else table.id_name
        write_table({name: table.ids, **results}, arguments.output)
    if arguments.output != STDIN:
        written = {"output": arguments.output, "plot": arguments.plot}
        print_result(found, written, arguments.json)
    return 0


def _draw(found: TableCertificate) -> Figure:
    """Draw rows by their certificate; with their guaranteed balls if they lie in a plane."""
    import numpy as np

    from isthmus.figures import certificate_plot
    from isthmus.figures.clusters import project

    X, certificate = found.X, found.certificate
    if X.shape[1] <= 2:
        flat = np.column_stack([X, np.zeros(len(X))])[:, :2]
        figure, labels = certificate_plot(certificate, flat), [*found.columns, ""][:2]
    else:
        # The shadow of a ball would promise more than the ball does, so none is drawn.
        certificate = replace(certificate, guaranteed_radius=np.zeros(len(X)))
        figure = certificate_plot(certificate, project(X, X[:1])[0])
        figure.axes[0].texts[0].set_text("Seen along the two directions of the largest variance.")
        labels = ["first principal component", "second principal component"]
    figure.axes[0].set(xlabel=labels[0], ylabel=labels[1])
    return figure


def _parser() -> Parser:
    parser = make_parser("certify", DESCRIPTION.strip(), EXAMPLES, FILES)
    add_table_options(parser)
    group = parser.add_argument_group("the memory")
    add = group.add_argument
    add(
        "--sigma",
        type=_sigma_or_auto,
        metavar="X|auto",
        help="bandwidth (default: auto, the largest value that stores enough rows)",
    )
    add(
        "--stored",
        type=share,
        metavar="SHARE",
        help="of the rows, for --sigma auto (default: 0.95 of those without a duplicate)",
    )
    add(
        "--model",
        choices=("kde", "hopfield"),
        default="kde",
        help="Gaussian KDE, or modern Hopfield network (default: kde)",
    )
    add("--beta", type=positive_number, metavar="X", help="inverse temperature, 1 / sigma^2")
    add(
        "--standardise",
        action="store_true",
        help="divide columns by their standard deviations first; radii are then in these units",
    )
    add(
        "--iterate",
        choices=("all", "undecided", "none"),
        default="all",
        help="rows to follow to their fixed points (default: all)",
    )
    parser.add_argument(
        "--seed", type=whole_number(0), metavar="N", help="has no effect: nothing here is random"
    )
    add_output(parser, "FILE", words=f"a table of all rows: {WRITABLE}; - is stdout")
    parser.add_argument("--plot", type=path, metavar="FILE.png", help="write a figure of the rows")
    add_json(parser)
    add_quiet(parser)
    return parser


def _sigma_or_auto(text: str) -> float | str:
    return text if text == "auto" else positive_number(text)
