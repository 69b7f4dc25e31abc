"""Calls in child processes: limits hold, nothing is left behind, callers see every end."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from isthmus.paper import processes
from isthmus.paper.processes import Call, Limits, run_all, run_limited

# Pytest imports this module under a name that children cannot import.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

AMPLE = Limits(seconds=30)
LINUX = pytest.mark.skipif(sys.platform != "linux", reason="uses /proc")


def misbehave(deed: str) -> Any:
    if deed == "raises":
        raise ValueError("no\n luck")
    if deed == "exits":
        sys.exit("licence missing")
    if deed == "leaves":
        os._exit(0)
    if deed == "crashes":
        os.kill(os.getpid(), signal.SIGSEGV)
    if deed == "is killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if deed == "sleeps":
        time.sleep(60)
    if deed == "spins":
        while True:
            pass
    if deed == "eats":
        return len(bytearray(10**9))
    if deed == "returns a lambda":
        return lambda: 3
    if deed == "returns a generator":
        return (each for each in "ab")
    return deed


@LINUX
def test_every_end_of_a_call_has_a_status_and_a_message() -> None:
    expected = {
        "raises": ("failed", "ValueError: no luck"),
        "exits": ("failed", "SystemExit: licence missing"),
        "leaves": ("crashed", "The process ended with exit code 0 and without a result."),
        "crashes": ("crashed", "The process crashed: Segmentation fault (SIGSEGV)."),
        "is killed": ("crashed", "The process crashed: Killed (SIGKILL)."),
        "sleeps": ("timeout", "Not done after 2 s."),
        "spins": ("timeout", "Not done after 1 s of CPU time."),
        "eats": ("memory", "MemoryError"),
        "returns a generator": ("failed", "TypeError: cannot pickle 'generator' object"),
        "is fine": ("ok", ""),
    }
    calls = [
        Call(deed, misbehave, (deed,), Limits(1, 500, wall_seconds=2 if deed == "sleeps" else 60))
        for deed in expected
    ]
    found = {call.name: outcome for call, outcome in run_all(calls, jobs=3)}
    for name, (status, message) in expected.items():
        assert found[name].status == status
        assert found[name].message.startswith(message)
    assert found["is fine"].value == "is fine"
    assert found["spins"].seconds == pytest.approx(1, abs=0.5)
    assert (found["is fine"].seconds or 0) < 1 < (found["is fine"].peak_megabytes or 0)


def test_values_come_back_whole_by_value_if_need_be_and_to_threads() -> None:
    assert run_limited(bytes, 10**7, limits=AMPLE).value == bytes(10**7)
    assert run_limited(misbehave, "returns a lambda", limits=AMPLE).value() == 3
    with ThreadPoolExecutor(4) as pool:
        outcomes = pool.map(lambda n: run_limited(pow, n, 2, limits=AMPLE), range(12))
        assert [each.value for each in outcomes] == [n * n for n in range(12)]


def test_the_child_has_one_thread_and_the_state_of_the_caller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def state() -> Any:
        import torch

        return os.getcwd(), os.environ["PLACE"], torch.get_num_threads(), "" in sys.path

    (tmp_path / "torch.py").write_text("raise ImportError('from the current directory')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PLACE", "here")
    outcome = run_limited(state, limits=AMPLE)
    assert outcome.value == (str(tmp_path), "here", 1, False), outcome.message


def test_the_output_of_a_call_goes_into_its_log(tmp_path: Path) -> None:
    def talk(fail: bool) -> None:
        print("on stdout")
        subprocess.run(["echo", "from a program"], check=True)
        if fail:
            raise ValueError("no luck")

    for fail in (False, True):
        run_limited(talk, fail, limits=AMPLE, log=tmp_path / "log")
        text = (tmp_path / "log").read_text()
        assert text.startswith("on stdout\nfrom a program\n")
        assert ("Traceback" in text) == fail


def test_a_new_worker_is_started_after_one_is_killed() -> None:
    assert run_limited(abs, -1, limits=AMPLE).value == 1
    for worker in processes._idle:
        worker.process.kill()
        worker.process.wait()
    assert run_limited(abs, -2, limits=AMPLE).value == 2


def descendants(process: int) -> list[int]:
    found = []
    for path in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found += [child, *descendants(child)]
    return found


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_for(question: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not question():
        assert time.monotonic() < deadline, "not within a minute"
        time.sleep(0.1)


@LINUX
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_nothing_is_left_of_a_caller_that_is_killed_or_interrupted(number: signal.Signals) -> None:
    script = textwrap.dedent(
        """
        import subprocess
        from isthmus.paper.processes import Call, Limits, run_all

        def slow():
            subprocess.run(["sleep", "123"])

        list(run_all([Call(name, slow, (), Limits()) for name in "ab"], jobs=2))
        """
    )
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    try:
        # Two workers, and a program of each.
        wait_for(lambda: len(descendants(process.pid)) == 4)
        born = descendants(process.pid)
    finally:
        process.send_signal(number)
        process.wait()
    wait_for(lambda: not any(map(alive, born)))


@LINUX
def test_closing_the_iterator_ends_the_children() -> None:
    before = set(descendants(os.getpid()))
    calls = [Call(str(n), time.sleep, (n,), AMPLE) for n in (0, 100)]
    outcomes = run_all(calls, jobs=2)
    assert next(outcomes)[0].name == "0"
    born = set(descendants(os.getpid())) - before
    outcomes.close()
    born -= {worker.process.pid for worker in processes._idle}
    wait_for(lambda: not any(map(alive, born)))
