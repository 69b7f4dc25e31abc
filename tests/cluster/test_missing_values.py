"""NaN marks an unknown value: everything is then about the coordinates that are known."""

import numpy as np
import pytest
from scipy import special, stats

from isthmus.cluster import base


def components(model, x):
    """Weights, means and variances of the learned mixture; the new cluster, if any, last.

    The prior on means is centred on the mean of the rows that were learned from.
    """
    inner = 0.5 / model.beta_
    if not hasattr(model, "counts_"):
        return model.weights_, model.memories_, np.full(model.n_clusters_, inner)
    mass = [*(model.counts_ - model.discount_), model.alpha_ + model.n_clusters_ * model.discount_]
    means = np.concatenate([model.memories_, np.nanmean(x, 0, keepdims=True)])
    variances = np.append(np.full(model.n_clusters_, inner), inner + 0.5 / model.rho_)
    return np.array(mass) / np.sum(mass), means, variances


def log_joint(model, x, learned_from=None):
    """log w_k + log p(known coordinates | k), by scipy's marginals. (n, K)."""
    weights, means, variances = components(model, x if learned_from is None else learned_from)
    scales = np.sqrt(variances)[:, None]
    return np.log(weights) + np.nansum(stats.norm.logpdf(x[:, None], means, scales), 2)


@pytest.fixture
def fitted(make, with_gaps, monkeypatch):
    monkeypatch.setattr(base, "CHUNK_ENTRIES", 16)  # answers come in chunks of a few rows
    return make().fit(with_gaps)


def test_answers_are_those_given_the_known_coordinates(fitted, with_gaps):
    joint = log_joint(fitted, with_gaps)
    known = joint[:, : fitted.n_clusters_]
    away = np.sqrt(np.nansum((with_gaps[:, None] - fitted.memories_) ** 2, 2))
    expected = {
        "score_samples": special.logsumexp(joint, 1),
        "predict_proba": special.softmax(known, 1),
        "predict": known.argmax(1),
        "transform": away,
    }
    if hasattr(fitted, "novelty"):
        # The mean of a memory is the less certain, the fewer values it has in a coordinate.
        weights, means, variances = components(fitted, with_gaps)
        values = np.concatenate([fitted._statistics.masses, np.full((1, 3), np.inf)])
        spread = variances[:, None] + 0.5 / (fitted.beta_ * values + fitted.rho_)
        log_normal = stats.norm.logpdf(with_gaps[:, None], means, np.sqrt(spread))
        predictive = np.log(weights) + np.nansum(log_normal, 2)
        expected["novelty"] = special.softmax(predictive, 1)[:, -1]
    for name, values in expected.items():
        np.testing.assert_allclose(getattr(fitted, name)(with_gaps), values, atol=1e-7)


def test_gaps_are_filled_by_retrieval_from_their_mean_given_the_rest(fitted, with_gaps):
    _, means, variances = components(fitted, with_gaps)
    gaps = np.isnan(with_gaps)
    start = np.where(gaps, special.softmax(log_joint(fitted, with_gaps), 1) @ means, with_gaps)
    filled = fitted.complete(with_gaps, how="mode")
    np.testing.assert_array_equal(filled[~gaps], with_gaps[~gaps])
    # At rest: the density has no slope along what was unknown, and it has not fallen.
    joint = log_joint(fitted, filled, with_gaps)
    pull = (means - filled[:, None]) / variances[:, None]
    slope = (special.softmax(joint, 1)[..., None] * pull).sum(1)
    assert np.abs(slope[gaps]).max() < 1e-4
    gain = fitted.score_samples(filled) - fitted.score_samples(start)
    assert gain.min() > -1e-12
    assert gain.max() > 0.01


def test_a_row_of_which_nothing_is_known_is_as_the_prior_says(fitted):
    nothing = np.full((1, 3), np.nan)
    np.testing.assert_allclose(fitted.predict_proba(nothing), fitted.weights_[None], atol=1e-9)
    np.testing.assert_allclose(fitted.score_samples(nothing), [0.0], atol=1e-9)
    assert np.isfinite(fitted.complete(nothing)).all()
    if hasattr(fitted, "novelty"):
        total = fitted.counts_.sum() + fitted.alpha_
        np.testing.assert_allclose(fitted.novelty(nothing), fitted.alpha_ / total)
