"""The Chinese crp_inference process at work, against brute force."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import gamma, logsumexp, softmax

from isthmus.cluster import crp_inference, statistics
from isthmus.cluster.crp_inference import (
    CRPPrior,
    partition_log_prior,
    reassign,
    sequential_pass,
)
from isthmus.cluster.data import Rows, Units
from isthmus.cluster.statistics import ClusterStatistics
from isthmus.logits import distance_logits


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


def make_prior(**rules):
    defaults = {"beta": 0.7, "rho": 0.2, "alpha": 1.3, "discount": 0.0, "normalized": True}
    return CRPPrior(**{**defaults, **rules})


def clusters_of(rows, labels):
    labels = torch.as_tensor(labels)
    return ClusterStatistics.empty(0, rows.dim).with_rows(rows, labels, int(labels.max()) + 1)


@pytest.mark.parametrize("alpha", [0.01, 1.0, 7.5])
@pytest.mark.parametrize("n", [1, 2, 5, 8])
def test_the_prior_over_partitions_is_the_ewens_formula(n, alpha):
    logs = []
    for labels in set_partitions(n):
        sizes = np.bincount(labels)
        rising = math.prod(alpha + i for i in range(n))
        expected = alpha ** len(sizes) * math.prod(math.factorial(s - 1) for s in sizes) / rising
        logs.append(partition_log_prior(sizes, alpha))
        assert logs[-1] == pytest.approx(math.log(expected), abs=1e-10)
    assert logsumexp(logs) == pytest.approx(0, abs=1e-10)


@pytest.mark.parametrize(("alpha", "discount"), [(1.0, 0.3), (0.2, 0.9)])
@pytest.mark.parametrize("n", [1, 4, 8])
def test_with_a_discount_it_is_that_of_a_pitman_yor_process(n, alpha, discount):
    logs = []
    for labels in set_partitions(n):
        sizes = np.bincount(labels)
        # The product of what each row in turn had as its chance.
        chance, counts = 1.0, []
        for i, label in enumerate(labels):
            if label == len(counts):
                chance *= (alpha + discount * len(counts)) / (alpha + i)
                counts.append(1)
            else:
                chance *= (counts[label] - discount) / (alpha + i)
                counts[label] += 1
        logs.append(partition_log_prior(sizes, alpha, discount))
        assert logs[-1] == pytest.approx(math.log(chance), abs=1e-10)
    assert logsumexp(logs) == pytest.approx(0, abs=1e-10)


def test_fractional_sizes_have_the_gamma_function_between_factorials():
    found = partition_log_prior([2.5, 1.5], alpha=2.0)
    expected = 2.0**2 * gamma(2.5) * gamma(1.5) * gamma(2.0) / gamma(6.0)
    assert found == pytest.approx(math.log(expected))


@pytest.mark.parametrize("alpha", [1e-250, 1e12])
def test_extreme_alphas_lose_no_digits(alpha):
    exact = 2 * math.log(alpha) - sum(math.log(alpha + i) for i in range(3))
    assert partition_log_prior([2, 1], alpha) == pytest.approx(exact, rel=1e-12)


def scipy_log_joint(values, labels, prior):
    """log p(rows, partition): cluster means integrated out, as one large normal per cluster."""
    total = partition_log_prior(np.bincount(labels), prior.alpha, prior.discount)
    for label in set(labels):
        own = values[np.array(labels) == label]
        n = len(own)
        covariance = np.eye(n) / (2 * prior.beta) + np.ones((n, n)) / (2 * prior.rho)
        normal = stats.multivariate_normal(np.zeros(n), covariance)
        total += sum(normal.logpdf(own[:, d]) for d in range(values.shape[1]))
    return total


@pytest.mark.parametrize("discount", [0.0, 0.4])
def test_the_evidence_of_a_partition_is_that_of_scipy(discount):
    values = np.random.default_rng(0).normal(size=(5, 2)) * 2
    prior, rows = make_prior(discount=discount), make_rows(values)
    for labels in set_partitions(5):
        found = prior.log_evidence(clusters_of(rows, labels))
        assert found == pytest.approx(scipy_log_joint(values, labels, prior), abs=1e-9)


def test_the_evidence_of_known_coordinates_is_that_of_scipy():
    values = np.random.default_rng(1).normal(size=(6, 2)) * 2
    values[[0, 3], [1, 0]] = np.nan
    prior, labels = make_prior(), (0, 0, 1, 0, 1, 1)
    found = prior.log_evidence(clusters_of(make_rows(values), labels))
    expected = partition_log_prior([3, 3], prior.alpha)
    for d in range(2):
        for label in (0, 1):
            own = values[np.array(labels) == label, d]
            own = own[~np.isnan(own)]
            covariance = np.eye(len(own)) / (2 * prior.beta) + 1 / (2 * prior.rho)
            normal = stats.multivariate_normal(np.zeros(len(own)), covariance)
            expected += normal.logpdf(own)
    assert found == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("discount", [0.0, 0.4])
def test_merge_gains_are_differences_of_evidence(discount):
    rows, prior = make_rows(np.random.default_rng(2).normal(size=(9, 2))), make_prior()
    prior = replace(prior, discount=discount)
    labels = np.array([0, 0, 0, 1, 1, 2, 2, 3, 3])
    clusters = clusters_of(rows, labels)
    gains = prior.merge_gains(clusters)
    for one in range(4):
        assert float(gains[one, one]) == -math.inf
        for other in range(one):
            joined = np.where(labels == one, other, labels)
            joined = np.unique(joined, return_inverse=True)[1]
            after = prior.log_evidence(clusters_of(rows, joined))
            expected = after - prior.log_evidence(clusters)
            assert float(gains[one, other]) == pytest.approx(expected, abs=1e-10)
            assert float(gains[other, one]) == pytest.approx(expected, abs=1e-10)


def test_merging_raises_the_evidence_until_no_pair_can():
    generator = np.random.default_rng(3)
    labels = np.arange(120) % 12
    values = np.array([[-6.0, 0.0], [6.0, 0.0], [0.0, 9.0]])[labels % 3]
    rows, prior = make_rows(values + generator.normal(size=(120, 2))), make_prior(rho=0.02)
    split = clusters_of(rows, labels)
    merged = prior.merged(split)
    assert len(merged) == 3
    assert prior.log_evidence(merged) > prior.log_evidence(split)
    assert float(prior.merge_gains(merged).max()) <= 0
    assert float(merged.counts.sum()) == 120


def naive_pass(values, prior):
    """The sequential rule, row by row: join the likeliest cluster or open one."""
    variance, spread = 1 / (2 * prior.beta), 1 / (2 * prior.rho)
    members, labels = [], []
    for x in values:
        logits = []
        for own in members:
            precision = 2 * prior.beta * len(own) + 2 * prior.rho
            mean = 2 * prior.beta * np.sum(own, 0) / precision
            density = stats.multivariate_normal(mean, variance * np.eye(len(x))).logpdf(x)
            logits.append(math.log(len(own) - prior.discount) + density)
        alone = stats.multivariate_normal(np.zeros(len(x)), (variance + spread) * np.eye(len(x)))
        mass = prior.alpha + prior.discount * len(members)
        logits.append(math.log(mass) + alone.logpdf(x))
        best = int(np.argmax(logits))
        if best == len(members):
            members.append([])
        members[best].append(x)
        labels.append(best)
    return members


@pytest.mark.parametrize("discount", [0.0, 0.5])
def test_the_sequential_pass_is_that_of_the_naive_rule(monkeypatch, discount):
    # Creation by the responsibility of the new cluster, with its normaliser (errata E8, E10).
    monkeypatch.setattr(crp_inference, "BLOCK_ROWS", 1)
    values = np.random.default_rng(4).normal(size=(60, 3)) * 2
    prior = make_prior(rho=0.1, discount=discount)
    found = sequential_pass(make_rows(values), np.arange(60), prior)
    expected = naive_pass(values, prior)
    assert len(expected) > 2
    assert found.counts.tolist() == [len(own) for own in expected]
    np.testing.assert_allclose(found.sums, [np.sum(own, 0) for own in expected], atol=1e-12)


def test_the_pass_takes_rows_in_the_order_it_is_given(monkeypatch):
    monkeypatch.setattr(crp_inference, "BLOCK_ROWS", 1)
    values = np.random.default_rng(5).normal(size=(60, 3)) * 2
    order, prior = np.random.default_rng(6).permutation(60), make_prior(rho=0.1)
    found = sequential_pass(make_rows(values), order, prior)
    assert found.counts.tolist() == [len(own) for own in naive_pass(values[order], prior)]


@pytest.mark.parametrize("discount", [0.0, 0.7])
def test_in_a_block_rows_join_those_who_opened_before_them(discount):
    values = np.random.default_rng(13).normal(size=(80, 2)) * 4
    prior = make_prior(rho=0.05, alpha=0.1, discount=discount)
    clusters, waiting = [], list(values)
    while waiting:
        founder, *others = waiting
        mean = prior.beta / (prior.beta + prior.rho) * founder
        close = stats.multivariate_normal(mean, np.eye(2) / (2 * prior.beta))
        spread = 1 / (2 * prior.beta) + 1 / (2 * prior.rho)
        alone = stats.multivariate_normal(np.zeros(2), spread * np.eye(2))
        mass = math.log(prior.alpha + discount * (len(clusters) + 1))
        joins = [math.log(1 - discount) + close.logpdf(x) >= mass + alone.logpdf(x) for x in others]
        clusters.append([founder, *(x for x, joined in zip(others, joins, strict=True) if joined)])
        waiting = [x for x, joined in zip(others, joins, strict=True) if not joined]
    found = sequential_pass(make_rows(values), np.arange(80), prior)
    assert found.counts.tolist() == [len(own) for own in clusters]


def test_the_pass_works_on_blocks_not_on_rows(monkeypatch):
    calls = 0

    def spy(*arguments):
        nonlocal calls
        calls += 1
        return distance_logits(*arguments)

    monkeypatch.setattr(statistics, "distance_logits", spy)
    centres = 20 * np.array([[0, 0], [1, 0], [0, 1]])[np.arange(20_000) % 3]
    rows = make_rows(centres + np.random.default_rng(7).normal(size=(20_000, 2)))
    found = sequential_pass(rows, np.arange(20_000), make_prior(rho=0.01))
    assert float(found.counts.sum()) == 20_000
    assert calls <= 20_000 / 1024 + 2 + len(found)


def test_without_the_normaliser_the_new_cluster_is_inflated_as_erratum_8_says():
    rows = make_rows(np.random.default_rng(8).normal(size=(4, 13)))
    prior = make_prior(beta=1.0, rho=0.1)
    printed = make_prior(beta=1.0, rho=0.1, normalized=False)
    inflation = printed.new_logits(rows, 0) - prior.new_logits(rows, 0)
    np.testing.assert_allclose(inflation / math.log(10), 13 / 2 * math.log10(11), rtol=1e-12)


@pytest.mark.parametrize("soft", [False, True])
def test_seating_keeps_every_row_and_weight(soft):
    generator = np.random.default_rng(9)
    values, weights = generator.normal(size=(300, 2)) * 3, generator.uniform(0.5, 2, 300)
    values[::7, 0] = np.nan
    rows, prior = make_rows(values, weights), make_prior(rho=0.05)
    seated = reassign(rows, sequential_pass(rows, np.arange(300), prior), prior, soft)
    assert float(seated.counts.sum()) == pytest.approx(weights.sum())
    np.testing.assert_allclose(
        seated.sums.sum(0), (weights[:, None] * np.nan_to_num(values)).sum(0), atol=1e-9
    )
    known = (weights[:, None] * ~np.isnan(values)).sum(0)
    np.testing.assert_allclose(seated.masses.sum(0), known, rtol=1e-9)


def test_soft_seating_is_in_proportion_to_the_posterior():
    rows, prior = make_rows(np.random.default_rng(10).normal(size=(40, 2))), make_prior(alpha=1e-9)
    before = clusters_of(rows, np.arange(40) % 3)
    means = prior.means(before).numpy()
    covariance = np.eye(2) / (2 * prior.beta)
    parts = [stats.multivariate_normal(mean, covariance).logpdf(rows.values) for mean in means]
    joint = np.log(before.counts.numpy()) + np.stack(parts, 1)
    shares = np.exp(joint - logsumexp(joint, 1, keepdims=True))
    after = reassign(rows, before, prior, soft=True)
    np.testing.assert_allclose(after.counts, shares.sum(0), rtol=1e-9)
    np.testing.assert_allclose(after.sums, shares.T @ rows.values.numpy(), atol=1e-9)


def test_the_evidence_of_soft_seats_counts_their_entropy():
    rows, prior = make_rows(np.random.default_rng(11).normal(size=(40, 2))), make_prior(alpha=1e-9)
    before = clusters_of(rows, np.arange(40) % 3)
    after = reassign(rows, before, prior, soft=True)
    means = prior.means(before).numpy()
    away = ((rows.values.numpy()[:, None] - means) ** 2).sum(2)
    shares = softmax(np.log(before.counts.numpy()) - prior.beta * away, 1)
    expected = stats.entropy(shares, axis=1).sum()
    bare = replace(after, entropy=0.0)
    assert prior.log_evidence(after) - prior.log_evidence(bare) == pytest.approx(expected)


def test_soft_seating_raises_the_evidence():
    # Erratum E2: with the entropy left out, or its sign as printed, it would fall.
    generator = np.random.default_rng(12)
    values = generator.normal(size=(300, 2)) + 2.5 * generator.integers(0, 2, (300, 1))
    rows, prior = make_rows(values - values.mean(0)), make_prior(alpha=1e-9)
    clusters = reassign(rows, clusters_of(rows, np.arange(300) % 3), prior, soft=True)
    trace = [prior.log_evidence(clusters)]
    for _ in range(20):
        clusters = reassign(rows, clusters, prior, soft=True)
        trace.append(prior.log_evidence(clusters))
    assert np.diff(trace).min() > -0.05  # log n stands for digamma n, so not exactly
    assert trace[-1] > trace[0] + 1


def test_nearly_empty_clusters_are_not_rewarded():
    # Erratum E11: soft counts may fall below the discount, where Gamma(n - d) has a pole.
    one = partition_log_prior([10.0], alpha=0.5, discount=0.4)
    two = partition_log_prior([10.0, 0.4 + 1e-9], alpha=0.5, discount=0.4)
    assert two < one + math.log(0.5 + 0.4)


def test_a_prior_that_is_closed_opens_nothing_however_far_a_row():
    rows = make_rows([[0.0, 0.0], [0.1, 0.0], [1e6, 1e6]])
    prior = make_prior(alpha=0.0)
    seated = reassign(rows, clusters_of(rows.take(slice(0, 2)), [0, 0]), prior, soft=False)
    assert seated.counts.tolist() == [3.0]


def test_spread_rows_do_not_pile_up_clusters_that_nobody_sits_in():
    rows = make_rows(np.random.default_rng(0).normal(size=(60, 13)))
    prior = make_prior(alpha=100.0, beta=0.5, rho=0.6)
    clusters = sequential_pass(rows, np.arange(60), prior)
    for _ in range(8):
        clusters = reassign(rows, prior.merged(clusters), prior, soft=True)
        assert len(clusters) <= 2 * len(rows)  # those that stay, and at most one more for each row
        assert float(clusters.counts.sum()) == pytest.approx(60)
