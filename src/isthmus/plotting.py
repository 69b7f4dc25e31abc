"""The method `plot` of estimators and results."""

from __future__ import annotations

from typing import Any


class Plottable:
    """Gives a class its picture: :func:`isthmus.plot` of it."""

    def plot(self, X: Any = None, *, axes: Any = None, **options: Any) -> Any:
        """Draw this on matplotlib axes, new ones by default, and return them: `isthmus.plot`."""
        from isthmus.figures.plots import plot

        return plot(self, X, axes=axes, **options)
