"""What each dataset must look like, and where it can be had: the manifest in the package."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from isthmus.errors import InvalidInputError

__all__ = ["Entry", "Home", "entry", "names"]


@dataclass(frozen=True)
class Home:
    """Where a dataset can be downloaded from, and how that differs from the stored file."""

    fetcher: str | None = None
    """A function of ``sklearn.datasets``; those called ``load_`` need no network."""
    openml: int | None = None
    by_hand: str | None = None
    """What to fetch where nothing can be downloaded automatically."""
    rows: int | None = None
    """Only the first so many."""
    n_features: int | None = None
    """Where it is not that of the stored file."""
    drop: tuple[str, ...] = ()
    """Columns that are names or words."""
    target_as_feature: bool = False
    """The labels are the rounded target, which is also a column."""
    scale: float = 1.0

    def __str__(self) -> str:
        if self.fetcher is not None:
            return f"sklearn.datasets.{self.fetcher}"
        if self.openml is not None:
            return f"https://www.openml.org/d/{self.openml}"
        return self.by_hand or "nowhere known"


@dataclass(frozen=True)
class Entry:
    """One dataset of the manifest."""

    name: str
    n_samples: int
    n_features: int
    class_counts: tuple[int, ...]
    sha256: str
    dtype: str
    paper_shape: tuple[int, int, int]
    """Samples, features and classes in the paper's table."""
    home: Home
    note: str
    """What to know, differences from the paper's table above all."""
    source: str
    licence: str

    @property
    def n_classes(self) -> int:
        """How many classes the labels tell apart."""
        return len(self.class_counts)

    @property
    def matches_paper(self) -> bool:
        """Whether the stored file has the shape that the paper's table prints."""
        return (self.n_samples, self.n_features, self.n_classes) == self.paper_shape


@cache
def _entries() -> dict[str, Entry]:
    text = files("isthmus.datasets").joinpath("manifest.json").read_text(encoding="utf-8")
    found = {}
    for fields in json.loads(text)["datasets"]:
        home = fields.pop("home")
        home["drop"] = tuple(home.get("drop", ()))
        counts, shape = tuple(fields.pop("class_counts")), tuple(fields.pop("paper_shape"))
        found[fields["name"]] = Entry(
            home=Home(**home), class_counts=counts, paper_shape=shape, **fields
        )
    return found


def names() -> tuple[str, ...]:
    """The names that :func:`isthmus.datasets.load` knows, in the paper's order.

    Examples
    --------
    >>> from isthmus.datasets import names
    >>> len(names()), names()[0]
    (15, 'boston_housing')
    """
    return tuple(_entries())


def entry(name: str) -> Entry:
    """The manifest's entry of that name."""
    if not isinstance(name, str) or name not in _entries():
        raise InvalidInputError(
            f"There is no dataset {name!r}; isthmus knows {', '.join(sorted(_entries()))}."
        )
    return _entries()[name]
