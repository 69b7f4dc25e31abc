"""The server answers its own page only, within limits, and a newer request replaces an older."""

import json
import threading
import time

import pytest
from helpers import unpack
from starlette.testclient import TestClient
from starlette.websockets import WebSocketDisconnect

from isthmus.play.messages import pack
from isthmus.play.playground import Playground
from isthmus.play.server import make_app

PORT = 8123
HOST = f"127.0.0.1:{PORT}"
OWN = f"http://{HOST}"


class Slow(Playground):
    """Answers wait until they are let go, and are counted."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.begun, self.ended = threading.Event(), [], []

    def answer(self, message, stale=lambda: False):
        request = json.loads(message)
        self.begun.append(request["id"])
        while not self.gate.wait(0.005):
            if stale():
                self.ended.append(request["id"])
                return None
        return pack({"kind": request["kind"], "id": request["id"]})


@pytest.fixture
def client():
    with TestClient(make_app(Playground(), PORT, "secret"), base_url=OWN) as found:
        yield found


def connect(client: TestClient, token: str = "secret", **headers: str):
    return client.websocket_connect(
        f"/{token}/ws", headers={"host": HOST, "origin": OWN, **headers}
    )


def test_the_page_and_its_files_are_served_behind_the_token(client) -> None:
    page = client.get("/secret/")
    assert page.status_code == 200
    assert "play.js" in page.text
    for name, media in (("play.js", "text/javascript"), ("play.css", "text/css")):
        found = client.get(f"/secret/{name}")
        assert found.status_code == 200
        assert found.headers["content-type"].startswith(media)
    for path in ("/", "/secre/", "/secret2/", "/secret/../secret/x.py", "/play.js"):
        assert client.get(path).status_code == 404


@pytest.mark.parametrize(
    ("header", "value"),
    [
        *(("host", each) for each in ("evil.example", "127.0.0.1", "localhost.evil:8123")),
        *(("origin", each) for each in ("http://evil.example", "null", f"https://{HOST}", "")),
    ],
)
def test_other_hosts_and_origins_are_refused(client, header, value) -> None:
    assert client.get("/secret/", headers={header: value}).status_code == 403
    with pytest.raises(WebSocketDisconnect), connect(client, **{header: value}):
        pass


def test_a_connection_needs_the_token_and_an_origin(client) -> None:
    with pytest.raises(WebSocketDisconnect), connect(client, token="guess"):
        pass
    bare = client.websocket_connect("/secret/ws", headers={"host": HOST})
    with pytest.raises(WebSocketDisconnect), bare:
        pass


def test_headers_keep_everything_on_this_machine(client) -> None:
    headers = client.get("/secret/").headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["x-content-type-options"] == "nosniff"


def wait_for(condition) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("it did not happen")


def test_the_newest_request_wins(scene) -> None:
    slow = Slow()
    with (
        TestClient(make_app(slow, PORT, "secret"), base_url=OWN) as client,
        connect(client) as page,
    ):
        page.receive_bytes()
        page.send_text(json.dumps({"id": 1, "kind": "frame", "scene": scene}))
        wait_for(lambda: slow.begun == [1])
        for number in range(2, 50):
            page.send_text(json.dumps({"id": number, "kind": "frame", "scene": scene}))
        time.sleep(0.2)
        slow.gate.set()
        assert [unpack(page.receive_bytes())[0]["id"] for _ in range(2)] == [1, 49]
        assert slow.begun == [1, 49]


def test_a_slow_request_neither_delays_a_quick_one_nor_outlives_it(scene) -> None:
    slow = Slow()
    with (
        TestClient(make_app(slow, PORT, "secret"), base_url=OWN) as client,
        connect(client) as page,
    ):
        page.receive_bytes()
        page.send_text(json.dumps({"id": 1, "kind": "final", "scene": scene}))
        wait_for(lambda: slow.begun == [1])
        page.send_text(json.dumps({"id": 2, "kind": "frame", "scene": scene}))
        wait_for(lambda: slow.begun == [1, 2])
        time.sleep(0.1)  # the first notices that it is stale
        slow.gate.set()
        page.send_text(json.dumps({"id": 3, "kind": "details", "scene": scene}))
        assert {unpack(page.receive_bytes())[0]["id"] for _ in range(2)} == {2, 3}


def test_closing_the_tab_ends_what_runs(scene) -> None:
    slow = Slow()
    with TestClient(make_app(slow, PORT, "secret"), base_url=OWN) as client:
        with connect(client) as page:
            page.receive_bytes()
            page.send_text(json.dumps({"id": 1, "kind": "walk", "scene": scene}))
            wait_for(lambda: slow.begun == [1])
        with connect(client) as page:  # and the next one is served
            assert unpack(page.receive_bytes())[0]["kind"] == "hello"
        wait_for(lambda: slow.ended == [1])
