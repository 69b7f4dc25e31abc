"""In-context energies: a transformer that turns a dataset given in context into an energy."""

from isthmus.incontext.config import ICLEBMConfig
from isthmus.incontext.evaluation import Evaluation, evaluate
from isthmus.incontext.model import ICLEBM, ContextEnergy, pretrained
from isthmus.incontext.settings import TrainingSettings, preset
from isthmus.incontext.training import Trained, train

__all__ = [
    "ICLEBM",
    "ContextEnergy",
    "Evaluation",
    "ICLEBMConfig",
    "Trained",
    "TrainingSettings",
    "evaluate",
    "preset",
    "pretrained",
    "train",
]
