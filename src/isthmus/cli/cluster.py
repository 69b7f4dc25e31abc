"""`isthmus cluster DATA`: find groups of rows."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from isthmus.cli.files import path, separate_files, writable_file
from isthmus.cli.options import (
    Parser,
    add_json,
    add_no_standardise,
    add_quiet,
    add_seed,
    add_table_options,
    add_table_output,
    check_table_output,
    load_model,
    load_table,
    make_parser,
    positive_number,
    print_notes,
    print_result,
    whole_number,
)
from isthmus.errors import InvalidInputError
from isthmus.printing import counted
from isthmus.tables import STDIN, default_output, write_table

if TYPE_CHECKING:
    from isthmus.cluster import TableClusters

__all__ = ["run"]

DESCRIPTION = """
Find groups of rows in a table, with the probability of each group. Columns are
standardised, missing values are allowed, and the number of clusters is estimated unless
-k sets it. For each row, the command writes its id, its cluster and the probability of
that cluster, the probability that the row belongs to no known cluster (novelty), the
log-density in the units of the data, and the probability of every cluster (p1, p2, ...).
"""
EXAMPLES = """
isthmus cluster iris.csv
isthmus cluster iris.csv --label species --plot iris.png
isthmus cluster customers.parquet --id customer -k 5 -o groups.parquet
isthmus cluster monday.csv --save groups.safetensors
isthmus cluster tuesday.csv --model groups.safetensors --json
"""
FILES = """
DATA    a table; columns that are not numbers are left out and named, gaps are allowed
-o      a row for each row of DATA: id; label, if named; cluster, from 1; certainty; novelty
        (crp and crp-elbo); log_density; p1, p2, ... for up to 30 clusters
--save  one safetensors file: the estimator, its columns and their scaling
"""
METHODS = ("crp", "crp-elbo", "elbo", "clam", "mean-shift")
FIGURES = (".png", ".svg")


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().parse_args(argv)
    _check(arguments)
    from isthmus.cluster import TableModel

    table = load_table(arguments, missing=True)
    if arguments.model is not None:
        model = load_model(arguments.model, table)
    else:
        model = TableModel.fit(
            table.X,
            columns=table.columns,
            method=arguments.method,
            n_clusters=arguments.k,
            alpha=arguments.alpha,
            bandwidth=arguments.bandwidth,
            standardise=arguments.standardise,
            random_state=arguments.seed,
            verbose=int(not arguments.quiet and sys.stderr.isatty()),
        )
    found = model.describe(
        table.X,
        columns=table.columns,
        ids=table.ids,
        id_name=table.id_name,
        classes=table.labels,
        class_name=table.label_name or "",
    )
    print_notes((*table.notes, *model.notes), arguments.quiet)
    if arguments.plot is not None:
        _draw(found, arguments)
    if arguments.save is not None:
        model.save(arguments.save)
    write_table(found.to_columns(arguments.posteriors), arguments.output)
    if arguments.output != STDIN:
        written = {"output": arguments.output, "plot": arguments.plot, "model": arguments.save}
        print_result(found, written, arguments.json)
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse arguments that cannot be used, before any work."""
    if arguments.output is None:
        arguments.output = default_output(arguments.data, "clusters.csv")
    check_table_output(arguments, arguments.data)
    for option in ("plot", "save"):
        if getattr(arguments, option) is not None:
            writable_file(getattr(arguments, option), f"--{option}")
    separate_files(
        {
            "DATA": arguments.data,
            "-o": arguments.output,
            "--plot": arguments.plot,
            "--save": arguments.save,
        }
    )
    if arguments.plot is not None and arguments.plot.suffix.lower() not in FIGURES:
        raise InvalidInputError(f"--plot {arguments.plot} must end in {' or '.join(FIGURES)}.")
    settings = ("method", "k", "alpha", "bandwidth", "save")
    given = [name for name in settings if getattr(arguments, name) is not None]
    if arguments.model is not None and (given or not arguments.standardise):
        raise InvalidInputError("--model is fitted already; leave out options that fit or save.")
    if arguments.method == "mean-shift" and arguments.save is not None:
        raise InvalidInputError("--save is not for --method mean-shift, which stores all rows.")


def _draw(found: TableClusters, arguments: argparse.Namespace) -> None:
    """Write the figure of the clusters."""
    import numpy as np

    from isthmus.figures import cluster_map, save

    X = np.where(np.isnan(found.X), found.memories[found.labels], found.X)
    memories, one = found.memories, X.shape[1] == 1
    figure = cluster_map(
        X if one else found.scaling.into(X),
        found.labels,
        found.certainty,
        memories if one else found.scaling.into(memories),
        title=f"{arguments.data.name}: {counted(len(memories), 'cluster')}, {found.estimator}",
        columns=found.columns,
        seed=arguments.seed,
    )
    save(figure, arguments.plot)


def _parser() -> Parser:
    parser = make_parser("cluster", DESCRIPTION.strip(), EXAMPLES, FILES)
    add_table_options(parser)
    group = parser.add_argument_group("clustering")
    add = group.add_argument
    add(
        "--method",
        choices=METHODS,
        help="crp and crp-elbo estimate the number of clusters, elbo and clam need -k, mean-shift "
        "takes --bandwidth (default: crp, or elbo with -k)",
    )
    add("-k", type=whole_number(1), metavar="N", help="number of clusters")
    add(
        "--alpha",
        type=positive_number,
        metavar="X",
        help="concentration of crp: larger values give more clusters (default: 1)",
    )
    add("--bandwidth", type=positive_number, metavar="X", help="of mean-shift (default: Scott's)")
    add_no_standardise(group)
    add("--model", type=path, metavar="FILE", help="label rows with a saved model; fit nothing")
    out = parser.add_argument_group("output")
    add_table_output(out, "DATA's name + .clusters.csv")
    out.add_argument(
        "--posteriors",
        action="store_true",
        help="write every cluster's probability, even for more than 30 clusters",
    )
    out.add_argument("--plot", type=path, metavar="FILE", help="write a .png or .svg figure")
    out.add_argument("--save", type=path, metavar="FILE", help="save the model for --model")
    add_json(parser)
    add_seed(parser)
    add_quiet(parser)
    return parser
