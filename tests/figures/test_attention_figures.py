"""Figures of attention show what the mixture and the experiment say."""

import numpy as np
import pandas as pd
import torch

from isthmus.attention import PreNormAttention, vmf_view
from isthmus.paper.figures import attention_experiment, keys_of_heads


def test_every_key_of_every_head_is_a_dot():
    view = vmf_view(PreNormAttention(16, 2, batch_first=True), torch.randn(2, 6, 16))
    for head, axes in enumerate(keys_of_heads({"pre-norm": view}).axes):
        (dots,) = axes.lines
        np.testing.assert_allclose(dots.get_xdata(), view.concentration[:, head].ravel())
        np.testing.assert_allclose(dots.get_ydata(), view.log_weight[:, head].ravel())


def runs() -> pd.DataFrame:
    names = ["variant", "learning_rate", "loss", "diverged", "largest_logit"]
    rows = [
        (variant, rate, loss, rate > 0.5, 10 * rate)
        for variant in ("pre-norm", "SALN")
        for rate, losses in ((0.1, (0.4, 0.6, 0.5)), (1.0, (2.3, np.inf, np.inf)))
        for loss in losses
    ]
    return pd.DataFrame(rows, columns=names)


def test_the_experiment_has_a_line_for_each_variant_in_each_panel():
    figure = attention_experiment(runs())
    loss, share, logit = figure.axes
    assert loss.get_legend_handles_labels()[1] == ["pre-norm", "SALN"]
    middle = loss.get_legend_handles_labels()[0][0].get_ydata()
    np.testing.assert_array_equal(middle, [0.5, np.nan])  # an infinite median is not drawn
    np.testing.assert_array_equal(share.lines[0].get_ydata(), [0, 1])
    np.testing.assert_allclose(logit.lines[0].get_ydata(), [1, 10])
