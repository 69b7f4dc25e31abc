"""`isthmus certify DATA`: find the rows that an associative memory stores."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from isthmus.cli import options
from isthmus.errors import InvalidInputError
from isthmus.progress import progress
from isthmus.tables.files import Table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from isthmus.capacity import Certificate

WRITTEN = (
    "separation guaranteed_radius error_bound noise noise_norm retrieval_error stored decided basin"
)
# The inverse squares of smaller bandwidths overflow.
SMALLEST = 1e-154


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    _check(arguments)
    from isthmus import figures
    from isthmus.capacity import phases
    from isthmus.scaling import Scaling

    table = options.load_table(arguments)
    X = Scaling.of(table.X, arguments.standardise).into(table.X)
    found: Any = phases(X, seed=arguments.seed) if arguments.phases else _certificate(X, arguments)
    if arguments.plot is not None:
        shown = (found,) if arguments.phases else (found, X, table.columns)
        draw = figures.phase_plot if arguments.phases else figures.certificate_plot
        figures.save(draw(*shown), arguments.plot)
    summary: dict[str, Any] = {"columns": [*table.columns], "left_out": [*table.left_out]}
    summary |= {"standardised": arguments.standardise}
    if arguments.phases:
        summary |= found.to_dict()
        return options.finish(arguments, found, summary, table.notes, plot=arguments.plot)
    twins = int(table.frame.duplicated(list(table.columns), keep=False).sum())
    chosen = {"sigma_chosen": arguments.choose, "rows_with_a_twin": twins}
    units = "the columns' own units (not standardised)"
    if arguments.standardise:
        units = "standard deviations of the columns"
    text = f"{found}\n\nsigma, distances and radii are in {units}."
    if arguments.choose:
        text += "\nsigma was chosen automatically: the largest value that stores enough rows."
    rows, files = _rows(found, table, arguments.noise), {"plot": arguments.plot}
    summary = {"rows": len(X), **summary, **chosen, **found.summary}
    return options.finish(arguments, text, summary, table.notes, rows, table, **files)


def _rows(found: Certificate, table: Table, noise: bool) -> Any:
    frame = found.to_frame()
    if noise:
        frame["noise_norm"] = frame["noise"] * table.X.shape[1] ** 0.5
    written = [name for name in WRITTEN.split() if name in frame]
    frame = frame[written].replace([float("inf")], float("nan"))
    name = f"{table.id_name}_given" if table.id_name in frame else table.id_name
    frame.insert(0, name, table.ids)
    return frame


def _check(arguments: argparse.Namespace) -> None:
    options.check_outputs(arguments, arguments.data, plot=arguments.plot)
    options.require_suffix("--plot", arguments.plot, ".png")
    if arguments.phases:
        options.refuse(arguments, "sigma beta stored delta output noise", "--phases is given.")
        if arguments.model != "kde":
            raise InvalidInputError("--phases is for --model kde.")
    arguments.choose = arguments.beta is None and arguments.sigma in (None, "auto")
    if arguments.model == "hopfield" and arguments.choose:
        raise InvalidInputError("--model hopfield needs --beta, its inverse temperature.")
    if arguments.model == "hopfield" and arguments.beta is None and arguments.sigma < SMALLEST:
        raise InvalidInputError(f"--sigma {arguments.sigma:g} is too small: beta overflows.")
    if not arguments.choose:
        options.refuse(arguments, "stored", "it is for --sigma auto.")
    if not arguments.noise:
        options.refuse(arguments, "delta", "it is for --noise.")


def _certificate(X: NDArray[np.float64], arguments: argparse.Namespace) -> Certificate:
    from isthmus import ModernHopfield
    from isthmus.capacity import certify, choose_sigma

    with progress("certify", 2, show=arguments.progress) as report:
        sigma = arguments.sigma if arguments.beta is None else arguments.beta**-0.5
        if arguments.choose:
            report(0, "choosing sigma")
            # A single row is stored at every bandwidth.
            sigma = 1.0 if len(X) == 1 else choose_sigma(X, arguments.stored).sigma
        report(1, f"rows at sigma {sigma:.4g}")
        rest = {} if arguments.delta is None else {"delta": arguments.delta}
        rest |= {"iterate": arguments.iterate, "noise": arguments.noise}
        if arguments.model == "kde":
            return certify(X, sigma, **rest)
        return certify(ModernHopfield(X, arguments.beta or sigma**-2), **rest)
