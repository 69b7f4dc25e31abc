"""The page in a real browser: clicks, drags, keys and touch do what the library says."""

import json
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import isthmus as ist

sync_api = pytest.importorskip("playwright.sync_api")
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
ARGUMENTS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"]
PATIENCE = 60
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not BROWSER, reason="there is no Chromium; apt-get install chromium"),
    # The driver leaves pipes for the garbage collector.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


class Page:
    """A tab of the playground, and everything it says and asks for."""

    def __init__(self, browser, address: str, **options) -> None:
        self.context = browser.new_context(**options)
        self.tab = self.context.new_page()
        self.words, self.requests = [], []
        self.tab.on("console", lambda message: self.words.append(message.text))
        self.tab.on("pageerror", lambda error: self.words.append(str(error)))
        self.tab.on("request", lambda request: self.requests.append(request.url))
        self.tab.goto(address)
        self.wait("() => Boolean(window.isthmusPlay?.frame())")

    def value(self, expression: str):
        return self.tab.evaluate(expression)

    def wait(self, condition: str) -> None:
        """Poll, since the page's policy forbids to evaluate strings in it."""
        end = time.monotonic() + PATIENCE
        while not self.value(condition):
            assert time.monotonic() < end, f"{condition} did not come true; {self.words}"
            self.tab.wait_for_timeout(30)

    def settle(self) -> dict:
        """Wait for a fine landscape of the scene as it is, and return its header."""
        sent = self.value("isthmusPlay.stats.sent")
        fine = "isthmusPlay.frame()?.header.kind === 'final'"
        self.wait(f"() => isthmusPlay.stats.sent >= {sent} && {fine}")
        return self.value("isthmusPlay.frame().header")

    def at(self, point) -> tuple[float, float]:
        """The place of a point of the plane in the window."""
        x, y = self.value(f"isthmusPlay.toScreen({json.dumps(list(point))})")
        box = self.tab.locator(".ip-top").bounding_box()
        return box["x"] + x, box["y"] + y

    def drag(self, start, end, steps: int = 8) -> None:
        self.tab.mouse.move(*self.at(start))
        self.tab.mouse.down()
        self.tab.mouse.move(*self.at(end), steps=steps)
        self.tab.mouse.up()

    def press(self, name: str) -> None:
        self.tab.get_by_role("button", name=name, exact=True).click()

    @property
    def memories(self) -> list:
        return self.value("isthmusPlay.state.scene.memories")

    def heights(self) -> np.ndarray:
        header = self.value("isthmusPlay.frame().header")
        data = self.value("Array.from(isthmusPlay.frame().arrays.height.data)")
        return np.array(data).reshape(header["rows"], header["columns"])


@pytest.fixture(scope="module")
def driver():
    with sync_api.sync_playwright() as found:
        yield found


@pytest.fixture(scope="module")
def browser(driver):
    try:
        found = driver.chromium.launch(executable_path=BROWSER, args=ARGUMENTS)
    except sync_api.Error as error:
        pytest.skip(f"{BROWSER} does not start: {str(error).splitlines()[0]}")
    yield found
    found.close()


@pytest.fixture
def page(browser, address):
    found = Page(browser, address, viewport={"width": 1100, "height": 700})
    yield found
    outside = [url for url in found.requests if not url.startswith(address)]
    assert outside == []
    assert found.words == []
    assert found.value("isthmusPlay.stats.errors") == []
    found.context.close()


def test_a_dragged_memory_moves_the_minimum_to_where_the_library_says(page) -> None:
    target = [2.9, -0.4]
    page.drag(page.memories[2], target)
    page.tab.wait_for_timeout(400)
    header = page.settle()
    np.testing.assert_allclose(page.memories[2], target, atol=0.02)
    memory = ist.GaussianKDE(torch.tensor(page.memories, dtype=torch.float64), 0.5)
    expected = ist.retrieve(memory, memory.memories[2]).state.numpy()
    modes = np.array(header["modes"])[:, :2]
    assert np.linalg.norm(modes - expected, axis=1).min() < 1e-3
    # What is drawn is the energy of the new scene.
    heights = page.heights()
    assert heights.shape == (256, 256)
    ends = ist.retrieve(memory, memory.memories)
    assert heights.min() == pytest.approx(float(ends.energy.min()), abs=1e-2)


def test_click_adds_double_click_deletes_and_undo_brings_back(page) -> None:
    before = page.memories
    page.tab.mouse.click(*page.at([0.2, 0.1]))
    page.wait(f"() => isthmusPlay.state.scene.memories.length === {len(before) + 1}")
    np.testing.assert_allclose(page.memories[-1], [0.2, 0.1], atol=0.02)
    page.tab.mouse.dblclick(*page.at(page.memories[-1]))
    page.wait(f"() => isthmusPlay.state.scene.memories.length === {len(before)}")
    page.press("Undo (Ctrl+Z)")
    assert len(page.memories) == len(before) + 1
    page.press("Undo (Ctrl+Z)")
    assert page.memories == before
    page.press("Redo (Ctrl+Y)")
    assert len(page.memories) == len(before) + 1


def test_a_query_rolls_to_where_retrieval_ends(page) -> None:
    page.press("Queries")
    page.tab.mouse.click(*page.at([0.4, 0.6]))
    page.wait("() => Boolean(isthmusPlay.extra()?.arrays.paths)")
    (start,) = page.value("isthmusPlay.state.queries")
    path = page.value("Array.from(isthmusPlay.extra().arrays.paths.data)")
    memory = ist.GaussianKDE(torch.tensor(page.memories, dtype=torch.float64), 0.5)
    expected = ist.retrieve(memory, torch.tensor(start, dtype=torch.float64)).state
    np.testing.assert_allclose(path[-2:], expected, atol=1e-3)


def test_a_scene_travels_in_the_fragment(page, browser, address) -> None:
    page.tab.mouse.click(*page.at([0.2, 0.1]))
    page.wait("() => location.hash.length > 10")
    fragment = page.value("location.hash")
    other = Page(browser, address + fragment)
    assert other.memories == page.memories
    assert other.value("isthmusPlay.state.axes") == ["x₁", "x₂"]
    other.context.close()
    broken = Page(browser, address + "#%3Cscript%3E")
    assert "does not hold a scene" in broken.tab.locator(".ip-notice").inner_text()
    broken.context.close()


def test_a_table_with_hostile_names_is_text(page, tmp_path: Path) -> None:
    name = "<script>document.title='owned'</script>"
    rows = "\n".join(f"{a},{b}" for a, b in np.random.default_rng(0).normal(size=(30, 2)))
    data = tmp_path / "<img src=x onerror=alert(1)>.csv"
    data.write_text(f'"{name}","<b>y</b>"\n{rows}\n')
    page.tab.locator("input[type=file]").set_input_files(str(data))
    page.wait("() => isthmusPlay.state.scene.memories.length === 30")
    assert page.value("isthmusPlay.state.axes[0]") == name
    assert page.tab.title() == "isthmus playground"
    assert page.value("document.querySelectorAll('script').length") == 1
    assert page.value("document.querySelectorAll('img, b').length") == 0


def test_columns_are_chosen_and_clusters_counted(page, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(20, 3)), rng.normal(size=(20, 3)) + 6])
    data = tmp_path / "x.csv"
    np.savetxt(data, X, delimiter=",", header="a,b,c", comments="")
    page.tab.locator("input[type=file]").set_input_files(str(data))
    page.wait("() => isthmusPlay.state.scene.memories.length === 40")
    page.tab.get_by_label("Horizontal axis").select_option("b")
    page.wait("() => isthmusPlay.state.axes[0] === 'b'")
    page.press("Clusters of BasinFlow, and the phases of the bandwidth")
    page.tab.get_by_text("BasinFlow finds 2 clusters").wait_for()
