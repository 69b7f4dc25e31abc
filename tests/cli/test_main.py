"""`isthmus`: exit codes, and help that does not keep anybody waiting."""

import subprocess
import sys

import pytest

import isthmus
from isthmus.cli import reproduce
from isthmus.cli.main import main
from isthmus.errors import InvalidInputError


def test_without_a_command_it_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert "reproduce" in capsys.readouterr().out


def test_help_lists_the_commands_without_importing_torch() -> None:
    script = (
        "import sys\nfrom isthmus.cli.main import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit as stop:\n    assert stop.code == 0\n"
        "heavy = {'torch', 'matplotlib', 'sklearn', 'scipy', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "reproduce" in done.stdout


def test_python_dash_m_is_the_same_command() -> None:
    command = [sys.executable, "-m", "isthmus", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"isthmus {isthmus.__version__}\n"


@pytest.mark.parametrize("argument", ["no-such-command", "--no-such-option"])
def test_what_it_does_not_know_ends_with_2(
    argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main([argument])
    assert stop.value.code == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "Traceback" not in streams.err


def test_a_command_gets_the_arguments_after_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def run(argv: list[str]) -> int:
        seen.append(argv)
        return 5

    monkeypatch.setattr(reproduce, "run", run)
    assert main(["reproduce", "--seed", "3"]) == 5
    assert seen == [["--seed", "3"]]


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (KeyboardInterrupt(), 130, "isthmus: interrupted\n"),
        (InvalidInputError("sigma is negative."), 2, "isthmus: sigma is negative.\n"),
        (OSError("disk full"), 2, "isthmus: disk full\n"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(
    error: BaseException,
    code: int,
    line: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(argv: list[str]) -> int:
        raise error

    monkeypatch.setattr(reproduce, "run", run)
    assert main(["reproduce"]) == code
    assert capsys.readouterr().err == line
