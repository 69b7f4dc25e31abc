"""Arrays in .npy and .npz files: read when asked for, never larger than the file, no pickle."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from numpy.lib import format as npy
from numpy.typing import NDArray

from isthmus.io.reading import reading, require_size

HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
SUFFIX = ".npy"


class ArrayArchive:
    """An open .npz file. `shapes` are those of its arrays, by name."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self._path, self._archive = path, archive
        with path.open("rb") as file:
            file.seek(-22 - len(archive.comment), 2)  # the last record counts the members
            announced = int.from_bytes(file.read(12)[10:], "little")
        if announced != len(archive.infolist()):
            raise ValueError(f"{announced} arrays are announced, not {len(archive.infolist())}")
        self._members = {
            info.filename.removesuffix(SUFFIX): info
            for info in archive.infolist()
            if info.filename.endswith(SUFFIX)
        }
        self.shapes = {name: self._shape(info) for name, info in self._members.items()}

    def _shape(self, info: zipfile.ZipInfo) -> tuple[int, ...]:
        with self._archive.open(info) as member:
            return _checked_header(member, info.file_size)

    def read(self, names: Iterable[str], expected: int = 0) -> dict[str, NDArray[Any]]:
        """Return some of the arrays, which are known to take about `expected` bytes, if any."""
        members = {name: self._members[name] for name in names}
        require_size(self._path, sum(info.file_size for info in members.values()), expected)
        arrays = {}
        for name, info in members.items():
            with self._archive.open(info) as member:
                # All of the member is read, so that its checksum is compared.
                arrays[name] = npy.read_array(member, allow_pickle=False)
        return arrays


@contextmanager
def open_npz(path: str | Path, what: str, advice: str = "") -> Iterator[ArrayArchive]:
    """Open an .npz file; the words are those of :func:`isthmus.io.reading.reading`."""
    with reading(path, what, advice) as place, zipfile.ZipFile(place) as archive:
        yield ArrayArchive(place, archive)


def read_npy(path: Path) -> NDArray[Any]:
    """Read an .npy file."""
    with path.open("rb") as file:
        _checked_header(file, path.stat().st_size)
        file.seek(0)
        array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
    return array


def _checked_header(file: IO[bytes], size: int) -> tuple[int, ...]:
    """Return the shape in the header of an array; raise unless `size` bytes are what it needs."""
    version = npy.read_magic(file)
    if version not in HEADERS:
        raise ValueError(f"its format {version[0]}.{version[1]} is not supported")
    shape, _, dtype = HEADERS[version](file)
    if dtype.hasobject:
        raise ValueError("it holds Python objects, which are never loaded")
    needed, held = math.prod(shape) * dtype.itemsize, size - file.tell()
    if min(shape, default=0) < 0 or needed != held:
        raise ValueError(f"an array of {needed} bytes is announced, but there are {held}")
    return tuple(shape)
