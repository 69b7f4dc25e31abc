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
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect
from uvicorn.protocols.http.h11_impl import H11Protocol

from isthmus.errors import InvalidInputError, IsthmusError
from isthmus.play.messages import LARGEST_TABLE, read_request
from isthmus.play.playground import PAGE, Playground
from isthmus.validation import as_count

HOST = "127.0.0.1"
FILES = {
    "": ("index.html", "text/html"),
    "play.js": ("play.js", "text/javascript"),
    "play.css": ("play.css", "text/css"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
}
# Kinds of requests that are answered one after another; a slow one never holds up a quick.
LANES = {"walk": "frame", "table": "final", "details": "final", "phases": "clusters"}
THREADS = 4
NOT_ALLOWED = 1008
MOST_CONNECTIONS = 64


def make_app(playground: Playground, port: int, token: str | None = None) -> Starlette:
    """Return the application; its ``state.token`` opens ``/TOKEN/``.

    Requests for another host than this machine's, or from a page of another origin, are refused,
    so that no web site can reach the playground, not even by pointing its name at 127.0.0.1.
    """
    token = secrets.token_urlsafe(24) if token is None else token
    pool = ThreadPoolExecutor(THREADS, thread_name_prefix="isthmus-play")

    async def page(request: Request) -> Response:
        name = request.path_params.get("name", "")
        if not _same(request.path_params["token"], token) or name not in FILES:
            return PlainTextResponse("Open the address that isthmus play printed.", 404)
        file, media = FILES[name]
        return Response((PAGE / file).read_bytes(), media_type=media)

    async def socket(websocket: WebSocket) -> None:
        if not _same(websocket.path_params["token"], token):
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
    app.add_middleware(Guard, port=port)
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
        options |= {"timeout_graceful_shutdown": 1, "http": NewestConnections}
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


class NewestConnections(H11Protocol):
    """HTTP of which only the newest connections stay open, so that idle ones keep nobody out.

    Those that were upgraded to a WebSocket, which takes the token, are not counted.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Accept a connection, and close the oldest if there are too many."""
        super().connection_made(transport)
        self.since = self.loop.time()
        others = [each for each in self.connections if isinstance(each, NewestConnections)]
        if len(others) > MOST_CONNECTIONS:
            min(others, key=lambda each: each.since).transport.abort()


class Guard:
    """Middleware that refuses other hosts and origins, and adds headers that shut the page in."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self.app = app
        self.hosts = {f"{name}:{port}" for name in (HOST, "localhost")}
        self.headers = [
            (
                b"content-security-policy",
                b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: "
                b"blob:; connect-src 'self' ws://127.0.0.1:%d ws://localhost:%d; "
                b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'" % (port, port),
            ),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"no-referrer"),
            (b"cross-origin-resource-policy", b"same-origin"),
            (b"cache-control", b"no-store"),
        ]

    def _refusal(self, scope: Scope) -> str | None:
        headers = Headers(scope=scope)
        if headers.get("host") not in self.hosts:
            return "This server answers requests to 127.0.0.1 only."
        origin = headers.get("origin")
        if origin is None:
            return "A connection needs an origin." if scope["type"] == "websocket" else None
        own = {f"http://{host}" for host in self.hosts}
        return None if origin in own else "This server answers its own page only."

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse."""
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refusal = self._refusal(scope)
        if refusal and scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": NOT_ALLOWED, "reason": refusal})
        elif refusal:
            await PlainTextResponse(refusal, 403)(scope, receive, send)
        else:
            await self.app(scope, receive, partial(self._send, send))

    async def _send(self, send: Send, message: Any) -> None:
        if message["type"] == "http.response.start":
            message["headers"] = [*message.get("headers", []), *self.headers]
        await send(message)


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
