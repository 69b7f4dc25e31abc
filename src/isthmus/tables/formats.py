"""The formats of tables, by the suffixes of their files."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from pathlib import Path

from isthmus.errors import InvalidInputError
from isthmus.files import check_writable

__all__ = ["READABLE", "STDIN", "WRITABLE", "FileFormat", "check_output", "default_output"]

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


@dataclass(frozen=True)
class FileFormat:
    """The format of a file, with everything needed to write another one like it.

    Attributes
    ----------
    kind : {"text", "json", "parquet", "feather", "excel", "npy", "npz"}
    suffix : str
        In lower case, without that of the compression.
    compression : {"", "gzip", "bz2", "xz", "zip", "zstd"}
    separator, decimal, encoding : str
        Of text files. A separator of one space stands for any run of spaces.
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


def default_output(data: Path, ending: str) -> Path:
    """Return a path in the current directory, named after the data.

    Parameters
    ----------
    data : Path
    ending : str
        ``"clusters.csv"`` turns iris.tsv into iris.clusters.csv. An ending without a suffix keeps
        that of the data: ``"completed"`` turns iris.csv.gz into iris.completed.csv.gz.
    """
    name, kept = "stdin" if data == STDIN else data.name, ""
    for known in (COMPRESSIONS, KINDS):
        suffix = Path(name).suffix
        if suffix.lower() in known:
            kept, name = suffix + kept, name.removesuffix(suffix)
    return Path(f"{name}.{ending}" if "." in ending else f"{name}.{ending}{kept or '.csv'}")


def check_output(target: str | Path, *inputs: Path, option: str = "-o") -> Path:
    """Return the path of a table to be written, checked before any work begins.

    Parameters
    ----------
    target : str or Path
    *inputs : Path
        Files that must not be overwritten.
    option : str
        The name of the argument, for messages.
    """
    target = Path(target)
    try:
        kind = FileFormat.of(target).kind
    except InvalidInputError:
        kind = ""
    # Only a table that was an array is sure to hold nothing but numbers.
    if not kind or (kind == "npy" and not any(data.suffix == ".npy" for data in inputs)):
        raise InvalidInputError(f"{option} {target} must end in {WRITABLE}.")
    if any(target.resolve() == data.resolve() for data in inputs):
        raise InvalidInputError(f"{option} {target} is the data itself; name another file.")
    if kind == "excel":
        require_openpyxl()
    return check_writable(target, option)


def require_openpyxl() -> None:
    """Raise an error that says how to install openpyxl, if it is missing."""
    if importlib.util.find_spec("openpyxl") is None:
        raise InvalidInputError("Excel files need openpyxl: pip install 'isthmus[excel]'.")
