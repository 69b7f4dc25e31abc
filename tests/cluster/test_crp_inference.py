"""Inference in a Chinese-restaurant-process mixture, against scipy and brute force."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers import set_partitions
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.special import logsumexp

from isthmus.cluster import crp_inference
from isthmus.cluster.crp_inference import CRPPrior, partition_log_prior, reassign, sequential_pass
from isthmus.cluster.data import Rows
from isthmus.cluster.statistics import ClusterStatistics
from isthmus.scaling import Scaling


def make_rows(values, weights=None):
    values = np.asarray(values, dtype=float)
    weights = np.ones(len(values)) if weights is None else np.asarray(weights, dtype=float)
    return Rows.of(values, weights, Scaling(np.zeros(values.shape[1]), 1.0))


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
