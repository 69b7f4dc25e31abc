"""`isthmus icl train|eval|sample|plot`: in-context energies from the command line."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from isthmus.cli import options
from isthmus.errors import InvalidInputError
from isthmus.io.files import check_writable, make_directory
from isthmus.printing import counted
from isthmus.tables.files import STDIN, Table, check_output, read_table, write_table
from isthmus.validation import as_choice

if TYPE_CHECKING:
    from isthmus.incontext import ICLEBM, ICLTables

# A stopped run loses at most this many updates, or a hundredth of a short run.
UPDATES_BETWEEN_CHECKPOINTS = 100
UPDATES_BETWEEN_EVALUATIONS = 500
# Both stages of the training of the model of tables.
TABLE_PRESETS = ("tables-numbers", "tables")


def run_train(arguments: argparse.Namespace) -> int:
    """Train a model."""
    from isthmus.incontext import train, train_tables

    settings, init = _settings(arguments)
    out = make_directory(arguments.out, "--out")
    run: Any = train_tables if arguments.preset in TABLE_PRESETS else train
    try:
        run(
            settings,
            out,
            devices=arguments.devices,
            init=init,
            checkpoint_every=max(1, min(UPDATES_BETWEEN_CHECKPOINTS, settings.updates // 100)),
            evaluate_every=max(1, min(UPDATES_BETWEEN_EVALUATIONS, settings.updates // 3)),
            progress=arguments.progress,
            report=None if arguments.quiet else partial(_print_likelihood, settings.updates),
        )
    except KeyboardInterrupt:
        options.warn(f"interrupted; the same command continues in {out}")
        return 130
    print(out / "model")
    return 0


def _settings(arguments: argparse.Namespace) -> tuple[Any, Any]:
    """Return the preset, changed by the other options, and the model to start from."""
    from isthmus.incontext import TableTraining
    from isthmus.incontext.priors import prior
    from isthmus.incontext.tables.estimators import reader_of
    from isthmus.incontext.training import PRESETS

    name = as_choice(arguments.preset, "--preset", (*PRESETS, *TABLE_PRESETS))
    of_tables, init = name in TABLE_PRESETS, None
    if of_tables and arguments.prior is not None:
        raise InvalidInputError(f"--prior does not apply to --preset {name}.")
    presets: Any = {"tables": TableTraining, "tables-numbers": TableTraining.of_numbers}
    settings = presets[name]() if of_tables else PRESETS[name]
    settings = replace(settings, seed=arguments.seed)
    if arguments.updates is not None:
        settings = replace(settings, updates=arguments.updates)
    if arguments.batch is not None:
        settings = settings.with_batch(arguments.batch)
    if arguments.init is not None:
        init = reader_of(arguments.init) if of_tables else _point_model(arguments.init, "--init")
        settings = settings if of_tables else replace(settings, model=init.config)
    if arguments.prior is not None:
        settings = settings.on_prior(prior(arguments.prior))
    return settings.on_devices(arguments.devices), init


def _print_likelihood(updates: int, row: dict[str, float]) -> None:
    if "held_out_nll" in row:
        scores = f"loss {row['loss']:.3f}  held-out NLL {row['held_out_nll']:.3f} nats"
        line = f"update {row['update']} of {updates}  {scores}  {row['cpu_seconds']:.0f} s"
        print(line, file=sys.stderr, flush=True)


def run_eval(arguments: argparse.Namespace) -> int:
    """Compare likelihoods with those of references."""
    from isthmus.incontext import evaluate
    from isthmus.incontext.priors import prior

    target = None if arguments.output in (None, STDIN) else check_writable(arguments.output)
    evaluation = evaluate(
        _point_model(arguments.model),
        prior(arguments.prior),
        **options.settings(arguments, "contexts tasks points references seed progress"),
    )
    as_json = arguments.json or (target is not None and target.suffix == ".json")
    options.put(evaluation.to_json() if as_json else f"{evaluation}\n", target)
    return 0


def run_sample(arguments: argparse.Namespace) -> int:
    """Draw points."""
    import numpy as np

    from isthmus.dynamics.samplers import MALA, Langevin
    from isthmus.incontext import ICLTables
    from isthmus.incontext.sampling import draw_points

    if arguments.output not in (None, STDIN):
        check_output(arguments.output, *filter(None, [arguments.context]))
    model = _model(arguments.model)
    table = None if arguments.context is None else _read_context(arguments, model)
    if isinstance(model, ICLTables):
        if table is None:
            raise InvalidInputError(
                "The model of tables needs rows to condition on: --context DATA."
            )
        drawn: Any = model.condition(table.X).sample(arguments.number, seed=arguments.seed)
    else:
        kind = MALA if arguments.sampler == "mala" else Langevin
        drawn = draw_points(
            model,
            np.empty((0, model.dim)) if table is None else table.X,
            arguments.number,
            kind(step_size=arguments.step_size),
            **options.settings(arguments, "seed steps progress"),
        )
    columns = [f"x{axis + 1}" for axis in range(drawn.shape[1])] if table is None else table.columns
    target = write_table(dict(zip(columns, drawn.T, strict=True)), arguments.output)
    if target is not None:
        print(target)
    return 0


def _model(name: str, option: str = "--model") -> ICLEBM | ICLTables:
    """Return a model; errors name the option."""
    from isthmus.incontext import pretrained

    try:
        return pretrained(name)
    except InvalidInputError as error:
        raise InvalidInputError(f"{option} {name}: {error}") from None


def _point_model(name: str, option: str = "--model") -> ICLEBM:
    """Return a model of points in a box, not one of tables."""
    from isthmus.incontext import ICLEBM

    model = _model(name, option)
    if not isinstance(model, ICLEBM):
        raise InvalidInputError(
            f"{option} {name} is a model of tables, which `isthmus icl sample` reads; this command "
            "needs an energy of points such as mixtures-2d."
        )
    return model


def run_plot(arguments: argparse.Namespace) -> int:
    """Draw energy landscapes."""
    import torch

    from isthmus.figures import context_landscapes, save
    from isthmus.incontext.priors import prior

    target = check_writable(arguments.output)
    if target.suffix != ".png":
        raise InvalidInputError(f"-o {target} must end in .png.")
    model, sizes = _point_model(arguments.model), arguments.contexts
    if arguments.context is None:
        generator = torch.Generator().manual_seed(arguments.seed)
        tasks = prior(arguments.prior).draw(arguments.tasks, generator)
        figure = context_landscapes(model, tasks, sizes, seed=arguments.seed + 1)
    else:
        table = _read_context(arguments, model)
        some = [size for size in sizes if size < len(table)]
        contexts = [*some, len(table)]
        figure = context_landscapes(model, table.X[None], contexts, columns=table.columns)
    print(save(figure, target))
    return 0


def _read_context(arguments: argparse.Namespace, model: ICLEBM | ICLTables) -> Table:
    """Return a table with the model's number of columns; say whether it is scaled."""
    from isthmus.incontext import ICLEBM
    from isthmus.incontext.sampling import box_scaling

    columns = {"id": arguments.id, "drop": arguments.drop}
    table = read_table(arguments.context, **columns, missing=not isinstance(model, ICLEBM))
    notes = [*table.notes, *options.note_on_label(table, advice="")]
    if isinstance(model, ICLEBM):
        count = table.X.shape[1]
        if count != model.dim:
            raise InvalidInputError(
                f"{arguments.context} has {counted(count, 'column')} of numbers, but the model "
                f"reads {model.dim}; --drop leaves columns out."
            )
        note = "Points are shifted and scaled into the model's box, and results back from it."
        notes += [note] * box_scaling(model, table.X).standardises
    options.print_notes(notes, arguments.quiet)
    return table
