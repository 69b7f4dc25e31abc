"""Tables, formats of files, reading and writing. pandas is imported when it is first needed."""

from __future__ import annotations

import importlib.util
import io
import json
import lzma
import sys
import zipfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.errors import InvalidInputError, ShapeError
from isthmus.extras import require
from isthmus.io.files import check_writable, real_path, replacing
from isthmus.io.reading import reading

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from isthmus.tables.columns import NumberStyle

STDIN = Path("-")
KINDS = {
    **dict.fromkeys((".csv", ".tsv", ".txt", ".dat", ".data"), "text"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "json"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    ".feather": "feather",
    ".xlsx": "excel",
    ".npy": "npy",
    ".npz": "npz",
}
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zip": "zip", ".zst": "zstd"}
WRITABLE = (
    ".csv, .tsv, .txt, .jsonl, .json (each also with .gz, .bz2, .xz, .zip or .zst), .parquet, "
    ".feather, .xlsx or .npz"
)
READABLE = f"{WRITABLE.removesuffix(' or .npz')}, .npy or .npz"
EXACT = 2**53
"""Above this, not every whole number is a float64."""
# A column of text with fewer rows for each distinct value is not one of categories.
REPEATED = 5
SEPARATOR_NAMES = {"\\t": "\t", "tab": "\t", "space": " "}


@dataclass(frozen=True)
class FileFormat:
    """The format of a file, with everything needed to write another one like it.

    `kind` is text, json, parquet, feather, excel, npy or npz; `suffix` excludes the `compression`
    (gzip, bz2, xz, zip, zstd or empty). A separator of one space stands for any run of spaces.
    """

    kind: str = "text"
    suffix: str = ".csv"
    compression: str = ""
    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8"

    @classmethod
    def of(cls, path: Path) -> FileFormat:
        """Return the format that the suffixes of a path stand for; ``-`` is CSV."""
        if path == STDIN:
            return cls()
        *_, before, last = ("", "", *(suffix.lower() for suffix in path.suffixes))
        compression = COMPRESSIONS.get(last, "")
        suffix = before if compression else last
        kind = KINDS.get(suffix, "")
        if not kind or (compression and kind not in ("text", "json")):
            raise InvalidInputError(f"{path} must end in {READABLE}.")
        return cls(kind, suffix, compression, "\t" if suffix == ".tsv" else ",")


@dataclass(frozen=True)
class Table:
    """Rows of numbers, with their names, ids and labels.

    `X` (n, D) is NaN where a value is missing; `columns` are its names, x1, x2, ... if the file has
    none. `ids` (n,) count from 1, with the name ``row``, if the file has none. `labels` (n,) are
    known classes, whole numbers or text, or None. `left_out` are columns that are not numbers, and
    `notes` sentences on how the file was read. `frame` has every column of the file in its own
    type; `cells` the text of every cell, if :func:`read_table` was asked for it.
    """

    X: NDArray[np.float64]
    columns: tuple[str, ...]
    ids: NDArray[Any]
    id_name: str
    labels: NDArray[Any] | None = None
    label_name: str | None = None
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    frame: pd.DataFrame = field(default=None, repr=False)
    cells: pd.DataFrame | None = field(default=None, repr=False)
    format: FileFormat = field(default_factory=FileFormat)

    def __len__(self) -> int:
        return len(self.X)

    @property
    def words(self) -> pd.DataFrame:
        """The columns of text whose values repeat, five times on average; None where missing."""
        from isthmus.tables.columns import is_missing, is_nested, is_textual

        found = {}
        for name in self.left_out:
            column = self.frame[name]
            if is_textual(column) and not is_nested(column):
                column = column.astype(object).mask(is_missing(column), None)
                if 0 < REPEATED * column.nunique() <= column.notna().sum():
                    found[name] = column
        return with_columns(self.frame[[]], found)

    @property
    def gaps_of_text(self) -> dict[str, int]:
        """The number of missing cells in each column that has some, and is not one of numbers."""
        from isthmus.tables.columns import is_missing

        others = self.frame.drop(columns=list(self.columns))
        counts = {name: int(is_missing(column).sum()) for name, column in others.items()}
        return {name: count for name, count in counts.items() if 0 < count < len(self)}

    @property
    def truths(self) -> dict[str, tuple[str, str]]:
        """The spellings of false and true in each column of truth values."""
        found = {name: self.style(name).truths for name in self.columns}
        return {name: truths for name, truths in found.items() if truths is not None}

    def style(self, name: str) -> NumberStyle:
        """Return how the known numbers of a column are written."""
        from isthmus.scaling import count_decimals
        from isthmus.tables.columns import NumberStyle

        values = self.X[:, self.columns.index(name)]
        known = values == values
        if self.cells is None:
            truths = ("false", "true") if self.frame[name].dtype.kind == "b" else None
            return NumberStyle(decimals=count_decimals(values[known]), truths=truths)
        return NumberStyle.of(self.cells[name].to_numpy()[known].tolist(), self.format.decimal)

    def signed(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Return rows of the same columns with the signs and truth values of the table as text.

        Whole numbers that are floats, because of gaps, are text without decimals.
        """
        texts = {}
        for name in (name for name in self.columns if name in rows):
            style, column = self.style(name), rows[name].astype("float64")
            whole = style.decimals == 0 and rows[name].dtype.kind == "f"
            whole = whole and bool((column.dropna() % 1 == 0).all())
            if style.has_sign or style.truths is not None or whole:
                texts[name] = column.map(style.write)
        return with_columns(rows, texts)

    def filled(self, X: NDArray[np.float64], words: pd.DataFrame | None = None) -> Table:
        """Return the table with gaps filled from X (n, D); known values stay as they are.

        New values have the decimals of their column, two for means of whole numbers, and in text
        its currency or percent sign; whole numbers too large for floats are rounded. Columns of
        text are replaced by those of `words`.
        """
        import numpy as np

        gaps = np.isnan(self.X)
        X, values, texts = np.where(gaps, X, self.X), dict[str, Any](), dict[str, Any]()
        for place in np.flatnonzero(gaps.any(0)):
            name, holes = self.columns[place], gaps[:, place]
            style, column = self.style(name), self.frame[name]
            X[holes, place] = style.rounded(X[holes, place])
            values[name] = X[:, place]
            if column.dtype.kind in "iu" and np.nanmax(np.abs(self.X[:, place])) > EXACT:
                whole = np.uint64 if column.dtype.kind == "u" else np.int64
                rounded = np.round(np.where(holes, X[:, place], 0)).astype(whole)
                values[name] = column.mask(holes, rounded)
            elif column.dtype.kind == "b":
                truths = [None if value != value else value == 1 for value in X[:, place].tolist()]
                values[name] = type(column)(truths, column.index, column.dtype)
            if self.cells is not None:
                texts[name] = self.cells[name].copy()
                texts[name][holes] = [style.write(value) for value in X[holes, place].tolist()]
        for name, column in () if words is None else words.items():
            holes = (self.words[name].isna() & column.notna()).to_numpy()
            text = self.frame[name]
            values[name] = text.astype(object).mask(holes, column).astype(text.dtype)
            if self.cells is not None:
                texts[name] = self.cells[name].mask(holes, column)
        cells = None if self.cells is None else with_columns(self.cells, texts)
        return replace(self, X=X, frame=with_columns(self.frame, values), cells=cells)


def with_columns(frame: pd.DataFrame, columns: Mapping[str, Any]) -> pd.DataFrame:
    """Return a frame with other or more columns; `assign` takes none called self."""
    return type(frame)({**dict(frame.items()), **columns}, index=frame.index)


def read_table(
    path: str | Path,
    *,
    id: str | None = None,  # noqa: A002
    label: str | None = None,
    drop: Sequence[str] = (),
    array: str | None = None,
    header: bool | None = None,
    separator: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    skip_rows: int | None = None,
    missing: bool = True,
    as_written: bool = False,
    numbers: bool = True,
) -> Table:
    """Read the numeric columns of a file.

    Notes in the table name the columns that are left out, and everything that was detected.

    Parameters
    ----------
    path : str or Path
        CSV, TSV or other delimited text and JSON (lines, or a list of objects), also compressed
        (.gz, .bz2, .xz, .zip, .zst); Parquet, Feather, Excel, .npy or .npz. ``-`` is text on
        stdin.
    id, label : str, optional
        Name of a column, or its number from 1, that is no feature. Without an `id`, a column with
        the name of ids and distinct whole numbers or words is taken; ``"none"`` takes none.
    drop : sequence of str
        Columns to leave out.
    array : str, optional
        The array of an .npz file (default: ``X``, or else the only one of numbers), or the sheet of
        an Excel file (default: the first).
    header : bool, optional
        Whether the first line has names. By default it has, if no cell in it is a number.
    separator, decimal, encoding : str, optional
        Of a text file. Default: detected.
    skip_rows : int, optional
        Lines of a text file, or rows of an Excel sheet, above the names. Default: detected.
    missing : bool
        Allow missing values, as NaN. Otherwise they are an error, as infinities always are.
    as_written : bool
        Keep the cells of a text file as they are written, for :func:`write_table`.
    numbers : bool
        Refuse a file without a column of numbers.

    Raises
    ------
    InvalidInputError
        With the line and column where the file is broken.
    """
    require("pandas", "pyarrow")
    from isthmus.tables.columns import build_table
    from isthmus.tables.sources import read_source
    from isthmus.validation import as_count, as_flag, as_names, as_path, require_kind

    path, drop = as_path(path, "path"), as_names(drop, "drop")
    layout = {"separator": separator, "decimal": decimal, "encoding": encoding}
    for name, text in ({"id": id, "label": label, "array": array} | layout).items():
        if text is not None:
            require_kind(text, name, str)
    header = None if header is None else as_flag(header, "header")
    skip_rows = None if skip_rows is None else as_count(skip_rows, "skip_rows", at_least=0)
    flags = {"missing": missing, "as_written": as_written, "numbers": numbers}
    flags = {name: as_flag(flag, name) for name, flag in flags.items()}
    layout["separator"] = SEPARATOR_NAMES.get(separator or "", separator)
    if layout["separator"] is not None and (
        len(layout["separator"]) != 1 or layout["separator"] in '"\r\n'
    ):
        raise InvalidInputError(f"The separator must be one character, not {separator!r}.")
    if decimal not in (None, ".", ",") or (decimal and decimal == layout["separator"]):
        raise InvalidInputError(
            f"The decimal mark must be . or , and differ from the separator, not {decimal!r}."
        )
    try:
        io.TextIOWrapper(io.BytesIO(), encoding or "utf-8")
    except (LookupError, ValueError):
        raise InvalidInputError(
            f"There is no encoding {encoding!r}; examples are utf-8, utf-16 and latin-1."
        ) from None
    if path != STDIN:
        with reading(path, f"{path.suffix} file"):
            path.open("rb").close()
    try:
        source = read_source(path, header, array, skip_rows, **layout)
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"{path} is not text in {error.encoding}: byte {error.object[error.start]:#04x} is "
            "invalid. Name its encoding (encoding, --encoding), or save it as UTF-8."
        ) from None
    return build_table(source, id, label, drop, **flags)


def write_table(
    data: Table | pd.DataFrame | Mapping[str, Any],
    path: str | Path | None,
    *,
    like: Table | FileFormat | None = None,
) -> Path | None:
    """Write columns in full precision, with missing values empty (null in JSON).

    Parameters
    ----------
    data : Table, DataFrame, or dict of str to array-like
        Of a table, every column of its file is written.
    path : str or Path or None
        The suffix decides on the format, as in :func:`read_table`. The file appears whole or not at
        all. None and ``-`` are stdout: text, or JSON if `like` is JSON.
    like : Table or FileFormat, optional
        Text has its separator, decimal mark and encoding, unless the suffix asks for another.

    Returns
    -------
    Path, or None for stdout
    """
    import pandas as pd

    from isthmus.tables.columns import SWAPPED
    from isthmus.validation import as_path, require_kind

    target = None if path is None or as_path(path, "path") == STDIN else Path(path)
    like = like.format if isinstance(like, Table) else like
    if like is not None:
        require_kind(like, "like", FileFormat)
    form = _target_format(target, like)
    features: Sequence[str] = ()
    if isinstance(data, Table):
        frame, features = data.frame, data.columns
        if data.cells is not None and form.kind == "text":
            frame = data.cells
            if data.format.decimal != form.decimal:
                swapped = {name: frame[name].str.translate(SWAPPED) for name in features}
                frame = with_columns(frame, swapped)
    else:
        try:
            frame = pd.DataFrame(data)
        except (ValueError, TypeError) as error:
            raise ShapeError(f"data must be a table of columns of one length: {error}") from None
    if target is None:
        sys.stdout.write(_encoded(frame, form, features).decode(form.encoding))
        return None
    with replacing(target) as partial:  # errors in temporary files of Excel name the target, too
        content = _encoded(frame, form, features)
        if form.compression:
            content = _compressed(content, form.compression, target.stem)
        partial.write_bytes(content)
    return target


def _target_format(target: Path | None, like: FileFormat | None) -> FileFormat:
    if target is None:
        textual = like is not None and like.kind in ("text", "json")
        return replace(like, encoding="utf-8") if like is not None and textual else FileFormat()
    form = FileFormat.of(target)
    if like is None or like.kind != "text" or form.kind != "text":
        return form
    separator = like.separator
    if form.suffix != like.suffix and (form.suffix == ".tsv" or separator in "\t "):
        separator = form.separator
    decimal = "." if separator == "," else like.decimal
    return replace(form, separator=separator, decimal=decimal, encoding=like.encoding)


def _encoded(frame: pd.DataFrame, form: FileFormat, features: Sequence[str]) -> bytes:
    buffer = io.BytesIO()
    if form.kind == "text":
        spaces = form.separator == " "  # between which an empty cell is none
        text = (frame.replace("", None) if spaces else frame).to_csv(
            sep=form.separator,
            decimal=form.decimal,
            index=False,
            lineterminator="\n",
            na_rep="NA" if spaces else "",
        )
        try:
            return text.encode(form.encoding)
        except UnicodeEncodeError:
            return text.encode("utf-8-sig")
    if form.kind == "json":
        rows = frame.astype(object).where(frame.notna(), None).to_dict("records")
        if form.suffix == ".json":
            return (json.dumps(rows, indent=1, default=str) + "\n").encode()
        return "".join(json.dumps(row, default=str) + "\n" for row in rows).encode()
    if form.kind == "parquet":
        _storable(frame).to_parquet(buffer, index=False, write_page_checksum=True)
    elif form.kind == "feather":
        _storable(frame).reset_index(drop=True).to_feather(buffer)
    elif form.kind == "excel":
        _write_excel(frame, buffer)
    else:
        _write_arrays(frame, form, features, buffer)
    return buffer.getvalue()


def _storable(frame: pd.DataFrame) -> pd.DataFrame:
    """Return columns of one type each: large whole numbers are decimals, mixtures are text."""
    import pyarrow

    columns = {}
    for name in [name for name, column in frame.items() if column.dtype == object]:
        values = frame[name].where(frame[name].notna(), None).tolist()
        column = typed(values, pyarrow.decimal128(38, 0))
        if column.dtype == object:
            column = typed([None if value is None else str(value) for value in values])
        columns[name] = column.set_axis(frame.index)
    return with_columns(frame, columns)


def typed(values: list[Any], *kinds: Any) -> pd.Series:
    """Return a Series of numbers that keep all digits, of text, or of whatever there is.

    `kinds` are types of pyarrow that are tried in turn where it finds none.
    """
    import pandas as pd
    import pyarrow

    for kind in (None, pyarrow.uint64(), *kinds):
        with suppress(pyarrow.ArrowException, OverflowError):
            found = pyarrow.array(values, kind)
            return pd.Series(found, dtype=pd.ArrowDtype(found.type))
    return pd.Series(values, dtype=object)


def unique(found: Sequence[str]) -> list[str]:
    """Return a name for each column, each once: x3 if the third has none, a.2 for a second a."""
    given, taken, times = set(found), set[str](), Counter[str]()
    names: list[str] = []
    for place, name in enumerate(found, 1):
        base = name or ("id" if place == 1 and given != {""} else f"x{place}")
        own = base
        while own in taken or (own != name and own in given):
            times[base] += 1
            own = f"{base}.{times[base] + 1}"
        taken.add(own)
        names.append(own)
    return names


def _write_excel(frame: pd.DataFrame, buffer: io.BytesIO) -> None:
    """Write a sheet in which text is text: a cell that begins with "=" is no formula."""
    import pandas as pd
    from openpyxl.utils.exceptions import IllegalCharacterError

    def shown(value: Any) -> Any:
        # Excel keeps 15 digits.
        return str(value) if isinstance(value, int) and abs(value) >= 10**15 else value

    whole = [name for name, dtype in frame.dtypes.items() if dtype.kind in "iuO"]
    columns = {name: frame[name].astype(object).map(shown, "ignore") for name in whole}
    try:
        with pd.ExcelWriter(buffer, engine="openpyxl") as writer:
            with_columns(frame, columns).to_excel(writer, index=False)
            for row in writer.book.active.iter_rows():
                for cell in row:
                    if cell.data_type == "f":
                        cell.data_type = "s"
    except (IllegalCharacterError, ValueError) as error:  # also lists, time zones, a million rows
        words = f"{type(error).__name__}: {error}"
        raise InvalidInputError(
            f"An Excel file cannot hold this table ({words}). Write another format, such as .csv."
        ) from None


def _write_arrays(
    frame: pd.DataFrame, form: FileFormat, features: Sequence[str], buffer: io.BytesIO
) -> None:
    """Write the features as one array of numbers; in an .npz file, other columns beside it."""
    import numpy as np

    def array(column: pd.Series) -> NDArray[Any]:
        if column.dtype.kind not in "biuf":
            return np.array(column.astype(object).where(column.notna(), "").map(str), dtype=str)
        if column.hasnans:
            return column.to_numpy(np.float64, na_value=np.nan)
        return column.to_numpy()

    numeric = [name for name in features or frame if frame[name].dtype.kind in "biuf"]
    beside = frame.drop(columns=numeric)
    columns = [array(frame[name]) for name in numeric]
    X = np.column_stack(columns) if columns else np.empty((len(frame), 0))
    if form.kind == "npy":
        if len(beside.columns):
            raise InvalidInputError("An .npy file holds numbers only; write an .npz file instead.")
        np.save(buffer, X)
        return
    arrays = [np.array(numeric, dtype=str), X, *(array(beside[name]) for name in beside)]
    names = unique(["feature_names", "X", *map(str, beside)])
    with zipfile.ZipFile(buffer, "w") as archive:  # savez takes no array called file
        for name, values in zip(names, arrays, strict=True):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, values, allow_pickle=False)


def _compressed(content: bytes, compression: str, name: str) -> bytes:
    import pyarrow

    buffer = io.BytesIO()
    if compression == "zip":
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, content)
    elif compression == "xz":
        buffer.write(lzma.compress(content))
    else:
        sink = pyarrow.BufferOutputStream()
        with pyarrow.CompressedOutputStream(sink, compression) as stream:
            stream.write(content)
        buffer.write(sink.getvalue())
    return buffer.getvalue()


def default_output(data: Path, ending: str) -> Path:
    """Return a path in the current directory, named after the data.

    ``"clusters.csv"`` turns iris.tsv into iris.clusters.csv, ``"completed"`` keeps the suffix.
    """
    name, kept = "stdin" if data == STDIN else data.name, ""
    for known in (COMPRESSIONS, KINDS):
        suffix = Path(name).suffix
        if suffix.lower() in known:
            kept, name = suffix + kept, name.removesuffix(suffix)
    return Path(f"{name}.{ending}" if "." in ending else f"{name}.{ending}{kept or '.csv'}")


def check_output(target: str | Path, *inputs: Path, option: str = "-o") -> Path:
    """Return the path of a table to be written, none of the `inputs`, checked before any work."""
    from isthmus.validation import as_path

    target = as_path(target, "target")
    try:
        kind = FileFormat.of(target).kind
    except InvalidInputError:
        kind = ""
    # Only a table that was an array is sure to hold nothing but numbers.
    if not kind or (kind == "npy" and not any(data.suffix == ".npy" for data in inputs)):
        raise InvalidInputError(f"{option} {target} must end in {WRITABLE}.")
    if any(real_path(target) == real_path(data) for data in inputs):
        raise InvalidInputError(f"{option} {target} is the data itself; name another file.")
    if kind == "excel":
        require_openpyxl()
    return check_writable(target, option)


def require_openpyxl() -> None:
    """Raise an error that says how to install openpyxl, if it is missing."""
    if importlib.util.find_spec("openpyxl") is None:
        raise InvalidInputError("Excel files need openpyxl: pip install 'isthmus[tables]'.")
