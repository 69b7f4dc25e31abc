"""Starting and stopping: ports, signals, the command, the widget, and a real connection."""

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import urllib.request
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
import pytest
from helpers import unpack
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

import isthmus as ist
from isthmus.cli.main import main
from isthmus.play.launch import make_widget, serve
from isthmus.play.messages import LARGEST_TABLE
from isthmus.play.playground import Playground


def socket_of(address: str) -> str:
    return address.replace("http:", "ws:") + "ws"


def origin_of(address: str) -> str:
    return "/".join(address.split("/")[:3])


def test_a_real_connection_is_answered_and_limited(scene, address) -> None:
    where, origin = socket_of(address), origin_of(address)
    with urllib.request.urlopen(address) as page:
        assert b"play.js" in page.read()
    with connect(where, origin=origin, max_size=None) as page:
        assert unpack(page.recv())[0]["kind"] == "hello"
        request = {"id": 1, "kind": "frame", "columns": 96, "rows": 96, "scene": scene}
        page.send(json.dumps(request))
        assert unpack(page.recv())[1]["height"].shape == (96, 96)
        page.send("x" * (LARGEST_TABLE + 1))
        with pytest.raises(ConnectionClosed):
            page.recv()


def test_idle_connections_without_the_token_keep_nobody_out(address) -> None:
    with ExitStack() as idle:
        place = ("127.0.0.1", int(address.split(":")[2].split("/")[0]))
        for _ in range(200):
            idle.enter_context(socket.create_connection(place))
        with connect(socket_of(address), origin=origin_of(address)) as page:
            assert unpack(page.recv())[0]["kind"] == "hello"
            for _ in range(100):
                idle.enter_context(socket.create_connection(place))
            with urllib.request.urlopen(address) as answer:
                assert answer.status == 200
            page.send("{")  # the connection of the page is still open
            assert unpack(page.recv())[0]["kind"] == "error"


def test_the_token_is_not_an_argument_of_the_browser(monkeypatch) -> None:
    opened, told = [], []

    def look(address: str) -> None:
        assert address.startswith("file:")
        path = Path(url2pathname(urlsplit(address).path))
        opened.append((path, path.read_text(), stat.S_IMODE(path.parent.stat().st_mode)))

    class Timer(threading.Timer):
        def start(self) -> None:
            self.function(*self.args)

    monkeypatch.setattr("webbrowser.open", look)
    monkeypatch.setattr("threading.Timer", Timer)
    monkeypatch.setattr("isthmus.play.server.PlayServer.run", lambda self: self.listener.close())
    serve(Playground(), announce=told.append)
    path, text, mode = opened[0]
    address = re.search(r"http://\S+/", told[0]).group()
    assert address in text
    assert address.split("/")[3] not in str(path)
    assert mode == 0o700
    assert not path.exists()


def test_a_port_that_is_taken_is_named(capsys) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["play", "--port", str(port), "--no-browser"]) == 2
        assert str(port) in capsys.readouterr().err
    assert main(["play", "--port", "70000", "--no-browser"]) == 2


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_the_table_and_stops_cleanly(tmp_path, stop) -> None:
    data = tmp_path / "data.csv"
    X = np.random.default_rng(0).normal(size=(12, 3))
    np.savetxt(data, X, delimiter=",", header="a,b,<script>", comments="")
    command = [sys.executable, "-m", "isthmus", "play", str(data), "--no-browser"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=os.environ, **pipes) as process:
        try:
            line = process.stdout.readline()
            address = re.search(r"http://127\.0\.0\.1:\d+/\S+/", line).group()
            with connect(socket_of(address), origin=origin_of(address)) as page:
                hello, _ = unpack(page.recv())
                assert len(hello["scene"]["memories"]) == 12
                process.send_signal(stop)
                with pytest.raises(ConnectionClosed):
                    page.recv()
            out, err = process.communicate(timeout=20)
        finally:
            process.kill()
    assert "Traceback" not in err
    if stop == signal.SIGINT:
        assert process.returncode == 0
        assert "has stopped" in out


def test_a_file_is_the_same_plane_in_python_as_on_the_command_line(monkeypatch, tmp_path) -> None:
    shown = []
    monkeypatch.setattr(
        "isthmus.play.launch.serve",
        lambda playground, **options: shown.append(playground.start["scene"]),
    )
    path = tmp_path / "data.csv"
    path.write_text("a,b\n1,1000\n2,3000\n4,2000\n")
    ist.play(path)
    assert main(["play", str(path), "--quiet"]) == 0
    assert shown[0] == shown[1]
    np.testing.assert_allclose(np.std(shown[0]["memories"], axis=0), 1)


def test_the_widget_answers_over_the_notebooks_connection(scene, monkeypatch) -> None:
    widget = make_widget(Playground())
    sent = []
    monkeypatch.setattr(widget, "send", lambda content, buffers: sent.append(buffers[0]))
    request = {"id": 3, "kind": "frame", "columns": 16, "rows": 16, "scene": scene}
    for text in ("hello", json.dumps(request), "{", None):
        widget._handle_custom_msg({"request": text}, [])
    hello, frame, broken, nothing = (unpack(each)[0] for each in sent)
    assert hello["kind"] == "hello"
    assert frame["id"] == 3
    assert broken["kind"] == nothing["kind"] == "error"
    assert "export default" in widget._esm
    assert "http://" not in widget._esm.replace("http://127.0.0.1", "")
