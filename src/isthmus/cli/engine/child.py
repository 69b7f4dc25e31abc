"""The process that makes one part; started by :mod:`isthmus.cli.engine.processes`."""

from __future__ import annotations

import faulthandler
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

from isthmus.cli.engine.inputs import Inputs
from isthmus.cli.engine.record import Record
from isthmus.cli.engine.store import Store
from isthmus.cli.parts import Part

__all__ = ["Request", "main"]


@dataclass(frozen=True)
class Request:
    """A part, and where to keep it."""

    part: Part
    inputs: Inputs
    out: Path

    def fulfil(self) -> None:
        """Make the part and keep it."""
        seed, full = self.inputs["seed"], self.inputs["full"]
        began = time.monotonic()
        section = self.part.make(seed, full)
        record = Record.of(section, self.inputs, time.monotonic() - began)
        Store(self.out, full).write(self.part.name, record)


def main() -> None:
    """Make the part that stdin asks for."""
    faulthandler.enable()
    request: Request = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_end_with_the_engine, daemon=True).start()
    _be_the_first_to_go()
    try:
        request.fulfil()
        code = 0
    except BaseException as error:
        traceback.print_exc()
        words = "".join(traceback.format_exception_only(error)).split("\n")
        if len(words) > 2:  # the last line is to say it all
            print(" ".join(" ".join(words).split()), file=sys.stderr)
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    # It is written, or told: nothing on the way out, such as a pool of workers, may hold it up.
    os._exit(code)


def _end_with_the_engine() -> None:
    """Wait for the other end of stdin to close, as it does however the engine ends."""
    while os.read(0, 1024):
        pass
    os.killpg(0, signal.SIGKILL)


def _be_the_first_to_go() -> None:
    """Where memory runs out, have Linux end this process, not the engine or another one."""
    try:
        Path("/proc/self/oom_score_adj").write_text("1000")
    except OSError:
        return


if __name__ == "__main__":
    main()
