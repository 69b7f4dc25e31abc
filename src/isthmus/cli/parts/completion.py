"""Half a digit in, the whole digit out."""

from __future__ import annotations

from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor

import isthmus as ist
from isthmus.cli.bandwidth import leave_one_out_sigma
from isthmus.cli.parts.verdicts import finding
from isthmus.figures import Section, completion

__all__ = ["DIGIT_SHAPE", "completed_digits", "completion_of_digits"]

DIGIT_SHAPE = (8, 8)
HELD_OUT = 400
# Completed means: the error at most this share of the mean's, and so many of the right kind.
MUCH_BETTER, MOST = 0.9, 0.8


class Completed(NamedTuple):
    """Held-out digits (M, 64) before and after, with the memory that completed them."""

    memory: ist.GaussianKDE
    memory_labels: Tensor
    originals: Tensor
    labels: Tensor
    masked: Tensor
    completed: Tensor


def completed_digits(seed: int) -> Completed:
    """Remember most of scikit-learn's digits and complete the others from their upper halves."""
    bunch = load_digits()
    images = torch.as_tensor(bunch.data) / 16
    labels = torch.as_tensor(bunch.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    kept, held_out = order[:-HELD_OUT], order[-HELD_OUT:]
    memory = ist.GaussianKDE(images[kept], sigma=leave_one_out_sigma(images[kept].numpy()))
    masked = images[held_out].clone()
    masked[:, masked.shape[1] // 2 :] = torch.nan
    completed = ist.complete(memory, masked)
    return Completed(memory, labels[kept], images[held_out], labels[held_out], masked, completed)


def completion_of_digits(seed: int, full: bool = False) -> Section:
    """Complete held-out digits; show the first of each kind and measure all."""
    result = completed_digits(seed)
    unknown = torch.isnan(result.masked)

    def error(guess: Tensor) -> float:
        return float((guess - result.originals)[unknown].square().mean().sqrt())

    memory, memory_labels = result.memory, result.memory_labels
    found = memory_labels[memory.responsibilities(result.completed).argmax(1)]
    ours, mean_filled = error(result.completed), error(memory.memories.mean(0).expand_as(unknown))
    same = float((found == result.labels).double().mean())
    numbers = {
        "images_remembered": memory.n_memories,
        "images_completed": len(result.originals),
        "sigma": float(memory.sigma),
        "rms_error_of_completion": ours,
        "rms_error_of_conditional_mean": error(memory.conditional_mean(result.masked, ~unknown)),
        "rms_error_of_filling_with_the_mean": mean_filled,
        "share_with_the_right_digit": same,
    }
    firsts = [int((result.labels == digit).nonzero()[0]) for digit in range(10)]
    figure = completion(
        result.originals[firsts],
        result.masked[firsts],
        result.completed[firsts],
        DIGIT_SHAPE,
    )
    caption = (
        f"A Gaussian KDE remembers {memory.n_memories} handwritten digits. From the upper half "
        f"of {len(firsts)} others, the first of each kind among those held out, it returns the "
        f"lower half. Over all {len(result.originals)} held-out digits the hidden pixels are off "
        f"by {ours:.3f} (root mean square, ink is 1), against {mean_filled:.3f} when they are "
        f"filled with the mean image; {same:.0%} fall to a memory of the right digit. Only the "
        "bandwidth was chosen, by leave-one-out likelihood of the remembered digits."
    )
    found_enough = ours < MUCH_BETTER * mean_filled and same > MOST
    claim = finding(
        "The dynamics of an associative memory complete data.",
        f"Hidden pixels are off by {ours:.3f}, against {mean_filled:.3f} for the mean image; "
        f"{same:.0%} of the digits become one of their own kind.",
        as_printed=found_enough,
    )
    return Section(caption, figure, numbers, (claim,))
