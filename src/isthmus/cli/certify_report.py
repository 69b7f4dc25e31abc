"""What a certificate of a table is told as: numbers for machines, and lines for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.cli.outputs import counted
from isthmus.cli.tables import Table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from isthmus.capacity import Certificate

__all__ = ["in_words", "summarise"]

# Fewer than this share of the rows are "few".
FEW = 0.5


def summarise(
    table: Table,
    certificate: Certificate,
    sigma_chosen: bool,
    standardised: bool,
    output: Path | None,
    plot: Path | None,
) -> dict[str, Any]:
    """Everything that the report says, as plain numbers and words."""
    import numpy as np

    proved = certificate.decided == "proved"
    radii = certificate.guaranteed_radius[proved & np.isfinite(certificate.guaranteed_radius)]
    basins = np.bincount(certificate.basin[certificate.basin >= 0])
    counts = np.unique(table.X, axis=0, return_counts=True)[1]
    errors = certificate.retrieval_error[np.isfinite(certificate.retrieval_error)]
    summary: dict[str, Any] = {
        "rows": len(table),
        "columns": list(table.columns),
        "left_out": list(table.left_out),
        "model": certificate.kind,
        "standardised": standardised,
        "sigma": certificate.sigma,
        "beta": certificate.sigma**-2,
        "sigma_chosen": sigma_chosen,
        "stored": int(certificate.stored.sum()),
        "fraction_stored": certificate.fraction_stored,
        "proved": int(proved.sum()),
        "found_by_iterating": int((certificate.stored & ~proved).sum()),
        "open": int((certificate.decided == "open").sum()),
        "guaranteed_radius": _spread(radii),
        "largest_proved_error": float(certificate.error_bound[proved].max())
        if proved.any()
        else None,
        "retrieval_error": _spread(errors),
        "basins": len(basins) or None,
        "largest_basin": int(basins.max()) if len(basins) else None,
        "rows_with_a_twin": int(counts[counts > 1].sum()),
    }
    written = {"output": output, "plot": plot}
    return summary | {name: str(file) for name, file in written.items() if file is not None}


def _spread(values: NDArray[np.float64]) -> dict[str, float] | None:
    import numpy as np

    if not len(values):
        return None
    smallest, median, largest = np.quantile(values, [0, 0.5, 1])
    return {"smallest": float(smallest), "median": float(median), "largest": float(largest)}


def in_words(summary: dict[str, Any]) -> str:
    """The summary as a person reads it."""
    facts = {
        "memory": _memory(summary),
        "proved": _proved(summary),
        "by iterating": counted(summary["found_by_iterating"], "row")
        + " more, where the proof is silent",
    }
    if summary["open"]:
        facts["open"] = f"{counted(summary['open'], 'row')}, which were not iterated"
    if summary["retrieval_error"] and summary["rows"] > 1:
        error = summary["retrieval_error"]
        facts["a row itself"] = (
            f"ends {error['median']:.3g} from where it began (median; "
            f"{error['largest']:.3g} at most)"
        )
    if summary["basins"]:
        facts["basins"] = f"{summary['basins']:,}, the largest shared by " + counted(
            summary["largest_basin"], "row"
        )
    if summary["rows_with_a_twin"]:
        facts["duplicates"] = (
            f"{counted(summary['rows_with_a_twin'], 'row')} with an exact twin cannot be told apart"
        )
    facts |= {
        words: summary[name]
        for name, words in {"output": "rows written to", "plot": "figure written to"}.items()
        if name in summary
    }
    width = max(map(len, facts))
    lines = [
        f"{summary['stored']:,} of {counted(summary['rows'], 'row')} "
        f"{'is' if summary['rows'] == 1 else 'are'} stored ({summary['fraction_stored']:.1%})",
        "",
        *(f"{name:<{width}}  {words}" for name, words in facts.items()),
    ]
    advice = _advice(summary)
    return "\n".join([*lines, *(["", advice] if advice else [])]) + "\n"


def _memory(summary: dict[str, Any]) -> str:
    columns = counted(len(summary["columns"]), "column")
    units = "standardised" if summary["standardised"] else "in their own units"
    if summary["model"] == "hopfield":
        return f"modern Hopfield network, beta {summary['beta']:.4g}; {columns}, {units}"
    how = ""
    if summary["sigma_chosen"]:
        how = " (any will do)" if summary["rows"] == 1 else " (chosen: the largest that will do)"
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
    """What to do if few rows are stored."""
    if summary["fraction_stored"] >= FEW:
        return ""
    if summary["rows_with_a_twin"] > FEW * summary["rows"]:
        return "Few rows are stored since most have an exact twin; drop duplicates first."
    if summary["open"] > FEW * summary["rows"]:
        return "For most rows nothing is proved; leave out --iterate none to find out about them."
    if summary["model"] == "hopfield":
        return (
            "Few rows are stored: raise --beta, or try --model kde, which does not prefer long "
            "rows\nto short ones."
        )
    if summary["sigma_chosen"]:
        return "Few rows are stored, as --stored allowed; ask for more to get a smaller sigma."
    return (
        f"Few rows are stored: at sigma {summary['sigma']:.4g} they blur into one another. Take a "
        "smaller\n--sigma; `--sigma auto` finds the largest that stores 95 % of them."
    )
