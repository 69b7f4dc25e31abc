"""Completion of handwritten digits from their upper halves."""

from __future__ import annotations

from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor

import isthmus as ist
from isthmus.figures import completion
from isthmus.memories.bandwidth import leave_one_out
from isthmus.report.registry import compose
from isthmus.report.section import Section

__all__ = ["DIGIT_SHAPE", "completed_digits", "completion_of_digits"]

DIGIT_SHAPE = (8, 8)
HELD_OUT = 400
# Completion works if its error is at most this share of the mean image's, and at least this
# share of the digits ends at a memory of the right digit.
ERROR_SHARE, RIGHT_SHARE = 0.9, 0.8


class CompletedDigits(NamedTuple):
    """Held-out digits (M, 64) before and after, with the memory that completed them."""

    memory: ist.GaussianKDE
    memory_labels: Tensor
    originals: Tensor
    labels: Tensor
    masked: Tensor
    completed: Tensor


def completed_digits(seed: int) -> CompletedDigits:
    """Store most of scikit-learn's digits and complete the others from their upper halves."""
    bunch = load_digits()
    images = torch.as_tensor(bunch.data) / 16
    labels = torch.as_tensor(bunch.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    kept, held_out = order[:-HELD_OUT], order[-HELD_OUT:]
    memory = ist.GaussianKDE(images[kept], sigma=leave_one_out(images[kept]))
    masked = images[held_out].clone()
    masked[:, masked.shape[1] // 2 :] = torch.nan
    completed = ist.complete(memory, masked)
    return CompletedDigits(
        memory, labels[kept], images[held_out], labels[held_out], masked, completed
    )


def completion_of_digits(seed: int, full: bool = False) -> Section:
    """Complete held-out digits; draw the first of each kind and measure all."""
    digits = completed_digits(seed)
    memory, unknown = digits.memory, torch.isnan(digits.masked)

    def error(guess: Tensor) -> float:
        return float((guess - digits.originals)[unknown].square().mean().sqrt())

    nearest = digits.memory_labels[memory.responsibilities(digits.completed).argmax(1)]
    ours, mean_filled = error(digits.completed), error(memory.memories.mean(0).expand_as(unknown))
    right = float((nearest == digits.labels).double().mean())
    firsts = [int((digits.labels == digit).nonzero()[0]) for digit in range(10)]
    shown = (digits.originals[firsts], digits.masked[firsts], digits.completed[firsts])
    numbers = {
        "images_remembered": memory.n_memories,
        "images_completed": len(digits.originals),
        "sigma": float(memory.sigma),
        "rms_error_of_completion": ours,
        "rms_error_of_conditional_mean": error(memory.conditional_mean(digits.masked, ~unknown)),
        "rms_error_of_filling_with_the_mean": mean_filled,
        "share_with_the_right_digit": right,
    }
    complete = ours < ERROR_SHARE * mean_filled and right > RIGHT_SHARE
    figure = completion(*shown, DIGIT_SHAPE)
    return compose("completion", figure, numbers, {"complete": complete}, shown=len(firsts))
