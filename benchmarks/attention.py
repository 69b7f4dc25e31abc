"""Pre-norm, QK-norm and SALN attention in one small transformer, at learning rates up to 1.

    python benchmarks/attention.py            # what is missing, then the table
    python benchmarks/attention.py --table    # the table of what is there
    python benchmarks/attention.py --seeds 10

The task is scikit-learn's digits, as 16 patches each. Finished runs are kept in
benchmarks/results/attention.json and are not done again; with the file removed, the default
takes some six minutes of one core. Numbers are medians over seeds.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from isthmus.attention.experiment import Experiment, compare_variants
from isthmus.figures import attention_experiment, save

RESULTS = Path(__file__).parent / "results" / "attention.json"


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
    print(found)
    for variant in found.variants[1:]:
        for measure in ("loss", "test_loss"):
            lower, pairs = found.pairs_lower(measure, variant, found.variants[0])
            print(f"{measure} of {variant} below {found.variants[0]}'s: {lower} of {pairs} pairs")
    if options.figure:
        save(attention_experiment(found), options.figure)


if __name__ == "__main__":
    main()
