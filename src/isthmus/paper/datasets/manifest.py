"""The manifest of the datasets: their shapes and homes."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from isthmus.errors import InvalidInputError
from isthmus.printing import aligned

WIDTH = 96


@dataclass(frozen=True)
class Home:
    """Source of a dataset, and its differences from the stored file.

    It is a function of ``sklearn.datasets``, a number of OpenML, or a place in words. `rows` are
    kept, if not all, and `drop` are columns of words. With `target_as_feature`, the labels are the
    rounded target, which is also a column.
    """

    fetcher: str | None = None
    openml: int | None = None
    by_hand: str | None = None
    rows: int | None = None
    n_features: int | None = None
    drop: Sequence[str] = ()
    target_as_feature: bool = False
    scale: float = 1.0

    @property
    def is_bundled(self) -> bool:
        """True if scikit-learn brings the dataset along, so that no network is needed."""
        return (self.fetcher or "").startswith("load_")

    def __str__(self) -> str:
        if self.fetcher is not None:
            return f"sklearn.datasets.{self.fetcher}"
        return self.by_hand or f"https://www.openml.org/d/{self.openml}"


@dataclass(frozen=True)
class Entry:
    """One dataset of the manifest; notes are mainly on differences from the paper's table.

    `paper_shape` are the samples, features and classes in that table.
    """

    name: str
    n_samples: int
    n_features: int
    class_counts: tuple[int, ...]
    dtype: str
    paper_shape: tuple[int, int, int]
    home: Home
    note: str
    source: str
    licence: str

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.class_counts)

    @property
    def widths(self) -> set[int]:
        """Numbers of features of the stored file and of its source."""
        return {self.n_features, self.home.n_features or self.n_features}

    @property
    def largest_size(self) -> int:
        """Bytes of its arrays as doubles, with room for names."""
        return 8 * self.n_samples * (max(self.widths) + 1) + 2**20

    @property
    def matches_paper(self) -> bool:
        """True if the stored file has the shape in the paper's table."""
        return (self.n_samples, self.n_features, self.n_classes) == self.paper_shape


@cache
def _entries() -> dict[str, Entry]:
    text = files("isthmus.paper.datasets").joinpath("manifest.json").read_text(encoding="utf-8")
    found = {}
    for fields in json.loads(text)["datasets"]:
        for key in ("class_counts", "paper_shape"):
            fields[key] = tuple(fields[key])
        fields["home"] = Home(**fields["home"])
        found[fields["name"]] = Entry(**fields)
    return found


def names() -> tuple[str, ...]:
    """Return the names of all datasets, in the paper's order.

    >>> len(names()), names()[0]
    (15, 'boston_housing')
    """
    return tuple(_entries())


def entry(name: str) -> Entry:
    """Return the entry of a dataset; raise for an unknown name."""
    if not isinstance(name, str) or name not in _entries():
        raise InvalidInputError(
            f"There is no dataset {name!r}; isthmus knows {', '.join(sorted(_entries()))}."
        )
    return _entries()[name]


@dataclass(frozen=True)
class Description:
    """The known datasets. Prints as a table, with notes below it."""

    entries: tuple[Entry, ...]

    def __str__(self) -> str:
        rows = [["name", "samples", "features", "classes", "as in the paper", "home"]]
        for one in self.entries:
            samples, features, classes = map(str, one.paper_shape)
            same = "yes" if one.matches_paper else f"no: {samples} x {features}, {classes} classes"
            if one.home.target_as_feature:
                same = "yes, with the leaked column"
            shape = one.n_samples, one.n_features, one.n_classes
            rows.append([one.name, *map(str, shape), same, str(one.home)])
        lines = [*aligned(rows, left=(0, 4, 5)), ""]
        for one in self.entries:
            if one.note:
                lines += textwrap.wrap(f"{one.name}: {one.note}", WIDTH, subsequent_indent="    ")
        return "\n".join(lines)

    __repr__ = __str__


def describe() -> Description:
    """Return the `entries` of all datasets, with shapes, homes and notes; it prints as a table.

    >>> print(describe())
    name                     samples  features  classes  as in the paper ...
    boston_housing               506        14       46  yes, with the leaked column ...
    """
    return Description(tuple(entry(name) for name in names()))
