"""Clusters of Parquet files with more rows than memory: row groups are read one at a time."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import reduce
from itertools import islice
from operator import add
from pathlib import Path
from typing import Any

import numpy as np

from isthmus.cluster.data import Moments
from isthmus.cluster.table_clusters import StreamedClusters, TableClusters
from isthmus.cluster.tabular import TableModel, chosen_estimator, notes_on
from isthmus.distributed.blocks import (
    FileBlocks,
    TableBlock,
    TableLayout,
    read_group,
    row_groups,
)
from isthmus.errors import InvalidInputError
from isthmus.io.files import replacing
from isthmus.io.reading import reading
from isthmus.scaling import Scaling
from isthmus.tables.columns import Source, build_table, numbers_of
from isthmus.tables.files import FileFormat, Table
from isthmus.tables.sources import arrow_source

# A table that fills more than this share of the memory of the machine is read in row groups: a fit
# in memory holds several copies of it.
MEMORY_SHARE = 0.1
# Columns, ids and labels are chosen on this many rows.
SAMPLED_ROWS = 100_000


def exceeds_memory(path: Path) -> bool:
    """Return True for a Parquet file whose numbers would not fit into memory comfortably."""
    if path.suffix.lower() not in (".parquet", ".pq") or sys.platform == "win32":
        return False
    from pyarrow import ArrowException, parquet

    try:
        metadata = parquet.read_metadata(path)
    except (ArrowException, OSError):
        return False
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 8 * metadata.num_rows * metadata.num_columns > MEMORY_SHARE * memory


def cluster_file(
    path: str | Path,
    output: str | Path,
    *,
    id: str | None = None,  # noqa: A002  # as in read_table
    label: str | None = None,
    drop: Sequence[str] = (),
    standardise: bool = True,
    seed: int = 0,
    posteriors: bool = False,
    **settings: Any,
) -> StreamedClusters:
    """Cluster the rows of Parquet files and write a row for each, in memory that does not grow.

    Every pass of a fit reads the files once, one row group after another.

    Parameters
    ----------
    path : str or Path
        A Parquet file, a directory of them, or a pattern.
    output : str or Path
        A .csv or .parquet file; it appears when it is complete.
    id, label, drop : optional
        As in :func:`isthmus.tables.read_table`, chosen on rows from all parts of the files.
    standardise, seed
        As in :meth:`TableModel.fit`.
    posteriors : bool
        Write p1, p2, ... for more than 30 clusters, too.
    **settings
        ``method``, ``n_clusters``, ``resolution``, ``alpha`` and ``bandwidth`` of
        :meth:`TableModel.fit`.

    Examples
    --------
    >>> import numpy as np, pandas as pd, tempfile
    >>> from isthmus.cluster import cluster_file
    >>> X = np.repeat([[0.0, 0.0], [9.0, 9.0]], 50, axis=0)
    >>> X += np.random.default_rng(0).normal(size=X.shape)
    >>> folder = tempfile.mkdtemp()
    >>> pd.DataFrame(X, columns=["a", "b"]).to_parquet(f"{folder}/rows.parquet")
    >>> cluster_file(f"{folder}/rows.parquet", f"{folder}/clusters.csv", n_clusters=2).n_rows
    100
    """
    places = row_groups(path)
    table, aside = _sample(path, places, id, label, drop)

    def source(where: Path, group: int, names: Sequence[str]) -> Source:
        return arrow_source(where, read_group(where, group, names), table.format)

    def read(number: int, where: Path, group: int) -> TableBlock | None:
        name = f"Row group {group + 1} of {where.name}"
        values = numbers_of(source(where, group, table.columns), table.columns)
        return layout.block(name, number, values)

    layout = TableLayout(len(table.columns), np.dtype(np.float64), table.columns)
    blocks = FileBlocks(places, layout, read)
    estimator = chosen_estimator(seed=seed, **settings)
    scaling = Scaling(np.zeros(layout.dim), np.ones(layout.dim))
    if standardise:
        scaling = blocks.total(Moments.of).columns()
    estimator.fit(blocks.mapped(lambda block: replace(block, values=scaling.into(block.values))))
    del estimator.feature_names_in_  # as in TableModel.fit, which has names of its own
    model = TableModel(estimator.energy_, scaling, table.columns, estimator)
    names, parts, start = (table.id_name, table.label_name or ""), [], 0
    with _writer(Path(output)) as write:
        for block in filter(None, blocks):
            where, group = places[block.number]
            beside = source(where, group, list(aside.values())).frame
            stop = start + len(block.values)
            ids = beside[aside["id"]].array if "id" in aside else np.arange(start, stop) + 1
            classes = beside[aside["label"]].array if "label" in aside else None
            rows = TableClusters(model, block.values, ids, classes, *names, refit=False)
            write(rows.to_frame(posteriors))
            parts.append(StreamedClusters.of(rows))
            start = stop
    notes = (*table.notes, *notes_on(table.X, table.columns, standardise))
    return replace(reduce(add, parts), notes=notes)


def _sample(
    path: str | Path,
    places: Sequence[tuple[Path, int]],
    id: str | None,  # noqa: A002
    label: str | None,
    drop: Sequence[str],
) -> tuple[Table, dict[str, str]]:
    """Return the table of the first rows of all row groups, and its ids and labels by name."""
    import pyarrow
    from pyarrow import parquet

    count = max(SAMPLED_ROWS // max(len(places), 1), 1)
    parts = []
    for where, group in places:
        with (
            reading(where, "Parquet file", f"Row group {group + 1} may be damaged."),
            parquet.ParquetFile(where) as file,
        ):
            first = islice(file.iter_batches(count, [group]), 1)
            parts += [pyarrow.Table.from_batches([batch]) for batch in first]
    if not parts:
        raise InvalidInputError(f"{path} has no rows.")
    try:
        rows = pyarrow.concat_tables(parts, promote_options="permissive")
    except pyarrow.ArrowException as error:
        raise InvalidInputError(f"The files have columns of other types: {error}") from None
    source = arrow_source(places[0][0], rows, FileFormat.of(places[0][0]))
    table = build_table(source, id, label, drop, missing=True, as_written=False)
    dropped = {source.frame.columns[source.find(name, "drop")] for name in drop}
    features = {*table.columns, *table.left_out, *dropped}
    names = {"id": table.id_name, "label": table.label_name}
    aside = {role: name for role, name in names.items() if name in source.frame}
    return table, {role: name for role, name in aside.items() if name and name not in features}


@contextmanager
def _writer(path: Path) -> Iterator[Any]:
    """Yield a function that appends frames to a file, which appears when all are written."""
    if path.suffix.lower() not in (".csv", ".parquet"):
        raise InvalidInputError(f"{path} must end in .csv or .parquet.")
    import pyarrow
    from pyarrow import parquet

    with replacing(path) as partial, partial.open("wb") as file, ExitStack() as stack:
        writers: list[Any] = []

        def write(frame: Any) -> None:
            if path.suffix.lower() == ".csv":
                file.write(frame.to_csv(index=False, header=file.tell() == 0).encode())
                return
            table = pyarrow.Table.from_pandas(frame, preserve_index=False)
            if not writers:
                writers.append(stack.enter_context(parquet.ParquetWriter(file, table.schema)))
            writers[0].write_table(table)

        yield write
