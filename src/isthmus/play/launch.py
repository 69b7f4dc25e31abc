"""Show the page: in a browser, from a server that stops cleanly, or in a notebook."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.errors import InvalidInputError
from isthmus.extras import require
from isthmus.play.messages import LARGEST_TABLE
from isthmus.play.playground import PAGE, Playground
from isthmus.validation import as_count

if TYPE_CHECKING:
    import uvicorn

HOST = "127.0.0.1"


def listen(port: int | None) -> socket.socket:
    """Return a socket on this machine only; without a port, on one that is free."""
    number = 0 if port is None else as_count(port, "port", at_most=65535)
    try:
        # Connections wait from now on, so that the address can be told.
        return socket.create_server((HOST, number), backlog=64)
    except OSError as error:
        reason = os.strerror(error.errno or 0)
        raise InvalidInputError(
            f"Port {number} cannot be used ({reason}). Choose another one, or give none to take "
            "one that is free."
        ) from None


@dataclass(frozen=True)
class PlayServer:
    """A server that listens already; :meth:`run` answers until it is told to exit."""

    server: uvicorn.Server
    listener: socket.socket
    pool: ThreadPoolExecutor
    address: str

    def run(self) -> None:
        """Answer requests, then free the port."""
        try:
            self.server.run(sockets=[self.listener])
        finally:
            self.listener.close()
            self.pool.shutdown(wait=False, cancel_futures=True)


def make_server(playground: Playground, port: int | None = None) -> PlayServer:
    """Return a server of the page, on a port of its own unless one is given."""
    require("starlette", "uvicorn", "websockets")
    import uvicorn

    from isthmus.play.server import NewestConnections, make_app

    listener = listen(port)
    number = listener.getsockname()[1]
    app = make_app(playground, number)
    options: dict[str, Any] = {"log_level": "error", "access_log": False, "server_header": False}
    options |= {"ws_max_size": LARGEST_TABLE, "timeout_graceful_shutdown": 1}
    config = uvicorn.Config(app, http=NewestConnections, **options)
    address = f"http://{HOST}:{number}/{app.state.token}/"
    return PlayServer(uvicorn.Server(config), listener, app.state.pool, address)


def serve(
    playground: Playground,
    *,
    port: int | None = None,
    browser: bool = True,
    announce: Callable[[str], object] = print,
) -> None:
    """Show the page in the browser and answer it until Ctrl-C."""
    found = make_server(playground, port)
    announce(f"The playground is at {found.address}\nCtrl-C stops it.")
    with tempfile.TemporaryDirectory(prefix="isthmus-play-") as folder:
        if browser:
            # Arguments of programs can be read by every user of this machine, this file cannot.
            redirect = Path(folder) / "open.html"
            redirect.write_text(f'<meta http-equiv="refresh" content="0; url={found.address}">')
            opener = threading.Timer(0.3, webbrowser.open, [redirect.as_uri()])
            opener.daemon = True
            opener.start()
        try:
            found.run()
        except KeyboardInterrupt:
            announce("The playground has stopped.")


def in_notebook() -> bool:
    """Return True in Jupyter, VS Code and marimo notebooks."""
    marimo: Any = sys.modules.get("marimo")
    if marimo and marimo.running_in_notebook():
        return True
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return getattr(shell, "kernel", None) is not None


def make_widget(playground: Playground) -> Any:
    """Return a widget that shows the same page and answers it over the notebook's connection."""
    require("anywidget")
    import anywidget

    class PlayWidget(anywidget.AnyWidget):
        """The page of :mod:`isthmus.play` as a widget."""

        _esm = (PAGE / "play.js").read_text(encoding="utf-8")
        _css = (PAGE / "play.css").read_text(encoding="utf-8")

        def __init__(self) -> None:
            super().__init__()
            self.on_msg(self._answer)

        def _answer(self, _: Any, content: Any, __: Any) -> None:
            text = content.get("request") if isinstance(content, dict) else None
            said = text if isinstance(text, str) else ""
            reply = playground.hello() if said == "hello" else playground.answer(said)
            if reply is not None:
                self.send({"kind": "frame"}, buffers=[reply])

    return PlayWidget()
