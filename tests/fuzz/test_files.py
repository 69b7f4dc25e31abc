"""Damaged and hostile files: an error of isthmus, or what was stored, and never anything else.

Every loader reads files that were cut, flipped, swapped, emptied, replaced by other files, pickles,
bombs, links, pipes and directories. A foreign exception, a changed result, a long wait, much memory
or a run of the pickled code fails the test. Tables carry no digest: of them, another table may be
read.
"""

import gzip
import hashlib
import io
import json
import os
import pickle
import resource
import shutil
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pytest
import torch
from sklearn.base import BaseEstimator
from sklearn.datasets import load_iris

import isthmus as ist
from isthmus import datasets
from isthmus.attend import Index
from isthmus.capacity import Certificate, certify
from isthmus.cluster import ClAM
from isthmus.cluster.basin_flow import BasinFlow
from isthmus.cluster.tabular import TableModel
from isthmus.distributed import blocks
from isthmus.errors import InvalidInputError, IsthmusError
from isthmus.incontext import ICLEBM, ICLEBMConfig, TrainingSettings, pretrained, train
from isthmus.incontext.storage import Checkpoint
from isthmus.incontext.tables.model import ICLTables
from isthmus.incontext.tables.network import TableConfig
from isthmus.io.archive import read_archive, write_archive
from isthmus.io.reading import ALWAYS_ALLOWED
from isthmus.paper.report.builder import Workspace
from isthmus.paper.study.store import COLUMNS, Store
from isthmus.report import Section, TextTable
from isthmus.tables import read_table, write_table

TIMES = [8, pytest.param(300, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
SECONDS, MEGABYTES = 20, 700
HUGE = (2**31 - 1, 2**32 - 1, 2**40, 2**62, 2**63 - 1, 2**64 - 1)
X = np.random.default_rng(0).normal(size=(24, 3)).round(3) + np.repeat([0, 5, 9], 8)[:, None]
FRAME = pd.DataFrame(X, columns=["a", "b", "c"]).assign(word=["u", "v", "w"] * 8)
SETTINGS = TrainingSettings(
    model=ICLEBMConfig(layers=1, heads=1, width=4), updates=2, batch=2, length=3, warmup=1
)


@dataclass(frozen=True)
class Loader:
    """How to write a file, the path of which is returned, and to read it again.

    `exact` says that damage must be noticed; `read` returns None for a file that is made again.
    """

    write: Callable[[Path], Path]
    read: Callable[[Path], Any]
    exact: bool = True


def written(value: Any) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        value().save(folder / "file")
        return folder / "file"

    return write


def saved_energy(folder: Path) -> Path:
    inner = ist.GaussianKDE(X[:5], 0.7, log_weights=np.zeros(5))
    ist.save(inner - 0.5 * ist.StudentKDE(X[:4]), folder / "energy")
    return folder / "energy"


def saved_model(model: Callable[[], Any]) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        model().save_pretrained(folder / "run")
        return folder / "run" / "model.safetensors"

    return write


def trained(folder: Path) -> Path:
    train(SETTINGS, folder / "run", progress=False)
    shutil.rmtree(folder / "run" / "model")
    return folder / "run" / "checkpoint.pt"


def stored_section(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        section = Section(
            figure=bytes(range(99)),
            numbers={"a": [1.5, None]},
            table=TextTable(("a", "b"), (("1", "2"),)),
            inputs={"sources": {}},
        )
        (folder / "parts").mkdir()
        (folder / "parts" / "hero.json").write_text(section.to_json())
        (folder / "parts" / "hero.png").write_bytes(bytes(range(99)))
        return folder / "parts" / name

    return write


def read_section(path: Path) -> Any:
    return Workspace(path.parents[1]).read("hero")


def stored_results(folder: Path) -> Path:
    kinds = {str: "x", int: 3, float: 0.25, bool: True}
    rows = [{name: kinds[kind] for name, kind in COLUMNS.items()} | {"id": str(n)} for n in (1, 2)]
    Store(folder).append(rows)
    return Store(folder).path


def stored_dataset(folder: Path) -> Path:
    return datasets.store("iris", *load_iris(return_X_y=True), data_home=folder)


def table(suffix: str) -> Loader:
    def write(folder: Path) -> Path:
        path = folder / f"data{suffix}"
        if suffix == ".npy":
            np.save(path, X)
        else:
            write_table(FRAME, path)
        return path

    return Loader(write, read_table, exact=False)


def row_groups(folder: Path) -> Path:
    FRAME[["a", "b", "c"]].to_parquet(folder / "rows.parquet", row_group_size=10)
    return folder / "rows.parquet"


TEXTS = (".csv", ".tsv", ".txt", ".jsonl", ".json")
PACKED = (".csv.gz", ".csv.bz2", ".csv.xz", ".csv.zip", ".csv.zst", ".json.gz")
BINARY = (".parquet", ".feather", ".xlsx", ".npy", ".npz")


def fitted(kind: Any, **settings: Any) -> Loader:
    return Loader(written(lambda: kind(**settings).fit(X)), kind.load)


LOADERS = {
    "ClAM": fitted(ClAM, n_clusters=2, max_iter=2, random_state=0),
    "BasinFlow": fitted(BasinFlow),
    "TableModel": Loader(
        written(lambda: TableModel.fit(FRAME[["a", "b", "c"]], method="clam", n_clusters=2)),
        TableModel.load,
    ),
    "energy": Loader(saved_energy, ist.load),
    "index": Loader(written(lambda: Index(X)), Index.load),
    "certificate": Loader(written(lambda: certify(X, noise=True)), Certificate.load),
    "in-context": Loader(
        saved_model(lambda: ICLEBM(SETTINGS.model)), lambda path: pretrained(path.parent)
    ),
    "in-context tables": Loader(
        saved_model(lambda: ICLTables(TableConfig(width=8, cell_width=4, layers=1, heads=1))),
        lambda path: pretrained(path.parent),
    ),
    "checkpoint": Loader(trained, Checkpoint.load),
    "unfinished run": Loader(trained, lambda path: pretrained(path.parent)),
    "report": Loader(stored_section("hero.json"), read_section, exact=False),
    "report figure": Loader(stored_section("hero.png"), read_section, exact=False),
    "study results": Loader(stored_results, lambda path: Store(path.parent).read()),
    "dataset": Loader(stored_dataset, lambda path: datasets.load("iris", path.parent)),
    "row groups": Loader(
        row_groups,
        lambda path: [blocks.read_group(*at).to_pydict() for at in blocks.row_groups(path)],
        exact=False,
    ),
    **{f"table {suffix}": table(suffix) for suffix in (*TEXTS, *PACKED, *BINARY)},
}
ARCHIVES = ("ClAM", "BasinFlow", "TableModel", "energy", "in-context")


def essence(value: Any) -> Any:
    """Return something that is equal for equal results only."""
    if isinstance(value, torch.Tensor):
        value = value.detach().numpy()
    if isinstance(value, pd.DataFrame):
        return [essence(value[name].tolist()) for name in value]
    if isinstance(value, np.ndarray):
        content = repr(value.tolist()) if value.dtype == object else value.tobytes()
        return str(value.dtype), value.shape, content
    if isinstance(value, dict):
        return {repr(key): essence(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [essence(each) for each in value]
    if isinstance(value, torch.nn.Module):
        return repr(value), essence(dict(value.state_dict()))
    if is_dataclass(value) or isinstance(value, BaseEstimator | Index):
        return type(value).__name__, essence(vars(value))
    if value is None or isinstance(value, str | bytes | bool | int | float | np.generic):
        return repr(value)
    return essence(vars(value)) if hasattr(value, "__dict__") else repr(value)


def changed(content: bytes, rng: np.random.Generator) -> bytes:
    """Return a content with one kind of damage."""
    size, number = len(content), lambda most: int(rng.integers(most))
    start = number(size)
    if number(2):  # headers and footers more often than the rest
        start = min(number(160), size - 1) if number(2) else max(size - 1 - number(80), 0)
    elif number(4) == 0:
        start = int(rng.choice([n for n, byte in enumerate(content) if 48 <= byte <= 57] or [0]))
    length, width = 1 + number(min(400, size)), int(rng.choice([2, 4, 8]))
    new, taken = [
        (b"", size),
        (bytes([content[start] ^ 1 << number(8)]), 1),
        (bytes(byte ^ 1 << number(8) for byte in content[start : start + 20]), 20),
        (bytes(length), length),
        (rng.bytes(length), length),
        (b"", length),
        ((int(rng.choice(HUGE[:4])) % 256**width).to_bytes(width, "little"), width),
        (b"9" * int(rng.choice([2, 12, 40, 5000])), 1),
        ((b"[" if number(2) else b'{"a":') * 20_000, 0),
    ][number(9)]
    return content[:start] + new + content[start + taken :]


class Payload:
    """Makes a file when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return Path.touch, (self.marker,)


def npz(**arrays: Any) -> bytes:
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def other_contents(marker: Path) -> dict[str, bytes]:
    """Return files of other kinds, pickles among them, and names that lead out of the folder."""
    payload = Payload(marker)
    objects = np.empty(1, object)
    objects[0] = payload
    stream, array = io.BytesIO(), io.BytesIO()
    torch.save(payload, stream)
    np.save(array, objects, allow_pickle=True)
    escape = f"../../{marker.name}"
    return {
        "nothing": b"",
        "pickle": pickle.dumps(payload),
        "pickle of torch": stream.getvalue(),
        "pickle in a checkpoint": b"isthmus checkpoint 3 "
        + hashlib.sha256(stream.getvalue()).hexdigest().encode()
        + b"\n"
        + stream.getvalue(),
        "pickle in npy": array.getvalue(),
        "pickle in npz": zipped({"X.npy": array.getvalue()}),
        "way out": zipped({escape + ".npy": b"x", escape: b"x", f"/{escape}": b"x"}),
        "brackets": b"[" * 100_000,
        "objects": b'{"a":' * 100_000,
        "long number": b"a,b\n" + b"9" * 10_000 + b",1\n",
        "long JSON number": b'[{"a": ' + b"9" * 10_000 + b"}]",
        "zeros": bytes(10_000),
        "gzip": gzip.compress(b"a,b\n1,2\n"),
        "npz": npz(X=X, y=np.arange(24)),
        "text": b"a,b,c\n1,2,3\n4,5,6\n",
        "one long line": b"a" * 10**6,
    }


def replaced(path: Path, content: bytes, elsewhere: Path) -> Iterator[str]:
    """Put links, pipes and directories in the place of a file; yield the name of each."""
    elsewhere.mkdir()
    forms: dict[str, Callable[[], object]] = {
        "directory": path.mkdir,
        "dangling link": lambda: path.symlink_to(elsewhere / "nothing"),
        "loop": lambda: path.symlink_to(path),
        "link to a directory": lambda: path.symlink_to(elsewhere),
        "link to a device": lambda: path.symlink_to("/dev/zero"),
        "pipe": lambda: os.mkfifo(path),
        "missing": lambda: None,
    }
    for name, make in forms.items():
        path.unlink(missing_ok=True)
        make()
        yield name
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        path.unlink(missing_ok=True)
    path.write_bytes(content)


class Attack:
    """Reads a file again and again, and compares the results with that of the whole file."""

    def __init__(self, loader: Loader, path: Path) -> None:
        self.loader, self.path = loader, path
        self.wanted = self.result()

    def result(self) -> Any:
        with warnings.catch_warnings(action="ignore"):
            return essence(self.loader.read(self.path))

    def attempt(self, how: str, exact: bool | None = None) -> None:
        began = time.process_time()
        try:
            with warnings.catch_warnings(action="ignore"):
                found = self.loader.read(self.path)
        except Exception as error:
            if not isinstance(error, IsthmusError) or "\n" in str(error):
                raise AssertionError(f"{how}: {type(error).__name__}: {error}") from error
            return
        finally:
            assert time.process_time() - began < SECONDS, f"{how} took too long"
        if found is not None and (self.loader.exact if exact is None else exact):
            assert essence(found) == self.wanted, f"{how}: changed"


def peak() -> float:
    """Return the largest memory of this process, and of a child, so far, in MB."""
    whose = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    return sum(resource.getrusage(one).ru_maxrss for one in whose) / 1024


def attack(name: str, folder: Path, times: int) -> None:
    loader, marker = LOADERS[name], folder / "marker"
    (folder / "here").mkdir()
    with warnings.catch_warnings(action="ignore"):
        path = loader.write(folder / "here")
        whole, found = path.read_bytes(), Attack(loader, path)
    before, rng = peak(), np.random.default_rng(0)
    for number in range(times):
        path.write_bytes(changed(whole, rng))
        found.attempt(f"change {number}")
    for how, content in other_contents(marker).items():
        path.write_bytes(content)
        found.attempt(how)
    for how in replaced(path, whole, folder / "elsewhere"):
        if how != "missing" or name not in ("study results", "dataset"):
            found.attempt(how)
    path.write_bytes(whole)
    assert found.result() == found.wanted
    assert not list(folder.rglob(f"{marker.name}*")), "code in the file was executed"
    assert peak() - before < MEGABYTES, f"{peak() - before:.0f} MB more"


SLOW = {"table .xlsx", "table .feather"}  # many seconds each


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n in SLOW)) for n in LOADERS]
)
def test_damaged_files(name, times, tmp_path) -> None:
    attack(name, tmp_path, times)


WRONG = (None, -1, 0, 10**9, 2**70, 1e308, "x", "", [], {}, [[1]], {"tensor": "x"}, True, 0.5)


def leaves(tree: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every container of a tree with every key or place in it."""
    for key in tree if isinstance(tree, dict) else range(len(tree)):
        yield tree, key
        if isinstance(tree[key], dict | list):
            yield from leaves(tree[key])


def forged(path: Path, rng: np.random.Generator) -> None:
    """Write an archive with another value or another array, and the digest that belongs to it."""
    kinds = {"isthmus-estimator-2", "isthmus-energy-1", ICLEBM.format, ICLTables.format}
    metadata, arrays = read_archive(path, tuple(kinds))
    content, kind = json.loads(metadata.pop("content")), metadata.pop("format")
    del metadata["digest"]
    if rng.integers(3) or not arrays:
        places = list(leaves(content))
        tree, key = places[int(rng.integers(len(places)))]
        tree[key] = WRONG[int(rng.integers(len(WRONG)))]
    else:
        name = sorted(arrays)[int(rng.integers(len(arrays)))]
        shape = [(), (0,), (1,), (3,), (2, 2), (1, 10**6)][int(rng.integers(6))]
        arrays[name] = np.full(shape, np.nan).astype(["f4", "f8", "i8", "?"][int(rng.integers(4))])
    write_archive(path, kind, json.dumps(content), arrays, **metadata)


@pytest.mark.parametrize("times", TIMES)
@pytest.mark.parametrize("name", ARCHIVES)
def test_forged_archives(name, times, tmp_path) -> None:
    loader = LOADERS[name]
    with warnings.catch_warnings(action="ignore"):
        path = loader.write(tmp_path)
        whole, found = path.read_bytes(), Attack(loader, path)
        before, rng = peak(), np.random.default_rng(1)
        for number in range(times):
            path.write_bytes(whole)
            forged(path, rng)
            found.attempt(f"forgery {number}", exact=False)
    assert peak() - before < MEGABYTES


def far_cell(cell: str) -> bytes:
    """Return an Excel file with one number at a given place."""
    buffer = io.BytesIO()
    pd.DataFrame({"a": [1.5]}).to_excel(buffer, index=False)
    members = {}
    with zipfile.ZipFile(buffer) as book:
        for name in book.namelist():
            text = book.read(name)
            if b"<sheetData>" in text:
                row = "".join(filter(str.isdigit, cell)).encode()
                more = b'<row r="%b"><c r="%b"><v>1</v></c></row></sheetData>'
                text = text.replace(b"</sheetData>", more % (row, cell.encode()))
            members[name] = text
    return zipped(members)


def arrow_file(kind: str, column: Any) -> bytes:
    import pyarrow.feather
    import pyarrow.parquet

    buffer, content = io.BytesIO(), pyarrow.table({"a": column})
    if kind == "parquet":
        pyarrow.parquet.write_table(content, buffer)
    else:
        pyarrow.feather.write_feather(content, buffer, compression="zstd")
    return buffer.getvalue()


def bombs(size: int) -> dict[str, bytes]:
    """Return small files, by name, that hold at least `size` bytes."""
    import bz2
    import lzma

    text, words = b"a,b\n" + b"0,0\n" * (size // 4), pyarrow.array(["w" * 1000])
    zstd = pyarrow.compress(text, "zstd", asbytes=True)
    repeated = pyarrow.DictionaryArray.from_arrays(np.zeros(size // 1000 + 1, np.int32), words)
    huge = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        huge, {"descr": "<f8", "fortran_order": False, "shape": (size, 10**6)}
    )
    table = npz(X=np.zeros((size // 8, 1)))
    side, book = int((size / 8) ** 0.5) + 1, io.BytesIO()
    pd.DataFrame({"a": ["w" * 30_000] * (size // 30_000 + 1)}).to_excel(book, index=False)
    long = pyarrow.array(["w" * 1000] * (size // 1000 + 1), pyarrow.large_string())
    return {
        "data.csv.gz": gzip.compress(text, 1),
        "data.csv.bz2": bz2.compress(text, 1),
        "data.csv.xz": lzma.compress(text, preset=0),
        "data.csv.zip": zipped({"data.csv": text}),
        "data.csv.zst": zstd,
        "data.json.gz": gzip.compress(b"[" + b"[]," * (size // 3) + b"[]]", 1),
        "data.npz": table,
        "data.npy": huge.getvalue(),
        "data.parquet": arrow_file("parquet", np.zeros(size // 8 + 1)),
        "words.parquet": arrow_file("parquet", repeated),
        "data.feather": arrow_file("feather", np.zeros(size // 8 + 1)),
        "words.feather": arrow_file("feather", repeated),
        "data.xlsx": far_cell("XFD1048576"),
        "deep.xlsx": far_cell("A99999999999"),
        "shared.xlsx": book.getvalue(),
        "long.parquet": arrow_file("parquet", long),
        "struct.parquet": arrow_file("parquet", pyarrow.StructArray.from_arrays([long], ["b"])),
        "keys.jsonl": b"".join(b'{"%d": 1}\n' % row for row in range(side)),
        "objects.json.gz": gzip.compress(b"[" + b"{}," * (size // 60) + b"{}]"),
        "short.csv": b",".join(b"%d" % row for row in range(side)) + b"\n" + b"1\n" * side,
        "strings.xlsx": zipped({"xl/sharedStrings.xml": bytes(size)}),
    }


def explode(folder: Path, size: int, most: int) -> None:
    """Read bombs of some bytes, with no more than `most` bytes beside those that are taken."""
    for name, content in bombs(size).items():
        assert len(content) < size // 10, name
        (folder / name).write_bytes(content)
    (folder / "good.csv").write_text("a,b\n1,2\n")
    read_table(folder / "good.csv")
    for good in (".parquet", ".xlsx", ".feather"):  # to import what is needed
        read_table(write_table(FRAME, folder / f"good{good}"))
    names = list(bombs(1000))
    before = peak()
    for name in names:
        with pytest.raises(InvalidInputError):
            read_table(folder / name)
    assert (peak() - before) * 2**20 < most, f"{peak() - before} MB"


def test_small_files_of_large_tables_are_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("isthmus.io.reading.ALWAYS_ALLOWED", 2**20)
    explode(tmp_path, 4 * 2**20, 200 * 2**20)


@pytest.mark.slow
def test_bombs_take_little_memory(tmp_path) -> None:
    explode(tmp_path, 4 * ALWAYS_ALLOWED, MEGABYTES * 2**20)


def test_parsers_that_unpack_without_asking_take_little_memory(tmp_path) -> None:
    for good in (".parquet", ".xlsx"):
        read_table(write_table(FRAME, tmp_path / f"good{good}"))
    with zipfile.ZipFile(tmp_path / "good.xlsx") as book:
        members = {name: book.read(name) for name in book.namelist()}
    sheet = "xl/worksheets/sheet1.xml"
    row = b"<row>" + b"<c/>" * 2**22 + b"</row></sheetData>"
    members[sheet] = members[sheet].replace(b"</sheetData>", row)
    words = pyarrow.DictionaryArray.from_arrays(np.zeros(8000, np.int32), ["w" * 100_000])
    before = peak()
    for name, content in {
        "cells.xlsx": zipped(members),
        "word.parquet": arrow_file("parquet", words),
        "word.feather": arrow_file("feather", words),
    }.items():
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InvalidInputError, match="would take more"):
            read_table(tmp_path / name)
        assert peak() - before < MEGABYTES, name


def test_the_limit_can_be_raised(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("isthmus.io.reading.ALWAYS_ALLOWED", 2**10)
    path = tmp_path / "data.csv.gz"
    path.write_bytes(gzip.compress(b"a,b\n" + b"0,1\n" * 10_000))
    with pytest.raises(InvalidInputError, match="ISTHMUS_MAX_DECOMPRESSED"):
        read_table(path)
    monkeypatch.setenv("ISTHMUS_MAX_DECOMPRESSED", "1000000")
    assert read_table(path).X.shape == (10_000, 2)
    monkeypatch.setenv("ISTHMUS_MAX_DECOMPRESSED", "1 GB")
    with pytest.raises(InvalidInputError, match="1 GB"):
        read_table(path)


def test_arrays_that_were_not_asked_for_are_not_read(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("isthmus.io.reading.ALWAYS_ALLOWED", 2**10)
    (tmp_path / "data.npz").write_bytes(npz(X=X, images=np.zeros((99, 99, 99))))
    assert read_table(tmp_path / "data.npz").X.shape == X.shape
    with pytest.raises(InvalidInputError, match="ISTHMUS_MAX_DECOMPRESSED"):
        read_table(tmp_path / "data.npz", array="images")
