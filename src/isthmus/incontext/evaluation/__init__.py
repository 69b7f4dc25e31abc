"""Evaluation of in-context energies: exact likelihoods, divergences, paired comparisons."""

from isthmus.incontext.evaluation.compare import Evaluation, evaluate
from isthmus.incontext.evaluation.density import (
    Grid,
    HeldOut,
    InContextModel,
    LogIntegral,
    annealed_log_normalizer,
    descent_error,
    grid_for,
    held_out_nll,
    log_normalizer,
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
