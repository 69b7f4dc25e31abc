"""`isthmus sample DATA`: new rows that are like those of a table."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.cli.delimited import STDIN
from isthmus.cli.models import Scaling, load_model
from isthmus.cli.options import (
    Parser,
    add_json,
    add_output,
    add_quiet,
    add_seed,
    make_parser,
    positive_number,
    tell,
    warn,
    whole_number,
)
from isthmus.cli.outputs import output_file, write_rows
from isthmus.cli.tables import Table, add_table_options, load_table
from isthmus.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from isthmus.dynamics.chains import Chains
    from isthmus.memories.base import GaussianMemory

__all__ = ["run"]

DESCRIPTION = """
Make an energy of the rows of a table, which is a density, and draw new rows from it: with
the columns' names, in their own units. Columns are standardised first, so that each counts
alike; a column that never changes stays as it is, and whole numbers are not rounded.

The default is a Gaussian KDE: each draw is a row of DATA with noise added, of the bandwidth
at which every row is most likely given all the others. `crp` draws from the clusters that
ClAM+CRP finds instead, and so repeats no row. A model that `isthmus cluster --save` kept
takes the place of DATA.

Draws are exact and independent; `--sampler` takes Langevin dynamics, MALA or HMC instead,
and says on stderr whether its chains agree (R-hat near 1).
"""
FILES = """
DATA  a table, or a model saved by `isthmus cluster DATA --save FILE.safetensors`
-o    the draws, a row each; default, and -: CSV on stdout
"""
EXAMPLES = """
isthmus sample iris.csv -n 100 > more.csv
isthmus sample gaps.parquet --energy crp -n 1000 --seed 7 -o drawn.parquet
isthmus sample groups.safetensors -n 10
isthmus sample iris.csv -n 500 --sampler mala --json -o drawn.csv
"""
MODEL = ".safetensors"
# The energies whose memories are the rows; the others are names of clustering methods.
ROWS = ("kde", "hopfield")
CLUSTERS = ("crp", "crp-elbo", "elbo", "clam")
GIVEN = ("elbo", "clam")
# Of the bandwidth: what threads and machines do to the digits after must not reach the draws.
SIGNIFICANT_DIGITS = 4
# For R-hat, each chain makes at least so many draws.
FEWEST_DRAWS = 25
# Chains agree below this.
AGREED = 1.05


@dataclass(frozen=True)
class Source:
    """An energy, and the way from its units to those of the table.

    Attributes
    ----------
    energy : GaussianMemory
    scaling : Scaling
        Of the columns that vary.
    columns : tuple of str
        All of them.
    constants : dict
        The value of each column that does not vary.
    notes : tuple of str
        On how the table was read, if they were not told yet.
    """

    energy: GaussianMemory
    scaling: Scaling
    columns: tuple[str, ...]
    constants: dict[str, float]
    notes: tuple[str, ...] = ()

    def in_units(self, draws: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Draws (n, D) of the energy as columns of the table."""
        import numpy as np

        varying = iter(self.scaling.back(draws).T)
        return {
            name: np.full(len(draws), self.constants[name])
            if name in self.constants
            else next(varying)
            for name in self.columns
        }


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().parse_args(argv)
    _check(arguments)
    source = _source(arguments)
    summary: dict[str, Any] = {
        "draws": arguments.number,
        "columns": list(source.columns),
        "constant": list(source.constants),
        "energy": type(source.energy).__name__,
        "memories": source.energy.n_memories,
        "sigma": float(source.energy.sigma),
        "sampler": arguments.sampler,
        "seed": arguments.seed,
    }
    if arguments.sampler == "exact":
        draws = source.energy.sample(arguments.number, seed=arguments.seed)
        tell(source.notes, arguments.quiet)
    else:
        chains = _chains(source.energy, arguments)
        tell(source.notes, arguments.quiet)
        summary["chains"] = diagnosed(chains)
        if not arguments.quiet:
            _tell(summary["chains"])
        # Spread over all that was drawn, not the first of it.
        kept = [
            place * chains.draws.shape[:2].numel() // arguments.number
            for place in range(arguments.number)
        ]
        draws = chains.flatten()[kept]
    columns = source.in_units(draws.double().numpy())
    _write(columns, summary, arguments)
    return 0


def _write(
    columns: dict[str, NDArray[np.float64]], summary: dict[str, Any], arguments: argparse.Namespace
) -> None:
    if arguments.output is not None:
        write_rows(arguments.output, columns)
    if arguments.json:
        if arguments.output is not None:
            summary["output"] = str(arguments.output)
        else:
            rows = zip(*(values.tolist() for values in columns.values()), strict=True)
            summary["rows"] = [dict(zip(columns, row, strict=True)) for row in rows]
        print(json.dumps(summary, indent=2, allow_nan=False))
    elif arguments.output is not None:
        print(arguments.output)
    else:
        write_rows(None, columns)


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what cannot be done before any work is."""
    if arguments.output == STDIN:
        if arguments.json:
            raise InvalidInputError("-o - and --json would both write to stdout; choose one.")
        arguments.output = None
    if arguments.output is not None:
        output_file(arguments.output, arguments.data)
    if arguments.sampler == "exact":
        for name in ("step_size", "steps", "chains"):
            if getattr(arguments, name) is not None:
                option = name.replace("_", "-")
                raise InvalidInputError(f"--{option} is for --sampler langevin, mala or hmc.")
    settings = {"sigma": ROWS, "beta": ROWS, "k": GIVEN}
    for name, energies in settings.items():
        if getattr(arguments, name) is None:
            continue
        dashes = "-" if len(name) == 1 else "--"
        if _is_model(arguments):
            raise InvalidInputError(f"{dashes}{name} is part of the model already; leave it out.")
        if (arguments.energy or "kde") not in energies:
            raise InvalidInputError(f"{dashes}{name} is for --energy {' and '.join(energies)}.")
    if _is_model(arguments):
        if arguments.energy is not None or not arguments.standardise:
            raise InvalidInputError("The model is fitted already; leave out how to fit one.")
        return
    if arguments.sigma is not None and arguments.beta is not None:
        raise InvalidInputError("--sigma and --beta say the same, beta = 1 / sigma^2; give one.")
    if arguments.energy in GIVEN and arguments.k is None:
        raise InvalidInputError(f"--energy {arguments.energy} needs the number of clusters: -k N.")


def _is_model(arguments: argparse.Namespace) -> bool:
    """Whether DATA is a saved model, by its name or by how such files begin."""
    data: Path = arguments.data
    if data.suffix == MODEL or not data.is_file():
        return data.suffix == MODEL
    with data.open("rb") as file:
        start = file.read(9)
    # The length of a header of JSON, in 8 bytes, and the header.
    return start[8:] == b"{" and int.from_bytes(start[:8], "little") < data.stat().st_size


def _source(arguments: argparse.Namespace) -> Source:
    """The energy to draw from: of a saved model, of the rows, or of their clusters."""
    if _is_model(arguments):
        model = load_model(arguments.data)
        return Source(model.estimator.energy_, model.scaling, model.columns, {})
    kind = arguments.energy or "kde"
    table = load_table(arguments, missing=kind not in ROWS)
    varying, constants = _split(table)
    if kind in ROWS:
        scaling = Scaling.of(varying.X, arguments.standardise)
        energy = _of_rows(scaling.into(varying.X), kind, arguments)
        return Source(energy, scaling, table.columns, constants, table.notes)
    from isthmus.cli.cluster import fit

    model = fit(
        varying,
        kind,
        clusters=arguments.k,
        standardise=arguments.standardise,
        seed=arguments.seed,
        quiet=arguments.quiet,
    )
    return Source(model.estimator.energy_, model.scaling, table.columns, constants)


def _split(table: Table) -> tuple[Table, dict[str, float]]:
    """The table of the columns that vary, and the value of each of the others."""
    import numpy as np

    lowest, highest = np.nanmin(table.X, axis=0), np.nanmax(table.X, axis=0)
    varies = lowest < highest
    if not varies.any():
        varies[:] = True  # a table of one row, or of one row many times
    constants = {
        name: float(value)
        for name, value, moves in zip(table.columns, lowest, varies, strict=True)
        if not moves
    }
    names = tuple(name for name in table.columns if name not in constants)
    return replace(table, X=table.X[:, varies], columns=names), constants


def _of_rows(X: NDArray[np.float64], kind: str, arguments: argparse.Namespace) -> GaussianMemory:
    """A memory that holds every row."""
    from isthmus import GaussianKDE, ModernHopfield

    sigma = arguments.sigma
    if arguments.beta is not None:
        sigma = 1 / math.sqrt(arguments.beta)
    if sigma is None:
        from isthmus.cli.bandwidth import leave_one_out_sigma

        sigma = float(f"{leave_one_out_sigma(X, arguments.seed):.{SIGNIFICANT_DIGITS}g}")
    return GaussianKDE(X, sigma) if kind == "kde" else ModernHopfield(X, sigma**-2)


def _chains(energy: GaussianMemory, arguments: argparse.Namespace) -> Chains:
    """Chains that make as many draws as are asked for, and enough to judge them."""
    from isthmus import HMC, MALA, Langevin, sample_chains

    variance, dim = float(energy.variance), energy.dim
    # In units of a memory's own width: Langevin's bias is a few hundredths of its variance; MALA
    # and HMC accept about as often as is best for them.
    steps = {
        "langevin": 0.05 * variance,
        "mala": variance / dim ** (1 / 3),
        "hmc": 0.6 * math.sqrt(variance) / dim**0.25,
    }
    step = arguments.step_size or steps[arguments.sampler]
    sampler: Langevin | MALA | HMC
    if arguments.sampler == "langevin":
        sampler = Langevin(step)
    else:
        sampler = MALA(step) if arguments.sampler == "mala" else HMC(step, n_leapfrog=7)
    chains = arguments.chains or 64
    draws = max(math.ceil(arguments.number / chains), FEWEST_DRAWS)
    return sample_chains(
        energy,
        draws,
        sampler,
        chains=chains,
        seed=arguments.seed,
        burn_in=500 if arguments.steps is None else arguments.steps,
        thin=100 if arguments.sampler == "langevin" else 10,  # its steps are that much smaller
        progress=False if arguments.quiet else None,
    )


def diagnosed(chains: Chains) -> dict[str, Any]:
    """How far to trust chains, in plain numbers; None where a chain never moved."""
    draws, count, _ = chains.draws.shape
    r_hat, ess = float(chains.r_hat.max()), float(chains.ess.min())
    return {
        "count": count,
        "draws_of_each": draws,
        "acceptance": float(chains.acceptance.mean()),
        "largest_r_hat": r_hat if math.isfinite(r_hat) else None,
        "smallest_effective_sample_size": ess if math.isfinite(ess) else None,
    }


def _tell(found: dict[str, Any]) -> None:
    """Say whether the chains agree."""
    r_hat = found["largest_r_hat"]
    words = f"{found['count']} chains accept {found['acceptance']:.0%} of their steps"
    if r_hat is None:
        warn(f"{words} and never moved; take a smaller --step-size.")
        return
    words += f"; R-hat is at most {r_hat:.3f}"
    if r_hat > AGREED:
        warn(
            f"{words}, so they do not agree: each stays near where it began. Take more --steps, "
            "or `--sampler exact`."
        )
    else:
        warn(f"{words}, so they agree.")


def _parser() -> Parser:
    parser = make_parser("sample", DESCRIPTION.strip(), EXAMPLES, FILES)
    add_table_options(parser)
    parser.add_argument(
        "-n", dest="number", type=whole_number(1), default=100, metavar="N", help="default: 100"
    )
    group = parser.add_argument_group("the energy")
    group.add_argument(
        "--energy",
        choices=(*ROWS, *CLUSTERS),
        help="kde and hopfield remember every row; the others are ways to cluster (see isthmus "
        "cluster), elbo and clam with -k; default: kde",
    )
    group.add_argument(
        "--sigma",
        type=positive_number,
        metavar="X",
        help="bandwidth, in standard deviations of the columns; default: by leave-one-out "
        "likelihood",
    )
    group.add_argument(
        "--beta", type=positive_number, metavar="X", help="the same as 1 / sigma^2, for hopfield"
    )
    group.add_argument("-k", type=whole_number(1), metavar="N", help="the number of clusters")
    group.add_argument(
        "--no-standardise",
        dest="standardise",
        action="store_false",
        help="columns compare as they are",
    )
    group = parser.add_argument_group("the sampler")
    group.add_argument(
        "--sampler",
        choices=("exact", "langevin", "mala", "hmc"),
        default="exact",
        help="default: exact",
    )
    group.add_argument(
        "--step-size", type=positive_number, metavar="X", help="default: fits the energy's width"
    )
    group.add_argument(
        "--steps", type=whole_number(0), metavar="N", help="before the first draw; default: 500"
    )
    group.add_argument(
        "--chains", type=whole_number(1), metavar="N", help="side by side; default: 64"
    )
    add_output(parser, "FILE", words=".csv, .tsv, .parquet or .json; default, and -: CSV on stdout")
    add_json(parser)
    add_seed(parser)
    add_quiet(parser)
    return parser
