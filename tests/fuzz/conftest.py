"""Processes that start at once: their server has imported the package before."""

import multiprocessing
import time
import uuid
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, Protocol

import psutil
import pytest

PRELOADED = [
    "isthmus.cli.cluster",
    "isthmus.cli.complete",
    "isthmus.cli.main",
    "isthmus.cluster",
    "isthmus.figures",
    "isthmus.impute",
    "isthmus.incontext",
    "isthmus.study",
    "lightning_fabric",
    "pyarrow.parquet",
    "runpy",
]
MARK = "ISTHMUS_TEST_PROCESS"
COMMAND = "import sys\nfrom isthmus.cli.main import main\nsys.exit(main(argv))\n"


# They start processes, unpack files and wait, and so take long where others compute, too.
PATIENCE = pytest.mark.timeout(1800)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(PATIENCE)


class Start(Protocol):
    """Start a script, or else a command line; return the process and the mark of its children."""

    def __call__(self, argv: list[Any], script: str = COMMAND) -> tuple[Any, str]: ...


@pytest.fixture(scope="session")
def context() -> ForkServerContext:
    found = multiprocessing.get_context("forkserver")
    found.set_forkserver_preload(PRELOADED)
    return found


@pytest.fixture
def start(context: ForkServerContext, tmp_path_factory: pytest.TempPathFactory) -> Start:
    import runpy

    folder = tmp_path_factory.mktemp("scripts")

    def begin(argv: list[Any], script: str = COMMAND) -> tuple[Any, str]:
        mark = uuid.uuid4().hex
        path = folder / f"{mark}.py"
        path.write_text(f"import os\nos.environ[{MARK!r}] = {mark!r}\n{script}")
        given = {"argv": [str(word) for word in argv]}
        process = context.Process(target=runpy.run_path, args=(str(path), given))
        process.start()
        return process, mark

    return begin


@pytest.fixture
def finish(start: Start) -> Callable[..., float]:
    """Run a script or a command line to its end; return the seconds that it took."""

    def run(argv: list[Any], script: str = COMMAND) -> float:
        began = time.monotonic()
        process, _ = start(argv, script)
        process.join()
        assert process.exitcode == 0
        return time.monotonic() - began

    return run


@pytest.fixture
def kill(start: Start) -> Callable[..., bool]:
    """Start a script or a command line, kill it after some seconds; return whether it still ran."""

    def run(seconds: float, argv: list[Any], script: str = COMMAND) -> bool:
        process, mark = start(argv, script)
        process.join(seconds)
        running = process.exitcode is None
        process.kill()
        process.join()
        assert running or process.exitcode == 0
        wait_for(lambda: not marked(mark))
        return running

    return run


def wait_for(question: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while not question():
        assert time.monotonic() < deadline, "not within two minutes"
        time.sleep(0.05)


def marked(mark: str) -> list[int]:
    """Return the processes that were started with a mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found
