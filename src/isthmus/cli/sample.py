"""`isthmus sample DATA`: draw new rows that resemble those of a table."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from isthmus.cli.options import (
    Parser,
    add_json,
    add_no_standardise,
    add_quiet,
    add_seed,
    add_table_options,
    add_table_output,
    check_table_output,
    load_table,
    make_parser,
    positive_number,
    print_notes,
    whole_number,
)
from isthmus.errors import InvalidInputError
from isthmus.tables import STDIN, write_table

__all__ = ["run"]

DESCRIPTION = """
Fit a density to the rows of a table and draw new rows from it, with the names and in the
units of the columns. Columns are standardised first; a constant column keeps its value, and
whole numbers are not rounded.

The default density is a Gaussian KDE, with the bandwidth at which every row is most likely
given all the others: each draw is a row of DATA with noise added. `crp` draws from the
clusters of ClAMCRP instead, and so repeats no row. A model saved by `isthmus cluster --save`
takes the place of DATA.

Draws are exact and independent. `--sampler` uses Langevin dynamics, MALA or HMC instead, and
reports on stderr how well the chains agree (R-hat near 1).
"""
FILES = """
DATA  a table, or a model saved by `isthmus cluster DATA --save FILE.safetensors`
-o    a row for each draw, in the separator and decimal mark of DATA
"""
EXAMPLES = """
isthmus sample iris.csv -n 100 > more.csv
isthmus sample gaps.parquet --energy crp -n 1000 --seed 7 -o drawn.parquet
isthmus sample groups.safetensors -n 10
isthmus sample iris.csv -n 500 --sampler mala --json -o drawn.csv
"""
ENERGIES = ("kde", "hopfield", "crp", "crp-elbo", "elbo", "clam")
SAMPLERS = ("exact", "langevin", "mala", "hmc")
MODEL = ".safetensors"


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().parse_args(argv)
    check_table_output(arguments, arguments.data)
    is_model = _is_model(arguments.data)
    settings = ("energy", "sigma", "beta", "k")
    if is_model and (
        any(getattr(arguments, name) is not None for name in settings) or not arguments.standardise
    ):
        raise InvalidInputError("The model is fitted already; leave out options that fit one.")
    from isthmus.cluster import TableModel
    from isthmus.synthesis import sample_model, sample_table

    sampling = {
        "sampler": arguments.sampler,
        "step_size": arguments.step_size,
        "burn_in": arguments.steps,
        "chains": arguments.chains,
        "seed": arguments.seed,
        "show_progress": False if arguments.quiet else None,
    }
    table = None
    if is_model:
        found = sample_model(TableModel.load(arguments.data), arguments.number, **sampling)
    else:
        energy = arguments.energy or "kde"
        table = load_table(arguments, missing=energy not in ("kde", "hopfield"))
        found = sample_table(
            table.X,
            arguments.number,
            columns=table.columns,
            energy=energy,
            sigma=arguments.sigma,
            beta=arguments.beta,
            n_clusters=arguments.k,
            standardise=arguments.standardise,
            **sampling,
        )
    notes = () if table is None else table.notes
    print_notes((*notes, *found.notes), arguments.quiet)
    columns, output = found.to_columns(), None if arguments.output == STDIN else arguments.output
    if output is not None or not arguments.json:
        write_table(columns, output, like=table)
    if arguments.json:
        summary = dict(found.summary)
        if output is not None:
            summary["output"] = str(output)
        else:
            rows = found.X.tolist()
            summary["rows"] = [dict(zip(columns, row, strict=True)) for row in rows]
        print(json.dumps(summary, indent=2, allow_nan=False))
    elif output is not None:
        print(output)
    return 0


def _is_model(data: Path) -> bool:
    """Return True for a saved model, by its name or by its first bytes."""
    if data.suffix == MODEL or not data.is_file():
        return data.suffix == MODEL
    with data.open("rb") as file:
        start = file.read(9)
    # The length of a header of JSON, in 8 bytes, and the header.
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") < data.stat().st_size


def _parser() -> Parser:
    parser = make_parser("sample", DESCRIPTION.strip(), EXAMPLES, FILES)
    add_table_options(parser)
    parser.add_argument(
        "-n",
        dest="number",
        type=whole_number(1),
        default=100,
        metavar="N",
        help="number of draws (default: 100)",
    )
    _add_energy_options(parser.add_argument_group("the energy"))
    add = parser.add_argument_group("the sampler").add_argument
    add("--sampler", choices=SAMPLERS, default="exact", help="default: exact")
    add("--step-size", type=positive_number, metavar="X", help="default: tuned to the energy")
    add("--steps", type=whole_number(0), metavar="N", help="before the first draw (default: 500)")
    add("--chains", type=whole_number(1), metavar="N", help="number of chains (default: 64)")
    add_table_output(parser, "CSV on stdout")
    add_json(parser)
    add_seed(parser)
    add_quiet(parser)
    return parser


def _add_energy_options(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--energy",
        choices=ENERGIES,
        help="kde and hopfield store every row; the others are methods of `isthmus cluster`, elbo "
        "and clam with -k (default: kde)",
    )
    add(
        "--sigma",
        type=positive_number,
        metavar="X",
        help="bandwidth, in standard deviations of the columns (default: by leave-one-out "
        "likelihood)",
    )
    add("--beta", type=positive_number, metavar="X", help="1 / sigma^2, in place of --sigma")
    add("-k", type=whole_number(1), metavar="N", help="number of clusters")
    add_no_standardise(group)
