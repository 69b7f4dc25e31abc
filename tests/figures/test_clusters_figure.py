"""The map of clusters shows rows where PCA puts them, in colours that tell them apart."""

import numpy as np
import pytest
from scipy.cluster.hierarchy import leaves_list, ward
from sklearn.datasets import load_wine
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from isthmus.figures import cluster_map, cluster_tree
from isthmus.figures.style import png_bytes

RNG = np.random.default_rng(0)


def test_memories_are_numbered_where_pca_puts_them() -> None:
    X = StandardScaler().fit_transform(load_wine().data)[:30]
    figure = cluster_map(X, np.arange(30) % 3, np.ones(30), X[:3])
    axes, wanted = figure.axes[0], PCA(2).fit(X).transform(X)
    rows, marks = (axes.collections[place].get_offsets() for place in (0, 1))
    signs = np.sign((marks * wanted[:3]).sum(0))
    assert np.allclose(marks, signs * wanted[:3])
    assert np.allclose(np.sort(rows, axis=0), np.sort(signs * wanted, axis=0))
    assert {"1", "2", "3"} <= {text.get_text() for text in axes.texts}
    assert len(figure.axes[1].get_legend().get_texts()) == 3


@pytest.mark.parametrize("clusters", [1, 60])
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_any_number_of_clusters_and_columns_is_a_picture(clusters: int, dim: int) -> None:
    X = RNG.normal(size=(120, dim))
    labels = np.arange(120) % clusters
    names = ("height", "weight", "c", "d", "e")[:dim]
    figure = cluster_map(X, labels, np.full(120, 0.9), X[:clusters], columns=names)
    assert png_bytes(figure, dpi=30).startswith(b"\x89PNG")


def test_no_two_clusters_look_the_same() -> None:
    X = RNG.normal(size=(80, 2))
    figure = cluster_map(X, np.arange(80) % 20, np.ones(80), X[:20])
    handles = figure.axes[1].get_legend().legend_handles
    assert len({(handle.get_color().tobytes(), handle.get_marker()) for handle in handles}) == 20
    assert sum(len(each.get_offsets()) for each in figure.axes[0].collections[:3]) == 80


def test_a_histogram_counts_every_row_of_one_column() -> None:
    X = RNG.normal(size=(90, 1))
    axes = cluster_map(X, np.arange(90) % 2, np.ones(90), X[:2]).axes[0]
    heights = [bar.get_height() for bar in axes.patches]
    assert sum(heights) == 90


def test_more_rows_than_can_be_seen_are_drawn_by_lot() -> None:
    X = RNG.normal(size=(7000, 2))
    figure = cluster_map(X, np.zeros(7000, dtype=int), np.ones(7000), X[:1])
    assert len(figure.axes[0].collections[0].get_offsets()) == 6000


def test_the_table_holds_the_shares_of_known_classes() -> None:
    X = RNG.normal(size=(8, 2))
    labels, kinds = [0, 0, 0, 0, 1, 1, 1, 1], ["a", "a", "a", "b", "b", "b", "", "b"]
    figure = cluster_map(X, labels, np.ones(8), X[:2], classes=kinds, class_name="species")
    table = figure.axes[-1]
    names = [text.get_text() for text in table.get_xticklabels()]
    shares = dict(zip(names, np.asarray(table.images[0].get_array()).T.tolist(), strict=True))
    assert shares == {"a": [0.75, 0], "b": [0.25, 0.75], "unknown": [0, 0.25]}


def test_of_each_cluster_the_lowest_barrier_is_a_line() -> None:
    X = np.array([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0], [9.0, 9.0]])
    heights = np.array([[0, 1, 2, 9], [1, 0, 9, np.inf], [2, 9, 0, 9], [9, np.inf, 9, 0]])
    heights[3] = heights[:, 3] = np.inf  # nothing leads there
    figure = cluster_map(X, np.arange(4), np.ones(4), X, barriers=heights)
    ends = {tuple(sorted(map(tuple, line.get_xydata().tolist()))) for line in figure.axes[0].lines}
    first, second, third = (tuple(row) for row in X[:3].tolist())
    assert ends == {tuple(sorted((first, second))), tuple(sorted((first, third)))}


def test_the_gap_curve_is_drawn() -> None:
    X = RNG.normal(size=(8, 2))
    curve = {"resolution": [4.0, 2.0, 1.0, 0.5], "n_clusters": [9, 5, 2, 1]}
    curve["gap"] = [0.1, 0.2, 0.7, np.nan]
    options = {"gap_curve": curve, "resolution": 1.0}
    axes = cluster_map(X, np.arange(8) % 2, np.ones(8), X[:2], **options).axes[2]
    np.testing.assert_array_equal(axes.lines[0].get_ydata(), curve["gap"])
    curve["gap"] = [np.nan] * 4
    assert len(cluster_map(X, np.zeros(8, int), np.ones(8), X[:1], gap_curve=curve).axes) == 2


@pytest.mark.parametrize("count", [1, 7])
def test_a_tree_has_the_merges_of_scipy(count: int) -> None:
    points = RNG.normal(size=(count, 3))
    tree = ward(points) if count > 1 else np.empty((0, 4))
    figure = cluster_tree(tree, sizes=np.full(count, 12))
    figure.draw_without_rendering()
    axes = figure.axes[0]
    if count > 1:
        drawn = sorted(path.vertices[1, 1] for path in axes.collections[0].get_paths())
        np.testing.assert_allclose(drawn, sorted(tree[:, 2]))
        leaves = [int(text.get_text().split()[0]) - 1 for text in axes.get_xticklabels()]
        assert leaves == leaves_list(tree).tolist()
