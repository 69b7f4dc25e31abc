"""`isthmus sample DATA`: draw new rows that resemble those of a table."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.cli import options
from isthmus.errors import InvalidInputError
from isthmus.tables.files import STDIN, FileFormat, Table, with_columns, write_table

if TYPE_CHECKING:
    import pandas as pd

    from isthmus.dynamics.diagnostics import Chains


MODEL = ".safetensors"
# Chains agree below this R-hat.
AGREED = 1.05
TRUTHS = {"false": False, "true": True, "0": False, "1": True}


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return its exit code."""
    options.check_outputs(arguments, arguments.data)
    is_model, chain = _is_model(arguments.data), arguments.sampler != "exact"
    if is_model:
        fitting = "energy sigma beta k no-standardise"
        options.refuse(arguments, fitting, "the model is fitted already.")
    fitted = chain or not arguments.standardise
    fitted |= any(one is not None for one in (arguments.sigma, arguments.beta, arguments.k))
    if not is_model and not fitted and arguments.energy in (None, "tables", "kernel"):
        return _draw_rows(arguments)
    if arguments.energy in ("tables", "kernel"):
        raise InvalidInputError(
            f"--energy {arguments.energy} has exact draws in standard units; leave out --sigma, "
            "--beta, -k, --sampler and --no-standardise."
        )
    options.refuse(arguments, "outside given no-check", "it is for --energy tables and kernel.")
    if arguments.energy not in ("elbo", "clam"):
        options.refuse(arguments, "k", "it is for --energy elbo and clam.")
    elif arguments.k is None:
        raise InvalidInputError(f"--energy {arguments.energy} needs the number of clusters, -k N.")
    from isthmus.cluster import TableModel

    table = None
    if is_model:
        model = TableModel.load(arguments.data)
    else:
        energy = arguments.energy or "kde"
        table = options.load_table(arguments, missing=energy not in ("kde", "hopfield"))
        settings = options.settings(arguments, "sigma beta standardise seed")
        settings |= {"method": energy, "n_clusters": arguments.k, "leave_out_constants": True}
        model = TableModel.fit(table.X, columns=table.columns, **settings)
    draws, chains = model.sample(
        arguments.number,
        burn_in=arguments.steps,
        show_progress=arguments.progress,
        **options.settings(arguments, "sampler step_size chains seed"),
    )
    summary: dict[str, Any] = {
        "draws": len(draws),
        "columns": list(draws),
        "constant": [name for _, name, _ in model.constants],
        "energy": type(model.energy).__name__,
        "memories": model.energy.n_memories,
        "sigma": float(model.energy.sigma),
        "sampler": arguments.sampler,
        "seed": arguments.seed,
    }
    notes = (*(() if table is None else table.notes), *model.notes)
    if chains is not None:
        summary["chains"], note = _diagnostics(chains)
        notes += (note,)
    options.print_notes(notes, arguments.quiet)
    _write(draws, summary, table, arguments)
    return 0


def _draw_rows(arguments: argparse.Namespace) -> int:
    """Draw from the in-context density of small tables, or by shaped kernels with categories."""
    from isthmus.tables.categories import with_categories

    options.refuse(arguments, "step-size steps chains", "it is for langevin, mala and hmc.")
    table = options.load_table(arguments, as_written=True, missing=True, numbers=False)
    frame, notes = with_categories(table)
    given = parse_given(arguments.given, frame, table)
    from isthmus.synthesis import draw_rows

    found = draw_rows(
        frame,
        arguments.number,
        model=arguments.energy or "auto",
        given=given,
        **options.settings(arguments, "privacy outside check seed"),
    )
    options.print_notes((*notes, *str(found).splitlines()), arguments.quiet)
    truths = {name: found.rows[name].astype("boolean") for name in table.truths}
    summary = {"columns": list(frame), "seed": arguments.seed} | found.summary
    _write(with_columns(found.rows, truths), summary, table, arguments)
    return 0


def parse_given(words: list[str], frame: pd.DataFrame, table: Table) -> dict[str, Any]:
    """Return what --given says: COLUMN=VALUE, or COLUMN=LOW..HIGH for a column of numbers."""
    given, truths = dict[str, Any](), table.truths
    for word in words:
        name, equals, text = word.partition("=")
        if not equals:
            raise InvalidInputError(f"--given {word}: write COLUMN=VALUE or COLUMN=LOW..HIGH.")
        if name not in frame:
            names = ", ".join(map(str, frame))
            raise InvalidInputError(f"--given {word}: {name!r} is not one of {names}.")
        is_number = frame[name].dtype.kind in "iuf"
        if name in truths:
            if text.lower() not in TRUTHS:
                raise InvalidInputError(f"--given {word}: write true or false.")
            is_true = TRUTHS[text.lower()]
            given[name] = float(is_true) if is_number else truths[name][is_true]
        elif not is_number:
            values = {str(value): value for value in frame[name].dropna().unique()}
            alike = [value for value in values if value.lower() == text.lower()]
            given[name] = values.get(text, values[alike[0]] if len(alike) == 1 else text)
        else:
            try:
                ends = [_as_number(end, name, table) for end in text.split("..")]
            except ValueError:
                ends = []
            if not 1 <= len(ends) <= 2 or not math.isfinite(sum(ends)) or ends[0] > ends[-1]:
                raise InvalidInputError(f"--given {word}: write a number, or a range LOW..HIGH.")
            given[name] = ends[0] if len(ends) == 1 else tuple(ends)
    return given


def _as_number(text: str, name: str, table: Table) -> float:
    """Return a number that is written as in its column, or without the sign or unit there."""
    from isthmus.tables.columns import NUMBER, parse_cells

    cells = (table.frame if table.cells is None else table.cells)[name]
    form = table.format.decimal, table.style(name).grouped
    values, kinds = parse_cells([*cells, text], *form)
    if kinds[-1] == NUMBER:
        return float(values[-1])
    return float(text.replace(table.format.decimal, "."))


def _write(
    rows: pd.DataFrame, summary: dict[str, Any], like: Table | None, arguments: argparse.Namespace
) -> None:
    """Write draws to a file or to stdout, and print the summary as JSON if it is asked for."""
    output = None if arguments.output == STDIN else arguments.output
    if output is not None or not arguments.json:
        shown = rows
        if like is not None:
            # Stdout gets text, unless the table is JSON.
            is_text = FileFormat.of(output).kind == "text" if output else like.format.kind != "json"
            shown = like.signed(rows) if is_text else rows
        write_table(shown, output, like=like)
    if arguments.json:
        records = rows.astype(object).where(rows.notna(), None).to_dict("records")
        written = {"rows": records} if output is None else {"output": str(output)}
        print(json.dumps(summary | written, indent=2, allow_nan=False, default=str))
    elif output is not None:
        print(output)


def _is_model(data: Path) -> bool:
    """Return True for a saved model, by its name or by its first bytes."""
    if data.suffix == MODEL or not data.is_file():
        return data.suffix == MODEL
    with data.open("rb") as file:
        start = file.read(9)
    # The length of a header of JSON, in 8 bytes, and the header.
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") < data.stat().st_size


def _diagnostics(chains: Chains) -> tuple[dict[str, Any], str]:
    """Return the diagnostics of chains, None where a chain never moved, and a note on them."""
    r_hat, ess = float(chains.r_hat.max()), float(chains.ess.min())
    acceptance = float(chains.acceptance.mean())
    found = {
        "count": chains.draws.shape[1],
        "draws_of_each": chains.draws.shape[0],
        "acceptance": acceptance,
        "largest_r_hat": r_hat if math.isfinite(r_hat) else None,
        "smallest_effective_sample_size": ess if math.isfinite(ess) else None,
    }
    text = f"{found['count']} chains accept {acceptance:.0%} of their steps"
    if not math.isfinite(r_hat):
        return found, f"{text} and never moved; use a smaller --step-size."
    outcome = "agree" if r_hat <= AGREED else "do not agree: use more --steps, or exact draws"
    return found, f"{text}; R-hat is at most {r_hat:.3f}, so they {outcome}."
