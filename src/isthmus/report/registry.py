"""The parts of the report, by name, in the order of the page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from isthmus.errors import InvalidInputError

__all__ = ["CHAPTERS", "PARTS", "Part", "select"]

CHAPTERS = {
    "overview": "One energy, three uses",
    "energies": "Energies",
    "incontext": "In-context energies",
    "clustering": "Learned memories",
    "capacity": "Capacity",
    "attention": "Attention as clustering",
    "errata": "Errata",
}


@dataclass(frozen=True)
class Part:
    """One part of the report.

    Attributes
    ----------
    name : str
        The name of its files, of its entry in results.json and of its place on the page.
    title : str
        Its heading on the page.
    chapter : str
    function : str
        ``module:name`` of the function that computes its section from a seed and `full`.
    needs : str or None
        The same for a function whose work it reads. It runs once, before all parts that need it.
    shows : str or None
        A file or folder beside the package, with recorded results that it shows.
    """

    name: str
    title: str
    chapter: str
    function: str
    needs: str | None = None
    shows: str | None = None


HOME = "isthmus.report.parts"
RECORDED = "benchmarks/results/attention.json"


def _part(name: str, title: str, chapter: str, function: str, shows: str | None = None) -> Part:
    return Part(name, title, chapter, f"{HOME}.{function}", shows=shows)


def _study_part(name: str, title: str, function: str) -> Part:
    fits, results = f"{HOME}.study:ensure_fits", "docs/study/results"
    return Part(name, title, "clustering", f"{HOME}.study:{function}", fits, results)


PARTS: tuple[Part, ...] = (
    _part("hero", "One energy, three uses", "overview", "hero:three_uses_of_one_energy"),
    _part("landscapes-1d", "Six memories on a line", "energies", "landscapes:landscapes_on_a_line"),
    _part(
        "landscapes-2d", "Six memories on a plane", "energies", "landscapes:landscapes_on_a_plane"
    ),
    _part("completion", "Completion of digits", "energies", "completion:completion_of_digits"),
    _part("samples", "Sampling from a memory", "energies", "sampling:samples_of_two_moons"),
    _part(
        "incontext-landscapes",
        "An energy for any dataset, in context",
        "incontext",
        "incontext:landscapes_in_context",
    ),
    _part("incontext-samples", "Samples in context", "incontext", "incontext:samples_in_context"),
    _part(
        "incontext-likelihood",
        "Likelihood of in-context energies",
        "incontext",
        "incontext:likelihood_in_context",
    ),
    _part(
        "four-models",
        "Four models of learned memories",
        "clustering",
        "clustering:four_models_at_once",
    ),
    _part(
        "memory-creation",
        "Creation of new memories",
        "clustering",
        "clustering:creation_of_memories",
    ),
    _part(
        "elbo-dynamics",
        "Three ways to a posterior",
        "clustering",
        "clustering:dynamics_of_posteriors",
    ),
    _study_part(
        "study-labelled", "The study: K given, scores with labels", "violins_seeing_labels"
    ),
    _study_part(
        "study-unlabelled", "The study: K given, scores without labels", "violins_without_labels"
    ),
    _study_part(
        "study-unknown-labelled",
        "The study: K not given, scores with labels",
        "violins_seeing_labels_without_k",
    ),
    _study_part(
        "study-unknown-unlabelled",
        "The study: K not given, scores without labels",
        "violins_without_labels_or_k",
    ),
    _study_part("study-ranks", "The study: ranks", "ranks_of_the_study"),
    _part("clustering-tour", "A tour of clustering", "clustering", "clustering:tour_of_clustering"),
    _part("basins-merging", "Merging basins", "capacity", "capacity:merging_of_basins"),
    _part(
        "capacity-sweep",
        "Retrieval against the number of patterns",
        "capacity",
        "capacity:retrieval_against_numbers",
    ),
    _part("capacity-bounds", "Bounds on capacity", "capacity", "capacity:bounds_on_capacity"),
    _part(
        "hopfield-equivalence",
        "KDE and Hopfield network",
        "capacity",
        "capacity:equality_with_hopfield",
    ),
    _part("attention-heads", "Attention as clustering", "attention", "attention:heads_as_mixtures"),
    _part(
        "attention-training",
        "High learning rates",
        "attention",
        "attention:training_at_high_rates",
        shows=RECORDED,
    ),
    _part("errata", "Errata", "errata", "errata:table_of_errata"),
)


def select(names: Iterable[str] | None, parts: tuple[Part, ...] = PARTS) -> list[Part]:
    """Return the parts with these names or chapters, in the order of the page; None is all."""
    if names is None:
        return [*parts]
    wanted = {names} if isinstance(names, str) else set(names)
    unknown = sorted(wanted - {part.name for part in parts} - {part.chapter for part in parts})
    if unknown:
        chapters = ", ".join(dict.fromkeys(part.chapter for part in parts))
        listed = ", ".join(part.name for part in parts)
        raise InvalidInputError(
            f"There is no part or chapter {', '.join(map(repr, unknown))}. Chapters: {chapters}. "
            f"Parts: {listed}."
        )
    return [part for part in parts if {part.name, part.chapter} & wanted]
