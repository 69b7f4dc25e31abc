"""Record what the report shows of in-context energies but does not compute each time.

    python benchmarks/incontext_records.py outside               # about 8 CPU minutes
    python benchmarks/incontext_records.py objectives runs/paper runs/paper-nce

outside     The shipped model on datasets of other priors: 1 to 8 clusters, other widths, rings and
            moons, with 8 to 256 points in context, against Bayes, EM and the best kernel estimate.
            Settings that the file has already are not repeated.
objectives  Runs of `isthmus icl train --preset paper` and `--preset paper-nce`, finished or not, on
            50 new datasets of the paper's prior: about 2 CPU minutes for each run. An evaluation
            is added to the file for each checkpoint that it has not seen, so that calls in the
            course of a run record its progress.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from isthmus.incontext.runs import Checkpoint
from isthmus.io.files import write_atomically
from isthmus.paper.report.parts import incontext_recorded as part

RESULTS = Path(__file__).with_name("results")


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


def record_outside(path: Path) -> None:
    found = read(path)
    for setting in part.OUTSIDE:
        if setting not in found:
            found[setting] = part.outside(setting)
            found = {each: found[each] for each in part.OUTSIDE if each in found}
            write_atomically(path, json.dumps(found, indent=1) + "\n")
            print(setting, found[setting]["nll"], flush=True)


def record_objectives(path: Path, folders: list[Path]) -> None:
    found = read(path) or {"runs": {}}
    for name, folder in zip((part.PAPER, part.OURS), folders, strict=True):
        checkpoint = Checkpoint.load(folder / "checkpoint.pt")
        run = found["runs"].setdefault(name, {"evaluations": []})
        run["planned"] = int(checkpoint.settings["updates"])
        run["settings"] = checkpoint.settings
        run["curve"] = checkpoint.rows
        if any(each["update"] == checkpoint.updates for each in run["evaluations"]):
            continue
        references = () if "references" in found else ("bayes", "kde-best")
        scores = part.judged(checkpoint.restored().eval().requires_grad_(False), references)
        if references:
            found |= {"prior": scores.prior, "tasks": scores.tasks, "points": scores.points}
            found |= {"seed": scores.seed, "contexts": scores.contexts}
            found["references"] = {
                each: part._numbers(scores.mean(each)) for each in scores.references
            }
        run["evaluations"] += [
            {
                "update": checkpoint.updates,
                "cpu_seconds": round(checkpoint.cpu_seconds),
                "nll": part._numbers(scores.mean()),
                "standard_error": part._numbers(scores.standard_error()),
                "temperature": scores.temperature,
                "tempered": part._numbers(scores.tempered.mean(1)),
                "largest_error_of_log_normalizer": float(scores.normalizer_error.max()),
            }
        ]
        run["evaluations"].sort(key=lambda each: each["update"])
        write_atomically(path, json.dumps(found, indent=1) + "\n")
        print(name, run["evaluations"][-1], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("record", choices=("outside", "objectives"))
    parser.add_argument("runs", nargs="*", type=Path, help="folders: paper, paper-nce")
    arguments = parser.parse_args()
    path = RESULTS / f"incontext-{arguments.record}.json"
    if arguments.record == "outside":
        record_outside(path)
    elif len(arguments.runs) == 2:
        record_objectives(path, arguments.runs)
    else:
        parser.error("objectives needs two folders: of --preset paper and of --preset paper-nce")


if __name__ == "__main__":
    main()
