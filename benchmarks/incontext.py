"""Speed and memory of in-context energies, as ratios from one run on one thread.

    python benchmarks/incontext.py              # all of it, about 25 minutes
    python benchmarks/incontext.py --only step condition

step       One training step of the paper's objective at the authors' size (B=32, S=40, 3 chains,
           15 Langevin steps; 6 layers, 8 heads, 128 wide) against the loop that the paper prints,
           with the same model, the same noise, and gradients that are compared. CPU seconds and
           peak memory, each measured in a fresh process.
condition  Condition on 40 points, then the energies of 10,000 candidates, against encoding the
           context again with each candidate.
time       CPU time to a held-out likelihood: the paper's objective trains for --minutes CPU
           minutes (default 10); the default objective trains until it is as good.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from measuring import Row, cpu_seconds, in_fresh_process, peak_megabytes, print_rows
from naive_icl import langevin, loss, transformer
from torch import Tensor

from isthmus.incontext import ICLEBM, ICLEBMConfig, TrainingSettings, preset
from isthmus.incontext.evaluation import TEMPERATURES, Grid, GridDensity
from isthmus.incontext.objectives import ContrastiveDivergence
from isthmus.incontext.priors import GaussianMixtures
from isthmus.incontext.training import draw_pass, new_model

BATCH, LENGTH, CHAINS = 32, 40, 3
OBJECTIVE = ContrastiveDivergence.paper()
SECTIONS = ("step", "condition", "time")


def step_setting(seed: int) -> tuple[ICLEBM, Tensor, Tensor, torch.Generator]:
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = ICLEBM(ICLEBMConfig())
    x = GaussianMixtures.paper().draw(BATCH, generator).sample(LENGTH, generator)
    return model, x, OBJECTIVE.proposal.sample(x, CHAINS, generator), generator


def one_step(kind: str, path: Path, seed: int) -> dict[str, float]:
    """Do one step, save its gradient, and return its CPU seconds and peak memory."""
    model, x, start, generator = step_setting(seed)

    def sample() -> Tensor:
        if kind == "naive":
            return langevin(model, x, start, OBJECTIVE.sampler, generator)
        return OBJECTIVE.sampler.run(model, x, start, generator)

    def descend(negative: Tensor) -> None:
        model.zero_grad()
        if kind == "naive":
            total = loss(model, x, negative, OBJECTIVE.regularization)
        else:
            real, fake = model.real_and_branch_energy(x, negative)
            penalty = real.square().mean() + fake.square().mean()
            total = real.mean() - fake.mean() + OBJECTIVE.regularization * penalty
        total.backward()

    def step() -> tuple[float, float, Tensor]:
        descend(start)  # so that memory is allocated, as it is in the middle of training
        clock = time.process_time()
        negative = sample()
        sampled = time.process_time() - clock
        descend(negative)
        return time.process_time() - clock, sampled, negative

    megabytes, (seconds, sampled, negative) = peak_megabytes(step)
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    torch.save({"gradient": gradient, "negative": negative}, path)
    return {"seconds": seconds, "sampled": sampled, "megabytes": megabytes}


def steps(seed: int) -> Iterator[Row]:
    """Measure ours before and after the naive one, since the machine's speed varies."""
    found: dict[str, dict[str, float]] = {}
    kept = {}
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("ours", "naive", "ours"):
            path = Path(folder) / f"step-{kind}.pt"
            row = in_fresh_process(__file__, "--seed", seed, "--step", kind, path)
            kept[kind] = torch.load(path)
            found[kind] = {
                name: (value + found[kind][name]) / 2 if kind in found else value
                for name, value in row.items()
            }
    naive = found["naive"]
    for kind, row in found.items():
        yield {
            "table": "Training step",
            "version": kind,
            "CPU s": row["seconds"],
            "of it sampling": row["sampled"],
            "extra MB": row["megabytes"],
            "times faster": naive["seconds"] / row["seconds"],
            "of the memory": row["megabytes"] / naive["megabytes"],
            **{
                f"{name}s differ by": float(
                    (kept[kind][name] - kept["naive"][name]).norm() / kept["naive"][name].norm()
                )
                for name in ("gradient", "negative")
            },
        }


@torch.no_grad()
def conditioning(seed: int, candidates: int = 10_000, block: int = 500) -> Iterator[Row]:
    model, x, _, generator = step_setting(seed)
    context = x[0]
    points = 10 * torch.randn(candidates, 2, generator=generator)

    def naive() -> Tensor:
        rows = [
            torch.cat([context.expand(len(part), -1, -1), part[:, None]], dim=1)
            for part in points.split(block)
        ]
        return torch.cat([transformer(model, row)[:, -1] for row in rows])

    def ours() -> Tensor:
        return model.condition(context).energy(points)

    ours()
    fast, slow = cpu_seconds(ours, 3), cpu_seconds(naive)
    yield {
        "table": "Condition on a context, then compute energies",
        "context": LENGTH,
        "energies": candidates,
        "CPU s": fast,
        "times faster than encoding the context again": slow / fast,
        "largest difference": float((ours() - naive()).abs().max()),
    }


class Judge:
    """Held-out likelihood on fixed tasks, at temperature 1 and at the best one.

    Densities are normalised on the prior's box, since the paper's model knows no other bound.
    """

    def __init__(self, tasks: int = 16) -> None:
        generator = torch.Generator().manual_seed(2**31)
        prior = GaussianMixtures.compact()
        drawn = prior.draw(tasks, generator)
        self.context, self.points = drawn.sample(16, generator), drawn.sample(64, generator)
        self.grid = Grid.with_spacing(2, prior.box, 0.3)

    @torch.no_grad()
    def __call__(self, model: ICLEBM) -> tuple[float, float]:
        """Negative log-likelihood in nats at temperature 1 and at the best one."""
        totals = torch.zeros(len(TEMPERATURES), dtype=torch.float64)
        for size in (2, 8):
            for context, points in zip(self.context.split(4), self.points.split(4), strict=True):
                density = GridDensity(model, context[:, :size], self.grid)
                totals += density.scores(points)["tempered"].sum(0)
        means = totals / (2 * len(self.points))
        return float(means[TEMPERATURES.index(1.0)]), float(means.min())


def run_for(
    settings: TrainingSettings,
    judge: Judge,
    every: float,
    stop: Callable[[float, float, float], bool],
) -> list[tuple[float, float, float]]:
    """Train; return CPU seconds, likelihood, and likelihood at the best temperature."""
    model, rows = new_model(settings), []
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
    )
    spent, due = 0.0, every
    for update in range(settings.updates):
        clock = time.process_time()
        for group in optimizer.param_groups:
            group["lr"] = settings.learning_rate_at(update)
        passes = settings.batch // settings.pass_size
        optimizer.zero_grad()
        for part in range(passes):
            x, generator = draw_pass(settings, update, part, torch.device("cpu"))
            (settings.objective(model, x, generator) / passes).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip)
        optimizer.step()
        spent += time.process_time() - clock
        if spent >= due or update + 1 == settings.updates:
            rows.append((spent, *judge(model)))
            due = spent + every
            if stop(*rows[-1]):
                break
    return rows


def time_to_likelihood(minutes: float) -> Iterator[Row]:
    """Compare the two objectives on the same tasks, with the same model."""
    judge, compact = Judge(), GaussianMixtures.compact()
    paper = replace(
        preset("paper"),
        model=ICLEBMConfig(),
        prior=compact,
        pool=None,
        objective=ContrastiveDivergence.paper(box=compact.box),
        updates=10**6,
    )
    theirs = run_for(paper, judge, 60.0, lambda spent, _, __: spent >= 60 * minutes)
    plain, tempered = min(row[1] for row in theirs), min(row[2] for row in theirs)
    default = replace(preset("default"), schedule="constant")
    ours = run_for(default, judge, 1.0, lambda spent, nll, _: nll <= tempered or spent > 600)
    for objective, rows in (("paper", theirs), ("default", ours)):
        for spent, nll, best in rows:
            yield {
                "table": "Held-out likelihood in training",
                "objective": objective,
                "CPU s": spent,
                "nats at T = 1": nll,
                "nats at the best T": best,
            }
    for name, goal in (("T = 1", plain), ("its best temperature", tempered)):
        first = next((spent for spent, nll, _ in ours if nll <= goal), math.nan)
        yield {
            "table": "Time to the paper's likelihood",
            "paper's objective at": name,
            "nats": goal,
            "CPU minutes": minutes,
            "default objective, CPU s": first,
            "times faster": 60 * minutes / first,
        }


def measure(
    full: bool = False, seed: int = 0, *, only: Sequence[str] = (), minutes: float = 10.0
) -> Iterator[Row]:
    """Yield the rows of the chosen sections; by default those of `condition`, in full all."""
    torch.set_num_threads(1)
    sections = only or (SECTIONS if full else ("condition",))
    if "step" in sections:
        yield from steps(seed)
    if "condition" in sections:
        yield from conditioning(seed)
    if "time" in sections:
        yield from time_to_likelihood(minutes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--minutes", type=float, default=10.0, help="for the paper's objective")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--step", choices=["ours", "naive"], help=argparse.SUPPRESS)
    parser.add_argument("path", nargs="?", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.step:
        torch.set_num_threads(1)
        print(json.dumps(one_step(options.step, options.path, options.seed)))
        return
    print_rows(measure(True, options.seed, only=options.only, minutes=options.minutes))


if __name__ == "__main__":
    main()
