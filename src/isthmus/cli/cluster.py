"""`isthmus cluster DATA`: groups of rows, how sure they are, and what sets them apart."""

from __future__ import annotations

import argparse
import io
import json
import math
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isthmus.cli.delimited import STDIN
from isthmus.cli.files import path, writable_file
from isthmus.cli.models import Scaling, TableModel, load_model, save_model
from isthmus.cli.options import (
    Parser,
    add_json,
    add_output,
    add_quiet,
    add_seed,
    make_parser,
    positive_number,
    warn,
    whole_number,
)
from isthmus.cli.tables import (
    Table,
    add_table_options,
    counted,
    default_output,
    load_table,
    output_file,
    write_rows,
)
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
# A row is called sure above this probability, and new above the other.
SURE, NEW = 0.9, 0.5
LISTED_CLUSTERS, LISTED_FEATURES, LISTED_ROWS = 25, 3, 8
# A mean this far from that of all rows, in standard deviations, sets a cluster apart.
APART = 0.25


@dataclass(frozen=True)
class Clusters:
    """What a model says about the rows of a table.

    Attributes
    ----------
    labels : ndarray (n,)
        From 0.
    posteriors : ndarray (n, K) or None
        None for mean shift, which has none.
    novelty : ndarray (n,) or None
        The probability of belonging to no known cluster; None where K is fixed.
    log_density : ndarray (n,)
        In the units of the table: of a row's known values.
    memories : ndarray (K, D)
        In the units of the table.
    """

    labels: NDArray[np.int64]
    posteriors: NDArray[np.float64] | None
    novelty: NDArray[np.float64] | None
    log_density: NDArray[np.float64]
    memories: NDArray[np.float64]

    @property
    def certainty(self) -> NDArray[np.float64]:
        """The probability of each row's own cluster. (n,)"""
        import numpy as np

        if self.posteriors is None:
            return np.ones(len(self.labels))
        best: NDArray[np.float64] = self.posteriors.max(1)
        return best


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().parse_args(argv)
    _check(arguments)
    table = load_table(arguments, missing=True)
    known = None if arguments.model is None else load_model(arguments.model)
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
            writable_file(target)
            if target.resolve() in (arguments.data.resolve(), arguments.output.resolve()):
                raise InvalidInputError(f"--{option} {target} is taken; name another file.")
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
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        estimator.fit(scaling.into(table.X))
    if not quiet:
        for warning in caught:
            warn(str(warning.message))
    if method != "mean-shift":
        estimator.set_params(verbose=0)
    return TableModel(estimator, scaling, table.columns)


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


def summarise(
    table: Table, X: NDArray[np.float64], model: TableModel, found: Clusters
) -> dict[str, Any]:
    """Everything that the report says, as plain numbers and words."""
    import numpy as np

    memories = found.memories
    sizes = np.bincount(found.labels, minlength=len(memories))
    summary: dict[str, Any] = {
        "rows": len(X),
        "features": X.shape[1],
        "missing": int(np.isnan(X).sum()),
        "method": model.name,
        "standardised": bool((model.scaling.scale != 1).any() or (model.scaling.centre != 0).any()),
        "n_clusters": len(memories),
        "mean_log_density": float(found.log_density.mean()),
    }
    if found.posteriors is not None:
        summary["mean_certainty"] = float(found.certainty.mean())
        summary["share_sure"] = float((found.certainty >= SURE).mean())
    if found.novelty is not None:
        new = np.flatnonzero(found.novelty > NEW)
        new = new[np.argsort(-found.novelty[new], kind="stable")]
        summary["new_rows"] = len(new)
        summary["new_ids"] = table.ids[new[:LISTED_ROWS]].tolist()
    if table.label is not None:
        summary["agreement"] = agreement(table, found.labels)
    apart = _set_apart(X, found.labels, len(memories), model.columns)
    summary["clusters"] = [
        {
            "cluster": number + 1,
            "size": int(size),
            "share": float(size / len(X)),
            "certainty": float(found.certainty[found.labels == number].mean())
            if size and found.posteriors is not None
            else None,
            "set_apart_by": apart[number],
            "memory": dict(zip(model.columns, memories[number].tolist(), strict=True)),
        }
        for number, size in enumerate(sizes)
    ]
    return summary


def _set_apart(
    X: NDArray[np.float64], labels: NDArray[np.int64], clusters: int, columns: tuple[str, ...]
) -> list[dict[str, float]]:
    """Of each cluster, the features whose mean is farthest from all rows', and how far."""
    import numpy as np

    Z = Scaling.of(X, standardise=True).into(X) if not np.isnan(X).all(0).any() else X
    known = ~np.isnan(Z)
    filled = np.where(known, Z, 0.0)
    found = []
    for number in range(clusters):
        own = labels == number
        means = filled[own].sum(0) / np.maximum(known[own].sum(0), 1)
        largest = np.argsort(-np.abs(means), kind="stable")[:LISTED_FEATURES]
        found.append({columns[j]: float(means[j]) for j in largest if abs(means[j]) >= APART})
    return found


def agreement(table: Table, labels: NDArray[np.int64]) -> dict[str, Any]:
    """How clusters agree with the classes that are known; rows without one do not count."""
    import numpy as np
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    assert table.label is not None
    known = np.array([str(value) != "" for value in table.label])
    classes = table.label[known]
    return {
        "label": table.label_name,
        "classes": len(np.unique(classes)),
        "rows": int(known.sum()),
        "ARI": float(adjusted_rand_score(classes, labels[known])),
        "NMI": float(normalized_mutual_info_score(classes, labels[known])),
    }


def report(summary: dict[str, Any]) -> str:
    """The summary as a person reads it."""
    lines = [_opening(summary), "", *_cluster_lines(summary["clusters"]), ""]
    facts: list[tuple[str, str]] = []
    if "mean_certainty" in summary:
        words = f"{summary['share_sure']:.0%} of rows are in their cluster with probability {SURE}"
        facts.append(("how sure", f"{words} or more; {summary['mean_certainty']:.3f} on average"))
    density = f"{summary['mean_log_density']:.2f} nats per row, in the units of the data"
    facts.append(("mean log-density", density))
    if "new_rows" in summary:
        count, ids = summary["new_rows"], summary["new_ids"]
        words = "no row looks new"
        if count:
            listed = ", ".join(map(str, ids)) + (", ..." if count > len(ids) else "")
            fit_none = "rows fit" if count > 1 else "row fits"
            words = f"{count} {fit_none} no cluster well: {listed}"
        facts.append(("novelty", words))
    if "agreement" in summary:
        match = summary["agreement"]
        words = f"ARI {match['ARI']:.3f}, NMI {match['NMI']:.3f} with {match['classes']} classes"
        facts.append((f"against {match['label']}", f"{words} (not used in the fit)"))
    names = {"output": "rows", "plot": "figure", "model": "model"}
    facts += [(f"{names[key]} written to", summary[key]) for key in names if key in summary]
    width = max(len(name) for name, _ in facts)
    lines += [f"{name:<{width}}  {words}" for name, words in facts]
    return "\n".join(lines) + "\n"


def _opening(summary: dict[str, Any]) -> str:
    count = summary["n_clusters"]
    words = f"{counted(summary['rows'], 'row')}, {counted(summary['features'], 'feature')}"
    if summary["missing"]:
        words += f", {counted(summary['missing'], 'value')} missing"
    units = "standardised" if summary["standardised"] else "as they are"
    return f"{counted(count, 'cluster')} in {words} ({units}; {summary['method']})"


def _cluster_lines(clusters: list[dict[str, Any]]) -> list[str]:
    """An aligned table, a cluster a line."""
    sure = clusters[0]["certainty"] is not None or any(c["certainty"] for c in clusters)
    head = ["cluster", "rows", "share", *(["certainty"] if sure else [])]
    cells = [
        [
            str(cluster["cluster"]),
            f"{cluster['size']:,}",
            f"{cluster['share']:.1%}",
            *([_probability(cluster["certainty"])] if sure else []),
        ]
        for cluster in clusters[:LISTED_CLUSTERS]
    ]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    lines = []
    for row, cluster in zip([head, *cells], [None, *clusters[:LISTED_CLUSTERS]], strict=True):
        words = "set apart by (in standard deviations)"
        if cluster is not None:
            apart = cluster["set_apart_by"]
            words = ", ".join(f"{_clipped(name)} {far:+.1f}" for name, far in apart.items())
        numbers = "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(f"{numbers}  {words or '-'}")
    if len(clusters) > LISTED_CLUSTERS:
        lines.append(f"... and {len(clusters) - LISTED_CLUSTERS} more clusters (all in --json)")
    return lines


def _probability(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.3f}"


def _clipped(name: str, most: int = 28) -> str:
    return name if len(name) <= most else name[: most - 3] + "..."


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
    group.add_argument(
        "--no-standardise",
        dest="standardise",
        action="store_false",
        help="columns compare as they are",
    )
    group.add_argument(
        "--model", type=path, metavar="FILE", help="label rows with a saved model; fit nothing"
    )
    out = parser.add_argument_group("output")
    add_output(
        out,  # type: ignore[arg-type]
        "FILE",
        words=".csv, .tsv, .parquet or .json, - for stdout; default: DATA's name + .clusters.csv",
    )
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
