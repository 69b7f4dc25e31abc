"""
How many clusters are there?
============================

K-means finds as many clusters as it is told to. :class:`isthmus.cluster.BasinFlow` chooses the
number itself, and one cluster is a possible answer. This example shows how it decides, on three
tables with two columns and on images of handwritten digits.
"""

# %%
# Three tables: one Gaussian blob, six groups of different sizes and widths, and two half-moons,
# which are not round.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits, make_blobs, make_moons
from sklearn.metrics import adjusted_rand_score

from isthmus.cluster import BasinFlow

blob = np.random.default_rng(0).normal(size=(600, 2))
groups, _ = make_blobs(
    [150, 100, 80, 120, 60, 90],
    centers=[(0, 0), (6, 1), (3, 6), (-4, 5), (9, 7), (-3, -5)],
    cluster_std=[1.2, 0.8, 0.6, 1.0, 0.5, 0.7],
    random_state=0,
)
moons, _ = make_moons(400, noise=0.06, random_state=0)
tables = {"One blob": blob, "Six groups": groups, "Half-moons": moons}

models = {name: BasinFlow(random_state=0).fit(X) for name, X in tables.items()}
for name, model in models.items():
    print(f"{name}: {model.n_clusters_} found")

# %%
# A cluster is a set of rows that rarely recall rows outside it. How rarely is rare enough depends
# on a resolution, from fine (many clusters) to coarse (few). At each resolution, the *gap*
# compares the table with tables of unimodal columns: how much better do clusters explain the table
# than they explain those? In more than three dimensions the largest gap decides, if it is larger
# than chance allows. In fewer, as here, clusters are the modes of the density.

fig, axes = plt.subplots(2, 3, figsize=(10, 6.2), layout="constrained", height_ratios=(1.3, 1))
for (name, X), scatter, curve in zip(tables.items(), axes[0], axes[1], strict=True):
    model = models[name]
    scatter.scatter(*X.T, c=model.labels_, cmap="viridis", s=9)
    scatter.set(title=f"{name}: {model.n_clusters_} found", xticks=[], yticks=[])
    scatter.set_aspect("equal", adjustable="datalim")

    tried, gap = model.gap_curve_["n_clusters"], model.gap_curve_["gap"]
    curve.plot(tried, gap, "o-", color="0.5", markersize=4)
    if model.n_clusters_ > 1:
        curve.axvline(model.n_clusters_, color="C3", label="found")
        curve.legend(frameon=False)
    curve.set(xscale="log", xlabel="clusters", xlim=(1.7, 36), ylim=(-0.1, 1.5))
    curve.set_xticks([2, 4, 8, 16, 32], labels=["2", "4", "8", "16", "32"])
    curve.minorticks_off()
    curve.spines[["top", "right"]].set_visible(False)
axes[1, 0].set_ylabel("gap to unimodal data")
plt.show()

# %%
# Now 1,797 images of handwritten digits, 64 pixels each. The model does not see which digit an
# image shows. The adjusted Rand index compares its clusters with the digits: 1 means that they
# are the same, 0 that they agree by chance only.

X, digit = load_digits(return_X_y=True)
model = BasinFlow(random_state=0).fit(X)
agreement = adjusted_rand_score(digit, model.labels_)
print(f"{model.n_clusters_} clusters, adjusted Rand index {agreement:.2f}")

# %%
# The mean images of the larger clusters, with their numbers of rows. Nearly every cluster is one
# digit, and a digit that people write in several ways has several. Clusters of a few rows, if there
# are any, are not shown.

sizes = np.bincount(model.labels_)
large = np.flatnonzero(sizes >= 10)
fig, axes = plt.subplots(2, -(-len(large) // 2), figsize=(10, 2.6), layout="constrained")
for ax in axes.flat:
    ax.set_axis_off()
for ax, cluster in zip(axes.flat, large, strict=False):
    ax.imshow(model.cluster_centers_[cluster].reshape(8, 8), cmap="gray_r")
    ax.set_title(f"{sizes[cluster]}", fontsize=9)
plt.show()

# %%
# Real tables often have no true number of clusters. A larger ``resolution`` gives finer clusters,
# a smaller one coarser ones, and ``n_clusters`` fixes their number.
# ``model.linkage_`` is the tree in which they merge. ``isthmus cluster table.csv --plot map.png``
# does the same for a file, and prints other numbers.
