"""Training objectives of in-context models: small callable classes with one signature."""

from isthmus.incontext.objectives.base import Objective, StatefulObjective
from isthmus.incontext.objectives.contrastive import (
    ContrastiveDivergence,
    PersistentContrastiveDivergence,
)
from isthmus.incontext.objectives.denoising import DenoisingScoreMatching
from isthmus.incontext.objectives.likelihood import ImportanceLikelihood, RankingNCE

__all__ = [
    "ContrastiveDivergence",
    "DenoisingScoreMatching",
    "ImportanceLikelihood",
    "Objective",
    "PersistentContrastiveDivergence",
    "RankingNCE",
    "StatefulObjective",
]
