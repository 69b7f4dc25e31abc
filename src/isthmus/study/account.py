"""What a study did: how fits ended, on how many rows, in what time; nothing left out silently."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from isthmus.study.methods import Kind, Method
from isthmus.study.store import Row
from isthmus.study.tables import markdown

__all__ = ["Account", "Failure", "Sample", "Work", "account"]

# A fit that took more than this share of the time limit might not end on a slower machine.
NEARLY = 0.8


@dataclass(frozen=True)
class Work:
    """What one method did."""

    method: str
    kind: Kind
    entries: int
    """How many settings of its grid were tried."""
    selects_by: str
    """How one of them is selected, with no label seen."""
    fits: int
    ended: dict[str, int]
    """How they ended, by status."""
    not_converged: int
    """Of those that ended well, how many stopped before they had converged."""
    median_seconds: float | None
    """CPU time of a fit that ended well."""
    total_seconds: float
    """CPU time of all fits, however they ended."""
    stopped_seconds: float
    """Of these, the time of fits that did not end well."""
    untimed: int
    """Fits that did not end well, and left no time to count."""


@dataclass(frozen=True)
class Failure:
    """Fits of one method on one dataset that ended otherwise than well."""

    dataset: str
    method: str
    status: str
    fits: int
    of: int
    message: str
    """Of the first of them."""


@dataclass(frozen=True)
class Sample:
    """How much of a dataset was used."""

    dataset: str
    available: int
    used: dict[int, tuple[str, ...]]
    """The methods, by the number of rows that they got."""

    def __str__(self) -> str:
        most = max(self.used)
        text = f"{most:,} of {self.available:,} rows" if most < self.available else f"all {most:,}"
        fewer = (
            f"{', '.join(names)}: {count:,}"
            for count, names in sorted(self.used.items(), reverse=True)
            if count < most
        )
        return "; ".join([text, *fewer])


@dataclass(frozen=True)
class Account:
    """The account of a whole study. Prints as Markdown."""

    works: tuple[Work, ...]
    failures: tuple[Failure, ...]
    samples: tuple[Sample, ...]
    time_limit: float | None = None
    """CPU seconds after which fits were stopped, as those that were tell; None if they do not."""
    nearly_stopped: int = 0
    """Fits that ended well after more than 80 % of the time limit."""

    @property
    def fits(self) -> int:
        """All of them."""
        return sum(work.fits for work in self.works)

    @property
    def ended_well(self) -> int:
        """Those with a result."""
        return sum(work.ended.get("ok", 0) for work in self.works)

    def as_dict(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "methods": [asdict(work) for work in self.works],
            "not_ok": [asdict(failure) for failure in self.failures],
            "samples": [asdict(sample) for sample in self.samples],
            "time_limit": self.time_limit,
            "nearly_stopped": self.nearly_stopped,
        }

    def __str__(self) -> str:
        heads = ["method", "question", "settings", "selected by", "fits", "ended well"]
        heads += ["did not converge", "median CPU s", "total CPU s", "of it stopped"]
        parts = [markdown(heads, map(_work_cells, self.works)), "", *self._times(), ""]
        if self.failures:
            heads = ["dataset", "method", "ended as", "fits", "the first said"]
            parts += ["Fits that did not end well:", ""]
            parts += [markdown(heads, map(_failure_cells, self.failures)), ""]
        else:
            parts += ["Every fit ended well.", ""]
        rows = [[sample.dataset, str(sample)] for sample in self.samples]
        return "\n".join([*parts, markdown(["dataset", "rows"], rows)])

    def _times(self) -> Iterable[str]:
        total = sum(work.total_seconds for work in self.works)
        stopped = sum(work.stopped_seconds for work in self.works)
        untimed = sum(work.untimed for work in self.works)
        text = f"All fits took {total:,.0f} s of CPU time"
        if self.failures:
            text += f", {stopped:,.0f} s of it those that did not end well"
        if untimed:
            text += f"; not in it are {untimed} of those, whose time was not recorded"
        yield f"{text}."
        if self.time_limit is not None:
            yield (
                f"Of the fits that ended well, {self.nearly_stopped} took more than {NEARLY:.0%} "
                f"of the time limit of {self.time_limit:.0f} s: on a slower machine they may be "
                "stopped, and results differ."
            )


def account(rows: Sequence[Row], methods: Mapping[str, Method]) -> Account:
    """Count everything that was done.

    Parameters
    ----------
    rows : sequence of mapping
        Of :meth:`Store.read`.
    methods : mapping of str to Method
        For how each selects. Of one that is not among them, the rows tell.
    """
    by_method: dict[str, list[Row]] = defaultdict(list)
    by_cell: dict[tuple[str, str], list[Row]] = defaultdict(list)
    by_dataset: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        by_method[row["method"]].append(row)
        by_cell[row["dataset"], row["method"]].append(row)
        by_dataset[row["dataset"]].append(row)
    samples = (_sample(name, fits) for name, fits in by_dataset.items())
    limit, nearly = _near_the_limit(rows)
    return Account(
        tuple(_work(name, fits, methods.get(name)) for name, fits in by_method.items()),
        tuple(each for cell, fits in by_cell.items() for each in _failures(*cell, fits)),
        tuple(sample for sample in samples if sample is not None),
        limit,
        nearly,
    )


def _near_the_limit(rows: Sequence[Row]) -> tuple[float | None, int]:
    """The time limit, and how many fits came close to it and ended well.

    The limit is the longest time of a fit that was stopped for it. Where one that ended well took
    longer, those that were stopped had waited, not worked, and do not tell.
    """
    stopped = [row["seconds"] for row in rows if row["status"] == "timeout"]
    limit = max((each for each in stopped if each is not None), default=None)
    well = [row["seconds"] for row in rows if row["status"] == "ok"]
    if limit is None or max(well, default=0.0) > limit:
        return None, 0
    return limit, sum(each > NEARLY * limit for each in well)


def _work(name: str, fits: list[Row], method: Method | None) -> Work:
    well = [fit for fit in fits if fit["status"] == "ok"]
    seconds = [fit["seconds"] for fit in well]
    badly = [fit["seconds"] for fit in fits if fit["status"] != "ok"]
    stopped = [each for each in badly if each is not None]
    if method is not None:
        words = method.selects_by
    else:
        judged = any(fit["objective"] is not None for fit in well)
        words = "its objective" if judged else "its first settings"
    return Work(
        name,
        fits[0]["kind"],
        entries=len({fit["parameters"] for fit in fits}),
        selects_by=words,
        fits=len(fits),
        ended=dict(Counter(fit["status"] for fit in fits)),
        not_converged=sum(fit["converged"] is False for fit in well),
        median_seconds=median(seconds) if seconds else None,
        total_seconds=sum(seconds) + sum(stopped),
        stopped_seconds=sum(stopped),
        untimed=len(badly) - len(stopped),
    )


def _failures(dataset: str, method: str, fits: list[Row]) -> Iterable[Failure]:
    bad: dict[str, list[Row]] = defaultdict(list)
    for fit in fits:
        if fit["status"] != "ok":
            bad[fit["status"]].append(fit)
    for status, each in bad.items():
        yield Failure(dataset, method, status, len(each), len(fits), each[0]["message"] or "")


def _sample(dataset: str, fits: list[Row]) -> Sample | None:
    known = [fit for fit in fits if fit["n_rows"] is not None]
    if not known:
        return None
    used: dict[int, dict[str, None]] = defaultdict(dict)
    for fit in known:
        used[fit["n_rows"]][fit["method"]] = None
    return Sample(dataset, known[0]["n_available"], {n: tuple(each) for n, each in used.items()})


def _work_cells(work: Work) -> list[str]:
    middle = "none" if work.median_seconds is None else f"{work.median_seconds:.2f}"
    well = work.ended.get("ok", 0)
    return [
        work.method,
        work.kind,
        str(work.entries),
        work.selects_by,
        str(work.fits),
        str(well),
        str(work.not_converged),
        middle,
        f"{work.total_seconds:.0f}",
        f"{work.stopped_seconds:.0f}",
    ]


def _failure_cells(failure: Failure) -> list[str]:
    message = " ".join(failure.message.replace("|", "/").split())
    short = message if len(message) <= 100 else f"{message[:99]}…"
    return [
        failure.dataset,
        failure.method,
        failure.status,
        f"{failure.fits} of {failure.of}",
        short,
    ]
