"""Arrays in .npy and .npz files: read when asked for, within a size, no pickle."""

from __future__ import annotations

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
        members = [each for each in archive.namelist() if each.endswith(SUFFIX)]
        self.shapes = {each.removesuffix(SUFFIX): self._shape(each) for each in members}

    def _shape(self, member: str) -> tuple[int, ...]:
        with self._archive.open(member) as file:
            shape: tuple[int, ...] = HEADERS[npy.read_magic(file)](file)[0]
        return shape

    def read(self, names: Iterable[str], expected: int = 0) -> dict[str, NDArray[Any]]:
        """Return some of the arrays, which are known to take about `expected` bytes, if any."""
        members = {name: self._archive.getinfo(f"{name}{SUFFIX}") for name in names}
        require_size(self._path, sum(info.file_size for info in members.values()), expected)
        arrays = {}
        for name, info in members.items():
            with self._archive.open(info) as member:
                arrays[name] = read_whole(member)
        return arrays


@contextmanager
def open_npz(path: str | Path, what: str, advice: str = "") -> Iterator[ArrayArchive]:
    """Open an .npz file; the words are those of :func:`isthmus.io.reading.reading`."""
    with reading(path, what, advice) as place, zipfile.ZipFile(place) as archive:
        yield ArrayArchive(place, archive)


def read_whole(file: IO[bytes]) -> NDArray[Any]:
    """Read an array, which is all that a file holds, to its end, where checksums are compared."""
    array: NDArray[Any] = npy.read_array(file, allow_pickle=False)
    if file.read(1):
        raise ValueError("it holds more than the array that it announces")
    return array
