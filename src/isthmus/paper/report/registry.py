"""The parts of the report, in the order of the page, and the text around them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from isthmus.errors import InvalidInputError
from isthmus.io.files import shipped


@dataclass(frozen=True)
class Part:
    """One part of the report.

    `name` is that of its files, of its entry in results.json and of its place on the page;
    `function` the ``module:name`` of a function of a seed and of ``full`` (the paper's own sizes)
    that returns a :class:`Section`.
    """

    name: str
    title: str
    chapter: str
    function: str


TITLE = "Bridging associative memory and probabilistic modelling, reproduced"
INTRODUCTION = """
Every figure and claim of the paper (Schaeffer et al., 2024, arXiv 2402.10202), with its numbers,
the command that made it, and a verdict on each claim. All is computed afresh from the seed below,
but for the fits of the clustering study (`isthmus study run`) and transformers trained at high
rates (`python benchmarks/attention.py`), which `--full` computes afresh, and for the in-context
models (`isthmus icl train`), simulations of phases (`python benchmarks/phases.py`) and proofs by
computer (`python benchmarks/stored.py`)."""
CHAPTERS = {
    "overview": "One energy, three uses",
    "energies": "Energies",
    "incontext": "In-context energies",
    "clustering": "Learned memories",
    "capacity": "Capacity",
    "attention": "Attention as clustering",
    "errata": "Errata",
}
# By chapter: module:function, and the title. The name of a part is that of its function.
_TITLES = {
    "overview": {"energies:hero": "One energy, three uses"},
    "energies": {
        "energies:landscapes_1d": "Six energies on a line",
        "energies:landscapes_2d": "Six energies on a plane",
        "energies:likelihoods": "Other likelihoods",
        "energies:completion": "Completion of digits",
    },
    "incontext": {
        "incontext:incontext_landscapes": "An energy for any dataset, in context",
        "incontext:incontext_samples": "Samples in context",
        "incontext:incontext_likelihood": "Likelihood of in-context energies",
        "incontext:incontext_objectives": "The paper's objective, and ranking NCE",
    },
    "clustering": {
        "clustering:four_models": "Four models of learned memories",
        "clustering:memory_creation": "Creation of new memories",
        "clustering:elbo_dynamics": "Three ways to a posterior",
        "clustering:engrams": "Memories that compete",
        "study:study_labelled": "The study: K given, scores with labels",
        "study:study_unlabelled": "The study: K given, scores without labels",
        "study:study_unknown_labelled": "The study: K not given, scores with labels",
        "study:study_unknown_unlabelled": "The study: K not given, scores without labels",
        "study:study_ranks": "The study: ranks",
    },
    "capacity": {
        "capacity:basins_merging": "Merging basins",
        "capacity:capacity_sweep": "Retrieval against the number of patterns",
        "capacity:capacity_bounds": "Bounds on capacity",
        "capacity:phases": "Phases of a memory",
        "capacity:hopfield_equivalence": "KDE and Hopfield network",
    },
    "attention": {
        "attention:attention_heads": "Attention as clustering",
        "attention:attention_training": "High learning rates",
    },
    "errata": {"errata:errata": "Errata"},
}
_MODULES = "isthmus.paper.report.parts"
PARTS = tuple(
    Part(place.split(":")[1].replace("_", "-"), title, chapter, f"{_MODULES}.{place}")
    for chapter, titles in _TITLES.items()
    for place, title in titles.items()
)


def recorded(place: str) -> Path:
    """Return the path of recorded results that ship beside the package."""
    path = shipped(place)
    if path is None:
        raise InvalidInputError(
            f"The recorded results {place} are missing from this installation. Install isthmus "
            "again, or use full=True (--full), which computes them now."
        )
    return path


def select(names: Iterable[str] | None, parts: tuple[Part, ...] = PARTS) -> list[Part]:
    """Return the parts with these names or chapters, in the order of the page; None is all."""
    known = {word: None for part in parts for word in (part.chapter, part.name)}
    wanted = known.keys() if names is None else {names} if isinstance(names, str) else set(names)
    if unknown := sorted(wanted - known.keys()):
        given, listed = ", ".join(map(repr, unknown)), ", ".join(known)
        raise InvalidInputError(f"There is no part or chapter {given}. There are {listed}.")
    return [part for part in parts if {part.name, part.chapter} & wanted]
