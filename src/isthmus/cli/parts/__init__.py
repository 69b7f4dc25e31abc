"""The parts of `isthmus reproduce`: each makes one section of the report.

A part is a function of a seed, and of whether to use the paper's sizes, that returns a
:class:`isthmus.figures.Section`. Here they are named only; what they need is imported when they
are made.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from isthmus.figures import Section

__all__ = ["CHAPTERS", "PARTS", "Part"]

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
    """One part, by name."""

    name: str
    """That of its figure's file, of its entry in results.json and of its place on the page."""
    title: str
    """Its heading on the page, made or not."""
    chapter: str
    function: str
    """Where its function is: ``module:name`` below ``isthmus.cli.parts``."""
    shows: str | None = None
    """What it shows that was made before, and is not in the package: a place in the clone."""

    def make(self, seed: int, full: bool = False) -> Section:
        """Do it."""
        module, _, name = self.function.partition(":")
        section: Section = getattr(import_module(f"isthmus.cli.parts.{module}"), name)(seed, full)
        return section


STUDY = "docs/study/results"

PARTS: tuple[Part, ...] = (
    Part("hero", "One energy, three uses", "overview", "hero:three_uses_of_one_energy"),
    Part("landscapes-1d", "Six memories on a line", "energies", "landscapes:landscapes_on_a_line"),
    Part(
        "landscapes-2d", "Six memories on a plane", "energies", "landscapes:landscapes_on_a_plane"
    ),
    Part(
        "completion",
        "Half a digit in, the whole out",
        "energies",
        "completion:completion_of_digits",
    ),
    Part("samples", "Sampling from a memory", "energies", "sampling:samples_of_two_moons"),
    Part(
        "incontext-landscapes",
        "An energy of any dataset, in context",
        "incontext",
        "incontext:landscapes_in_context",
    ),
    Part("incontext-samples", "Samples in context", "incontext", "incontext:samples_in_context"),
    Part(
        "incontext-likelihood",
        "What in-context energies are worth",
        "incontext",
        "incontext:likelihood_in_context",
    ),
    Part(
        "four-models",
        "Four models of learned memories",
        "clustering",
        "clustering:four_models_at_once",
    ),
    Part(
        "memory-creation", "Room for a new memory", "clustering", "clustering:creation_of_memories"
    ),
    Part(
        "elbo-dynamics",
        "Three ways to a posterior",
        "clustering",
        "clustering:dynamics_of_posteriors",
    ),
    Part(
        "study-labelled",
        "The study: K given, scores that see the labels",
        "clustering",
        "study:violins_seeing_labels",
        STUDY,
    ),
    Part(
        "study-unlabelled",
        "The study: K given, scores that see none",
        "clustering",
        "study:violins_without_labels",
        STUDY,
    ),
    Part(
        "study-unknown-labelled",
        "The study: K not given, scores that see the labels",
        "clustering",
        "study:violins_seeing_labels_without_k",
        STUDY,
    ),
    Part(
        "study-unknown-unlabelled",
        "The study: K not given, scores that see none",
        "clustering",
        "study:violins_without_labels_or_k",
        STUDY,
    ),
    Part("study-ranks", "The study: ranks", "clustering", "study:ranks_of_the_study", STUDY),
    Part("clustering-tour", "A tour of clustering", "clustering", "clustering:tour_of_clustering"),
    Part("basins-merging", "Basins merge", "capacity", "capacity:merging_of_basins"),
    Part(
        "capacity-sweep",
        "Retrieval against numbers",
        "capacity",
        "capacity:retrieval_against_numbers",
    ),
    Part("capacity-bounds", "How much fits", "capacity", "capacity:bounds_on_capacity"),
    Part(
        "hopfield-equivalence",
        "KDE and Hopfield network",
        "capacity",
        "capacity:equality_with_hopfield",
    ),
    Part("attention-heads", "Attention as clustering", "attention", "attention:heads_as_mixtures"),
    Part(
        "attention-training",
        "High learning rates",
        "attention",
        "attention:training_at_high_rates",
        "benchmarks/results/attention.json",
    ),
    Part("errata", "Errata", "errata", "errata:table_of_errata"),
)
