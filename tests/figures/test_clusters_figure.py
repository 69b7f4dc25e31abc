"""The map of clusters shows rows where PCA puts them, in colours that tell them apart."""

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from scipy.spatial.distance import pdist
from sklearn.datasets import load_wine
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from isthmus.errors import ShapeError
from isthmus.figures.clusters import COLOURS, PALE, _spread_colours, cluster_map, project
from isthmus.figures.style import png_bytes

RNG = np.random.default_rng(0)
WINE = StandardScaler().fit_transform(load_wine().data)


@pytest.mark.parametrize("rows", [WINE, WINE[:9]])
def test_directions_are_those_of_pca(rows: np.ndarray) -> None:
    points, places, shares = project(rows, rows[:3])
    pca = PCA(2).fit(rows)
    wanted = pca.transform(rows)
    signs = np.sign((points * wanted).sum(0))
    assert np.allclose(points, signs * wanted)
    assert np.allclose(places, points[:3])
    assert np.allclose(shares, pca.explained_variance_ratio_)


def test_uncertain_rows_are_pale_and_certain_ones_have_their_cluster_s_colour() -> None:
    X = RNG.normal(size=(4, 3))
    figure = cluster_map(X, [0, 1, 1, 0], [1.0, 1.0, 0.5, 0.75], X[:2])
    cloud = figure.axes[0].collections[0]
    points, _, _ = project(X, X[:2])
    shown = {
        tuple(np.round(place, 9)): colour[:3]
        for place, colour in zip(
            np.asarray(cloud.get_offsets()), cloud.get_facecolor(), strict=True
        )
    }
    first, second, pale = (np.array(to_rgb(colour)) for colour in (*COLOURS[:2], PALE))
    for place, wanted in zip(points, [first, second, pale, (first + pale) / 2], strict=True):
        assert np.allclose(shown[tuple(np.round(place, 9))], wanted)


def test_every_memory_is_marked_with_its_number() -> None:
    X = RNG.normal(size=(30, 4))
    figure = cluster_map(X, np.arange(30) % 3, np.ones(30), X[:3])
    axes = figure.axes[0]
    assert np.allclose(axes.collections[1].get_offsets(), project(X, X[:3])[1])
    assert {"1", "2", "3"} <= {text.get_text() for text in axes.texts}
    assert len(axes.get_legend().get_texts()) == 3


@pytest.mark.parametrize("clusters", [3, 30])
def test_rings_that_would_hide_each_other_are_moved_apart(clusters: int) -> None:
    X = RNG.normal(size=(90, 4))
    memories = np.concatenate([X[[0] * clusters], 4 * X[1:3]])
    figure = cluster_map(X, np.arange(90) % len(memories), np.ones(90), memories)
    figure.canvas.draw()
    axes, places = figure.axes[0], project(X, memories)[1]
    rings = np.asarray(axes.collections[1].get_offsets())
    on_paper = axes.transData.transform(rings) * 72 / figure.dpi
    wide = np.sqrt(axes.collections[1].get_sizes()[0])
    assert pdist(on_paper).min() > wide
    assert np.allclose(rings[-2:], places[-2:])
    stems = {tuple(np.round(line.get_xydata()[0], 9)) for line in axes.lines}
    assert stems == {tuple(np.round(places[0], 9))}
    assert len(axes.lines) >= clusters - 1
    assert any("moved apart" in text.get_text() for text in axes.texts)
    marked = {text.get_text(): text.xy for text in axes.texts if text.get_text().isdecimal()}
    assert np.allclose([marked[str(number + 1)] for number in range(len(rings))], rings)


def test_neighbours_differ_where_colours_repeat() -> None:
    places = np.array([[x, y] for x in range(8) for y in range(8)], dtype=float)
    colours = _spread_colours(RNG.permutation(places))
    assert len(np.unique(colours, axis=0)) == len(COLOURS)
    places = RNG.permutation(places)
    colours = _spread_colours(places)
    for place, colour in zip(places, colours, strict=True):
        near = np.linalg.norm(places - place, axis=1) == 1
        assert (colours[near] == colour).all(1).mean() <= 0.5


@pytest.mark.parametrize("clusters", [1, 2, 60])
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_any_number_of_clusters_and_columns_is_a_picture(clusters: int, dim: int) -> None:
    X = RNG.normal(size=(120, dim))
    labels = np.arange(120) % clusters
    figure = cluster_map(X, labels, np.full(120, 0.9), X[:clusters], columns=("height",))
    assert png_bytes(figure, dpi=30).startswith(b"\x89PNG")
    assert figure.axes[0].get_xlabel().startswith("height" if dim == 1 else "main direction 1")


def test_a_histogram_counts_every_row_of_one_column() -> None:
    X = RNG.normal(size=(90, 1))
    axes = cluster_map(X, np.arange(90) % 2, np.ones(90), X[:2]).axes[0]
    heights = [bar.get_height() for bar in axes.patches]
    assert sum(heights) == 90


def test_more_rows_than_can_be_seen_are_drawn_by_lot() -> None:
    X = RNG.normal(size=(7000, 2))
    figure = cluster_map(X, np.zeros(7000, dtype=int), np.ones(7000), X[:1])
    assert len(figure.axes[0].collections[0].get_offsets()) == 6000
    assert any("6,000 of 7,000 rows" in text.get_text() for text in figure.axes[0].texts)


def test_equal_rows_are_a_picture() -> None:
    figure = cluster_map(np.ones((5, 3)), np.zeros(5, dtype=int), np.ones(5), np.ones((1, 3)))
    assert png_bytes(figure, dpi=30).startswith(b"\x89PNG")


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ShapeError, match="must be"):
        cluster_map(np.ones((5, 3)), np.zeros(5), np.ones(5), np.ones((1, 2)))
    with pytest.raises(ShapeError, match="an entry for each row"):
        cluster_map(np.ones((5, 3)), np.zeros(4), np.ones(5), np.ones((1, 3)))
