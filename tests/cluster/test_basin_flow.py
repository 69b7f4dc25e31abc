"""BasinFlow against brute force, closed forms and data whose number of clusters is known."""

import numpy as np
import pandas as pd
import pytest
from helpers import set_partitions
from scipy.cluster.hierarchy import dendrogram, is_valid_linkage
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist
from scipy.special import softmax
from scipy.stats import spearmanr
from sklearn.base import clone
from sklearn.datasets import make_blobs, make_circles, make_moons
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture

from isthmus.cluster import BasinFlow, ClAM
from isthmus.cluster.apart import splits
from isthmus.cluster.resolution import unimodal
from isthmus.cluster.retrieval_graph import (
    FLATNESS,
    Graph,
    flux_ratios,
    merge_tree,
    recall,
)
from isthmus.memories.mixture import Mixture
from isthmus.tables import encode


@pytest.fixture(scope="module")
def blobs():
    return make_blobs(240, 4, centers=3, cluster_std=1.0, random_state=0)


@pytest.fixture(scope="module")
def fitted(blobs):
    return BasinFlow(random_state=0).fit(blobs[0])


def random_graph(n, seed):
    weights = np.random.default_rng(seed).exponential(size=(n, n)) ** 3
    return weights + weights.T


def energy_by_definition(weights, labels, gamma):
    weights = weights / weights.sum()
    same = np.equal.outer(labels, labels)
    masses = weights.sum(0)
    return weights[~same].sum() + gamma * np.outer(masses, masses)[same].sum()


@pytest.mark.parametrize("seed", range(6))
def test_local_moves_come_close_to_the_best_of_all_partitions(seed):
    n = 6 + seed % 3
    weights = random_graph(n, seed)
    graph = Graph.of(csr_array(weights))
    gammas = np.array([2.0, 1.0, 0.6])
    path = graph.path(gammas, seed=0)
    for place, gamma in enumerate(gammas):
        energies = [energy_by_definition(weights, labels, gamma) for labels in set_partitions(n)]
        assert path.energies[place] >= min(energies) - 1e-12
        assert path.energies[place] <= min(energies) + 0.1 * (np.median(energies) - min(energies))
        assert path.sizes[place] == len(set(path.labels[place]))
        expected = energy_by_definition(weights, path.labels[place], gamma)
        assert path.energies[place] == pytest.approx(expected)


def test_retrieval_has_the_entropy_asked_for():
    points = np.random.default_rng(0).normal(size=(80, 3))
    shares = recall(points, points, np.ones(80), 20, others=True)[0].toarray()
    np.testing.assert_allclose(shares.sum(1), 1)
    np.testing.assert_array_equal(np.diag(shares), 0)
    entropy = -np.sum(shares * np.log(np.where(shares > 0, shares, 1)), 1)
    np.testing.assert_allclose(entropy, np.log(FLATNESS * 20), atol=1e-3)


def test_tree_merges_the_pair_with_the_highest_flux_ratio_first():
    flow = np.array([[4.0, 1.0, 0.1], [1.0, 3.0, 0.2], [0.1, 0.2, 2.0]])
    flow /= flow.sum()
    tree = merge_tree(flow, resolution=2.0)
    assert is_valid_linkage(tree)
    assert tree[0, :2].tolist() == [0, 1]
    assert tree[0, 2] == pytest.approx(np.log(2.0 / flux_ratios(flow)[0, 1]))
    masses = flow.sum(1)
    last = flow[:2, 2].sum() / (masses[:2].sum() * masses[2])
    assert tree[1, 2] == pytest.approx(np.log(2.0 / last))


def banana(n, rng):
    angle = rng.uniform(0, np.pi, n)
    return np.c_[np.cos(angle), np.sin(angle)] + rng.normal(scale=0.15, size=(n, 2))


ONE_CLUSTER = {
    "Gaussian, 2 columns": lambda n, rng: rng.normal(size=(n, 2)),
    "Gaussian, 50 columns": lambda n, rng: rng.normal(size=(n, 50)),
    "cigar": lambda n, rng: rng.normal(size=(n, 3)) @ np.diag([10, 1, 1]) @ rng.normal(size=(3, 3)),
    "uniform, 1 column": lambda n, rng: rng.uniform(size=(n, 1)),
    "uniform square": lambda n, rng: rng.uniform(size=(n, 2)),
    "uniform, 6 columns": lambda n, rng: rng.uniform(size=(n, 6)),
    "lognormal, 5 columns": lambda n, rng: np.exp(rng.normal(size=(n, 5))),
    "lognormal, 20 columns": lambda n, rng: np.exp(rng.normal(size=(n, 20))),
    "exponential": lambda n, rng: rng.exponential(size=(n, 5)),
    "Student t": lambda n, rng: rng.standard_t(3, size=(n, 10)),
    "banana": banana,
    "banana, 5 columns": lambda n, rng: np.c_[banana(n, rng), 0.3 * rng.normal(size=(n, 3))],
}


@pytest.mark.parametrize("name", ONE_CLUSTER)
def test_data_without_structure_are_one_cluster(name):
    X = ONE_CLUSTER[name](300, np.random.default_rng(2))
    model = BasinFlow(random_state=0).fit(X)
    assert model.n_clusters_ == 1
    assert model.linkage_.shape == (0, 4)
    np.testing.assert_array_equal(model.predict_proba(X[:3]), 1)


SHAPES = {
    "pair": lambda: make_blobs(300, 2, centers=[[0, 0], [6, 0]], random_state=1),
    "moons": lambda: make_moons(600, noise=0.06, random_state=0),
    "rings": lambda: make_circles(600, factor=0.5, noise=0.04, random_state=0),
    "seven small blobs": lambda: make_blobs(
        140,
        centers=[[np.cos(a), np.sin(a)] for a in np.arange(7) * 2 * np.pi / 7],
        cluster_std=0.06,
        random_state=0,
    ),
    "one in ten": lambda: make_blobs([900, 100], centers=[[0, 0], [7, 0]], random_state=0),
    "one in fifty": lambda: make_blobs([980, 20], centers=[[0] * 8, [3] * 8], random_state=0),
    "twenty of unequal size": lambda: make_blobs(
        list(range(20, 100, 4)),
        centers=np.random.default_rng(0).normal(size=(20, 6)) * 8,
        random_state=0,
    ),
    "a thin direction": lambda: make_blobs(
        600, centers=[[0, 0], [0, 1]], cluster_std=[[9, 0.1]] * 2, random_state=0
    ),
    "64 columns": lambda: make_blobs(300, 64, centers=6, cluster_std=4, random_state=0),
}


@pytest.mark.parametrize("name", SHAPES)
def test_clusters_of_many_shapes_are_found(name):
    X, y = SHAPES[name]()
    assert adjusted_rand_score(y, BasinFlow(random_state=0).fit(X).labels_) > 0.95


def test_the_answer_does_not_depend_on_units_order_or_copies(blobs):
    X = blobs[0]
    rng = np.random.default_rng(0)
    labels = BasinFlow(random_state=0).fit_predict(X)
    rotation = np.linalg.qr(rng.normal(size=(4, 4)))[0]
    standard = (X - X.mean(0)) / X.std(0)
    order = rng.permutation(len(X))
    for other, same in {
        "units": (X * [1e-3, 1, 50, 1e6] + [0, 1e3, -5, 1], labels),
        "rotation": (standard @ rotation, labels),
        "columns": (X[:, ::-1], labels),
        "rows": (X[order], labels[order]),
        "copies": (np.repeat(X, 3, 0), np.repeat(labels, 3)),
        "an offset": (X + 1e9, labels),
        "a constant column": (np.c_[X, np.full(len(X), 7.0)], labels),
    }.values():
        assert adjusted_rand_score(BasinFlow(random_state=0).fit_predict(other), same) == 1


@pytest.mark.parametrize("weight", [1e-50, 1e40])
def test_weights_beyond_single_precision_count_alike(weight, blobs):
    X = blobs[0].astype(np.float32)
    found = BasinFlow(random_state=0).fit(X, sample_weight=np.full(len(X), weight))
    np.testing.assert_array_equal(found.labels_, BasinFlow(random_state=0).fit(X).labels_)


def test_a_column_of_few_values_does_not_make_clusters():
    rng = np.random.default_rng(0)
    years = rng.choice([2007, 2008, 2009], 300)
    for columns in (4, 2, 1):
        X = np.c_[rng.normal(size=(300, columns)), years]
        assert BasinFlow(random_state=0).fit(X).n_clusters_ == 1
    assert BasinFlow(random_state=0).fit(years[:, None]).n_clusters_ == 1
    flags = np.c_[rng.normal(size=(300, 2)), rng.integers(0, 2, (300, 4))]
    assert BasinFlow(random_state=0).fit(flags).n_clusters_ == 1


@pytest.mark.parametrize("seed", range(4))
def test_a_resolution_gives_the_same_clusters_again(seed):
    centers = np.random.default_rng(seed).normal(size=(6, 8)) * 1.6
    X, _ = make_blobs(300, centers=centers, random_state=seed)
    model = BasinFlow(random_state=0).fit(X)
    assert model.chosen_by_ == "gap"
    again = BasinFlow(resolution=float(f"{model.resolution_:.2g}"), random_state=0).fit(X)
    np.testing.assert_array_equal(again.labels_, model.labels_)
    tried = model.gap_curve_
    for place in (5, 9):
        other = BasinFlow(resolution=tried["resolution"][place], random_state=0).fit(X)
        assert other.n_clusters_ == tried["n_clusters"][place]


def test_the_null_has_unimodal_columns_and_the_correlations_of_the_data():
    rng = np.random.default_rng(0)
    two = np.r_[rng.normal(size=300), rng.normal(size=300) + 9]
    skewed = np.exp(rng.normal(size=600))
    table = np.c_[two, two + rng.normal(size=600), skewed, rng.choice([0.0, 1.0, 2.0], 600)]
    drawn, _ = unimodal(table, np.ones(600), np.zeros(600, int))(np.random.RandomState(0))
    between = ((drawn[:, 0] > 3) & (drawn[:, 0] < 6)).mean()
    assert between > 0.1  # none of the data are
    assert abs(spearmanr(drawn)[0] - spearmanr(table)[0]).max() < 0.15
    np.testing.assert_allclose(np.median(drawn[:, 2]), np.median(skewed), rtol=0.2)
    assert set(drawn[:, 3]) == {0.0, 1.0, 2.0}


def test_fitted_attributes_agree(blobs, fitted):
    X, y = blobs
    assert adjusted_rand_score(y, fitted.labels_) > 0.95
    assert fitted.n_clusters_ == 3
    counts = np.bincount(fitted.labels_)
    assert (np.diff(counts) <= 0).all()
    curve = fitted.gap_curve_
    assert fitted.gap_ == np.nanmax(curve["gap"])
    assert fitted.chosen_by_ == "modes"
    assert np.isnan(fitted.resolution_)
    assert (fitted.separation_ > 1).all()
    assert fitted.barriers_.shape == (3, 3)
    np.testing.assert_allclose(fitted.barriers_, fitted.barriers_.T)
    means = [X[fitted.labels_ == c].mean(0) for c in range(3)]
    np.testing.assert_allclose(fitted.cluster_centers_, means)
    dendrogram(fitted.linkage_, no_plot=True)
    assert is_valid_linkage(fitted.linkage_)


def test_new_rows(blobs, fitted):
    X, _ = blobs
    np.testing.assert_allclose(fitted.predict_proba(X).sum(1), 1)
    np.testing.assert_allclose(fitted.score_samples(X), fitted.energy_.log_prob(X))
    assert fitted.novelty(X).max() < 0.5
    assert fitted.novelty(X[:5] + 100).min() > 0.99
    drawn, labels = fitted.sample(20)
    assert drawn.shape == (20, 4)
    assert adjusted_rand_score(labels, fitted.predict(drawn)) == 1
    assert fitted.novelty(drawn).mean() < 0.2


@pytest.mark.parametrize(
    "settings", [{}, {"n_clusters": 40}, {"resolution": 3.0}, {"n_memories": 90}]
)
@pytest.mark.parametrize("missing", [0.0, 0.1])
def test_labels_are_predictions(blobs, settings, missing):
    X = blobs[0].copy()
    X[np.random.default_rng(1).random(X.shape) < missing] = np.nan
    model = BasinFlow(random_state=0, **settings)
    labels = model.fit_predict(X)
    np.testing.assert_array_equal(labels, model.predict(X))
    np.testing.assert_array_equal(labels, model.predict_proba(X).argmax(1))
    np.testing.assert_array_equal(model.predict(X[7:9]), labels[7:9])
    np.testing.assert_array_equal(np.unique(labels), np.arange(model.n_clusters_))


def test_rows_far_away_belong_where_their_direction_points(blobs, fitted):
    X = blobs[0]
    away = X[5] - X.mean(0)
    rows = X.mean(0) + away * np.array([1e5, 1e9, 1e37, 1e39, 1e160, 1e290])[:, None]
    posteriors = fitted.predict_proba(rows)
    np.testing.assert_allclose(posteriors, posteriors[:1].repeat(6, 0), atol=1e-3)
    assert len(set(fitted.predict(rows))) == 1
    assert (fitted.novelty(rows) > 0.99).all()


@pytest.mark.parametrize(("sizes", "far"), [((1, 1, 1), 3.0), ((8, 1, 1), 3.0), ((8, 1, 1), 4.0)])
def test_posteriors_of_overlapping_gaussians_are_those_of_the_mixture(sizes, far):
    rng = np.random.default_rng(0)
    shares = np.array(sizes) / sum(sizes)
    y = rng.choice(3, 1500, p=shares)
    centres = far * np.array([[0, 0], [1, 0], [0.5, np.sqrt(0.75)]])
    X = rng.normal(size=(1500, 2)) + centres[y]
    model = BasinFlow(3, random_state=0).fit(X)
    truth = softmax(np.log(shares) - 0.5 * cdist(X, centres, "sqeuclidean"), axis=1)
    posteriors = model.predict_proba(X)
    matched = cdist(model.cluster_centers_, centres).argmin(1)
    assert set(matched) == {0, 1, 2}
    assert abs(posteriors - truth[:, matched]).mean() < 0.03
    assert posteriors.max(1).mean() == pytest.approx(truth.max(1).mean(), abs=0.02)
    np.testing.assert_array_equal(model.labels_, posteriors.argmax(1))


@pytest.mark.parametrize("dim", [1, 2, 5])
def test_probabilities_of_the_number_of_clusters(dim):
    """One cluster more, too close to be seen, is never ruled out."""
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(200, dim)), np.arange(200) % 2
    for far, least in ((0.0, 0.6), (3.2, 0.0), (20.0, 0.9)):
        model = BasinFlow(random_state=0).fit(X + np.outer(y, np.eye(dim)[0] * far))
        assert model.k_probabilities_.sum() == pytest.approx(1)
        assert least <= model.k_probabilities_[model.n_clusters_ - 1] < 1
        assert len(model.k_probabilities_) > model.n_clusters_
    given = BasinFlow(4, random_state=0).fit(X)
    np.testing.assert_array_equal(given.k_probabilities_, [0, 0, 0, 1])


@pytest.mark.parametrize("n_clusters", [1, 2, 5, 40])
def test_a_known_number_of_clusters(blobs, n_clusters):
    model = BasinFlow(n_clusters, random_state=0).fit(blobs[0])
    assert model.n_clusters_ == n_clusters == len(set(model.labels_))
    assert is_valid_linkage(model.linkage_) or n_clusters == 1


def test_resolution_and_size(blobs):
    coarse, fine = (BasinFlow(resolution=g, random_state=0).fit(blobs[0]) for g in (0.01, 5.0))
    assert coarse.n_clusters_ <= 3 < fine.n_clusters_
    assert fine.resolution_ == 5.0
    narrow = BasinFlow(resolution=np.array(5.0, dtype=np.float16), random_state=0).fit(blobs[0])
    np.testing.assert_array_equal(narrow.labels_, fine.labels_)
    least = BasinFlow(resolution=5.0, min_cluster_size=30, random_state=0).fit(blobs[0])
    assert np.bincount(least.labels_).min() >= 30


def test_a_column_whose_squares_vanish_counts_for_nothing():
    X, y = make_blobs(120, centers=[[0, 0], [8, 8]], random_state=0)
    found = BasinFlow(random_state=0).fit(X * [1e-200, 1])
    np.testing.assert_array_equal(found.labels_ == found.labels_[0], y == y[0])


def test_memories_in_place_of_rows(blobs):
    X, y = blobs
    model = BasinFlow(n_memories=80, random_state=0).fit(X)
    assert adjusted_rand_score(y, model.labels_) > 0.95
    assert len(model.memories_) <= 80
    assert np.isfinite(model.score_samples([X[y == label].mean(0) for label in range(3)])).all()


def test_missing_values(blobs, fitted):
    X, y = blobs
    gaps = X.copy()
    gaps[np.random.default_rng(0).random(X.shape) < 0.15] = np.nan
    model = BasinFlow(random_state=0).fit(gaps)
    assert adjusted_rand_score(y, model.labels_) > 0.9
    filled = model.complete(gaps)
    hidden = np.isnan(gaps)
    assert np.mean((filled - X)[hidden] ** 2) < 0.3 * np.mean((X - X.mean(0))[hidden] ** 2)
    assert (fitted.predict(gaps) == fitted.labels_).mean() > 0.9


def test_few_or_equal_rows():
    rng = np.random.default_rng(0)
    for rows in (rng.normal(size=(1, 3)), np.full((20, 2), 5.0), rng.normal(size=(5, 2))):
        model = BasinFlow(random_state=0).fit(rows)
        assert model.n_clusters_ == 1
        assert np.isfinite(model.score(rows))
        assert model.predict(rows + 1).tolist() == [0] * len(rows)


def test_bad_input(blobs):
    X = blobs[0]
    with pytest.raises(ValueError, match="Column 1 of X has no observed value"):
        BasinFlow().fit(np.c_[X[:, 0], np.full(240, np.nan)])
    with pytest.raises(ValueError, match="Column 'size' of X"):
        BasinFlow().fit(pd.DataFrame({"age": X[:, 0], "size": np.nan}))
    for settings in ({"n_clusters": 1000}, {"n_clusters": 2, "resolution": 1.0}):
        with pytest.raises(ValueError, match="n_clusters"):
            BasinFlow(**settings).fit(X)


def test_heavy_tails_in_many_rows_are_one_cluster():
    rows = np.random.default_rng(0).standard_t(4, size=(10_000, 10))
    assert BasinFlow(random_state=0).fit(rows).n_clusters_ == 1


def test_an_outlier_of_the_table_is_newer_than_the_bulk():
    X = np.random.default_rng(0).normal(size=(300, 3))
    X[0] = 12
    model = BasinFlow(random_state=0).fit(X)
    novelty = model.novelty(X)
    assert novelty[0] > 0.99
    assert novelty[1:].max() < 0.9
    for row in (0, 5):
        away = np.square(model.memories_ - X[row]).sum(1)
        others = Mixture(
            np.delete(model.memories_, away.argmin(), 0),
            covariance=0.5 / model.beta_,
            covariance_type="tied",
        )
        found = model._without(X[[row]], away.argmin(keepdims=True))[0]
        assert found == pytest.approx(float(others.log_prob(X[row])), rel=1e-6)


@pytest.mark.parametrize("estimator", [BasinFlow(random_state=0), ClAM(2, random_state=0)])
def test_frames_with_categories_and_gaps_are_clustered_as_they_are_encoded(estimator, tmp_path):
    rng = np.random.default_rng(0)
    kind = rng.integers(0, 2, 120)
    frame = pd.DataFrame({"a": kind * 9 + rng.normal(size=120), "s": np.where(kind, "x", "y")})
    frame["flag"] = kind > 0
    frame.loc[4, "a"] = np.nan
    frame.loc[7, "s"] = None
    model = clone(estimator).fit(frame)
    assert adjusted_rand_score(kind, model.labels_) == 1
    np.testing.assert_array_equal(clone(estimator).fit(encode(frame)).labels_, model.labels_)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(
        type(model).load(tmp_path / "model").predict(frame), model.labels_
    )


@pytest.mark.parametrize(
    ("sizes", "distances"),
    [
        *(((n, n), [100.0]) for n in (2, 3, 5)),
        ((20, 20), [30.0, 1000.0]),
        ((25, 10), [100.0]),
        ((95, 5), [100.0]),
        ((50, 50), [8.0, 30.0, 1000.0]),
        ((500, 500), [8.0, 1000.0]),
    ],
)
@pytest.mark.parametrize("dim", [1, 2, 5, 20])
def test_two_clusters_are_found_at_every_distance(sizes, distances, dim):
    rng = np.random.default_rng(1)
    y, way = np.repeat([0, 1], sizes), rng.normal(size=dim)
    X = rng.normal(size=(sum(sizes), dim))
    for far in distances:
        model = BasinFlow(random_state=0).fit(X + np.outer(y, far * way / np.linalg.norm(way)))
        assert adjusted_rand_score(y, model.labels_) > (0.9 if far < 30 else 0.99)


@pytest.mark.parametrize("dim", [2, 5, 50])
def test_sixty_rows_show_two_clusters_six_deviations_apart(dim):
    """One level decides: most pairs are found, and no sliver between them is a third."""
    found = []
    for seed in range(5):
        rng = np.random.default_rng([seed, dim])
        y, way = np.arange(60) % 2, rng.normal(size=dim)
        X = rng.normal(size=(60, dim)) + np.outer(y, 6 * way / np.linalg.norm(way))
        found.append(BasinFlow(random_state=0).fit(X).n_clusters_)
    assert found.count(2) >= 4
    assert max(found) <= 2


@pytest.mark.parametrize("dim", [2, 3, 5])
def test_fifty_rows_beside_five_hundred_are_found(dim):
    found = []
    for seed in range(8):
        X = np.random.default_rng([seed, dim]).normal(size=(550, dim))
        X[:50, 0] += 6
        found.append(BasinFlow(random_state=0).fit(X).n_clusters_)
    assert found.count(2) >= 5
    assert max(found) <= 2


@pytest.mark.parametrize("dim", [2, 5])
def test_two_modes_in_a_projection_do_not_split_a_bent_cluster(dim):
    for seed in range(40):
        rng = np.random.default_rng(seed)
        X = np.c_[banana(550, rng), 0.3 * rng.normal(size=(550, dim - 2))]
        assert not splits(X, X, 0.01, 0)


def test_categories_are_clusters_only_if_they_depend_on_each_other():
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=200)})
    kinds = rng.integers(0, 3, 200)
    apart = frame.assign(kind=rng.permutation(kinds).astype(str), flag=rng.random(200) < 0.5)
    assert BasinFlow(random_state=0).fit(apart).n_clusters_ == 1
    for name in "abc":
        noise = rng.random(200) < 0.05
        frame[name] = np.where(noise, rng.integers(0, 3, 200), kinds).astype(str)
    model = BasinFlow(random_state=0).fit(frame)
    assert model.n_clusters_ > 1
    assert adjusted_rand_score(kinds, model.labels_) > 0.5


@pytest.mark.parametrize("seed", range(3))
def test_categories_that_depend_on_no_column_do_not_split_clusters(seed):
    rng = np.random.default_rng(seed)
    kinds = rng.integers(0, 3, 300)
    frame = pd.DataFrame(rng.normal(size=(300, 3)) + 3 * np.c_[kinds, kinds % 2, -kinds % 3])
    expected = BasinFlow(random_state=0).fit(frame).labels_
    frame = frame.rename(columns=str)
    frame["noise"], frame["place"] = rng.choice([*"uvw"], 300), rng.choice([*"pq"], 300)
    model = BasinFlow(random_state=0).fit(frame)
    assert adjusted_rand_score(expected, model.labels_) > 0.9


@pytest.mark.parametrize(("dim", "digits"), [(2, 0), (5, 1)])
@pytest.mark.parametrize("far", [9.0, 30.0, 1000.0])
def test_rounded_rows_are_as_many_as_are_equal(dim, digits, far):
    """Equal rows of rounded values are no copies: their number is the density."""
    rng = np.random.default_rng(0)
    y, way = np.arange(1000) % 2, rng.normal(size=dim)
    X = rng.normal(size=(1000, dim)) + np.outer(y, far * way / np.linalg.norm(way))
    labels = BasinFlow(random_state=0).fit_predict(np.round(X, digits))
    assert adjusted_rand_score(y, labels) > 0.95
    answers = rng.integers(1, 6, size=(1000, dim))
    assert BasinFlow(random_state=0).fit(answers).n_clusters_ == 1


@pytest.fixture
def people():
    """Three groups in columns of different units, and the group as a category."""
    rng, kind = np.random.default_rng(0), np.arange(240) % 3
    means = np.array([[25, 22_000, 2], [45, 41_000, 5], [68, 30_000, 8]])[kind]
    frame = pd.DataFrame(means + rng.normal(size=(240, 3)) * [5, 3000, 1])
    frame.columns = ["age", "income", "score"]
    frame["city"] = np.array(["Oslo", "Rome", "Bergen"])[kind]
    return frame


def test_the_density_of_columns_of_different_units_is_that_of_rescaled_ones(people):
    X, scale = people.drop(columns="city").to_numpy(copy=True), np.array([1.0, 1e-4, 1e3])
    X[3, 1] = np.nan
    model, scaled = (BasinFlow(random_state=0).fit(each) for each in (X, X * scale))
    lost = (~np.isnan(X)) @ np.log(scale)
    np.testing.assert_allclose(
        model.score_samples(X), scaled.score_samples(X * scale) + lost, atol=1e-8
    )
    far = X + np.array([0, 0, 300])
    for rows in (X, far):
        np.testing.assert_allclose(model.novelty(rows), scaled.novelty(rows * scale), rtol=1e-6)
    assert model.novelty(far).min() > 0.99
    deviation = np.nanstd(X, 0)
    for draws in (model.sample(500)[0], scaled.sample(500)[0] / scale):
        np.testing.assert_allclose((draws.mean(0) - np.nanmean(X, 0)) / deviation, 0, atol=0.2)
        np.testing.assert_allclose(draws.std(0), deviation, rtol=0.2)
    assert model.score(X) > GaussianMixture(3, random_state=0).fit(X[4:]).score(X[4:]) - 0.5


def test_columns_of_single_precision_may_be_narrower_than_their_squares_can_be():
    X = np.random.default_rng(0).normal(size=(100, 2)).astype(np.float32)
    tiny = X * np.array([1e-5, 1e-25], dtype=np.float32)
    model, scaled = BasinFlow(random_state=0).fit(X), BasinFlow(random_state=0).fit(tiny)
    assert scaled.score(tiny) == pytest.approx(model.score(X) + np.log(1e30), abs=1e-4)
    np.testing.assert_allclose(scaled.novelty(tiny), model.novelty(X), rtol=1e-3)


def test_rows_with_a_value_far_off_or_a_new_category_are_new(people):
    model = BasinFlow(random_state=0).fit(people)
    odd = people[:4].copy()
    odd.loc[0, "age"], odd.loc[1, "score"], odd.loc[2, "city"] = 500, 300, "Paris"
    np.testing.assert_array_equal(model.novelty(odd) > 0.99, [True, True, True, False])
    indicators = model.sample(100)[0][:, 3:]
    assert np.abs(indicators - np.round(indicators).clip(0, 1)).max() < 0.5
