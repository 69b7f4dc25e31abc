"""Speed and memory of in-context energies, as ratios from one run on one thread.

    python benchmarks/incontext.py              # all of it, about 25 minutes
    python benchmarks/incontext.py --only step condition

step       One training step of the paper's objective at the authors' size (B=32, S=40, 3 chains,
           15 Langevin steps; 6 layers, 8 heads, 128 wide) against the loop that the paper prints,
           with the same model, the same noise, and gradients that are compared. CPU seconds and
           peak memory, each measured in a fresh process.
condition  Condition on 40 points, then the energies of 10,000 candidates, against encoding the
           context anew with each candidate.
time       CPU to a held-out likelihood: what the paper's objective reaches in so many CPU minutes
           (--minutes, default 10), at its best temperature, and how soon the default
           objective gets there, as it is.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from naive_icl import langevin, loss, transformer
from torch import Tensor

from isthmus.incontext import ICLEBM, ICLEBMConfig, TrainingSettings, preset
from isthmus.incontext.evaluation import Grid
from isthmus.incontext.evaluation.scoring import TEMPERATURES, OnGrid
from isthmus.incontext.objectives import ContrastiveDivergence
from isthmus.incontext.priors import GaussianMixtures
from isthmus.incontext.training import draw_pass, new_model

BATCH, LENGTH, CHAINS = 32, 40, 3
OBJECTIVE = ContrastiveDivergence.paper()
SECTIONS = ("step", "condition", "time")


def cpu_seconds(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def memory_kilobytes(field: str) -> int:
    """A field of this process's memory use, as Linux tells it."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


def step_setting() -> tuple[ICLEBM, Tensor, Tensor, torch.Generator]:
    generator = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = ICLEBM(ICLEBMConfig())
    x = GaussianMixtures.paper().draw(BATCH, generator).sample(LENGTH, generator)
    return model, x, OBJECTIVE.proposal.sample(x, CHAINS, generator), generator


def one_step(kind: str) -> None:
    """Do one step, and print its CPU seconds, peak memory and gradient."""
    model, x, start, generator = step_setting()
    before = memory_kilobytes("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew

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

    descend(start)  # so that memory is at hand, as it is in the middle of training
    clock = time.process_time()
    negative = sample()
    sampled = time.process_time() - clock
    descend(negative)
    seconds = time.process_time() - clock
    megabytes = (memory_kilobytes("VmHWM") - before) / 1024
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    torch.save({"gradient": gradient, "negative": negative}, sys.argv[-1])
    print(json.dumps({"seconds": seconds, "sampled": sampled, "megabytes": megabytes}))


def steps(folder: Path) -> None:
    """Ours before and after the naive one, since the machine is not always equally fast."""
    found, kept = {}, {}
    for kind in ("ours", "naive", "ours"):
        path = folder / f"step-{kind}.pt"
        command = [sys.executable, __file__, "--step", kind, str(path)]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        row, kept[kind] = json.loads(output), torch.load(path)
        found[kind] = {
            name: (value + found[kind][name]) / 2 if kind in found else value
            for name, value in row.items()
        }
        path.unlink()
    ours, naive = found["ours"], found["naive"]
    error = {
        name: float((kept["ours"][name] - kept["naive"][name]).norm() / kept["naive"][name].norm())
        for name in ("gradient", "negative")
    }
    print("| training step | CPU s | of it sampling | extra MB |\n|---|---|---|---|")
    for kind, row in found.items():
        print(f"| {kind} | {row['seconds']:.1f} | {row['sampled']:.1f} | {row['megabytes']:.0f} |")
    print(
        f"\n{naive['seconds'] / ours['seconds']:.1f}x faster, "
        f"{ours['megabytes'] / naive['megabytes']:.2f} of the memory; relative difference of "
        f"gradients {error['gradient']:.0e}, of negatives {error['negative']:.0e}\n",
        flush=True,
    )


@torch.no_grad()
def conditioning(candidates: int = 10_000, block: int = 500) -> None:
    model, x, _, generator = step_setting()
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
    fast = min(cpu_seconds(ours) for _ in range(3))
    slow = cpu_seconds(naive)
    error = float((ours() - naive()).abs().max())
    print(f"condition on {LENGTH} points + {candidates:,} energies: {fast:.2f} s of CPU,")
    print(f"{slow / fast:.0f}x faster than encoding anew; largest difference {error:.0e}\n")


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
                on_grid = OnGrid(model, context[:, :size], self.grid)
                totals += on_grid.scores(points).tempered.sum(0)
        means = totals / (2 * len(self.points))
        return float(means[TEMPERATURES.index(1.0)]), float(means.min())


def run_for(
    settings: TrainingSettings,
    judge: Judge,
    every: float,
    stop: Callable[[float, float, float], bool],
) -> list[tuple[float, float, float]]:
    """Train plainly; a list of CPU seconds, likelihood, and likelihood at the best temperature."""
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
            print(f"  {spent:6.1f} s  {rows[-1][1]:.3f}  {rows[-1][2]:.3f}", flush=True)
            due = spent + every
            if stop(*rows[-1]):
                break
    return rows


def time_to_likelihood(minutes: float) -> None:
    """The two objectives on the same tasks, with the same model."""
    judge, compact = Judge(), GaussianMixtures.compact()
    paper = replace(
        preset("paper"),
        prior=compact,
        objective=ContrastiveDivergence.paper(box=compact.box),
        updates=10**6,
    )
    print("paper's objective: CPU s, NLL at T=1, NLL at its best T")
    rows = run_for(paper, judge, 60.0, lambda spent, _, __: spent >= 60 * minutes)
    plain, tempered = min(row[1] for row in rows), min(row[2] for row in rows)
    print("default objective: CPU s, NLL at T=1, NLL at its best T")
    default = replace(preset("default"), schedule="constant")
    ours = run_for(default, judge, 1.0, lambda spent, nll, _: nll <= tempered or spent > 600)
    for name, goal in (("at T=1", plain), ("at its best temperature", tempered)):
        first = next((spent for spent, nll, _ in ours if nll <= goal), float("nan"))
        print(
            f"{goal:.3f} nats, the paper's best {name} in {minutes:g} CPU minutes: "
            f"default objective after {first:.1f} s, {60 * minutes / first:.0f}x less"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--minutes", type=float, default=10.0, help="for the paper's objective")
    parser.add_argument("--step", choices=["ours", "naive"], help=argparse.SUPPRESS)
    parser.add_argument("path", nargs="?", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.step:
        one_step(options.step)
        return
    if "step" in options.only:
        with tempfile.TemporaryDirectory() as folder:
            steps(Path(folder))
    if "condition" in options.only:
        conditioning()
    if "time" in options.only:
        time_to_likelihood(options.minutes)


if __name__ == "__main__":
    main()
