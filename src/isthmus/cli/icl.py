"""`isthmus icl train|eval|sample|plot`: in-context energies from the command line."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.cli.delimited import STDIN
from isthmus.cli.files import path, writable_directory, writable_file
from isthmus.cli.options import (
    Parser,
    add_output,
    add_quiet,
    add_seed,
    counts,
    epilog,
    names,
    positive_number,
    put,
    tell,
    warn,
    whole_number,
)
from isthmus.cli.outputs import output_file, write_rows
from isthmus.cli.tables import Table, add_drop, add_id, read_table
from isthmus.errors import InvalidInputError

if TYPE_CHECKING:
    from isthmus.incontext import ICLEBM, TrainingSettings
    from isthmus.incontext.priors import Prior

__all__ = ["run"]

SHIPPED = "mixtures-2d"
CONTEXTS = (0, 1, 2, 4, 8, 16, 32)
DRAWN_CONTEXTS = (0, 2, 8, 32)
# A run stopped halfway loses at most so many updates, or a hundredth of a short run.
UPDATES_BETWEEN_CHECKPOINTS = 100
UPDATES_BETWEEN_EVALUATIONS = 500
EXAMPLES = {
    "train": "isthmus icl train --preset tiny --out runs/tiny",
    "eval": "isthmus icl eval --prior compact --tasks 20 --contexts 0,2,8,32",
    "sample": "isthmus icl sample --context points.csv -n 1000 -o drawn.csv\n"
    "isthmus icl sample -n 10",
    "plot": "isthmus icl plot --context points.csv -o landscape.png",
}
DESCRIPTION = """
In-context energies: a transformer that makes an energy of any dataset it is shown, with no
parameter changed. A model ships with isthmus, for points of a plane.
"""
DETAILS = {
    "train": """
The preset says how: default (about an hour), paper (the authors' sizes and objective) or
tiny (under a minute). Loss and held-out likelihood are told on stderr.
""",
    "eval": """
Datasets are drawn from a prior, and the model is judged on points that it has not seen,
beside the true density, Bayes' rule under the prior, kernel density estimates and EM.
""",
    "sample": """
Chains begin in the right proportions and so need few steps. Without a context, the draws
are of what the model expects before it has seen anything.
""",
    "plot": """
A row for each dataset and a column for each size of the context; dark is low energy. The
datasets are drawn from a prior, or yours is shown a part at a time.
""",
}
FILES = {
    "train": """
DIR/model                       weights and settings, for --model
DIR/checkpoint.pt               where the same command goes on
DIR/metrics.csv, metrics.jsonl  loss and held-out likelihood
""",
    "eval": "-o  a table as text; everything, task by task, if it ends in .json",
    "sample": "-o  a row for each draw, in the columns of DATA",
    "plot": "-o  a picture, .png",
}


def run(argv: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    arguments = _parser().parse_args(argv)
    code: int = arguments.action(arguments)
    return code


def _train(arguments: argparse.Namespace) -> int:
    from isthmus.incontext import train

    settings, init = _settings(arguments)
    out = writable_directory(arguments.out)
    if not arguments.quiet:
        _announce(out, settings, init)
    try:
        train(
            settings,
            out,
            init=init,
            devices=arguments.devices,
            evaluate_every=max(1, min(UPDATES_BETWEEN_EVALUATIONS, settings.updates // 3)),
            checkpoint_every=max(1, min(UPDATES_BETWEEN_CHECKPOINTS, settings.updates // 100)),
            progress=False,
            report=None if arguments.quiet else _Lines(settings.updates, sys.stderr.isatty()),
        )
    except KeyboardInterrupt:
        before = "\n" if sys.stderr.isatty() else ""
        print(f"{before}isthmus: interrupted; the same command goes on in {out}", file=sys.stderr)
        return 130
    print(out / "model")
    return 0


def _eval(arguments: argparse.Namespace) -> int:
    from isthmus.incontext.evaluation import evaluate

    target = _target(arguments)
    if target is not None:
        writable_file(target)
    evaluation = evaluate(
        _model(arguments.model),
        _prior(arguments.prior),
        contexts=arguments.contexts,
        tasks=arguments.tasks,
        points=arguments.points,
        references=arguments.references,
        seed=arguments.seed,
        progress=False if arguments.quiet else None,
    )
    if arguments.json or (target and target.suffix == ".json"):
        text = evaluation.to_json()
    else:
        text = f"{evaluation}\n"
    put(text, target)
    return 0


def _sample(arguments: argparse.Namespace) -> int:
    import numpy as np

    from isthmus.dynamics.samplers import MALA, Langevin
    from isthmus.incontext.sampling import draw

    target = _target(arguments)
    if target is not None:
        output_file(target, arguments.context)
    model = _model(arguments.model)
    points, columns = np.empty((0, model.dim)), [f"x{axis + 1}" for axis in range(model.dim)]
    if arguments.context is not None:
        table = _context(arguments, model)
        points, columns = table.X, list(table.columns)
    kind = MALA if arguments.sampler == "mala" else Langevin
    drawn = draw(
        model.condition(points),
        arguments.number,
        kind(step_size=arguments.step_size),
        seed=arguments.seed,
        steps=arguments.steps,
        progress=False if arguments.quiet else None,
    )
    # As text and back, so that single precision is written in as many digits as it has.
    numbers = drawn.numpy().astype(str).astype(np.float64)
    write_rows(target, dict(zip(columns, numbers.T, strict=True)))
    if target is not None:
        print(target)
    return 0


def _plot(arguments: argparse.Namespace) -> int:
    import torch

    from isthmus.figures import context_landscapes, save

    target = writable_file(arguments.output)
    if target.suffix != ".png":
        raise InvalidInputError(f"-o {target} must end in .png, which is what plot writes.")
    model = _model(arguments.model)
    sizes = arguments.contexts
    if arguments.context is None:
        generator = torch.Generator().manual_seed(arguments.seed)
        tasks = _prior(arguments.prior).draw(arguments.tasks, generator)
        figure = context_landscapes(model, tasks, sizes, seed=arguments.seed + 1)
    else:
        points = _context(arguments, model).X
        some = [size for size in sizes if size < len(points)]
        figure = context_landscapes(model, points[None], [*some, len(points)])
    print(save(figure, target))
    return 0


def _settings(arguments: argparse.Namespace) -> tuple[TrainingSettings, ICLEBM | None]:
    """The preset with what the command line says otherwise, and the model to begin with."""
    from isthmus.incontext import ICLEBM, preset

    settings = replace(preset(arguments.preset), seed=arguments.seed)
    if arguments.updates is not None:
        settings = replace(settings, updates=arguments.updates)
    init = None if arguments.init is None else _model(arguments.init)
    if init is not None:
        settings = replace(settings, model=init.config)
    if arguments.prior is not None:
        settings = settings.on_prior(_prior(arguments.prior))
    if init is not None and init.config != settings.model:  # the same weights in another box
        weights = init.state_dict()
        init = ICLEBM(settings.model)
        init.load_state_dict(weights)
    if (settings.batch // settings.pass_size) % arguments.devices:
        settings = replace(settings, micro_batch=settings.batch // arguments.devices or 1)
    return settings, init


def _announce(out: Path, settings: TrainingSettings, init: ICLEBM | None) -> None:
    from isthmus.incontext.training import find_checkpoint

    checkpoint = find_checkpoint(out, settings, init)
    if checkpoint is None:
        start = f"starting; {settings.updates} updates into {out}"
    elif checkpoint.updates == settings.updates:
        start = f"all {settings.updates} updates in {out} are done already"
    else:
        start = f"going on after update {checkpoint.updates} of {settings.updates} in {out}"
    print(start, file=sys.stderr, flush=True)


@dataclass(frozen=True)
class _Lines:
    """Shows metrics: a line for each held-out likelihood, and a terminal the loss in between."""

    updates: int
    terminal: bool

    def __call__(self, row: dict[str, float]) -> None:
        """Show one row."""
        nll = row.get("held_out_nll")
        line = f"update {row['update']} of {self.updates}  loss {row['loss']:.3f}"
        before = "\r\x1b[K" if self.terminal else ""
        if nll is not None:
            seconds = f"{row['cpu_seconds']:.0f} s"
            line = f"{line}  held-out NLL {nll:.3f} nats  {seconds}"
            print(f"{before}{line}", file=sys.stderr, flush=True)
        elif self.terminal:
            print(f"{before}{line}", end="", file=sys.stderr, flush=True)


def _model(name: str) -> ICLEBM:
    """A model that ships with isthmus, or one in a folder, or that of a training run's folder."""
    from isthmus.incontext import ICLEBM, pretrained

    folder = Path(name)
    if folder.is_dir() or len(folder.parts) > 1:
        inner = folder / "model"
        return ICLEBM.from_pretrained(inner if inner.is_dir() else folder).eval()
    return pretrained(name)


def _prior(name: str) -> Prior:
    from isthmus.incontext.priors import prior

    return prior(name)


def _target(arguments: argparse.Namespace) -> Path | None:
    """The file of ``-o``; None is stdout."""
    return None if arguments.output == STDIN else arguments.output


def _context(arguments: argparse.Namespace, model: ICLEBM) -> Table:
    """Points that the model can read; those outside its box are worth a word."""
    table = read_table(arguments.context, id=arguments.id, drop=arguments.drop)
    if table.X.shape[1] != model.dim:
        columns = f"{table.X.shape[1]} column{'s' if table.X.shape[1] > 1 else ''} of numbers"
        raise InvalidInputError(
            f"{arguments.context} has {columns}, but the model reads {model.dim}; --drop leaves "
            "columns out."
        )
    tell(table.notes, arguments.quiet)
    box = model.config.box
    if box is not None and not arguments.quiet:
        outside = int((abs(table.X) > box).any(1).sum())
        if outside:
            warn(
                f"{outside} of {len(table)} points lie outside the model's box, "
                f"{box:g} to either side of 0. Shift and scale the data first."
            )
    return table


def _parser() -> Parser:
    parser = Parser(
        prog="isthmus icl",
        description=DESCRIPTION.strip(),
        epilog=epilog("\n".join(EXAMPLES.values())),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(metavar="train|eval|sample|plot", required=True)

    def command(
        name: str, action: Callable[[argparse.Namespace], int], description: str
    ) -> argparse.ArgumentParser:
        one = commands.add_parser(
            name,
            help=description,
            description=f"{description[0].upper()}{description[1:]}.\n\n{DETAILS[name].strip()}",
            epilog=epilog(EXAMPLES[name], FILES[name]),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        one.set_defaults(action=action)
        add_seed(one)
        add_quiet(one)
        return one

    train = command("train", _train, "train a model; a run that was stopped goes on")
    train.add_argument("--preset", default="default", metavar="NAME", help="default|paper|tiny")
    train.add_argument("--out", type=path, required=True, metavar="DIR", help="of the run")
    train.add_argument("--prior", metavar="NAME", help="of the datasets; default: the preset's")
    train.add_argument("--updates", type=whole_number(1), metavar="N", help="default: the preset's")
    train.add_argument("--devices", type=whole_number(1), default=1, metavar="N", help="processes")
    train.add_argument("--init", metavar="MODEL", help="fine-tune this one: a name or a folder")

    judge = command("eval", _eval, "negative log-likelihood on fresh tasks, beside references")
    _add_model(judge)
    judge.add_argument("--prior", default="compact", metavar="NAME", help="default: %(default)s")
    judge.add_argument("--tasks", type=whole_number(1), default=40, metavar="N", help="default: 40")
    judge.add_argument(
        "--points",
        type=whole_number(1),
        default=64,
        metavar="N",
        help="held out, per task; default: 64",
    )
    judge.add_argument(
        "--contexts",
        type=counts,
        default=CONTEXTS,
        metavar="N,N,...",
        help="default: 0,1,2,...,32",
    )
    judge.add_argument(
        "--references", type=names, metavar="NAME,...", help="such as bayes,kde-best; default: all"
    )
    judge.add_argument("--json", action="store_true", help="everything, task by task, as JSON")
    add_output(judge, "FILE")

    sample = command("sample", _sample, "draw new points, like those of a dataset")
    _add_model(sample)
    sample.add_argument(
        "--context", type=path, metavar="DATA", help=f"{_DATA}; default: none, an empty context"
    )
    add_id(sample)
    add_drop(sample)
    sample.add_argument(
        "-n", dest="number", type=whole_number(1), default=1000, metavar="N", help="default: 1000"
    )
    sample.add_argument("--sampler", choices=("mala", "langevin"), default="mala")
    sample.add_argument(
        "--step-size", type=positive_number, default=0.05, metavar="X", help="default: 0.05"
    )
    sample.add_argument(
        "--steps",
        type=whole_number(1),
        default=100,
        metavar="N",
        help="of each chain; default: 100",
    )
    add_output(sample, "FILE", words=".csv, .tsv, .parquet or .json; default, and -: CSV on stdout")

    plot = command("plot", _plot, "draw energy landscapes that sharpen as the context grows")
    _add_model(plot)
    source = plot.add_mutually_exclusive_group()
    source.add_argument("--context", type=path, metavar="DATA", help=_DATA)
    source.add_argument("--prior", default="compact", metavar="NAME", help="default: %(default)s")
    add_id(plot)
    add_drop(plot)
    plot.add_argument(
        "--tasks", type=whole_number(1), default=3, metavar="N", help="rows, of a prior; default: 3"
    )
    plot.add_argument(
        "--contexts",
        type=counts,
        default=DRAWN_CONTEXTS,
        metavar="N,N,...",
        help="default: 0,2,8,32",
    )
    add_output(plot, "FILE.png", required=True)
    return parser


_DATA = "the dataset, a point a row: .csv, .tsv, .parquet, .npy or .npz"


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default=SHIPPED, metavar="MODEL", help="a name or a folder; default: %(default)s"
    )
