"""`isthmus cluster DATA`: find groups of rows."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from isthmus.cli import options
from isthmus.errors import InvalidInputError
from isthmus.printing import counted
from isthmus.tables.files import STDIN, FileFormat

if TYPE_CHECKING:
    from isthmus.cluster import TableClusters


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    _check(arguments)
    same = "method resolution alpha bandwidth standardise seed"
    settings = options.settings(arguments, same) | {"n_clusters": arguments.k}
    if arguments.model is None and FileFormat.of(arguments.data).kind == "parquet":
        from isthmus.cluster.streamed import exceeds_memory

        if exceeds_memory(arguments.data):
            return _run_streamed(arguments, settings)
    table = options.load_table(arguments, missing=True)
    from isthmus.cluster import TableModel

    if arguments.model is not None:
        model = TableModel.load(arguments.model)
    elif arguments.k is not None and arguments.k > len(table):
        raise InvalidInputError(f"-k {arguments.k} is more than the {len(table)} rows of DATA.")
    else:
        verbose = int(not arguments.quiet and sys.stderr.isatty())
        model = TableModel.fit(table.X, columns=table.columns, verbose=verbose, **settings)
    found = model.describe(
        table.X,
        columns=table.columns,
        ids=table.ids,
        id_name=table.id_name,
        classes=table.labels,
        class_name=table.label_name or "",
        refit=arguments.model is None,
    )
    if arguments.plot is not None:
        _draw(found, arguments)
    if arguments.save is not None:
        model.save(arguments.save)
    notes, rows = (*table.notes, *model.notes), found.to_frame(arguments.posteriors)
    files = {"plot": arguments.plot, "model": arguments.save}
    return options.finish(arguments, found, found.summary, notes, rows, table, **files)


def _run_streamed(arguments: argparse.Namespace, settings: dict[str, Any]) -> int:
    from isthmus.cluster import cluster_file

    if arguments.plot is not None or arguments.output == STDIN:
        raise InvalidInputError(
            f"{arguments.data} is read in row groups, because it would fill the memory: write to a "
            "file, without --plot."
        )
    note = "DATA would fill the memory, so it is read in row groups."
    options.print_notes([note], arguments.quiet)
    reading = options.settings(arguments, "id label drop posteriors")
    found = cluster_file(arguments.data, arguments.output, **reading, **settings)
    if arguments.save is not None:
        found.model.save(arguments.save)
    return options.finish(arguments, found, found.summary, found.notes, model=arguments.save)


def _check(arguments: argparse.Namespace) -> None:
    files = options.settings(arguments, "plot save")
    options.check_outputs(arguments, arguments.data, ending="clusters.csv", **files)
    options.require_suffix("--plot", arguments.plot, ".png", ".svg")
    if arguments.model is not None:
        fitting = "method k resolution alpha bandwidth save no-standardise"
        options.refuse(arguments, fitting, "--model is fitted already.")
    if arguments.method in ("elbo", "clam") and arguments.k is None:
        raise InvalidInputError(f"--method {arguments.method} needs the number of clusters, -k N.")
    if arguments.method == "mean-shift":
        options.refuse(arguments, "save", "--method mean-shift stores all rows.")


def _draw(found: TableClusters, arguments: argparse.Namespace) -> None:
    import numpy as np

    from isthmus.figures import cluster_map, save

    model, memories, estimator = found.model, found.memories, found.model.estimator
    X = np.where(np.isnan(found.X), memories[found.labels], found.X)
    if X.shape[1] > 2:
        X, memories = model.scaling.into(X), model.scaling.into(memories)
    learned = ("barriers", "gap_curve", "resolution")
    figure = cluster_map(
        X,
        found.labels,
        found.certainty,
        memories,
        title=f"{arguments.data.name}: {counted(len(memories), 'cluster')}, {model.name}",
        columns=model.columns,
        classes=found.classes,
        class_name=found.class_name,
        seed=arguments.seed,
        **{name: getattr(estimator, f"{name}_", None) for name in learned},
    )
    save(figure, arguments.plot)
