"""Figures of attention show what the mixture and the experiment say."""

import numpy as np
import pandas as pd
import torch

from isthmus.attention import PreNormAttention, vmf_view
from isthmus.figures import attention_sphere
from isthmus.paper.figures import attention_experiment


def view(length: int = 6, **options):
    generator = torch.Generator().manual_seed(0)
    layer = PreNormAttention(16, 2, batch_first=True)
    with torch.no_grad():
        for weight in layer.parameters():
            weight.copy_(torch.randn(weight.shape, generator=generator))
    return vmf_view(layer, torch.randn(2, length, 16, generator=generator), **options)


def test_discs_show_mixing_weight_and_concentration():
    found = view()
    figure = attention_sphere(found, sequence=1)
    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == ["Head 0", "Head 1"]
    discs = figure.axes[1].collections[0]
    mixing = found.log_mixing[1, 1].exp().numpy()
    np.testing.assert_allclose(discs.get_sizes() / discs.get_sizes().sum(), mixing, rtol=1e-5)
    np.testing.assert_allclose(discs.get_array(), found.concentration[1, 1], rtol=1e-6)


def test_lines_go_to_the_component_that_a_query_attends_to_most():
    found = view()
    axes = attention_sphere(found, heads=[1]).axes[0]
    places = axes.collections[0].get_offsets()
    strongest = found.responsibilities()[0, 1].argmax(-1)
    for line, component in zip(axes.lines[:6], strongest.tolist(), strict=True):
        np.testing.assert_allclose(line.get_xydata()[1], places[component], atol=1e-6)


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
