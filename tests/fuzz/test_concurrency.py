"""Threads, processes and runs at once: what each computes is what it computes alone.

Everything is compared bit for bit. The hash seed of Python, which decides the order of sets, is
another in the processes.
"""

import json
import multiprocessing
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from isthmus.cli.main import main
from isthmus.io.files import exclusive

# Each returns arrays that follow from the code alone.
TASKS = textwrap.dedent(
    """
    import hashlib
    import numpy as np, torch
    import isthmus as ist
    from isthmus.attend import attend
    from isthmus.cluster import BasinFlow, ClAM, ClAMCRP, ClAMELBO, GaussianMeanShift
    from isthmus.impute import MemoryImputer
    from isthmus.incontext import ICLEBMConfig, TrainingSettings, train

    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(centre, 1.0, (40, 3)) for centre in (-6, 0, 6)])
    gaps = np.where(rng.random(X.shape) < 0.1, np.nan, X)
    shared = ist.GaussianKDE(X, 0.7)
    fitted = ClAMELBO(3, random_state=0).fit(X)
    small = TrainingSettings(
        model=ICLEBMConfig(layers=1, heads=2, width=8, box=5.5), updates=2, batch=2, length=4
    )
    TASKS = {
        "attend": lambda: attend(X[:9] + 0.3, X, beta=2.0).mean,
        "retrieve": lambda: ist.retrieve(shared, X[:9] + 0.3).state,
        "sample": lambda: ist.sample(shared, 5, ist.MALA(0.3), burn_in=10, chains=5, seed=3),
        "fit": lambda: BasinFlow(random_state=0).fit(X[::2]).labels_,
        "fit by gradients": lambda: ClAM(3, random_state=0, tol=0.1).fit(X).memories_,
        "fit with a prior": lambda: ClAMCRP(random_state=0).fit(X).memories_,
        "mean shift": lambda: GaussianMeanShift(1.0).fit(X).labels_,
        "predict": lambda: fitted.predict_proba(X),
        "impute": lambda: MemoryImputer(random_state=0).fit_transform(gaps),
        "train": lambda: train(small).model.readout.weight.detach(),
    }

    def digest(name):
        found = np.ascontiguousarray(np.asarray(TASKS[name]()))
        kind = str((found.dtype, found.shape)).encode()
        return hashlib.sha256(kind + found.tobytes()).hexdigest()
    """
)


@pytest.fixture(scope="module")
def tasks() -> dict[str, Any]:
    found: dict[str, Any] = {}
    exec(TASKS, found)
    return found


@pytest.fixture(scope="module")
def alone(tasks: dict[str, Any]) -> dict[str, str]:
    return {name: tasks["digest"](name) for name in tasks["TASKS"]}


@pytest.mark.slow
def test_eight_threads_get_what_one_gets(tasks, alone) -> None:
    names = 3 * [name for name in alone if name != "train"]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(tasks["digest"], names))
    assert dict(zip(names, found, strict=True)) == {name: alone[name] for name in names}
    assert len({*zip(names, found, strict=True)}) == len(alone) - 1


# Two worker processes at a time. A fork is taken after the parent has computed on one thread.
WORKERS = (
    TASKS
    + """
if __name__ == "__main__":
    import json, multiprocessing, sys
    torch.set_num_threads(1)
    found = [{name: digest(name) for name in TASKS}]
    with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
        found.append(dict(zip(TASKS, pool.map(digest, TASKS))))
    print(json.dumps(found))
"""
)


@pytest.mark.slow
@pytest.mark.parametrize(("method", "seed"), [("fork", "1"), ("spawn", "2")])
def test_workers_get_what_one_process_gets_with_any_hash_seed(
    method, seed, alone, tmp_path
) -> None:
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    environment = {**os.environ, "PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), method], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [alone, alone]


@pytest.mark.parametrize(
    "words",
    [
        "icl train --preset tiny --updates 2 --batch 2 --out {out}",
        "study run --datasets iris --methods KMeans --seeds 1 -o {out}",
        "reproduce --only hero --out {out}",
    ],
)
def test_a_second_run_in_one_directory_is_refused_at_once(words, tmp_path, capsys) -> None:
    out = tmp_path / "out"
    locked = out / "parts" if words.startswith("reproduce") else out
    locked.mkdir(parents=True)
    before = sorted(out.rglob("*"))
    ready, end = multiprocessing.Event(), multiprocessing.Event()

    def hold() -> None:
        with exclusive(locked):
            ready.set()
            end.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        ready.wait()
        assert main([*words.format(out=out).split(), "--quiet"]) == 2
    finally:
        end.set()
        holder.join()
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    kept = [path for path in sorted(out.rglob("*")) if path.name != ".lock"]
    assert [path for path in kept if path not in before and path.is_file()] == []
