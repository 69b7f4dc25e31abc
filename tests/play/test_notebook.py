"""The widget in a live JupyterLab: a real kernel, a real browser."""

import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from isthmus.play.launch import listen

sync_api = pytest.importorskip("playwright.sync_api")
pytest.importorskip("jupyterlab", reason="needs JupyterLab: pip install jupyterlab")
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
CODE = """import isthmus as ist
memory = ist.GaussianKDE([[0.0, 0.0], [2.0, 1.0], [0.5, 2.5]], sigma=0.5)
ist.play(memory)"""
CELL = {"cell_type": "code", "id": "a", "metadata": {}, "execution_count": None, "outputs": []}
SECONDS = 120
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not BROWSER, reason="there is no Chromium; apt-get install chromium"),
    # The driver leaves pipes for the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


@pytest.fixture
def notebook(tmp_path: Path):
    """The address of a notebook with one cell, which shows the widget."""
    kernel = {"kernelspec": {"name": "python3", "display_name": "Python", "language": "python"}}
    book = {"cells": [{**CELL, "source": CODE}], "metadata": kernel}
    book |= {"nbformat": 4, "nbformat_minor": 5}
    (tmp_path / "play.ipynb").write_text(json.dumps(book))
    with listen(None) as found:
        port = found.getsockname()[1]
    options = ["--allow-root", "--no-browser", f"--port={port}", "--IdentityProvider.token="]
    server = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *options, f"--ServerApp.root_dir={tmp_path}"],
        env={**os.environ, "HOME": str(tmp_path / "home")},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    address, end = f"http://127.0.0.1:{port}/lab/tree/play.ipynb", time.monotonic() + SECONDS
    while True:
        try:
            urllib.request.urlopen(address).close()
            break
        except urllib.error.URLError:
            assert time.monotonic() < end, "JupyterLab did not start"
            time.sleep(0.5)
    yield address
    server.terminate()
    server.wait(30)


def test_the_widget_answers_clicks_and_keeps_its_keys(notebook) -> None:
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=BROWSER, args=["--headless", "--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(1000 * SECONDS)
        page.goto(notebook)
        page.wait_for_selector(".jp-Notebook-ExecutionIndicator[data-status='idle']")
        page.locator(".jp-Notebook .jp-CodeCell .cm-content").first.click()
        page.keyboard.press("Shift+Enter")
        page.wait_for_selector(".isthmus-play[data-ready]")
        facts = page.locator(".isthmus-play dl").first
        sync_api.expect(facts).to_contain_text("Minima3", timeout=1000 * SECONDS)
        box = page.locator(".ip-top").bounding_box()
        page.mouse.click(box["x"] + 0.7 * box["width"], box["y"] + 0.7 * box["height"])
        sync_api.expect(facts).to_contain_text("Memories4", timeout=1000 * SECONDS)
        cells = page.locator(".jp-Notebook .jp-Cell").count()
        for key in ("x", "b"):  # in a notebook: cut this cell, add one below
            page.keyboard.press(key)
        page.keyboard.press("q")
        sync_api.expect(facts).to_contain_text("Queries1", timeout=1000 * SECONDS)
        assert page.locator(".jp-Notebook .jp-Cell").count() == cells
        browser.close()
