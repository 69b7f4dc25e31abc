"""The playground in a notebook: the same page, over the notebook's own connection."""

from __future__ import annotations

from typing import Any

from isthmus.play.playground import PAGE, Playground

INSTALL = "The playground in a notebook needs anywidget: pip install 'isthmus[play]'"


def in_notebook() -> bool:
    """Return True in Jupyter, VS Code and marimo notebooks."""
    import sys

    if "marimo" in sys.modules:
        marimo: Any = sys.modules["marimo"]
        if marimo.running_in_notebook():
            return True
    ipython: Any = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython else None
    return getattr(shell, "kernel", None) is not None


def make_widget(playground: Playground) -> Any:
    """Return a widget that shows the playground and answers it in this kernel."""
    try:
        import anywidget
    except ImportError as error:
        raise ImportError(INSTALL, name=error.name) from None

    class PlayWidget(anywidget.AnyWidget):
        """The page of :mod:`isthmus.play` as a widget."""

        _esm = (PAGE / "play.js").read_text(encoding="utf-8")
        _css = (PAGE / "play.css").read_text(encoding="utf-8")

        def __init__(self) -> None:
            super().__init__()
            self.on_msg(self._answer)

        def _answer(self, _: Any, content: Any, __: Any) -> None:
            text = content.get("request") if isinstance(content, dict) else None
            if text == "hello":
                reply: bytes | None = playground.hello()
            else:
                reply = playground.answer(text if isinstance(text, str) else "")
            if reply is not None:
                self.send({"kind": "frame"}, buffers=[reply])

    return PlayWidget()
