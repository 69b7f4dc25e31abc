"""The section: one part of a report, from where it is computed to where it is shown."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from isthmus.errors import InvalidInputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Verdict = Literal["held", "held with a correction", "did not hold", "open"]
"""The verdict on a claim."""
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
Status = Literal["done", "failed", "missing"]
CLAIMS: dict[str, list[str]] = tomllib.loads(
    Path(__file__).with_name("claims.toml").read_text(encoding="utf-8")
)
"""The paper's claims by name: each as the page states it, and its place with the paper's words."""


@dataclass(frozen=True)
class Finding:
    """A claim of the paper, its verdict, and the measurement behind it."""

    claim: str
    verdict: Verdict
    because: str


def judge(claim: str, because: str, *, as_printed: bool | None, corrected: bool = False) -> Finding:
    """Return the finding whose verdict follows from two checks of a claim.

    Parameters
    ----------
    claim, because : str
        As in :class:`Finding`.
    as_printed : bool or None
        Whether the claim passed its check as printed; None if that is open.
    corrected : bool
        Whether it passed in its corrected form.

    Examples
    --------
    >>> judge("Coins are fair.", "Heads in 70 % of tosses.", as_printed=False).verdict
    'did not hold'
    """
    otherwise: Verdict = "held with a correction" if corrected else "did not hold"
    verdicts: dict[bool | None, Verdict] = {None: "open", True: "held", False: otherwise}
    return Finding(claim, verdicts[as_printed], because)


def judged(name: str, because: str, as_printed: bool | None, *, corrected: bool = False) -> Finding:
    """Return the finding on a claim of the list; other parameters as in :func:`judge`."""
    return judge(CLAIMS[name][0], because, as_printed=as_printed, corrected=corrected)


def listed(values: Iterable[Any], form: str = "") -> str:
    """Return values in words: "1, 2 and 3"."""
    words = [format(value, form) for value in values]
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def value_text(value: Any) -> str:
    """Return a value as text with four significant digits.

    >>> value_text(2 / 3), value_text(None), value_text(True), value_text([1, 2.5])
    ('0.6667', '–', 'yes', '1, 2.5')
    """
    if value is None or isinstance(value, bool):
        return {None: "–", True: "yes", False: "no"}[value]
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, value)) or "none"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class TextTable:
    """A table of text: the headings of its columns, and rows with a cell for each."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Section:
    """One part of a report: a figure or table, the numbers behind it, and its findings.

    A part returns the first six attributes; :func:`isthmus.report.build` fills in the others.

    Attributes
    ----------
    caption : str
        A few sentences. Text between backticks is shown as code.
    figure : bytes or None
        A PNG. A matplotlib figure is accepted, and converted.
    numbers : mapping
        The measurements: finite numbers, text, None, lists, and mappings of them. A name such as
        ``basins_by_sigma_and_N`` says what the keys of the next two levels stand for.
    findings : tuple of Finding
        Verdicts on the paper's claims.
    table : TextTable or None
    observations : tuple of str
        Results beyond the paper's claims: sentences without a verdict.
    status, message, seconds
        "done", "failed" or "missing", the reason, and the wall-clock time.
    inputs : mapping
        What the section was computed from: the seed, the size and the versions.
    name, title, chapter, command, log : str
        Those of the part, the command that makes it, and the path of its output, if any.
    """

    caption: str = ""
    figure: Figure | bytes | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    table: TextTable | None = None
    observations: tuple[str, ...] = ()
    status: Status = "done"
    message: str = ""
    seconds: float | None = None
    inputs: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    title: str = ""
    chapter: str = ""
    command: str = ""
    log: str = ""

    def __post_init__(self) -> None:
        numbers = {str(key): _plain(value, f"numbers.{key}") for key, value in self.numbers.items()}
        object.__setattr__(self, "numbers", numbers)
        if self.figure is not None and not isinstance(self.figure, bytes):
            from isthmus.figures.style import png_bytes

            object.__setattr__(self, "figure", png_bytes(self.figure))

    def to_json(self) -> str:
        """Return the section as JSON, without the figure itself."""
        content = _plain(asdict(self) | {"figure": self.figure is not None}, "section")
        return json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, figure: bytes | None = None) -> Section:
        """Read a section that was written with this figure."""
        content = json.loads(text)
        table, figure = content["table"], figure if content["figure"] else None
        if content["figure"] and figure is None:
            raise InvalidInputError("The figure of the section is missing.")
        content |= {
            "figure": figure,
            "table": table and TextTable(tuple(table["columns"]), (*map(tuple, table["rows"]),)),
            "findings": tuple(Finding(**finding) for finding in content["findings"]),
            "observations": tuple(content["observations"]),
        }
        return cls(**content)


def _plain(value: Any, name: str) -> Any:
    """Return a value as JSON represents it, with numbers of NumPy and torch as plain ones."""
    try:
        return json.loads(json.dumps(value, allow_nan=False, default=lambda scalar: scalar.item()))
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        raise InvalidInputError(f"JSON cannot hold {name}: {error}") from error
