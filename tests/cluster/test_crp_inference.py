"""Inference in a Chinese-restaurant-process mixture, against scipy and brute force."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import gamma, logsumexp, softmax

import isthmus as ist
from isthmus.cluster import crp_inference
from isthmus.cluster.crp_inference import CRPPrior, partition_log_prior, reassign, sequential_pass
from isthmus.cluster.data import Rows, Units
from isthmus.cluster.statistics import ClusterStatistics


def set_partitions(n):
    """Every partition of n rows, as labels in order of first appearance."""

    def grow(labels, used):
        if len(labels) == n:
            yield tuple(labels)
            return
        for label in range(used + 1):
            yield from grow([*labels, label], max(used, label + 1))

    yield from grow([], 0)


def make_rows(values, weights=None):
    values = np.asarray(values, dtype=float)
    weights = np.ones(len(values)) if weights is None else np.asarray(weights, dtype=float)
    return Rows.of(values, weights, Units(np.zeros(values.shape[1]), 1.0))


def normal_rows(seed, *shape, scale=1.0):
    return scale * np.random.default_rng(seed).normal(size=shape)


def make_prior(**rules):
    return CRPPrior(**{"beta": 0.7, "rho": 0.2, "alpha": 1.3, "discount": 0.0, **rules})


def clusters_of(rows, labels):
    labels = torch.as_tensor(labels)
    return ClusterStatistics.empty(0, rows.dim).with_rows(rows, labels, int(labels.max()) + 1)


@given(st.integers(1, 7), st.floats(0.01, 10), st.just(0.0) | st.floats(0.05, 0.95))
@settings(deadline=None, max_examples=25)
def test_the_prior_over_partitions_is_the_product_of_the_chances_of_each_row(n, alpha, discount):
    logs = []
    for labels in set_partitions(n):
        chance, counts = 1.0, []
        for i, label in enumerate(labels):
            if label == len(counts):
                chance *= (alpha + discount * len(counts)) / (alpha + i)
                counts.append(1)
            else:
                chance *= (counts[label] - discount) / (alpha + i)
                counts[label] += 1
        logs.append(partition_log_prior(counts, alpha, discount))
        assert logs[-1] == pytest.approx(math.log(chance), abs=1e-9)
    assert logsumexp(logs) == pytest.approx(0, abs=1e-9)


def test_fractional_sizes_have_the_gamma_function_between_factorials():
    found = partition_log_prior([2.5, 1.5], alpha=2.0)
    expected = 2.0**2 * gamma(2.5) * gamma(1.5) * gamma(2.0) / gamma(6.0)
    assert found == pytest.approx(math.log(expected))


@pytest.mark.parametrize("alpha", [1e-250, 1e12])
def test_extreme_alphas_lose_no_digits(alpha):
    exact = 2 * math.log(alpha) - sum(math.log(alpha + i) for i in range(3))
    assert partition_log_prior([2, 1], alpha) == pytest.approx(exact, rel=1e-12)


def scipy_log_joint(values, labels, prior):
    """log p(rows, partition): means integrated out, one large normal per cluster and column."""
    labels = np.array(labels)
    total = partition_log_prior(np.bincount(labels), prior.alpha, prior.discount)
    for label in set(labels):
        for column in values[labels == label].T:
            own = column[~np.isnan(column)]
            covariance = np.eye(len(own)) / (2 * prior.beta) + 1 / (2 * prior.rho)
            if len(own):
                total += stats.multivariate_normal(np.zeros(len(own)), covariance).logpdf(own)
    return total


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("discount", [0.0, 0.4])
def test_the_evidence_of_a_partition_is_that_of_scipy(discount, missing):
    values = normal_rows(0, 5, 2, scale=2.0)
    if missing:
        values[[0, 3], [1, 0]] = np.nan
    prior, rows = make_prior(discount=discount), make_rows(values)
    for labels in set_partitions(5):
        found = prior.log_evidence(clusters_of(rows, labels))
        assert found == pytest.approx(scipy_log_joint(values, labels, prior), abs=1e-9)


@pytest.mark.parametrize("discount", [0.0, 0.4])
def test_merge_gains_are_differences_of_evidence(discount):
    rows, prior = make_rows(normal_rows(2, 9, 2)), make_prior(discount=discount)
    labels = np.array([0, 0, 0, 1, 1, 2, 2, 3, 3])
    clusters = clusters_of(rows, labels)
    gains = prior.merge_gains(clusters)
    assert torch.equal(gains, gains.T)
    assert bool((gains.diagonal() == -math.inf).all())
    for one in range(4):
        for other in range(one):
            joined = np.unique(np.where(labels == one, other, labels), return_inverse=True)[1]
            after = prior.log_evidence(clusters_of(rows, joined))
            expected = after - prior.log_evidence(clusters)
            assert float(gains[one, other]) == pytest.approx(expected, abs=1e-10)


def normal(mean, variance):
    return stats.multivariate_normal(mean, variance * np.eye(len(mean)))


def logits_of(values, members, prior):
    """Log-joints of rows under clusters of members and, last, a new one, by scipy. (n, K + 1)."""
    variance, spread = 1 / (2 * prior.beta), 1 / (2 * prior.rho)
    parts = []
    for own in members:
        mean = prior.beta * np.sum(own, 0) / (prior.beta * len(own) + prior.rho)
        parts.append(math.log(len(own) - prior.discount) + normal(mean, variance).logpdf(values))
    mass = prior.alpha + prior.discount * len(members)
    new = normal(np.zeros(values.shape[1]), variance + spread).logpdf(values)
    return np.stack([np.atleast_1d(part) for part in (*parts, math.log(mass) + new)], -1)


def naive_pass(values, prior):
    """The sequential rule, row by row: join the most probable cluster or open one."""
    members = []
    for x in values:
        best = int(np.argmax(logits_of(x[None], members, prior)))
        if best == len(members):
            members.append([])
        members[best].append(x)
    return members


@pytest.mark.parametrize("discount", [0.0, 0.5])
def test_the_sequential_pass_is_that_of_the_naive_rule_in_the_given_order(monkeypatch, discount):
    # Creation by the responsibility of the new cluster, with its normaliser (errata E8, E10).
    monkeypatch.setattr(crp_inference, "BLOCK_ROWS", 1)
    values, order = normal_rows(4, 60, 3, scale=2.0), np.random.default_rng(6).permutation(60)
    prior = make_prior(rho=0.1, discount=discount)
    found = sequential_pass(make_rows(values), order, prior)
    expected = naive_pass(values[order], prior)
    assert len(expected) > 2
    assert found.counts.tolist() == [len(own) for own in expected]
    np.testing.assert_allclose(found.sums, [np.sum(own, 0) for own in expected], atol=1e-12)


def opened_by(values, prior):
    """Clusters that rows of one block open: each founder takes the later rows that fit."""
    clusters, waiting = [], values
    while len(waiting):
        logits = logits_of(waiting, [waiting[:1]], replace(prior, alpha=1.0))
        mass = math.log(prior.alpha + prior.discount * (len(clusters) + 1))
        new = logits[:, 1] - math.log(1.0 + prior.discount) + mass
        joins = logits[:, 0] >= new
        joins[0] = True
        clusters.append(waiting[joins])
        waiting = waiting[~joins]
    return clusters


@pytest.mark.parametrize("discount", [0.0, 0.7])
def test_in_a_block_rows_join_those_who_opened_before_them(discount):
    values = normal_rows(13, 80, 2, scale=4.0)
    prior = make_prior(rho=0.05, alpha=0.1, discount=discount)
    found = sequential_pass(make_rows(values), np.arange(80), prior)
    assert found.counts.tolist() == [len(own) for own in opened_by(values, prior)]


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("normalized", [True, False])
def test_logits_of_a_fit_are_those_of_the_energy(normalized, missing):
    values = normal_rows(8, 30, 5, scale=2.0)
    if missing:
        values[::3, 1:3] = np.nan
    rows, prior = make_rows(values), make_prior(discount=0.2, normalized=normalized)
    clusters = clusters_of(rows, np.arange(30) % 4)
    known = prior.parameters(clusters, torch.float64)
    logits = torch.cat([known.log_joint(rows), prior.new_logits(rows, 4)[:, None]], 1)
    energy = ist.CRPMixture(
        known.means, clusters.counts, prior.beta, prior.rho, prior.alpha, 0.2, normalized
    )
    expected = energy.responsibilities(values, torch.from_numpy(~np.isnan(values)))
    np.testing.assert_allclose(torch.softmax(logits, 1), expected, atol=1e-12)


@pytest.mark.parametrize("soft", [False, True])
def test_every_row_and_weight_is_assigned(soft):
    values, weights = normal_rows(9, 300, 2, scale=3.0), np.linspace(0.5, 2, 300)
    values[::7, 0] = np.nan
    rows, prior = make_rows(values, weights), make_prior(rho=0.05)
    found = reassign(rows, sequential_pass(rows, np.arange(300), prior), prior, soft)
    assert float(found.counts.sum()) == pytest.approx(weights.sum())
    sums = (weights[:, None] * np.nan_to_num(values)).sum(0)
    np.testing.assert_allclose(found.sums.sum(0), sums, atol=1e-9)
    known = (weights[:, None] * ~np.isnan(values)).sum(0)
    np.testing.assert_allclose(found.masses.sum(0), known, rtol=1e-9)


def test_soft_rows_are_divided_by_the_posterior_over_existing_and_new_clusters():
    values = np.concatenate([normal_rows(10, 40, 2), normal_rows(11, 6, 2) + 9, [[-9.0, 9.0]]])
    rows, prior = make_rows(values), make_prior(rho=0.05)
    members = [values[k:40:3] for k in range(3)]
    logits = logits_of(values, members, prior)
    strange = logits[:, -1] > logits[:, :-1].max(1)
    assert 1 < strange.sum() < 10
    shares = softmax(
        logits_of(values, [*members, *opened_by(values[strange], prior)], prior)[:, :-1], 1
    )
    found = reassign(rows, clusters_of(rows.take(slice(0, 40)), np.arange(40) % 3), prior, True)
    # Strangers open clusters in an order of their own.
    found, shares = found.select(found.counts.argsort()), shares[:, shares.sum(0).argsort()]
    np.testing.assert_allclose(found.counts, shares.sum(0), rtol=1e-9)
    np.testing.assert_allclose(found.sums, shares.T @ values, atol=1e-9)
    assert found.entropy == pytest.approx(stats.entropy(shares, axis=1).sum())


def test_the_evidence_counts_the_entropy_and_soft_assignment_raises_it():
    # Erratum E2: with the entropy left out, or its sign as printed, it would fall.
    values = normal_rows(12, 300, 2) + 2.5 * np.random.default_rng(1).integers(0, 2, (300, 1))
    rows, prior = make_rows(values - values.mean(0)), make_prior(alpha=1e-9)
    clusters = reassign(rows, clusters_of(rows, np.arange(300) % 3), prior, True)
    bare = prior.log_evidence(replace(clusters, entropy=0.0))
    assert prior.log_evidence(clusters) - bare == pytest.approx(clusters.entropy)
    trace = [prior.log_evidence(clusters)]
    for _ in range(20):
        clusters = reassign(rows, clusters, prior, True)
        trace.append(prior.log_evidence(clusters))
    assert np.diff(trace).min() > -0.05  # log n stands for digamma n, so not exactly
    assert trace[-1] > trace[0] + 1
