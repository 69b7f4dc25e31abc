"""Show the page: in a browser, from a server that stops cleanly, or in a notebook."""

from __future__ import annotations

import sys
import tempfile
import threading
import webbrowser
from collections.abc import Callable
from pathlib import Path
from typing import Any

from isthmus.extras import require
from isthmus.play.playground import PAGE, Playground


def serve(
    playground: Playground,
    *,
    port: int | None = None,
    browser: bool = True,
    announce: Callable[[str], object] = print,
) -> None:
    """Show the page in the browser and answer it until Ctrl-C."""
    require("starlette", "uvicorn", "websockets")
    from isthmus.play.server import PlayServer

    found = PlayServer(playground, port)
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
