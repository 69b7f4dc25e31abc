"""In-context energies: a transformer that turns a dataset given in context into an energy."""

from isthmus.incontext.config import ICLEBMConfig
from isthmus.incontext.evaluation import Evaluation, evaluate
from isthmus.incontext.model import ICLEBM, ContextEnergy, pretrained
from isthmus.incontext.tables.density import RowScores, TableDensity, fill_rows, score_rows
from isthmus.incontext.tables.model import ICLTables
from isthmus.incontext.tables.network import TableConfig
from isthmus.incontext.tables.training import TableTraining, train_tables
from isthmus.incontext.training import Trained, TrainingSettings, preset, train

__all__ = [
    "ICLEBM",
    "ContextEnergy",
    "Evaluation",
    "ICLEBMConfig",
    "ICLTables",
    "RowScores",
    "TableConfig",
    "TableDensity",
    "TableTraining",
    "Trained",
    "TrainingSettings",
    "evaluate",
    "fill_rows",
    "preset",
    "pretrained",
    "score_rows",
    "train",
    "train_tables",
]
