"""Record what the report shows of in-context energies but does not compute each time.

    python benchmarks/incontext_records.py outside               # about 8 CPU minutes
    python benchmarks/incontext_records.py objectives runs/paper runs/paper-1 runs/paper-nce
    python benchmarks/incontext_records.py printed               # about 10 CPU minutes

outside     The shipped model on datasets of other priors: 1 to 8 clusters and other widths,
            with 8 to 256 points in context, against Bayes, EM and the best kernel estimate.
            Settings that the file has already are not repeated.
objectives  Runs of `isthmus icl train --preset paper` and `--preset paper-nce`, of any seeds and
            finished or not, on 50 new datasets of the paper's prior: about 2 CPU minutes for each.
            An evaluation is added for each checkpoint that the file has not seen, so that calls in
            the course of a run record its progress. Prints means and ranges over seeds.
printed     Three seeds of a transformer of two layers, trained by contrastive divergence exactly as
            printed: without a regulariser, noise after the gradient. Added to the same file; the
            weights of the first seed are kept in results/incontext-printed.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from isthmus.incontext import ICLEBM, ICLEBMConfig, preset, pretrained, train
from isthmus.incontext.evaluation import Evaluation, Grid, evaluate
from isthmus.incontext.model import restored
from isthmus.incontext.objectives import BranchLangevin
from isthmus.incontext.priors import GaussianMixtures, prior
from isthmus.incontext.references import BayesPredictive, FittedMixture, Reference
from isthmus.incontext.storage import Checkpoint
from isthmus.io.files import write_atomically
from isthmus.paper.report.parts.incontext import OURS, PAPER, PRINTED, by_objective

RESULTS = Path(__file__).with_name("results")
MODEL, TASKS = "mixtures-2d", 50
# Lines 0.5 apart in the model's box and walls: its log-normalisers are right to 3e-4.
GRID, SIZES, PARTICLES = Grid(2, 8.0, 33), (8, 32, 128, 256), 64
OUTSIDE = {
    **{f"K = {k}": GaussianMixtures(components=k) for k in range(1, 9)},
    "narrow clusters": GaussianMixtures(std_low=0.08, std_high=0.12),
    "wide clusters": GaussianMixtures(std_low=0.8, std_high=1.2),
}
"""The settings of the comparison; K = 3 is the prior that the model was trained on."""
# The paper's clusters are 0.5 wide, and its model has no wall: normalised on a square of 45.
OBJECTIVE_GRID, OBJECTIVE_SIZES = Grid(2, 22.5, 61), (0, 8, 32)


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def outside(setting: str) -> dict[str, Any]:
    """Return the mean likelihoods of the shipped model and its rivals in one setting, by size."""
    source = OUTSIDE[setting]
    bayes = BayesPredictive(source, particles=PARTICLES)
    rivals: list[str | Reference] = ["kde-best", bayes]
    rivals += [FittedMixture(source.components, regularizer=each) for each in (1e-3, 0.1)]
    found = evaluate(
        pretrained(MODEL),
        source,
        contexts=SIZES,
        tasks=TASKS,
        references=rivals,
        grid=GRID,
        probes=0,
        progress=False,
    )
    pairs = {name: found.difference(name) for name in found.references}
    return {
        "tasks": found.tasks,
        "seed": 0,
        "contexts": SIZES,
        "nll": {name: _numbers(found.mean(name)) for name in found.nll},
        "model_minus": {name: _numbers(mean) for name, (mean, _) in pairs.items()},
        "standard_error": {name: _numbers(error) for name, (_, error) in pairs.items()},
    }


def record_outside(path: Path) -> None:
    found = read(path)
    for setting in OUTSIDE:
        if setting not in found:
            found[setting] = outside(setting)
            found = {each: found[each] for each in OUTSIDE if each in found}
            write_atomically(path, json.dumps(found, indent=1) + "\n")
            print(setting, found[setting]["nll"], flush=True)


def judged(model: ICLEBM, references: tuple[str, ...] = ()) -> Evaluation:
    """Evaluate a model of the paper's preset on the paper's prior."""
    return evaluate(
        model,
        prior("paper"),
        contexts=OBJECTIVE_SIZES,
        tasks=TASKS,
        references=references,
        grid=OBJECTIVE_GRID,
        probes=0,
    )


def _numbers(values: np.ndarray) -> list[float | None]:
    return [round(value, 5) if np.isfinite(value) else None for value in values.tolist()]


def name_of(settings: dict[str, str]) -> str:
    """Return the name of a run: its objective, and its seed if that is not 0."""
    objective, seed = settings["objective"], settings["seed"]
    name = OURS if objective.startswith("RankingNCE") else PAPER
    name += ", no regulariser" * ("regularization=0.0)" in objective)
    return name + f", seed {seed}" * (seed != "0")


def scored(scores: Evaluation, updates: int, seconds: float) -> dict[str, Any]:
    """Return an evaluation for the record."""
    return {
        "update": updates,
        "cpu_seconds": round(seconds),
        "nll": _numbers(scores.mean()),
        "standard_error": _numbers(scores.standard_error()),
        "temperature": scores.temperature,
        "tempered": _numbers(scores.tempered.mean(1)),
        "largest_error_of_log_normalizer": float(scores.normalizer_error.max()),
    }


@dataclass(frozen=True, kw_only=True)
class PrintedLangevin(BranchLangevin):
    """The printed chains, whose noise follows the gradient.

    They are those of the authors' order, from starts that are blurred by one noise more.
    """

    def run(self, *arguments: Any) -> torch.Tensor:
        """Return candidates moved in the printed order; the last argument is the generator."""
        moved = super().run(*arguments)
        return moved + self.noise * torch.randn(
            moved.shape, generator=arguments[-1], dtype=moved.dtype
        )


def record_printed(path: Path) -> None:
    found, paper = read(path), preset("paper")
    settings = replace(
        paper,
        model=ICLEBMConfig(layers=2, heads=2, width=32),
        objective=replace(
            paper.objective,
            sampler=PrintedLangevin(**vars(BranchLangevin.paper())),
            regularization=0.0,
        ),
        precision="32-true",
        updates=1250,
        batch=16,
        micro_batch=16,
    )
    for seed in range(3):
        settings, began = replace(settings, seed=seed), time.process_time()
        model = train(settings, progress=False, evaluate_every=10**6).model.eval()
        seconds = time.process_time() - began
        if seed == 0:
            model.save_pretrained(RESULTS / "incontext-printed")
        found["runs"][PRINTED + f", seed {seed}" * (seed > 0)] = {
            "evaluations": [scored(judged(model), settings.updates, seconds)],
            "planned": settings.updates,
            "settings": {
                each.name: repr(getattr(settings, each.name)) for each in fields(settings)
            },
        }
        write_atomically(path, json.dumps(found, indent=1) + "\n")


def record_objectives(path: Path, folders: list[Path]) -> None:
    found = read(path) or {"runs": {}}
    for folder in folders:
        checkpoint = Checkpoint.load(folder / "checkpoint.pt")
        name = name_of(checkpoint.settings)
        run = found["runs"].setdefault(name, {"evaluations": []})
        run["planned"] = int(checkpoint.settings["updates"])
        run["settings"] = checkpoint.settings
        run["curve"] = checkpoint.rows
        if any(each["update"] == checkpoint.updates for each in run["evaluations"]):
            continue
        references = () if "references" in found else ("bayes", "kde-best")
        scores = judged(restored(checkpoint).eval().requires_grad_(False), references)
        if references:
            found |= {"prior": scores.prior, "tasks": scores.tasks, "points": scores.points}
            found |= {"seed": scores.seed, "contexts": scores.contexts}
            found["references"] = {each: _numbers(scores.mean(each)) for each in scores.references}
        run["evaluations"] += [scored(scores, checkpoint.updates, checkpoint.cpu_seconds)]
        run["evaluations"].sort(key=lambda each: each["update"])
        write_atomically(path, json.dumps(found, indent=1) + "\n")
        print(name, run["evaluations"][-1], flush=True)
    for name, runs in by_objective(found).items():
        last = [run["evaluations"][-1] for run in runs]
        for scores in ("nll", "tempered"):
            values = np.array([each[scores] for each in last])
            low, mean, high = (f(values, 0).round(3) for f in (np.min, np.mean, np.max))
            print(f"{name}, {scores}, {len(runs)} seeds: mean {mean}, from {low} to {high}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("record", choices=("outside", "objectives", "printed"))
    parser.add_argument("runs", nargs="*", type=Path, help="folders of runs")
    arguments = parser.parse_args()
    if arguments.record == "outside":
        record_outside(RESULTS / "incontext-outside.json")
        return
    path = RESULTS / "incontext-objectives.json"
    if arguments.record == "printed":
        record_printed(path)
    elif arguments.runs:
        record_objectives(path, arguments.runs)
    else:
        parser.error("objectives needs the folders of runs")


if __name__ == "__main__":
    main()
