"""Objectives: what an in-context model is trained to do. A small class each, one signature."""

from isthmus.incontext.objectives.base import Objective, StatefulObjective
from isthmus.incontext.objectives.contrastive import (
    ContrastiveDivergence,
    PersistentContrastiveDivergence,
)
from isthmus.incontext.objectives.denoising import DenoisingScoreMatching
from isthmus.incontext.objectives.importance import ImportanceLikelihood
from isthmus.incontext.objectives.ranking import RankingNCE

__all__ = [
    "ContrastiveDivergence",
    "DenoisingScoreMatching",
    "ImportanceLikelihood",
    "Objective",
    "PersistentContrastiveDivergence",
    "RankingNCE",
    "StatefulObjective",
]
