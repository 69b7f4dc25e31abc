"""Frames per second of the playground: a memory is dragged among 200 in a headless Chromium.

The CPU time of a frame, on the server and in the browser, does not depend on what else the machine
is doing, as the frames per second do. Server and browser work at the same time, so that on two free
cores the frames per second are at most 1000 divided by the larger of both.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psutil
from measuring import Row, print_rows

from isthmus.play.playground import Playground
from isthmus.play.server import PlayServer

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
WIDTH, HEIGHT = 1280, 800
# The pointer, pressed by a real event, moves 60 times a second, as often as a screen is drawn. The
# moves are made in the page: from outside they would come far more slowly.
DRAG = """([x, y, milliseconds]) => new Promise(done => {
  const canvas = document.querySelector(".ip-top"), start = performance.now();
  const timer = setInterval(() => {
    const t = (performance.now() - start) / 1000;
    const place = { clientX: x + 50 * Math.sin(3 * t), clientY: y + 40 * Math.sin(2 * t) };
    const options = { pointerId: 1, bubbles: true, ...place };
    canvas.dispatchEvent(new PointerEvent("pointermove", options));
    if (1000 * t > milliseconds) { clearInterval(timer); done(); }
  }, 1000 / 60);
})"""
SCENE = """name => {
  const { state } = isthmusPlay, preset = document.querySelector('[aria-label="Start from"]');
  preset.value = name === "incontext" ? "context" : "many";
  preset.dispatchEvent(new Event("change"));
  const energy = document.querySelector('[aria-label="Energy"]');
  energy.value = name;
  energy.dispatchEvent(new Event("change"));
  return state.scene.memories.length;
}"""


def measure(full: bool = False, seed: int = 0) -> Iterator[Row]:
    """Drag for two seconds, or five, on every energy, and yield what was drawn."""
    from playwright.sync_api import sync_playwright

    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        raise SystemExit("This benchmark needs Chromium: apt-get install chromium")
    seconds = 5.0 if full else 2.0
    server = PlayServer(Playground())
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=browser, args=ARGUMENTS)
        page = chromium.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        page.goto(server.address)
        page.wait_for_selector("[data-ready]")
        choice = '[aria-label="Energy"] option'
        names = page.eval_on_selector_all(choice, "all => all.map(each => each.value)")
        for name in names:
            yield _drag(page, name, seconds)
        chromium.close()
    server.should_exit = True
    thread.join(10)


def _drag(page: Any, name: str, seconds: float) -> Row:
    count = page.evaluate(SCENE, name)
    _wait_for_fine(page)
    box = page.locator(".ip-top").bounding_box()
    x, y = page.evaluate("isthmusPlay.toScreen(isthmusPlay.state.scene.memories[0])")
    page.mouse.move(box["x"] + x, box["y"] + y)
    page.mouse.down()
    page.evaluate("() => Object.assign(isthmusPlay.stats, { frames: 0, latencies: [] })")
    server, browser = time.process_time(), _browser_seconds()
    start = time.monotonic()
    page.evaluate(DRAG, [box["x"] + x, box["y"] + y, 1000 * seconds])
    stats = page.evaluate(
        "({ frames: isthmusPlay.stats.frames, all: isthmusPlay.stats.latencies })"
    )
    columns = page.evaluate("isthmusPlay.frame().header.columns")
    elapsed, frames = time.monotonic() - start, max(stats["frames"], 1)
    server, browser = time.process_time() - server, _browser_seconds() - browser
    page.mouse.up()
    released = time.monotonic()
    fine = _wait_for_fine(page)
    return {
        "table": "dragging one memory",
        "energy": name,
        "memories": count,
        "grid": f"{columns} x {columns}",
        "frames/s": round(stats["frames"] / elapsed, 1),
        "server CPU ms": round(1000 * server / frames, 1),
        "browser CPU ms": round(1000 * browser / frames, 1),
        "latency ms": round(statistics.median(stats["all"] or [float("nan")]), 1),
        "fine grid": f"{fine} x {fine}",
        "fine after s": round(time.monotonic() - released, 2),
    }


def _browser_seconds() -> float:
    """Return the CPU seconds that the processes of the browser have used."""
    total = 0.0
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            total += sum(child.cpu_times()[:2])
    return total


def _wait_for_fine(page: Any) -> int:
    """Wait until the fine landscape is drawn, and return its size."""
    for _ in range(3000):
        header = page.evaluate("isthmusPlay.frame()?.header ?? {}")
        if header.get("kind") == "final":
            return int(header["columns"])
        page.wait_for_timeout(10)
    raise SystemExit("The fine landscape did not come.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--full", action="store_true", help="drag for five seconds, not two")
    print_rows(measure(parser.parse_args().full))
