"""The server of the page: one token, this machine only, and the newest request wins."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from isthmus.errors import InvalidInputError, IsthmusError
from isthmus.play.messages import LARGEST_TABLE, read_request
from isthmus.play.playground import PAGE, Playground
from isthmus.validation import as_count

HOST = "127.0.0.1"
FILES = {
    "index.html": "text/html",
    "play.js": "text/javascript",
    "play.css": "text/css",
    "icon.svg": "image/svg+xml",
}
# Kinds of requests that are answered one after another; a slow one never holds up a quick.
LANES = {"walk": "frame", "table": "final", "details": "final", "phases": "clusters"}
THREADS = 4
NOT_ALLOWED = 1008


def make_app(playground: Playground, port: int, token: str | None = None) -> Starlette:
    """Return the application; its ``state.token`` opens ``/TOKEN/``.

    Requests for another host than this machine's, or from a page of another origin, are refused,
    so that no web site can reach the playground, not even by pointing its name at 127.0.0.1.
    """
    token = secrets.token_urlsafe(24) if token is None else token
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="isthmus-play")
    hosts = [f"{name}:{port}" for name in (HOST, "localhost")]
    headers = {
        "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
        f"img-src 'self' data: blob:; connect-src 'self' {' '.join(f'ws://{h}' for h in hosts)}; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        "x-content-type-options": "nosniff",
        "referrer-policy": "no-referrer",
        "cross-origin-resource-policy": "same-origin",
        "cache-control": "no-store",
    }

    def is_own(request: HTTPConnection) -> bool:
        host, origin = request.headers.get("host"), request.headers.get("origin")
        # A WebSocket, to which browsers apply no policy, needs an origin.
        origins = [f"http://{each}" for each in hosts]
        return host in hosts and (
            origin in origins or (origin is None and request.scope["type"] == "http")
        )

    async def page(request: Request) -> Response:
        if not is_own(request):
            return PlainTextResponse("This server answers its own page only.", 403, headers)
        name = request.path_params.get("name", "index.html")
        if not _same(request.path_params["token"], token) or name not in FILES:
            return PlainTextResponse("Open the address that isthmus play printed.", 404, headers)
        return Response((PAGE / name).read_bytes(), 200, headers, FILES[name])

    async def socket(websocket: WebSocket) -> None:
        if not (is_own(websocket) and _same(websocket.path_params["token"], token)):
            await websocket.close(NOT_ALLOWED)
            return
        await websocket.accept()
        await Session(websocket, playground, pool).run()

    routes = [
        Route("/{token}/", page),
        Route("/{token}/{name}", page),
        WebSocketRoute("/{token}/ws", socket),
    ]
    app = Starlette(routes=routes)
    app.state.token, app.state.pool = token, pool
    return app


class PlayServer(uvicorn.Server):
    """A server of the page that listens already, on a port of its own unless one is given."""

    def __init__(self, playground: Playground, port: int | None = None) -> None:
        number = 0 if port is None else as_count(port, "port", at_most=65535)
        try:
            # Connections wait from now on, so that the address can be told.
            self.listener = socket.create_server((HOST, number), backlog=64)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise InvalidInputError(
                f"Port {number} cannot be used ({reason}). Choose another one, or give none to "
                "take one that is free."
            ) from None
        number = self.listener.getsockname()[1]
        app = make_app(playground, number)
        options: dict[str, Any] = {"log_level": "error", "access_log": False}
        options |= {"server_header": False, "ws_max_size": LARGEST_TABLE}
        options |= {"timeout_graceful_shutdown": 1}
        super().__init__(uvicorn.Config(app, **options))
        self.pool: ThreadPoolExecutor = app.state.pool
        self.address = f"http://{HOST}:{number}/{app.state.token}/"

    def run(self, sockets: list[socket.socket] | None = None) -> None:
        """Answer requests until told to exit, then free the port."""
        try:
            super().run(sockets or [self.listener])
        finally:
            self.listener.close()
            self.pool.shutdown(wait=False, cancel_futures=True)


def _same(given: str, token: str) -> bool:
    return secrets.compare_digest(given.encode(), token.encode())


@dataclass
class Session:
    """One connection. Of each kind of request only the newest waits; older ones are dropped."""

    websocket: WebSocket
    playground: Playground
    pool: ThreadPoolExecutor
    newest: dict[str, int] = field(default_factory=dict)
    closed: bool = False
    lanes: dict[str, asyncio.Lock] = field(default_factory=lambda: defaultdict(asyncio.Lock))

    async def run(self) -> None:
        """Answer until the page is closed."""
        await self.websocket.send_bytes(self.playground.hello())
        async with asyncio.TaskGroup() as tasks:
            try:
                async for text in self.websocket.iter_text():
                    tasks.create_task(self._answer(text))
            except RuntimeError:
                pass  # the server is stopping
            finally:
                self.closed = True

    async def _answer(self, text: str) -> None:
        try:
            request = read_request(text)
            kind, number = request["kind"], request["id"]
        except IsthmusError:
            kind, number = "", 0  # the answer says what is wrong
        self.newest[kind] = number
        async with self.lanes[LANES.get(kind, kind)]:
            if self.closed or self.newest[kind] != number:
                return
            stale = partial(self._stale, kind, number)
            answer = partial(self.playground.answer, text, stale)
            with suppress(WebSocketDisconnect, RuntimeError):  # the server may be stopping
                reply = await asyncio.get_running_loop().run_in_executor(self.pool, answer)
                if reply is not None:
                    await self.websocket.send_bytes(reply)

    def _stale(self, kind: str, number: int) -> bool:
        """Return True if nobody waits for an answer: the page is closed, or shows another scene."""
        newer = (self.newest.get(each, 0) > number for each in ("frame", "final"))
        return self.closed or (kind == "final" and any(newer))
