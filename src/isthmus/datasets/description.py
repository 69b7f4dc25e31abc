"""The table of all datasets, with what differs from the paper's."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass

from isthmus.datasets.manifest import Entry, entry, names

__all__ = ["Description", "describe"]

WIDTH = 96


@dataclass(frozen=True)
class Description:
    """What there is to load. Prints as a table, with notes below it."""

    entries: tuple[Entry, ...]

    def __str__(self) -> str:
        head = (
            f"{'name':<24}{'samples':>8}{'features':>10}{'classes':>9}  {'as in the paper':<34}home"
        )
        lines = [head]
        for one in self.entries:
            shape = " x ".join(map(str, one.paper_shape[:2]))
            same = "yes" if one.matches_paper else f"no: {shape}, {one.paper_shape[2]} classes"
            if one.home.target_as_feature:
                same = "yes, with the leaked column"
            lines.append(
                f"{one.name:<24}{one.n_samples:>8}{one.n_features:>10}{one.n_classes:>9}  "
                f"{same:<34}{one.home}"
            )
        lines.append("")
        for one in self.entries:
            if one.note:
                lines += textwrap.wrap(f"{one.name}: {one.note}", WIDTH, subsequent_indent="    ")
        return "\n".join(lines)

    __repr__ = __str__


def describe() -> Description:
    """All datasets, their shapes and homes, and how they differ from the paper's table.

    Returns
    -------
    Description
        Prints as a table; its `entries` hold the same for programs.

    Examples
    --------
    >>> from isthmus.datasets import describe
    >>> print(describe())
    name                     samples  features  classes  as in the paper ...
    boston_housing               506        14       46  yes, with the leaked column ...
    """
    return Description(tuple(entry(name) for name in names()))
