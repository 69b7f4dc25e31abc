"""`isthmus certify DATA`: which rows a memory holds, and how far a query may be off."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from isthmus.cli.certify_report import in_words, summarise
from isthmus.cli.delimited import STDIN
from isthmus.cli.files import path, writable_file
from isthmus.cli.models import Scaling
from isthmus.cli.options import (
    Parser,
    add_json,
    add_output,
    add_quiet,
    make_parser,
    positive_number,
    show_progress,
    tell,
    whole_number,
)
from isthmus.cli.outputs import output_file, write_rows
from isthmus.cli.tables import Table, add_table_options, load_table
from isthmus.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from isthmus.capacity import Certificate

__all__ = ["run"]

DESCRIPTION = """
Take the rows of a table for the patterns of an associative memory, and say of each whether
the memory holds it: whether a query near the row comes back to that row and to no other.

A Gaussian KDE of bandwidth sigma blurs rows that are closer than about two sigma into one.
By default the largest sigma is taken that still stores 95 % of the rows that have no exact
twin; the larger sigma is, the farther off a query may be. What is proved holds for every
query within the guaranteed radius; where the proof is silent, the rows are iterated, which
is evidence.
"""
FILES = """
DATA  a row per pattern; columns that are not numbers are left out, gaps are an error
-o    a row per row of DATA: its id; separation, half the squared distance to the nearest
      other row (for a Hopfield network, the smallest x.(x - y)); guaranteed_radius and
      error_bound, both proved, 0 and empty where nothing is; retrieval_error, how far the
      row itself ends from where it began; stored; decided (proved, iterated or open); basin,
      the same number for rows that end in one place
"""
EXAMPLES = """
isthmus certify iris.csv
isthmus certify iris.csv --standardise --sigma 0.3 -o certificate.csv
isthmus certify plane.csv --plot certificate.png
isthmus certify embeddings.npy --model hopfield --beta 20 --json
"""
STORED = 0.95
# More than this ratio of scales is worth a word.
UNLIKE = 30.0


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().parse_args(argv)
    _check(arguments)
    table = load_table(arguments)
    scaling = Scaling.of(table.X, arguments.standardise)
    X = scaling.into(table.X)
    with show_progress("certify", 2, arguments.quiet) as report:
        report("choosing sigma", 0)
        sigma = _sigma(X, arguments)
        report(f"rows at sigma {sigma:.4g}", 1)
        certificate = _certified(X, sigma, arguments)
        report("", 2)
    unlike = () if arguments.standardise else _compare_scales(table)
    tell((*table.notes, *unlike), arguments.quiet)
    summary = summarise(
        table,
        certificate,
        _is_chosen(arguments),
        arguments.standardise,
        arguments.output,
        arguments.plot,
    )
    if arguments.plot is not None:
        from isthmus.figures import save

        save(draw(X, certificate, table.columns), arguments.plot)
    if arguments.output is not None:
        to_stdout = arguments.output == STDIN
        write_rows(None if to_stdout else arguments.output, rows(table, certificate))
        if to_stdout:
            return 0
    if arguments.json:
        print(json.dumps(summary, indent=2, allow_nan=False))
    else:
        sys.stdout.write(in_words(summary))
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what cannot be done before any work is."""
    if arguments.output == STDIN:
        if arguments.json:
            raise InvalidInputError("-o - and --json would both write to stdout; choose one.")
    elif arguments.output is not None:
        output_file(arguments.output, arguments.data)
    if arguments.plot is not None:
        if arguments.plot.suffix.lower() != ".png":
            raise InvalidInputError(f"--plot {arguments.plot} must end in .png.")
        writable_file(arguments.plot, "--plot")
    if arguments.sigma is not None and arguments.beta is not None:
        raise InvalidInputError("--sigma and --beta say the same, beta = 1 / sigma^2; give one.")
    if arguments.model == "hopfield" and _is_chosen(arguments):
        raise InvalidInputError("--model hopfield needs --beta, its inverse temperature.")
    if arguments.stored is not None and not _is_chosen(arguments):
        raise InvalidInputError("--stored is for --sigma auto; leave out the one or the other.")


def _is_chosen(arguments: argparse.Namespace) -> bool:
    """Whether sigma is to be chosen for the user."""
    return arguments.beta is None and arguments.sigma in (None, "auto")


def _compare_scales(table: Table) -> Iterator[str]:
    """Say so if one column decides nearly alone how far rows are apart."""
    import numpy as np

    with np.errstate(over="ignore"):
        found = table.X.std(0)
    spreads = {
        name: float(spread)
        for name, spread in zip(table.columns, found, strict=True)
        if 0 < spread < np.inf
    }
    if spreads and max(spreads.values()) > UNLIKE * min(spreads.values()):
        most, least = max(spreads, key=spreads.__getitem__), min(spreads, key=spreads.__getitem__)
        yield (
            f"column {most!r} varies {spreads[most] / spreads[least]:.0f} times as much as "
            f"{least!r} and decides on distances; --standardise gives all the same weight."
        )


def _sigma(X: NDArray[np.float64], arguments: argparse.Namespace) -> float:
    """The bandwidth that was asked for, or the largest that stores enough rows."""
    import numpy as np

    from isthmus.capacity import choose_sigma

    if arguments.beta is not None:
        return 1 / math.sqrt(arguments.beta)
    if not _is_chosen(arguments):
        return float(arguments.sigma)
    if len(X) == 1:
        return 1.0  # a single row is stored at every bandwidth
    stored = arguments.stored
    if stored is None:
        counts = np.unique(X, axis=0, return_counts=True)[1]
        stored = STORED * float((counts == 1).sum() / len(X))
        if stored == 0:
            raise InvalidInputError(
                f"{arguments.data}: every row has an exact twin, so none can be stored for itself. "
                "Drop duplicates first, or give --sigma to see what they share."
            )
    # Rounded up to whole rows, and not beyond them by the rounding of the product.
    return choose_sigma(X, math.ceil(stored * len(X) - 1e-9) / len(X)).sigma


def _certified(X: NDArray[np.float64], sigma: float, arguments: argparse.Namespace) -> Certificate:
    from isthmus import ModernHopfield
    from isthmus.capacity import certify

    if arguments.model == "hopfield":
        return certify(ModernHopfield(X, sigma**-2), iterate=arguments.iterate)
    return certify(X, sigma, iterate=arguments.iterate)


def rows(table: Table, certificate: Certificate) -> dict[str, Any]:
    """The columns that are written: ids, then what is known of each row."""
    results = {
        "separation": _finite(certificate.separation),
        "guaranteed_radius": _finite(certificate.guaranteed_radius),
        "error_bound": _finite(certificate.error_bound),
        "retrieval_error": certificate.retrieval_error,
        "stored": certificate.stored,
        "decided": certificate.decided,
        "basin": certificate.basin,
    }
    name = f"{table.id_name}_given" if table.id_name in results else table.id_name
    return {name: table.ids, **results}


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """NaN, which is written as a missing value, for what has no bound."""
    import numpy as np

    return np.where(np.isfinite(values), values, np.nan)


def draw(X: NDArray[np.float64], certificate: Certificate, columns: tuple[str, ...]) -> Figure:
    """Rows by what is known of them; with their guaranteed balls if they lie in a plane."""
    import numpy as np

    from isthmus.figures import certificate_plot

    if X.shape[1] <= 2:
        flat = np.column_stack([X, np.zeros(len(X))])[:, :2]
        figure = certificate_plot(certificate, flat)
        labels = [*columns, ""][:2]
    else:
        # The shadow of a ball would promise more than the ball does, so none is drawn.
        centred = X - X.mean(0)
        directions = np.linalg.svd(centred, full_matrices=False)[2][:2]
        directions *= np.sign(directions[np.arange(len(directions)), abs(directions).argmax(1)])[
            :, None
        ]
        flat = np.column_stack([centred @ directions.T, np.zeros(len(X))])[:, :2]
        none = np.zeros(len(X))
        figure = certificate_plot(replace(certificate, guaranteed_radius=none), flat)
        figure.axes[0].texts[0].set_text("Seen along the two directions in which rows vary most.")
        labels = ["first principal component", "second principal component"]
    figure.axes[0].set_xlabel(labels[0])
    figure.axes[0].set_ylabel(labels[1])
    return figure


def _parser() -> Parser:
    parser = make_parser("certify", DESCRIPTION.strip(), EXAMPLES, FILES)
    add_table_options(parser)
    group = parser.add_argument_group("the memory")
    group.add_argument(
        "--sigma",
        type=_sigma_or_auto,
        metavar="X|auto",
        help="bandwidth; default: auto, the largest that stores enough rows",
    )
    group.add_argument(
        "--stored",
        type=_share,
        metavar="SHARE",
        help=f"of the rows, for --sigma auto; default: {STORED} of those without a twin",
    )
    group.add_argument(
        "--model",
        choices=("kde", "hopfield"),
        default="kde",
        help="Gaussian KDE, or modern Hopfield network; default: kde",
    )
    group.add_argument(
        "--beta", type=positive_number, metavar="X", help="inverse temperature, 1 / sigma^2"
    )
    group.add_argument(
        "--standardise",
        action="store_true",
        help="divide columns by their standard deviations first; radii are then in these",
    )
    group.add_argument(
        "--iterate",
        choices=("all", "undecided", "none"),
        default="all",
        help="which rows to follow to where they end; default: all",
    )
    parser.add_argument(
        "--seed", type=whole_number(0), metavar="N", help="taken, but nothing here is random"
    )
    add_output(
        parser,
        "FILE",
        words="a table of all rows: .csv, .tsv, .parquet or .json, - for stdout",
    )
    parser.add_argument("--plot", type=path, metavar="FILE.png", help="a picture of the rows")
    add_json(parser)
    add_quiet(parser)
    return parser


def _sigma_or_auto(text: str) -> float | str:
    return text if text == "auto" else positive_number(text)


def _share(text: str) -> float:
    share = positive_number(text)
    if share > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share, above 0 and up to 1")
    return share
