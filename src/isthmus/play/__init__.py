"""The playground: an energy landscape to look at and to pull about, in the browser.

``isthmus play`` opens it, and so does ``ist.play(energy_or_data)``. All numbers on the page come
from this library.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, cast

__all__ = ["play"]


def play(start: Any = None, *, port: int | None = None, browser: bool = True) -> Any:
    """Show an energy, or the points of a table, in the playground.

    In a notebook (Jupyter, marimo, VS Code) it returns a widget. Elsewhere it serves a page on this
    machine, opens the browser, and returns when it is stopped with Ctrl-C.

    Needs the extra ``play``: ``pip install 'isthmus[play]'``.

    Parameters
    ----------
    start : Energy, array (n, D), data frame, or path of a table, optional
        An energy of two coordinates; its memories can be moved. Or points: two columns are drawn
        as they are, of more the first two principal components. The columns of a file are
        standardised, as by ``isthmus play``. Default: a small example.
    port : int, optional
        Port of the page. Default: one that is free. Unused in a notebook.
    browser : bool
        Open the page in the browser. Unused in a notebook.

    Examples
    --------
    >>> import isthmus as ist
    >>> ist.play([[0.0, 0.0], [1.0, 1.0]])  # doctest: +SKIP
    The playground is at http://127.0.0.1:41807/.../
    Ctrl-C stops it.
    """
    from isthmus.play.launch import in_notebook, make_widget, serve
    from isthmus.play.playground import Playground

    if isinstance(start, str | Path):
        from isthmus.play.data import Columns
        from isthmus.tables import read_table

        start = Columns.of_table(read_table(start))
    playground = Playground(start)
    if in_notebook():
        return make_widget(playground)
    return serve(playground, port=port, browser=browser)


# The function is the package: ``ist.play`` and ``isthmus.play`` are one object.
for _name in ["play", "__all__", "__file__", "__path__", "__spec__"]:
    setattr(play, _name, globals()[_name])
sys.modules[__name__] = cast("Any", play)
