"""Numbers of a report, named for machines, as tables for people."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

__all__ = ["Grid", "grids", "label", "value_text"]

# How a word in the name of a number is written, where not as it stands.
WORDS = {
    "alpha": "α",
    "ari": "ARI",
    "bayes": "Bayes",
    "beta": "β",
    "clam": "ClAM",
    "cpu": "CPU",
    "crp": "CRP",
    "dim": "dimension",
    "dims": "dimensions",
    "elbo": "ELBO",
    "em": "EM",
    "euclidean": "Euclidean",
    "hn": "HN",
    "incontext": "in-context",
    "kde": "KDE",
    "kl": "KL divergence",
    "kappa": "κ",
    "log10": "log₁₀ of",
    "mala": "MALA",
    "mchn": "MCHN",
    "mse": "mean square error",
    "nll": "negative log-likelihood",
    "nmi": "NMI",
    "qk": "QK",
    "rho": "ρ",
    "saln": "SALN",
    "sigma": "σ",
    "vmf": "vMF",
}
# From so many on, digits of a whole number are set in groups of three.
MANY = 10_000
# A row of its own with longer heads, in characters, is set as a column.
WIDE = 60
NARROW_SPACE = "\u202f"


@dataclass(frozen=True)
class Grid:
    """A table of values.

    Attributes
    ----------
    title : str
        Empty where the rows say it all.
    columns : tuple of str
        Heads; empty where each row has a single value, named by the row.
    rows : tuple of (str, tuple of str)
        The name of each row, and its cells.
    """

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[str, ...]], ...]


def label(name: str) -> str:
    """The name of a number in plain words.

    >>> label("log10_bounds"), label("kl_from_truth"), label("Mixture (ClAM)")
    ('Log₁₀ of bounds', 'KL divergence from truth', 'Mixture (ClAM)')
    """
    if name != name.lower():  # it has been written for people
        return name.replace("_", " ")
    words = re.split(r"([_\s-]+)", name)
    said = "".join(WORDS.get(word, word.replace("_", " ")) for word in words)
    keeps_its_letter = said[:1] > "z" or words[0] == "vmf"  # a Greek one would look Latin
    return said if keeps_its_letter else said[:1].upper() + said[1:]


def value_text(value: Any) -> str:
    """A value as text: four digits, words for None and for truth values, lists with commas.

    >>> value_text(2 / 3), value_text(None), value_text(True), value_text([1, 2.5])
    ('0.6667', '–', 'yes', '1, 2.5')
    """
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace(",", NARROW_SPACE) if abs(value) >= MANY else str(value)
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(value_text(each) for each in value)
    return str(value)


def grids(numbers: Mapping[str, Any], title: str = "") -> Iterator[Grid]:
    """Arrange numbers: single values by name, mappings alike side by side, as few tables as fit.

    Parameters
    ----------
    numbers : mapping
        Of values, lists, or mappings of them to any depth.
    title : str
        What they are about.

    Yields
    ------
    Grid
    """
    single = {name: value for name, value in numbers.items() if _is_cell(value)}
    if single:
        rows = tuple((label(name), (value_text(value),)) for name, value in single.items())
        yield Grid(title, (), rows)
    for group in _alike({name: v for name, v in numbers.items() if name not in single and v}):
        yield from _grid_of(group, title)


def _grid_of(group: Mapping[str, Any], title: str) -> Iterator[Grid]:
    """Rows of mappings that have the same columns; or, one level down, what is inside of one."""
    if all(_is_flat(value) for value in group.values()):
        columns = list(dict.fromkeys(key for value in group.values() for key in value))
        if len(group) == 1 and sum(map(len, columns)) > WIDE:
            ((name, value),) = group.items()
            yield from grids(value, f"{title}: {label(name)}" if title else label(name))
            return
        rows = tuple(
            (label(name), tuple(value_text(v[key]) if key in v else "" for key in columns))
            for name, v in group.items()
        )
        yield Grid(title, tuple(map(label, columns)), rows)
        return
    for name, value in group.items():
        inner = value if isinstance(value, Mapping) else dict(_numbered(value))
        yield from grids(inner, f"{title}: {label(name)}" if title else label(name))


def _alike(mappings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Groups of neighbours that share columns; others stand alone."""
    group: dict[str, Any] = {}
    for name, value in mappings.items():
        if group and not _share_columns(next(reversed(group.values())), value):
            yield group
            group = {}
        group[name] = value
    if group:
        yield group


def _share_columns(one: Any, other: Any) -> bool:
    """Whether most of what the two have has the same name."""
    if not (_is_flat(one) and _is_flat(other)):
        return False
    return 2 * len(set(one) & set(other)) >= len(set(one) | set(other))


def _numbered(values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    return ((str(number), value) for number, value in enumerate(values, start=1))


def _is_flat(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_is_cell(inner) for inner in value.values())


def _is_cell(value: Any) -> bool:
    """Whether it fits into a cell: a value, or a list of values."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(_is_cell(each) and not isinstance(each, list | tuple) for each in value)
    return not isinstance(value, Mapping)
