"""Scenes and requests as the page sends them."""

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from helpers import unpack

from isthmus.play.playground import Playground
from isthmus.play.server import PlayServer

FIVE = [[-2.2, 1.4], [-0.6, 2.1], [1.9, 1.6], [1.2, -1.7], [-1.8, -1.5]]
SCENE: dict[str, Any] = {
    "energy": "kde",
    "memories": FIVE,
    "counts": [5, 4, 3, 2, 1],
    "sigma": 0.5,
    "alpha": 1.0,
    "prior": 2.0,
    "box": [-5.0, -4.0, 5.0, 4.0],
    "centre": [0.0, 0.0],
    "unit": 4.0,
}
Ask = Callable[..., tuple[dict[str, Any], dict[str, Any]]]


@pytest.fixture
def scene() -> dict[str, Any]:
    """Five memories and a Gaussian KDE."""
    return json.loads(json.dumps(SCENE))


@pytest.fixture
def ask(scene: dict[str, Any]) -> Ask:
    """Send a request about the scene, with changes to it, and return the reply."""
    playground = Playground()

    def send(kind: str, changes: dict[str, Any] | None = None, **body: Any) -> Any:
        request = {"id": 7, "kind": kind, "scene": {**scene, **(changes or {})}, **body}
        return unpack(playground.answer(json.dumps(request)) or b"")

    return send


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A running server of the page."""
    found = PlayServer(Playground())
    thread = threading.Thread(target=found.run)
    thread.start()
    yield found.address
    found.should_exit = True
    thread.join(20)
    assert not thread.is_alive()
