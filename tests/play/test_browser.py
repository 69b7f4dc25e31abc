"""The page in a real browser: clicks, drags, keys and touch do what the library says."""

import itertools
import json
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import isthmus as ist
from isthmus.play.data import Plane
from isthmus.play.launch import make_server
from isthmus.play.playground import Playground
from isthmus.report import Finding, Section, TextTable
from isthmus.report import page as report_page

sync_api = pytest.importorskip("playwright.sync_api")
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
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

    def colours(self) -> np.ndarray:
        """The colours of the landscape, each once. (n, 3)."""
        pixels = self.value(
            "(() => { const f = document.querySelector('.ip-field'); "
            "return Array.from(f.getContext('2d').getImageData(0, 0, f.width, 40).data); })()"
        )
        return np.unique(np.array(pixels).reshape(-1, 4)[:, :3], axis=0)

    def heights(self) -> np.ndarray:
        header = self.value("isthmusPlay.frame().header")
        data = self.value("Array.from(isthmusPlay.frame().arrays.height.data)")
        return np.array(data).reshape(header["rows"], header["columns"])


@pytest.fixture(scope="module")
def address():
    found = make_server(Playground())
    thread = threading.Thread(target=found.run)
    thread.start()
    yield found.address
    found.server.should_exit = True
    thread.join(20)


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
    # What is drawn is the energy of the new scene, and its lowest node lies at a minimum.
    heights = page.heights()
    assert heights.shape == (256, 256)
    left, bottom, right, top = page.value(
        "(() => { const c = isthmusPlay.state.scene, t = isthmusPlay.root.querySelector('.ip-top')"
        ".getBoundingClientRect(); const h = [c.unit * Math.max(1, t.width / t.height), "
        "c.unit * Math.max(1, t.height / t.width)]; return [-h[0], -h[1], h[0], h[1]]; })()"
    )
    row, column = np.unravel_index(heights.argmin(), heights.shape)
    lowest = [left + column / 255 * (right - left), top - row / 255 * (top - bottom)]
    all_modes = ist.retrieve(memory, memory.memories).state.numpy()
    assert np.linalg.norm(all_modes - lowest, axis=1).min() < 0.05
    assert heights.min() == pytest.approx(float(memory.energy(lowest)), abs=1e-3)


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


def test_keys_select_move_and_delete(page) -> None:
    page.tab.locator(".ip-top").focus()
    before = page.memories
    for key in ("]", "ArrowRight", "Shift+ArrowUp"):
        page.tab.keyboard.press(key)
    step = 0.01 * page.value("isthmusPlay.state.scene.unit")
    np.testing.assert_allclose(page.memories[0], np.add(before[0], [step, 5 * step]), atol=1e-5)
    page.tab.keyboard.press("Delete")
    assert page.memories == before[1:]
    for _ in before[1:]:
        page.tab.keyboard.press("]")
        page.tab.keyboard.press("Delete")
    assert page.memories == []
    assert "Click to add" in page.tab.locator(".ip-hint").inner_text()
    for _ in before[1:]:
        page.tab.keyboard.press("Control+z")
    assert page.tab.locator(".ip-hint").is_hidden()
    page.tab.keyboard.press("Control+z")
    page.tab.keyboard.press("n")
    assert len(page.memories) == len(before) + 1
    page.tab.keyboard.press("v")
    assert page.value("isthmusPlay.state.view") == "density"


def test_a_query_rolls_to_where_retrieval_ends(page) -> None:
    page.press("Queries")
    page.tab.mouse.click(*page.at([0.4, 0.6]))
    page.wait("() => Boolean(isthmusPlay.extra()?.arrays.paths)")
    (start,) = page.value("isthmusPlay.state.queries")
    path = page.value("Array.from(isthmusPlay.extra().arrays.paths.data)")
    memory = ist.GaussianKDE(torch.tensor(page.memories, dtype=torch.float64), 0.5)
    expected = ist.retrieve(memory, torch.tensor(start, dtype=torch.float64)).state
    np.testing.assert_allclose(path[-2:], expected, atol=1e-3)


def test_every_energy_and_view_is_drawn(page) -> None:
    names = page.value(
        "Array.from(document.querySelectorAll('[aria-label=Energy] option'), o => o.value)"
    )
    assert {"kde", "modern", "sparse", "mixture", "crp", "hopfield", "incontext"} <= set(names)
    for name in names:
        page.tab.get_by_label("Energy", exact=True).select_option(name)
        for view in ("Probability", "Memory"):
            frames = page.value("isthmusPlay.stats.frames")
            page.press(view)
            page.wait(f"() => isthmusPlay.stats.frames > {frames}")
    assert page.value("isthmusPlay.stats.errors") == []


def test_samples_move(page) -> None:
    page.press("Start or stop the chains")
    page.wait("() => Boolean(isthmusPlay.walkers())")
    first = page.value("Array.from(isthmusPlay.walkers().to)")
    page.wait(f"() => isthmusPlay.walkers().to[0] !== {first[0]}")
    page.press("Start or stop the chains")
    page.wait("() => isthmusPlay.walkers() === null")


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


def test_undo_and_your_data_bring_back_the_names_of_a_table(page, tmp_path: Path) -> None:
    """The file is not in UTF-8, as those of some spreadsheets."""
    (tmp_path / "data.csv").write_bytes("höhe,größe\n1,2\n3,4\n2,9\n".encode("latin-1"))
    shown = (
        "[document.querySelector('[aria-label=\"Start from\"]').value, "
        "isthmusPlay.state.axes.join(), document.querySelector('.ip-note').textContent]"
    )
    before, preset = page.value(shown), page.tab.get_by_label("Start from", exact=True)
    assert before == ["five", "x₁,x₂", ""]
    page.tab.locator("input[type=file]").set_input_files(str(tmp_path / "data.csv"))
    page.wait("() => isthmusPlay.state.scene.memories.length === 3")
    own = page.value(shown)
    assert own == ["", "höhe,größe", "Both columns are standardised."]
    preset.select_option("moons")
    assert page.value(shown)[:2] == ["moons", "x₁,x₂"]
    preset.select_option("")
    assert page.value(shown) == own
    for expected in ("moons", "", "five"):
        page.press("Undo (Ctrl+Z)")
        assert page.value(shown)[0] == expected
    assert page.value(shown) == before


def test_the_page_says_that_it_waits(browser, monkeypatch) -> None:
    """What is drawn meanwhile belongs to the scene before."""
    playground, go = Playground(), threading.Event()
    answer = playground.answer

    def slow(message, *others):
        if '"kind":"frame"' in message and '"modern"' in message:
            go.wait(PATIENCE)
        return answer(message, *others)

    monkeypatch.setattr(playground, "answer", slow)
    found = make_server(playground)
    thread = threading.Thread(target=found.run)
    thread.start()
    page = Page(browser, found.address)
    assert page.tab.locator(".ip-wait").is_hidden()
    page.tab.get_by_label("Energy", exact=True).select_option("modern")
    page.wait("() => !document.querySelector('.ip-wait').hidden")
    go.set()
    page.wait("() => document.querySelector('.ip-wait').hidden")
    page.context.close()
    found.server.should_exit = True
    thread.join(20)


def test_a_report_shows_hostile_names_as_text(browser, tmp_path: Path) -> None:
    names = ["<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "$a_{$", "</td><b>x"]
    sections = [
        Section(
            name,
            numbers={name: 1.0, "of": {name: {name: 1.0, "b": 2.0}, "c": {name: 3.0, "b": 4.0}}},
            findings=(Finding(name, "held", name),),
            observations=(name,),
            table=TextTable((name, ""), ((name, name),)),
            name=f"part-{place}",
            title=name,
            chapter="one",
            command=name,
        )
        for place, name in enumerate(names)
    ]
    sections.append(
        Section(status="failed", message=names[0], name="no", title="No", chapter="one")
    )
    file = tmp_path / "index.html"
    file.write_text(report_page(names[0], names[1], sections, chapters={"one": names[0]}))
    context = browser.new_context()
    tab, heard = context.new_page(), []
    tab.on("dialog", lambda dialog: (heard.append(dialog.message), dialog.dismiss()))
    tab.on("console", lambda message: heard.append(message.text))
    tab.goto(file.as_uri())
    assert tab.title() == names[0]
    assert heard == []
    assert tab.evaluate("document.querySelectorAll('script, img, td b').length") == 0
    words = tab.locator("body").inner_text()
    assert all(words.count(name) >= 3 for name in names)
    context.close()


def test_a_picture_is_saved(page, tmp_path: Path) -> None:
    with page.tab.expect_download() as download:
        page.press("Save the picture as a PNG file")
    download.value.save_as(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_the_tour_shows_every_idea(page) -> None:
    page.press("A short tour of the five ideas")
    titles = []
    for _ in range(6):
        titles.append(page.tab.locator(".ip-tour h2").inner_text())
        frames = page.value("isthmusPlay.stats.frames")
        page.press("Next idea")
        if len(titles) < 6:
            page.wait(f"() => isthmusPlay.stats.frames > {frames}")
    assert [title[0] for title in titles[1:]] == list("12345")
    assert page.tab.locator(".ip-tour").is_hidden()


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (0.3, 12345.0), (1e8, 3e9)])
def test_labels_of_ticks_stand_apart(browser, scale, shift) -> None:
    """Also those of long numbers, which need the most room, and of long names."""
    points = shift + scale * np.random.default_rng(0).normal(size=(20, 2))
    found = make_server(Playground(Plane(points, ("the length of a petal in cm", "y"))))
    thread = threading.Thread(target=found.run)
    thread.start()
    page = Page(browser, found.address)
    for width, height in [(1280, 800), (700, 500), (390, 844), (320, 560)]:
        page.tab.set_viewport_size({"width": width, "height": height})
        # The name of the axis ends 10 px from the border of the stage.
        stage = "document.querySelector('.ip-top').getBoundingClientRect().width"
        page.wait(f"() => isthmusPlay.stats.ticks.at(-1)[1] === {stage} - 10")
        ticks = page.value("isthmusPlay.stats.ticks")
        assert len(ticks) > 1
        assert all(left[1] + 6 < right[0] for left, right in itertools.pairwise(ticks)), ticks
    page.context.close()
    found.server.should_exit = True
    thread.join(20)


def test_it_draws_without_webgl(driver, address) -> None:
    arguments = [*ARGUMENTS, "--disable-3d-apis", "--disable-webgl", "--disable-webgl2"]
    found = driver.chromium.launch(executable_path=BROWSER, args=arguments)
    page = Page(found, address)
    page.settle()
    assert page.value("document.createElement('canvas').getContext('webgl2')") is None
    # Shades of the basins, and nothing black.
    colours = page.colours()
    assert len(colours) > 100
    assert (colours.max(1) > 60).all()
    assert page.words == []
    found.close()


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_a_phone_shows_everything_within_its_width(browser, address, dark) -> None:
    scheme = "dark" if dark else "light"
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "color_scheme": scheme}
    page = Page(browser, address, **phone)
    assert page.value("isthmusPlay.root.dataset.theme") == scheme
    assert page.value("document.documentElement.scrollWidth") <= 390
    for control in page.tab.locator("button:visible, select:visible, input:visible").all():
        box = control.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
    # Nothing on the landscape lies on something else.
    boxes = [page.tab.locator(one).bounding_box() for one in (".ip-tools", ".ip-legend")]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    before = len(page.memories)
    page.tab.touchscreen.tap(*page.at([0.2, 0.0]))
    page.wait(f"() => isthmusPlay.state.scene.memories.length === {before + 1}")
    # The landscape stays in sight beside the last of the settings.
    page.value("scrollTo(0, document.documentElement.scrollHeight)")
    page.wait("() => document.querySelector('.ip-stage').getBoundingClientRect().top === 0")
    assert page.words == []
    page.context.close()


def test_a_server_that_stops_is_told(browser) -> None:
    found = make_server(Playground())
    thread = threading.Thread(target=found.run)
    thread.start()
    page = Page(browser, found.address)
    found.server.should_exit = True
    thread.join(20)
    page.wait("() => !document.querySelector('.ip-notice').hidden")
    assert "has stopped" in page.tab.locator(".ip-notice").inner_text()
    # No landscape comes for another size of the window, but the canvas is not left black.
    page.tab.set_viewport_size({"width": 900, "height": 640})
    page.wait("() => isthmusPlay.frame() === null")
    page.tab.wait_for_timeout(100)
    assert page.colours()[0].tolist() == [255, 255, 255]
    page.context.close()
