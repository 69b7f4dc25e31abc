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
    "ami": "AMI",
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
    "hmc": "HMC",
    "holm": "Holm",
    "incontext": "in-context",
    "kde": "KDE",
    "kl": "KL divergence",
    "kappa": "κ",
    "langevin": "Langevin",
    "log10": "log₁₀ of",
    "mala": "MALA",
    "mchn": "MCHN",
    "mse": "mean square error",
    "nll": "negative log-likelihood",
    "nmi": "NMI",
    "qk": "QK",
    "rand": "Rand",
    "rho": "ρ",
    "rms": "root mean square",
    "saln": "SALN",
    "sigma": "σ",
    "silverman": "Silverman",
    "vmf": "vMF",
}
# Names that are more than their words.
NAMES = {
    "calinski_harabasz": "Calinski-Harabasz",
    "clam_elbo_less_clam": "ClAM+ELBO less ClAM",
    "davies_bouldin": "Davies-Bouldin",
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
    return _begun(_said(name))


def _begun(words: str) -> str:
    """Words with a capital, unless they begin with a letter that stands for something."""
    # A Greek capital would look Latin; p, n and vMF are never capitals.
    keeps_its_letter = words[:1] > "z" or re.match(r"(p|vMF)\b|\w =", words)
    return words if keeps_its_letter else words[:1].upper() + words[1:]


def _said(name: str) -> str:
    """The same, as inside of a sentence."""
    if name in NAMES:
        return NAMES[name]
    if name != name.lower() and "_" not in name:  # it has been written for people
        return name
    words = re.split(r"([_\s-]+)", name)
    return "".join(WORDS.get(word, word.replace("_", " ")) for word in words)


def _split(name: str) -> tuple[str, list[str]]:
    """A name without its ending, and what the names below it stand for, level by level.

    >>> _split("basins_by_sigma_and_N"), _split("basins")
    (('basins', ['sigma', 'N']), ('basins', []))
    """
    stem, found, ending = name.rpartition("_by_")
    return (stem, ending.split("_and_")) if found else (name, [])


def _head(key: str, below: Sequence[str]) -> str:
    """The name of a row or a column: where it is a number, with what it is a number of.

    >>> _head("2", ["D"]), _head("0.1", ["rate"]), _head("kde-best", ["predictor"])
    ('D = 2', 'rate 0.1', 'KDE-best')
    """
    if not below or not re.fullmatch(r"[-+.\d][-+.\de]*", key):
        return label(key)
    word = _said(below[0])
    return f"{word} = {key}" if len(word) == 1 else f"{word} {key}"


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
        return ", ".join(value_text(each) for each in value) or "none"
    return str(value)


def grids(numbers: Mapping[str, Any], title: str = "", below: Sequence[str] = ()) -> Iterator[Grid]:
    """Arrange numbers: single values by name, mappings alike side by side, as few tables as fit.

    Parameters
    ----------
    numbers : mapping
        Of values, lists, or mappings of them to any depth. A name that ends in ``_by_D_and_N``
        says what the names, or the places in a list, of the next levels stand for: ``D = 2``.
    title : str
        What they are about.
    below : sequence of str
        What their names stand for, and those of the next levels.

    Yields
    ------
    Grid
    """
    opened = {name: _opened(name, value) for name, value in numbers.items()}
    single = {name: value for name, value in opened.items() if _is_cell(value)}
    if single:
        rows = tuple(
            (_begun(_head(name, below)), (value_text(value),)) for name, value in single.items()
        )
        yield Grid(title, (), rows)
    for group in _alike({name: v for name, v in opened.items() if name not in single and v}):
        yield from _grid_of(group, title, below)


def _opened(name: str, value: Any) -> Any:
    """The value; a list as a mapping, if the name says what its places stand for."""
    if isinstance(value, list | tuple) and _split(name)[1]:
        return dict(_numbered(value))
    return value


def _grid_of(group: Mapping[str, Any], title: str, below: Sequence[str]) -> Iterator[Grid]:
    """Rows of mappings that have the same columns; or, one level down, what is inside of one."""
    inside = {name: _split(name)[1] or below[1:] for name in group}
    heads = {name: _head(_split(name)[0], below) for name in group}
    titles = {name: f"{title}: {head}" if title else head for name, head in heads.items()}
    if all(_is_flat(value) for value in group.values()):
        columns = list(dict.fromkeys(key for value in group.values() for key in value))
        first = next(iter(group))
        said = tuple(_head(key, inside[first]) for key in columns)
        if len(group) == 1 and sum(map(len, said)) > WIDE:
            yield from grids(group[first], titles[first], inside[first])
            return
        rows = tuple(
            (heads[name], tuple(value_text(v[key]) if key in v else "" for key in columns))
            for name, v in group.items()
        )
        yield Grid(title, said, rows)
        return
    for name, value in group.items():
        inner = value if isinstance(value, Mapping) else dict(_numbered(value))
        yield from grids(inner, titles[name], inside[name])


def _alike(mappings: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Groups of neighbours that share columns; others stand alone."""
    group: dict[str, Any] = {}
    for name, value in mappings.items():
        if group and not _share_columns(next(reversed(group.items())), (name, value)):
            yield group
            group = {}
        group[name] = value
    if group:
        yield group


def _share_columns(one: tuple[str, Any], other: tuple[str, Any]) -> bool:
    """Whether most of what the two have has the same name, and stands for the same."""
    if not (_is_flat(one[1]) and _is_flat(other[1])) or _split(one[0])[1] != _split(other[0])[1]:
        return False
    first, second = set(one[1]), set(other[1])
    return 2 * len(first & second) >= len(first | second)


def _numbered(values: Sequence[Any]) -> Iterator[tuple[str, Any]]:
    return ((str(number), value) for number, value in enumerate(values, start=1))


def _is_flat(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_is_cell(inner) for inner in value.values())


def _is_cell(value: Any) -> bool:
    """Whether it fits into a cell: a value, or a list of values."""
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(_is_cell(each) and not isinstance(each, list | tuple) for each in value)
    return not isinstance(value, Mapping)
