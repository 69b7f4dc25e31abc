"""Evaluation of in-context energies: exact likelihoods, divergences, paired comparisons."""

from isthmus.incontext.evaluation.compare import Evaluation, evaluate
from isthmus.incontext.evaluation.normalizer import (
    Grid,
    LogIntegral,
    annealed_log_normalizer,
    log_normalizer,
)
from isthmus.incontext.evaluation.scoring import (
    HeldOut,
    InContextModel,
    descent_error,
    grid_for,
    held_out_nll,
)

__all__ = [
    "Evaluation",
    "Grid",
    "HeldOut",
    "InContextModel",
    "LogIntegral",
    "annealed_log_normalizer",
    "descent_error",
    "evaluate",
    "grid_for",
    "held_out_nll",
    "log_normalizer",
]
