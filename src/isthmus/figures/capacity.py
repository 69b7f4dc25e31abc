"""The figure of a certificate."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.collections import EllipseCollection
from matplotlib.figure import Figure

from isthmus.capacity import Certificate
from isthmus.capacity.certificate import KINDS
from isthmus.errors import ShapeError
from isthmus.figures.style import (
    CURVE,
    GREEN,
    MEMORY,
    MUTED,
    PAPER,
    heading,
    limits_of,
    new_figure,
    styled,
    to_array,
)

# Layout of a certificate, in inches: space above and below the axes, the width left of the legend,
# and the smallest and largest height of the axes.
HEADING, BESIDE_LEGEND, HEIGHTS = 0.95, 7.3, (1.6, 7.5)


@styled
def certificate_plot(certificate: Certificate, X: Any) -> Figure:
    """Draw patterns on a plane, coloured by their certificate, with their guaranteed balls.

    Parameters
    ----------
    certificate : Certificate
    X : array (N, 2)
        The patterns that it was made for.

    Examples
    --------
    >>> from isthmus.capacity import certify
    >>> from isthmus.figures import certificate_plot
    >>> X = [[0.0, 0.0], [6.0, 0.0], [6.1, 0.0]]
    >>> figure = certificate_plot(certify(X), X)
    """
    points = to_array(X)
    if points.shape != (len(certificate), 2):
        raise ShapeError(
            f"X must be the {len(certificate)} patterns of the certificate, in a plane, not "
            f"{points.shape}."
        )
    proved = certificate.decided == "proved"
    finite = proved & np.isfinite(certificate.guaranteed_radius)
    reach = np.where(finite, certificate.guaranteed_radius, 0.0)[:, None]
    lower, upper = limits_of(np.concatenate([points - reach, points + reach]), 0.04)
    wide, tall = upper - lower
    figure = new_figure(HEADING + float(np.clip(BESIDE_LEGEND * tall / wide, *HEIGHTS)))
    axes = figure.subplots()
    widths = 2 * reach[finite, 0]
    where: dict[str, Any] = {"offsets": points[finite], "transOffset": axes.transData}
    look: dict[str, Any] = {"facecolor": CURVE, "edgecolor": CURVE, "alpha": 0.16}
    axes.add_collection(
        EllipseCollection(widths, widths, np.zeros(len(widths)), units="xy", **where, **look)
    )
    groups = {
        "stored, proved": (proved, CURVE, "o"),
        "stored, by iterating": (certificate.stored & ~proved, GREEN, "s"),
        "not stored": (~certificate.stored & (certificate.decided == "iterated"), MEMORY, "X"),
        "open": (~certificate.stored & (certificate.decided == "open"), MUTED, "d"),
    }
    for name, (rows, colour, marker) in groups.items():
        if rows.any():
            label = f"{name}: {int(rows.sum())}"
            axes.plot(*points[rows].T, marker, color=colour, ms=6, mec=PAPER, mew=0.6, label=label)
    axes.set(xlim=(lower[0], upper[0]), ylim=(lower[1], upper[1]), aspect="equal")
    axes.set(xlabel="first coordinate", ylabel="second coordinate")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    name = KINDS[certificate.kind][0].upper() + KINDS[certificate.kind][1:]
    note = "Disc: every start in it reaches the pattern's own fixed point."
    heading(axes, f"{name}, sigma = {certificate.sigma:.3g}", note, characters=80, lines=1)
    return figure
