"""The progress display appears where somebody can see it, and only once work takes long."""

import pytest

from isthmus import progress as module
from isthmus.progress import progress


def test_a_requested_bar_shows_title_amount_and_note(capsys):
    with progress("fitting", 8, show=True) as report:
        report(3, "iris")
    shown = capsys.readouterr()
    assert "fitting" in shown.err
    assert "3/8" in shown.err
    assert "iris" in shown.err
    assert shown.out == ""


@pytest.mark.parametrize("show", [None, False])
def test_nothing_is_shown_where_stderr_is_not_a_terminal(capsys, monkeypatch, show):
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    with progress("fitting", 8, show=show) as report:
        report(3)
    assert capsys.readouterr().err == ""


def test_a_terminal_shows_a_bar_only_after_a_while(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with progress("short", 8) as report:
        report(3)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(module, "PATIENCE", 0.0)
    with progress("long", 8) as report:
        report(3)
    assert "long" in capsys.readouterr().err


def test_an_interrupted_block_closes_the_bar(capsys):
    def interrupted():
        with progress("fitting", 8, show=True) as report:
            report(3)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    with progress("again", 8, show=True) as report:  # rich allows one live display at a time
        report(1)
    assert "again" in capsys.readouterr().err
