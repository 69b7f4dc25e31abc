"""Pre-norm, QK-norm and SALN attention in one small transformer, at learning rates up to 1.

    python benchmarks/attention.py            # trains and stores all runs, then prints the table
    python benchmarks/attention.py --table    # prints the table of the stored runs
    python benchmarks/attention.py --seeds 10

The task is scikit-learn's digits, as 16 patches each. Runs are stored in
benchmarks/results/attention.json. The default takes about six minutes on one core. Numbers are
medians over seeds.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
from measuring import Row, print_rows

from isthmus.figures import attention_experiment, save
from isthmus.paper.attention import Experiment, compare_variants

RESULTS = Path(__file__).parent / "results" / "attention.json"
MEASURES = {
    "training loss": "loss",
    "test loss": "test_loss",
    "test accuracy": "test_accuracy",
    "largest logit": "largest_logit",
    "entanglement": "entanglement",
}


def rows_of(found: Experiment) -> Iterator[Row]:
    """Yield a row for each learning rate and variant, then the paired comparisons."""
    for rate in found.learning_rates:
        for variant in found.variants:
            yield {
                "table": "Medians over seeds",
                "learning rate": rate,
                "attention": variant,
                **{title: found.median(name, variant, rate) for title, name in MEASURES.items()},
                "share diverged": found.fraction_diverged(variant, rate),
            }
    first, *others = found.variants
    for variant in others:
        for measured in ("loss", "test_loss"):
            ours, theirs = (
                {(r.learning_rate, r.seed): r.value(measured) for r in found.runs if r.variant == v}
                for v in (variant, first)
            )
            pairs = ours.keys() & theirs.keys()
            yield {
                "table": "Pairs of runs of equal learning rate and seed",
                "measure": measured,
                "attention": variant,
                "lower than": first,
                "in": sum(ours[pair] < theirs[pair] for pair in pairs),
                "of": len(pairs),
            }


def measure(full: bool = False, seed: int = 0, *, out: Path = RESULTS) -> Iterator[Row]:
    """Train with one seed or with five, store the runs in `out`, and yield rows."""
    torch.set_num_threads(1)
    yield from rows_of(compare_variants(seeds=range(seed, seed + (5 if full else 1)), path=out))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="train nothing")
    parser.add_argument("--figure", type=Path, help="also draw it, as a PNG file of this name")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.table:
        found = Experiment.load(options.out)
    else:
        found = compare_variants(seeds=options.seeds, path=options.out)
    print_rows(rows_of(found))
    if options.figure:
        save(attention_experiment(found), options.figure)


if __name__ == "__main__":
    main()
