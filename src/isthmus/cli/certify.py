"""`isthmus certify DATA`: find the rows that an associative memory stores."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from isthmus.cli import options
from isthmus.errors import InvalidInputError
from isthmus.progress import progress
from isthmus.tables.files import Table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from isthmus.capacity import Certificate


BOUNDS = ["separation", "guaranteed_radius", "error_bound"]
OUTCOMES = ["retrieval_error", "stored", "decided", "basin"]
# A column is worth a note if it varies this many times as much as another.
UNEVEN = 30.0
# The inverse squares of smaller bandwidths overflow.
SMALLEST = 1e-154


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    _check(arguments)
    from isthmus.scaling import Scaling

    table = options.load_table(arguments)
    X = Scaling.of(table.X, arguments.standardise).into(table.X)
    if arguments.phases:
        return _phases(X, table, arguments)
    found = _certificate(X, arguments)
    if arguments.plot is not None:
        from isthmus.figures import certificate_plot, save

        save(certificate_plot(found, X, table.columns), arguments.plot)
    noise = ["noise", "noise_norm"] if arguments.noise else []
    frame = found.to_frame()
    if arguments.noise:
        frame["noise_norm"] = frame["noise"] * X.shape[1] ** 0.5
    frame = frame[BOUNDS + noise + OUTCOMES].replace([float("inf")], float("nan"))
    name = f"{table.id_name}_given" if table.id_name in frame else table.id_name
    frame.insert(0, name, table.ids)
    summary = {
        "rows": len(X),
        **_reading(table, arguments),
        "sigma_chosen": arguments.choose,
        "rows_with_a_twin": int(table.frame.duplicated(list(table.columns), keep=False).sum()),
        **found.summary,
    }
    units = "the columns' own units (not standardised)"
    if arguments.standardise:
        units = "standard deviations of the columns"
    text = f"{found}\n\nsigma, distances and radii are in {units}."
    if arguments.choose:
        text += "\nsigma was chosen automatically: the largest value that stores enough rows."
    notes = (*table.notes, *_uneven_columns(table, arguments))
    return options.finish(arguments, text, summary, notes, frame, table, plot=arguments.plot)


def _reading(table: Table, arguments: argparse.Namespace) -> dict[str, Any]:
    names = {"columns": list(table.columns), "left_out": list(table.left_out)}
    return {**names, "standardised": arguments.standardise}


def _phases(X: NDArray[np.float64], table: Table, arguments: argparse.Namespace) -> int:
    """Print and draw what the memory does at each bandwidth."""
    from isthmus.capacity import phases

    found = phases(X, seed=arguments.seed)
    if arguments.plot is not None:
        from isthmus.figures import phase_plot, save

        save(phase_plot(found), arguments.plot)
    notes = (*table.notes, *_uneven_columns(table, arguments))
    summary = {**_reading(table, arguments), **found.to_dict()}
    return options.finish(arguments, found, summary, notes, plot=arguments.plot)


def _check(arguments: argparse.Namespace) -> None:
    """Refuse arguments that cannot be used, before any work."""
    options.check_outputs(arguments, arguments.data, plot=arguments.plot)
    if arguments.plot is not None and arguments.plot.suffix.lower() != ".png":
        raise InvalidInputError(f"--plot {arguments.plot} must end in .png.")
    if arguments.phases:
        for option in ("sigma", "beta", "stored", "delta", "output", "noise"):
            if getattr(arguments, option) not in (None, False):
                raise InvalidInputError(f"--{option} cannot be used with --phases.")
        if arguments.model != "kde":
            raise InvalidInputError("--phases is for --model kde.")
    if arguments.sigma is not None and arguments.beta is not None:
        raise InvalidInputError("--sigma and --beta mean the same, beta = 1 / sigma^2; give one.")
    arguments.choose = arguments.beta is None and arguments.sigma in (None, "auto")
    if arguments.model == "hopfield" and arguments.choose:
        raise InvalidInputError("--model hopfield needs --beta, its inverse temperature.")
    if arguments.model == "hopfield" and arguments.beta is None and arguments.sigma < SMALLEST:
        raise InvalidInputError(f"--sigma {arguments.sigma:g} is too small: beta overflows.")
    if arguments.stored is not None and not arguments.choose:
        raise InvalidInputError("--stored is for --sigma auto.")
    if arguments.delta is not None and not arguments.noise:
        raise InvalidInputError("--delta is for --noise.")


def _certificate(X: NDArray[np.float64], arguments: argparse.Namespace) -> Certificate:
    from isthmus import ModernHopfield
    from isthmus.capacity import certify, choose_sigma

    with progress("certify", 2, show=False if arguments.quiet else None) as report:
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


def _uneven_columns(table: Table, arguments: argparse.Namespace) -> Iterator[str]:
    """Yield a note if one column nearly alone determines the distances between rows."""
    spreads = zip(table.X.std(0).tolist(), table.columns, strict=True)
    varying = sorted(one for one in spreads if one[0] > 0)
    if not varying or arguments.standardise:
        return
    (low, least), (high, most) = varying[0], varying[-1]
    if high > UNEVEN * low:
        yield (
            f"column {most!r} varies {high / low:.0f} times as much as {least!r} and dominates "
            "distances; --standardise gives all the same weight."
        )


parser = partial(options.make_parser, "certify", run)
