"""The figure of annealed draws shows the shares of its data."""

import numpy as np
import torch

import isthmus as ist
from isthmus.figures import annealing_phases


def test_the_shares_of_the_verdicts_are_drawn() -> None:
    angles = torch.rand(256, generator=torch.Generator().manual_seed(0)) * 6.28318
    ring = torch.stack([angles.cos(), angles.sin()], 1)
    schedule = ist.noise_schedule(3.0, 0.08, 15)
    found = {n: ist.anneal(ist.GaussianKDE(ring[:n], 0.05), schedule, 40) for n in (2, 32, 256)}
    figure = annealing_phases(found)
    lines = {line.get_label(): line for line in figure.axes[3].lines}
    for name in ("memorised", "spurious", "new"):
        expected = [found[n].judge().shares[name] for n in (2, 32, 256)]
        np.testing.assert_allclose(lines[name].get_ydata(), expected)
    drawn = sum(len(line.get_xdata()) for line in figure.axes[0].lines)
    assert drawn == 40 + 2
