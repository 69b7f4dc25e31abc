"""In-context energies: a transformer that turns a dataset given in context into an energy."""

from isthmus.incontext.config import ICLEBMConfig
from isthmus.incontext.evaluation import Evaluation, evaluate
from isthmus.incontext.model import ICLEBM, ContextEnergy, pretrained
from isthmus.incontext.tables.estimators import (
    TableClassifier,
    TableDensity,
    TableRegressor,
    score_rows,
)
from isthmus.incontext.tables.model import ICLTables
from isthmus.incontext.tables.network import TableConfig
from isthmus.incontext.tables.outliers import RowScores
from isthmus.incontext.tables.questions import Answer, ConditionedTable
from isthmus.incontext.tables.training import TableTraining, train_tables
from isthmus.incontext.training import Trained, TrainingSettings, preset, train

__all__ = [
    "ICLEBM",
    "Answer",
    "ConditionedTable",
    "ContextEnergy",
    "Evaluation",
    "ICLEBMConfig",
    "ICLTables",
    "RowScores",
    "TableClassifier",
    "TableConfig",
    "TableDensity",
    "TableRegressor",
    "TableTraining",
    "Trained",
    "TrainingSettings",
    "evaluate",
    "preset",
    "pretrained",
    "score_rows",
    "train",
    "train_tables",
]
