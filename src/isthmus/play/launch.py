"""Start the server, open the page, and stop cleanly."""

from __future__ import annotations

import socket
import tempfile
import threading
import webbrowser
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.errors import InvalidInputError
from isthmus.play.playground import Playground
from isthmus.play.scene import LARGEST_TABLE
from isthmus.validation import as_count

if TYPE_CHECKING:
    import uvicorn

BACKLOG = 64
INSTALL = "The playground needs Starlette and uvicorn: pip install 'isthmus[play]'"


def listen(port: int | None) -> socket.socket:
    """Return a socket on this machine only; without a port, on one that is free."""
    from isthmus.play.server import HOST

    number = 0 if port is None else as_count(port, "port", at_most=65535)
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, number))
        listener.listen(BACKLOG)  # connections wait from now on, so that the address can be told
    except OSError as error:
        listener.close()
        raise InvalidInputError(
            f"Port {number} cannot be used ({error.strerror}). Choose another one, or give none "
            "to take one that is free."
        ) from None
    return listener


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
    try:
        import uvicorn

        from isthmus.play.server import HOST, NewestConnections, make_app
    except ImportError as error:
        raise ImportError(INSTALL, name=error.name) from None
    listener = listen(port)
    number = listener.getsockname()[1]
    app = make_app(playground, number)
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        ws_max_size=LARGEST_TABLE,
        http=NewestConnections,
        timeout_graceful_shutdown=1,
        server_header=False,
    )
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
