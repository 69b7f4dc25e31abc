"""Tables in blocks of rows: Dask collections and Parquet files, mapped and reduced block by block.

A reduction calls a function on every block and adds up what it returns, with ``+``. The blocks of
a Dask collection stay on the workers of its cluster, and results are added in a tree; the row
groups of a file are read one after another.
"""

from __future__ import annotations

import glob
import os
import sys
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from isthmus.errors import ClusterError, DtypeError, InvalidInputError, IsthmusError, ShapeError
from isthmus.io.reading import reading, require_size
from isthmus.printing import listed
from isthmus.progress import progress
from isthmus.validation import as_numbers

if TYPE_CHECKING:
    from distributed import Client

# Results that one task adds up.
FAN_IN = 8
INSTALL = "Dask collections require dask and distributed: pip install 'isthmus[dask]'."


@dataclass(frozen=True)
class TableBlock:
    """One block of a table: its rows (n, D), and a number for each of them if there are any."""

    name: str
    number: int
    values: NDArray[Any]
    extra: NDArray[Any] | None = None


@dataclass(frozen=True)
class TableLayout:
    """What is known of a table before its blocks are read."""

    dim: int
    dtype: np.dtype[Any]
    columns: tuple[str, ...] | None = None

    def block(self, name: str, number: int, raw: Any, extra: Any = None) -> TableBlock | None:
        """Return a checked block, in which NaN is allowed; None if it has no rows."""
        if hasattr(raw, "to_numpy"):
            raw = raw[list(self.columns)] if self.columns is not None else raw
            try:
                raw = raw.to_numpy(dtype=self.dtype, na_value=np.nan)
            except (TypeError, ValueError) as error:
                raise DtypeError(f"{name} does not hold numbers: {error}") from None
        values = np.asarray(raw)
        if values.ndim != 2 or values.shape[1] != self.dim:
            raise ShapeError(
                f"{name} has the shape {values.shape}; expected (rows, {self.dim}), as announced."
            )
        if values.dtype.kind not in "fiu":
            raise DtypeError(f"{name} holds {values.dtype} values, not numbers.")
        if not len(values):
            return None
        values = np.ascontiguousarray(values, dtype=self.dtype)
        if not np.isfinite(values.sum()) and (bad := int(np.isinf(values).sum())):
            raise InvalidInputError(f"{name} has {bad} infinite values. Remove such rows first.")
        if extra is not None:
            extra = np.asarray(extra)
            if extra.shape != (len(values),):
                raise ShapeError(
                    f"{name} has {len(values)} rows, but its weights have the shape "
                    f"{extra.shape}. Chunk both alike."
                )
        return TableBlock(name, number, values, extra)


class Blocks(ABC):
    """Blocks of rows that need not be in memory together; None stands for one without rows."""

    def __init__(self, parts: Sequence[Any], layout: TableLayout) -> None:
        self.parts, self.layout = parts, layout

    @abstractmethod
    def mapped(self, function: Callable[..., Any], *arguments: Any) -> Blocks:
        """Return blocks of ``function(block, *arguments)``, kept where the blocks are."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.parts)

    def reduce(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the sum over all blocks of ``function(block, *arguments)``; None without any."""
        return _sum(self.mapped(function, *arguments))

    def total(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return :meth:`reduce`; raise if there are no rows."""
        found = self.reduce(function, *arguments)
        if found is None:
            raise InvalidInputError("The data have no rows, or weights of zero only.")
        return found


def _sum(parts: Iterable[Any]) -> Any:
    found = None
    for part in parts:
        found = part if found is None else found if part is None else found + part
    return found


def _call(function: Callable[..., Any], block: Any, arguments: tuple[Any, ...]) -> Any:
    return None if block is None else function(block, *arguments)


class HeldBlocks(Blocks):
    """Blocks in this process."""

    def mapped(self, function: Callable[..., Any], *arguments: Any) -> HeldBlocks:
        """Return new blocks."""
        return HeldBlocks([_call(function, part, arguments) for part in self.parts], self.layout)


class FutureBlocks(Blocks):
    """Blocks on the workers of a Dask cluster. If a worker is lost, they are computed again."""

    def __init__(self, parts: Sequence[Any], layout: TableLayout, client: Client) -> None:
        super().__init__(parts, layout)
        self.client = client

    def mapped(self, function: Callable[..., Any], *arguments: Any) -> FutureBlocks:
        """Return new blocks."""
        require_connection(self.client)
        # A task holds the arguments, so that they reach each worker once and are not lost with it.
        given = self.client.submit(tuple, arguments, pure=False)
        call = partial(_call, function)
        parts = self.client.map(call, self.parts, arguments=given, pure=False)
        return FutureBlocks(parts, self.layout, self.client)

    def reduce(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the sum over all blocks, which workers add up in a tree."""
        level = self.mapped(function, *arguments).parts
        while len(level) > 1:
            groups = [level[start : start + FAN_IN] for start in range(0, len(level), FAN_IN)]
            level = [self.client.submit(_sum, group, pure=False) for group in groups]
        with explained():
            return level[0].result()


class FileBlocks(Blocks):
    """Row groups of Parquet files, read one after another in every pass.

    `parts` are their places, and `read` returns the block of a number and a place.
    """

    def __init__(
        self, parts: Sequence[tuple[Path, int]], layout: TableLayout, read: Callable[..., Any]
    ) -> None:
        super().__init__(parts, layout)
        self.read = read

    def mapped(self, function: Callable[..., Any], *arguments: Any) -> FileBlocks:
        """Return new blocks."""
        read = self.read
        return FileBlocks(
            self.parts, self.layout, lambda *at: _call(function, read(*at), arguments)
        )

    def __iter__(self) -> Iterator[Any]:
        with progress("reading rows", len(self.parts)) as report:
            for number, (path, group) in enumerate(self.parts):
                yield self.read(number, path, group)
                report(number + 1)


def read_group(path: Path, group: int, columns: Sequence[str] | None = None) -> Any:
    """Return a row group of a Parquet file as a table of pyarrow; refuse one that is too large."""
    from pyarrow import parquet

    with (
        reading(path, "Parquet file", f"Row group {group + 1} may be damaged."),
        parquet.ParquetFile(path, page_checksum_verification=True) as file,
    ):
        about = file.metadata.row_group(group)
        require_size(path, 8 * about.num_rows * about.num_columns)
        table = file.read_row_group(group, columns)
        table.validate(full=True)
        return table


def is_dask(data: object) -> bool:
    """Return True for Dask collections. Does not import Dask."""
    return "dask" in sys.modules and hasattr(data, "__dask_graph__")


def parquet_files(path: str | os.PathLike[str]) -> list[Path]:
    """Return the Parquet files of a path: a file, a directory, or a pattern with ``*``."""
    text = os.fspath(path)
    where = Path(text)
    if os.path.isdir(where):
        if not os.access(where, os.R_OK | os.X_OK):
            raise InvalidInputError(f"{text} cannot be read: Permission denied.")
        found = [each for each in sorted(where.rglob("*.parquet")) if not each.is_dir()]
    else:
        found = [Path(each) for each in sorted(glob.glob(text, recursive=True))]
    if not found:
        raise InvalidInputError(
            f"{text} is not a Parquet file, a directory with *.parquet files, or a pattern that "
            "matches some."
        )
    return found


def row_groups(path: str | os.PathLike[str]) -> list[tuple[Path, int]]:
    """Return the row groups of Parquet files with the same columns, without reading rows."""
    from pyarrow import parquet

    places: list[tuple[Path, int]] = []
    first = None
    for file in parquet_files(path):
        with reading(file, "Parquet file"):
            metadata = parquet.read_metadata(file)
            names = metadata.schema.to_arrow_schema().names
        if names != (first := first or names):
            raise InvalidInputError(f"{file} has other columns than the files before it.")
        places += [(file, group) for group in range(metadata.num_row_groups)]
    return places


def dask_blocks(
    data: Any, *, client: Client | None = None, extra: Any = None, name: str = "X"
) -> Blocks:
    """Return the blocks of a Dask array (n, D), a Dask frame, or Parquet files.

    `extra` (n,) has a number for each row: an array, or a Dask array in the same chunks.
    """
    if isinstance(data, str | os.PathLike):
        data = _read_parquet(data)
    if hasattr(data, "to_dask_array") and hasattr(data, "dtypes"):
        what, parts, layout = "Partition", data.to_delayed(), _layout_of_frame(data)
        sizes: tuple[float, ...] = (np.nan,) * len(parts)
    elif hasattr(data, "rechunk"):
        what, layout = "Block", _layout_of_array(data, name)
        data = data.rechunk({1: -1})
        parts, sizes = data.to_delayed().ravel(), data.chunks[0]
    else:
        raise InvalidInputError(
            f"{name} must be a Dask array (n, D), a Dask DataFrame, or the path of Parquet files, "
            f"not a {type(data).__name__}. Arrays in memory need no blocks."
        )
    beside = [None] * len(parts) if extra is None else _extra_parts(extra, sizes)
    from dask.base import compute
    from dask.delayed import delayed

    checked = [
        delayed(layout.block)(
            f"{what} {number} of {name}",
            number,
            part,
            other,
            dask_key_name=f"block-{uuid.uuid4().hex}",
        )
        for number, (part, other) in enumerate(zip(parts, beside, strict=True))
    ]
    client = find_client(client)
    if client is None:
        return HeldBlocks(compute(*checked, scheduler="threads"), layout)
    require_connection(client)
    return FutureBlocks(client.compute(checked), layout, client)


def _read_parquet(path: str | os.PathLike[str]) -> Any:
    files = [str(file) for file in parquet_files(path)]
    try:
        from dask import dataframe

        return dataframe.read_parquet(files)
    except ImportError:
        raise InvalidInputError(INSTALL) from None
    except (OSError, ValueError, TypeError) as error:
        raise InvalidInputError(f"{os.fspath(path)} cannot be read: {error}") from None


def _layout_of_array(data: Any, name: str) -> TableLayout:
    if data.ndim != 2 or not np.isfinite(data.shape[1]):
        raise ShapeError(
            f"{name} must be a table (n, D) with a known number of columns, not {data.shape}. "
            "Unknown numbers of rows are allowed."
        )
    if data.dtype.kind not in "fiu" or (data.dtype.kind == "f" and data.dtype.itemsize < 4):
        raise DtypeError(
            f"{name} holds {data.dtype} values; isthmus computes in float32 or float64. Convert "
            "first, with .astype(float)."
        )
    dtype = np.dtype(np.float32 if data.dtype == np.float32 else np.float64)
    return TableLayout(int(data.shape[1]), dtype)


def _layout_of_frame(data: Any) -> TableLayout:
    kinds = {str(name): kind for name, kind in data.dtypes.items()}
    text = [repr(name) for name, kind in kinds.items() if getattr(kind, "kind", "O") not in "fiu"]
    if text:
        raise DtypeError(
            f"Column {listed(text, 5)} does not hold numbers. Leave it out or encode it first."
        )
    narrow = all(kind == np.float32 for kind in kinds.values())
    dtype = np.dtype(np.float32 if narrow else np.float64)
    return TableLayout(len(kinds), dtype, tuple(data.columns))


def _extra_parts(extra: Any, sizes: tuple[float, ...]) -> list[Any]:
    if hasattr(extra, "to_dask_array"):
        extra = extra.to_dask_array()
    if not hasattr(extra, "rechunk"):
        from dask import array

        extra = array.from_array(as_numbers(extra, "weights"))
    known = not np.isnan([*sizes, *extra.shape]).any()
    if extra.ndim != 1 or (known and extra.shape != (sum(sizes),)):
        raise ShapeError(f"weights must be ({sum(sizes):g},), one per row, not {extra.shape}.")
    if known:
        extra = extra.rechunk((sizes,))
    if extra.numblocks[0] != len(sizes):
        raise ShapeError(
            f"weights have {extra.numblocks[0]} blocks for {len(sizes)} of the rows. Chunk both "
            "alike; call compute_chunk_sizes() first if sizes are unknown."
        )
    return list(extra.to_delayed())


def find_client(client: Client | None) -> Client | None:
    """Return the client given, or the default client of this process if there is one."""
    if client is not None:
        return client
    if "distributed" not in sys.modules:
        return None
    from distributed import default_client

    try:
        return default_client()
    except ValueError:
        return None


def require_connection(client: Client) -> None:
    """Raise if a client has lost its scheduler."""
    if client.status != "running":
        raise ClusterError(
            f"The client of {client.scheduler.address if client.scheduler else 'the cluster'} is "
            f"{client.status}: the scheduler is gone, or the client was closed. Connect again and "
            "repeat the call."
        )


@contextmanager
def explained() -> Iterator[None]:
    """Say what went wrong with a cluster, and what to do."""
    from concurrent.futures import CancelledError

    from distributed import KilledWorker
    from distributed.comm.core import CommClosedError

    try:
        yield
    except (KilledWorker, MemoryError) as error:
        raise ClusterError(
            f"A task was lost with every worker that tried it, or ran out of memory ({error}). Use "
            "smaller blocks (rechunk), more workers, or a larger memory limit."
        ) from None
    except (CancelledError, CommClosedError, TimeoutError) as error:
        raise ClusterError(
            f"The cluster was lost on the way ({' '.join(str(error).split())}). Connect again and "
            "repeat the call."
        ) from None


def named(error: IsthmusError, block: TableBlock) -> IsthmusError:
    """Return an error that says in which block it occurred."""
    return type(error)(f"{block.name}: {error}")
