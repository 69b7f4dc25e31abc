"""Certificates of tables: the rows as patterns of a memory, and a summary that prints well."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus.capacity.certificate import Certificate, Iterate, certify
from isthmus.capacity.curve import choose_sigma
from isthmus.errors import InvalidInputError
from isthmus.memories.modern import ModernHopfield
from isthmus.printing import counted, definitions
from isthmus.progress import progress
from isthmus.scaling import Scaling, as_table
from isthmus.validation import as_choice, as_number

__all__ = ["TableCertificate", "certify_table"]

# Below this share of stored rows, the summary gives advice.
FEW = 0.5
# A column is worth a note if it varies this many times as much as another.
UNEVEN = 30.0


@dataclass(frozen=True, eq=False, repr=False)
class TableCertificate:
    """The certificate of each row of a table. ``print`` shows a summary.

    Attributes
    ----------
    certificate : Certificate
        Of the rows in `X`.
    X : ndarray (n, D)
        The rows, standardised if that was asked for.
    columns : tuple of str
    sigma_chosen : bool
        True if the bandwidth was chosen automatically.
    standardised : bool
    notes : tuple of str
        Remarks on the table, such as columns of very different scales.
    """

    certificate: Certificate
    X: NDArray[np.float64]
    columns: tuple[str, ...]
    sigma_chosen: bool
    standardised: bool
    notes: tuple[str, ...] = ()

    def to_columns(self) -> dict[str, NDArray[Any]]:
        """Return the results as columns (n,) by name; NaN where there is no bound."""
        found = self.certificate
        return {
            "separation": _finite(found.separation),
            "guaranteed_radius": _finite(found.guaranteed_radius),
            "error_bound": _finite(found.error_bound),
            "retrieval_error": found.retrieval_error,
            "stored": found.stored,
            "decided": found.decided,
            "basin": found.basin,
        }

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The contents of the printed summary as plain numbers and words, for JSON."""
        found = self.certificate
        proved = found.decided == "proved"
        basins = np.bincount(found.basin[found.basin >= 0])
        counts = np.unique(self.X, axis=0, return_counts=True)[1]
        return {
            "rows": len(self.X),
            "columns": list(self.columns),
            "model": found.kind,
            "standardised": self.standardised,
            "sigma": found.sigma,
            "beta": found.sigma**-2,
            "sigma_chosen": self.sigma_chosen,
            "stored": int(found.stored.sum()),
            "fraction_stored": found.fraction_stored,
            "proved": int(proved.sum()),
            "found_by_iterating": int((found.stored & ~proved).sum()),
            "open": int((found.decided == "open").sum()),
            "guaranteed_radius": _spread(found.guaranteed_radius[proved]),
            "largest_proved_error": float(found.error_bound[proved].max(initial=0))
            if proved.any()
            else None,
            "retrieval_error": _spread(found.retrieval_error),
            "basins": len(basins) or None,
            "largest_basin": int(basins.max()) if len(basins) else None,
            "rows_with_a_twin": int(counts[counts > 1].sum()),
        }

    def __str__(self) -> str:
        summary = self.summary
        opening = (
            f"{summary['stored']:,} of {counted(summary['rows'], 'row')} "
            f"{'is' if summary['rows'] == 1 else 'are'} stored ({summary['fraction_stored']:.1%})"
        )
        advice = _advice(summary)
        return "\n".join(
            [opening, "", *definitions(_facts(summary)), *(["", advice] if advice else [])]
        )

    __repr__ = __str__


def certify_table(
    X: Any,
    *,
    columns: Sequence[str] | None = None,
    model: str = "kde",
    sigma: float | None = None,
    beta: float | None = None,
    stored: float | None = None,
    standardise: bool = False,
    iterate: Iterate = "all",
    show_progress: bool | None = None,
) -> TableCertificate:
    """Certify the rows of a table as the patterns of an associative memory.

    Parameters
    ----------
    X : array or data frame (n, D)
        Without missing values.
    columns : sequence of str, optional
        Default: the names of a data frame, else x1, x2, ...
    model : {"kde", "hopfield"}
        A Gaussian KDE or a modern Hopfield network.
    sigma, beta : float, optional
        Bandwidth, or inverse temperature 1 / sigma^2; give one of them. Default for "kde": the
        largest bandwidth that stores the share `stored` of the rows.
    stored : float in (0, 1], optional
        Default: 95 % of the rows without an exact duplicate.
    standardise : bool
        Divide columns by their standard deviations first; radii are then in these units.
    iterate : {"all", "undecided", "none"}
        Rows to follow to their fixed points; see :func:`isthmus.capacity.certify`.
    show_progress : bool, optional
        Default: on a terminal, if it takes long.

    Examples
    --------
    >>> from isthmus.capacity import certify_table
    >>> found = certify_table([[0.0, 0.0], [6.0, 0.0], [0.0, 6.0]], sigma=1.0)
    >>> found.certificate.stored.tolist()
    [True, True, True]
    """
    rows, names = as_table(X, columns)
    model = as_choice(model, "model", ("kde", "hopfield"))
    if sigma is not None and beta is not None:
        raise InvalidInputError("sigma and beta mean the same, beta = 1 / sigma^2; give one.")
    chosen = sigma is None and beta is None
    if model == "hopfield" and chosen:
        raise InvalidInputError("A Hopfield network needs beta, its inverse temperature.")
    if stored is not None and not chosen:
        raise InvalidInputError("stored is for a bandwidth that is chosen automatically.")
    if beta is not None:
        sigma = as_number(beta, "beta", above=0) ** -0.5
    Z = Scaling.of(rows, standardise).into(rows)
    with progress("certify", 2, show=show_progress) as report:
        report(0, "choosing sigma")
        if sigma is None:
            # A single row is stored at every bandwidth.
            sigma = 1.0 if len(Z) == 1 else choose_sigma(Z, stored).sigma
        report(1, f"rows at sigma {sigma:.4g}")
        memory = ModernHopfield(Z, sigma**-2) if model == "hopfield" else Z
        found = certify(memory, sigma, iterate=iterate)
    notes = () if standardise else tuple(_uneven_columns(rows, names))
    return TableCertificate(found, Z, names, chosen, standardise, notes)


def _uneven_columns(rows: NDArray[np.float64], names: tuple[str, ...]) -> Iterator[str]:
    """Yield a note if one column nearly alone determines the distances between rows."""
    with np.errstate(over="ignore"):
        spreads = rows.std(0)
    usable = np.flatnonzero((spreads > 0) & np.isfinite(spreads))
    if len(usable) == 0:
        return
    most, least = (usable[pick(spreads[usable])] for pick in (np.argmax, np.argmin))
    ratio = spreads[most] / spreads[least]
    if ratio > UNEVEN:
        yield (
            f"column {names[most]!r} varies {ratio:.0f} times as much as {names[least]!r} and "
            "dominates the distances; standardise to give all columns the same weight "
            "(--standardise)."
        )


def _finite(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(np.isfinite(values), values, np.nan)


def _spread(values: NDArray[np.float64]) -> dict[str, float] | None:
    values = values[np.isfinite(values)]
    if not len(values):
        return None
    smallest, median, largest = np.quantile(values, [0, 0.5, 1])
    return {"smallest": float(smallest), "median": float(median), "largest": float(largest)}


def _facts(summary: dict[str, Any]) -> dict[str, str]:
    iterated = counted(summary["found_by_iterating"], "more row")
    facts = {
        "memory": _memory(summary),
        "proved": _proved(summary),
        "by iterating": f"{iterated}, for which the bound proves nothing",
    }
    if summary["open"]:
        facts["open"] = f"{counted(summary['open'], 'row')}, which were not iterated"
    if summary["retrieval_error"] and summary["rows"] > 1:
        error = summary["retrieval_error"]
        facts["retrieval error"] = (
            f"{error['median']:.3g} from a row to its fixed point (median; at most "
            f"{error['largest']:.3g})"
        )
    if summary["basins"]:
        largest = counted(summary["largest_basin"], "row")
        facts["basins"] = f"{summary['basins']:,}, the largest shared by {largest}"
    if summary["rows_with_a_twin"]:
        twins = counted(summary["rows_with_a_twin"], "row")
        facts["duplicates"] = f"{twins} with an exact duplicate cannot be distinguished"
    return facts


def _memory(summary: dict[str, Any]) -> str:
    columns = counted(len(summary["columns"]), "column")
    units = "standardised" if summary["standardised"] else "not standardised"
    if summary["model"] == "hopfield":
        return f"modern Hopfield network, beta {summary['beta']:.4g}; {columns}, {units}"
    how = ""
    if summary["sigma_chosen"]:
        how = " (chosen automatically: the largest value that keeps enough rows)"
        if summary["rows"] == 1:
            how = " (any value stores one row)"
    return f"Gaussian KDE, sigma {summary['sigma']:.4g}{how}; {columns}, {units}"


def _proved(summary: dict[str, Any]) -> str:
    words = counted(summary["proved"], "row")
    if summary["rows"] == 1:
        return f"{words}: every query ends there"
    radius = summary["guaranteed_radius"]
    if radius is None:
        return words
    return (
        f"{words}: a query may be off by {radius['median']:.3g} (median; {radius['smallest']:.3g} "
        f"to {radius['largest']:.3g}) and ends within {summary['largest_proved_error']:.3g} of it"
    )


def _advice(summary: dict[str, Any]) -> str:
    """Return the next step if few rows are stored."""
    if summary["fraction_stored"] >= FEW:
        return ""
    if summary["rows_with_a_twin"] > FEW * summary["rows"]:
        return "Few rows are stored because most have an exact duplicate; drop duplicates first."
    if summary["open"] > FEW * summary["rows"]:
        return "For most rows nothing is proved; iterate all rows to find out about them."
    if summary["model"] == "hopfield":
        return (
            "Few rows are stored: raise beta, or use a Gaussian KDE (model kde), which does not\n"
            "favour long rows over short ones."
        )
    if summary["sigma_chosen"]:
        return "Few rows are stored, as requested; ask for more to get a smaller sigma."
    return (
        f"Few rows are stored: at sigma {summary['sigma']:.4g} they merge. Use a smaller sigma; by "
        "default,\nthe largest one is chosen that stores 95 % of the rows."
    )
