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
import json
import math
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import torch
from measuring import Row, print_rows

from isthmus.figures import attention_experiment, save
from isthmus.paper.attention import compare_variants, load_runs

RESULTS = Path(__file__).parent / "results" / "attention.json"
MEASURES = {
    "training loss": "loss",
    "test loss": "test_loss",
    "test accuracy": "test_accuracy",
    "largest logit": "largest_logit",
    "entanglement": "entanglement",
}


def rows_of(found: pd.DataFrame) -> Iterator[Row]:
    """Yield a row for each learning rate and variant, then the paired comparisons."""
    for (rate, variant), runs in found.groupby(["learning_rate", "variant"], sort=False):
        yield {
            "table": "Medians over seeds",
            "learning rate": rate,
            "attention": variant,
            **{title: runs[name].median() for title, name in MEASURES.items()},
            "share diverged": runs["diverged"].mean(),
        }
    for measured in ("loss", "test_loss"):
        pairs = found.pivot(index=["learning_rate", "seed"], columns="variant", values=measured)
        for variant in ("QK-norm", "SALN"):
            yield {
                "table": "Pairs of runs of equal learning rate and seed",
                "measure": measured,
                "attention": variant,
                "lower than": "pre-norm",
                "in": int((pairs[variant] < pairs["pre-norm"]).sum()),
                "of": len(pairs),
            }


def trained(seeds: range, out: Path) -> pd.DataFrame:
    """Train, and write the runs."""
    torch.set_num_threads(1)
    found = compare_variants(seeds=seeds)
    runs = found.astype(object).replace(math.inf, None).to_dict("records")
    out.write_text(json.dumps({"runs": runs}, indent=1, allow_nan=False) + "\n")
    return found


def measure(full: bool = False, seed: int = 0, *, out: Path = RESULTS) -> Iterator[Row]:
    """Train with one seed or with five, store the runs in `out`, and yield rows."""
    yield from rows_of(trained(range(seed, seed + (5 if full else 1)), out))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--table", action="store_true", help="train nothing")
    parser.add_argument("--figure", type=Path, help="also draw it, as a PNG file of this name")
    options = parser.parse_args()
    found = load_runs(options.out) if options.table else trained(range(options.seeds), options.out)
    print_rows(rows_of(found))
    if options.figure:
        save(attention_experiment(found), options.figure)


if __name__ == "__main__":
    main()
