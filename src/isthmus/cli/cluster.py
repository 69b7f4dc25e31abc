"""`isthmus cluster DATA`: groups of rows, how sure they are, and what sets them apart."""

from __future__ import annotations

import argparse
import io
import json
import sys
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from isthmus.cli.cluster_report import Clusters, report, summarise
from isthmus.cli.delimited import STDIN
from isthmus.cli.files import path, separate_files, writable_file
from isthmus.cli.models import Scaling, TableModel, load_model, save_model
from isthmus.cli.options import (
    Parser,
    add_json,
    add_quiet,
    add_seed,
    make_parser,
    positive_number,
    tell,
    whole_number,
)
from isthmus.cli.outputs import add_table_output, counted, default_output, output_file, write_rows
from isthmus.cli.sources import listed
from isthmus.cli.tables import Table, add_no_standardise, add_table_options, load_table
from isthmus.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["run"]

EXAMPLES = """
isthmus cluster iris.csv
isthmus cluster iris.csv --label species --plot iris.png
isthmus cluster customers.parquet --id customer -k 5 -o groups.parquet
isthmus cluster monday.csv --save groups.safetensors
isthmus cluster tuesday.csv --model groups.safetensors --json
"""
FILES = """
DATA    a row per thing; columns that are not numbers are left out and named, gaps are allowed
-o      a row per row of DATA: its id; label, if named; cluster, from 1; certainty; novelty (crp
        and crp-elbo); log_density; p1, p2, ... if there are 30 clusters at most
--save  one safetensors file: the estimator, its columns and their scaling
"""
METHODS = {
    "crp": "ClAMCRP",
    "crp-elbo": "ClAMCRPELBO",
    "elbo": "ClAMELBO",
    "clam": "ClAM",
    "mean-shift": "GaussianMeanShift",
}
FOUND, GIVEN = ("crp", "crp-elbo"), ("elbo", "clam")
FIGURES = (".png", ".svg")
# More posteriors than this are written only if they are asked for.
FEW_CLUSTERS = 30


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().parse_args(argv)
    _check(arguments)
    known = None if arguments.model is None else load_model(arguments.model)
    table = load_table(arguments, missing=True)
    model = known or fit(
        table,
        arguments.method,
        clusters=arguments.k,
        alpha=arguments.alpha,
        bandwidth=arguments.bandwidth,
        standardise=arguments.standardise,
        seed=arguments.seed,
        quiet=arguments.quiet,
    )
    X = model.rows(table, arguments.data)
    if known is not None:
        tell(table.notes, arguments.quiet)
    found = describe(model, X)
    summary = summarise(table, X, model, found)
    to_stdout = arguments.output == STDIN
    if arguments.plot is not None:
        from isthmus.files import write_atomically

        write_atomically(arguments.plot, draw(model, X, found, arguments))
        summary["plot"] = str(arguments.plot)
    if arguments.save is not None:
        save_model(model, arguments.save)
        summary["model"] = str(arguments.save)
    write_rows(None if to_stdout else arguments.output, rows(table, found, arguments.posteriors))
    if to_stdout:
        return 0
    summary["output"] = str(arguments.output)
    if arguments.json:
        print(json.dumps(summary, indent=1))
    else:
        sys.stdout.write(report(summary))
    return 0


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what cannot be done before any work is done."""
    if arguments.output is None:
        arguments.output = default_output(arguments.data, "clusters.csv")
    if arguments.output == STDIN:
        if arguments.json:
            raise InvalidInputError("-o - and --json would both write to stdout; choose one.")
    else:
        output_file(arguments.output, arguments.data)
    for option in ("plot", "save"):
        target = getattr(arguments, option)
        if target is not None:
            writable_file(target, f"--{option}")
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
    _check_method(arguments)


def _check_method(arguments: argparse.Namespace) -> None:
    method = arguments.method
    settings = ("method", "k", "alpha", "bandwidth", "save")
    if arguments.model is not None:
        given = [name for name in settings if getattr(arguments, name) is not None]
        if given or not arguments.standardise:
            raise InvalidInputError("--model is fitted already; leave out how to fit and save one.")
        return
    if method is None:
        method = arguments.method = "crp" if arguments.k is None else "elbo"
    if method in GIVEN and arguments.k is None:
        raise InvalidInputError(f"--method {method} needs the number of clusters: -k N.")
    if method not in GIVEN and arguments.k is not None:
        raise InvalidInputError(
            f"--method {method} finds the number of clusters itself; -k is for elbo and clam."
        )
    if method not in FOUND and arguments.alpha is not None:
        raise InvalidInputError("--alpha is for --method crp and crp-elbo.")
    if method != "mean-shift" and arguments.bandwidth is not None:
        raise InvalidInputError("--bandwidth is for --method mean-shift.")
    if method == "mean-shift" and arguments.save is not None:
        raise InvalidInputError("--save is not for --method mean-shift, which keeps all rows.")


def fit(
    table: Table,
    method: str = "crp",
    *,
    clusters: int | None = None,
    alpha: float | None = None,
    bandwidth: float | None = None,
    standardise: bool = True,
    seed: int = 0,
    quiet: bool = False,
) -> TableModel:
    """Fit one of the estimators to a table, by default in standard units."""
    import numpy as np

    from isthmus import cluster

    options: dict[str, Any] = {}
    if method != "mean-shift":
        options = {"random_state": seed, "verbose": int(not quiet and sys.stderr.isatty())}
    for name, value in (("n_clusters", clusters), ("alpha", alpha), ("bandwidth", bandwidth)):
        if value is not None:
            options[name] = value
    if clusters is not None and clusters > len(table):
        raise InvalidInputError(f"-k {clusters} is more than the {len(table)} rows there are.")
    if method == "mean-shift" and np.isnan(table.X).any():
        raise InvalidInputError(
            "--method mean-shift needs complete rows; fill gaps with `isthmus complete` first, or "
            "take another method, which allows them."
        )
    scaling = Scaling.of(table.X, standardise)
    estimator = getattr(cluster, METHODS[method])(**options)
    tell((*table.notes, *_sameness(table)), quiet)
    if standardise:
        tell(_halves(table), quiet)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator.fit(scaling.into(table.X))
    tell((str(warning.message) for warning in caught), quiet)
    if method != "mean-shift":
        estimator.set_params(verbose=0)
    return TableModel(estimator, scaling, table.columns)


def _sameness(table: Table) -> Iterator[str]:
    """Say which columns tell no rows apart, and if none does."""
    same = [
        name
        for name, column in zip(table.columns, table.X.T, strict=True)
        if len(set(column[column == column])) <= 1
    ]
    if len(same) == len(table.columns):
        rows = "all rows are the same" if len(table) > 1 else "there is one row"
        yield f"{rows}, which makes one cluster, whose density means nothing."
    elif same:
        yield f"the same value in every row, which tells none apart: {listed(same)}."


def _halves(table: Table) -> Iterator[str]:
    """Say which columns have two values, each in some rows: in standard units, far apart."""
    import numpy as np

    X = table.X
    lowest, highest = np.nanmin(X, axis=0), np.nanmax(X, axis=0)
    low, high = (np.equal(X, ends).sum(0) for ends in (lowest, highest))
    halves = (low + high == (~np.isnan(X)).sum(0)) & (np.minimum(low, high) > 1)
    two = [
        name
        for name, is_half in zip(table.columns, halves & (lowest < highest), strict=True)
        if is_half
    ]
    if two and len(two) < len(table.columns):
        yield (
            f"two values only, which may split clusters in two: {listed(two)}. "
            "--drop COLUMN,... leaves columns out."
        )


def describe(model: TableModel, X: NDArray[np.float64]) -> Clusters:
    """Labels, posteriors, novelty and densities of rows in the table's units."""
    estimator, Z = model.estimator, model.scaling.into(X)
    proba = getattr(estimator, "predict_proba", None)
    novelty = getattr(estimator, "novelty", None)
    return Clusters(
        labels=estimator.predict(Z),
        posteriors=None if proba is None else proba(Z),
        novelty=None if novelty is None else novelty(Z),
        log_density=estimator.score_samples(Z) - model.scaling.log_volume(X),
        memories=model.scaling.back(estimator.cluster_centers_),
    )


def rows(table: Table, found: Clusters, all_posteriors: bool = False) -> dict[str, Any]:
    """The columns that are written: ids, what was known, and what was found."""
    results: dict[str, Any] = {"cluster": found.labels + 1}
    if found.posteriors is not None:
        results["certainty"] = found.certainty
    if found.novelty is not None:
        results["novelty"] = found.novelty
    results["log_density"] = found.log_density
    if found.posteriors is not None and (
        all_posteriors or found.posteriors.shape[1] <= FEW_CLUSTERS
    ):
        for number, share in enumerate(found.posteriors.T, 1):
            results[f"p{number}"] = share
    own: dict[str, Any] = {table.id_name: table.ids}
    if table.label is not None and table.label_name is not None:
        own[table.label_name] = table.label
    kept = {f"{name}_given" if name in results else name: values for name, values in own.items()}
    return kept | results


def draw(
    model: TableModel, X: NDArray[np.float64], found: Clusters, arguments: argparse.Namespace
) -> bytes:
    """The picture of the clusters, as a PNG or an SVG file."""
    import numpy as np

    from isthmus.figures.clusters import cluster_map
    from isthmus.figures.files import png_bytes
    from isthmus.figures.style import styled

    complete = np.where(np.isnan(X), found.memories[found.labels], X)
    count = len(found.memories)
    figure = cluster_map(
        model.scaling.into(complete) if X.shape[1] > 1 else complete,
        found.labels,
        found.certainty,
        model.scaling.into(found.memories) if X.shape[1] > 1 else found.memories,
        title=f"{arguments.data.name}: {counted(count, 'cluster')}, {model.name}",
        columns=model.columns,
        seed=arguments.seed,
    )
    if arguments.plot.suffix.lower() == ".png":
        return png_bytes(figure)
    buffer = io.BytesIO()
    styled(figure.savefig)(buffer, format="svg", dpi=160, metadata={"Date": None})
    return buffer.getvalue()


def _parser() -> Parser:
    parser = make_parser(
        "cluster",
        "Find groups of rows in a table, with the probability of each, and say what sets them\n"
        "apart. Columns are standardised, missing values are allowed, and the data decide on the\n"
        "number of clusters unless -k does. Written for each row: its id, its cluster, how\n"
        "certain that is, how new the row looks (probability of fitting no cluster), the\n"
        "log-density in the units of the data, and the probability of every cluster (p1, p2, ...).",
        EXAMPLES,
        files=FILES,
    )
    add_table_options(parser)
    group = parser.add_argument_group("clustering")
    group.add_argument(
        "--method",
        choices=METHODS,
        help="crp and crp-elbo find the number of clusters, elbo and clam take -k, mean-shift "
        "takes --bandwidth; default: crp, or elbo with -k",
    )
    group.add_argument("-k", type=whole_number(1), metavar="N", help="the number of clusters")
    group.add_argument(
        "--alpha",
        type=positive_number,
        metavar="X",
        help="how readily crp opens clusters; default: 1",
    )
    group.add_argument(
        "--bandwidth",
        type=positive_number,
        metavar="X",
        help="of mean-shift; default: Scott's rule",
    )
    add_no_standardise(group)
    group.add_argument(
        "--model", type=path, metavar="FILE", help="label rows with a saved model; fit nothing"
    )
    out = parser.add_argument_group("output")
    add_table_output(out, "clusters.csv")
    out.add_argument(
        "--posteriors",
        action="store_true",
        help=f"write every cluster's probability even if there are more than {FEW_CLUSTERS}",
    )
    out.add_argument("--plot", type=path, metavar="FILE", help="a .png or .svg of the clusters")
    out.add_argument(
        "--save", type=path, metavar="FILE", help="keep the model, with its scaling, for --model"
    )
    add_json(parser)
    add_seed(parser)
    add_quiet(parser)
    return parser
