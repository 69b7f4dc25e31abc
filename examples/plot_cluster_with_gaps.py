"""
Cluster a table with gaps
=========================

Most clusterers refuse missing values. Dropping incomplete rows can leave no table at all, and
filling gaps with column means moves rows towards the middle, where clusters meet. The clusterers
of isthmus take NaN as it is: a row is compared with a cluster over the cells that it has.
"""

# %%
# The wine data are 13 chemical measurements of 178 wines from three cultivars. We delete 30 % of
# the cells at random.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.cluster import KMeans
from sklearn.datasets import load_wine
from sklearn.decomposition import PCA
from sklearn.metrics import adjusted_rand_score
from sklearn.preprocessing import StandardScaler

from isthmus.cluster import ClAMELBO

wine = load_wine()


def with_gaps(share, seed=0):
    """Return the standardised table, with NaN in the given share of its cells."""
    hidden = np.random.default_rng(seed).random(wine.data.shape) < share
    return StandardScaler().fit_transform(np.where(hidden, np.nan, wine.data))


X = with_gaps(0.3)
print(f"{np.isnan(X).mean():.0%} of the cells missing")
print(f"{(~np.isnan(X).any(axis=1)).sum()} complete rows of {len(X)}")

# %%
# :class:`isthmus.cluster.ClAMELBO` learns a mixture of round Gaussians, that is k-means with
# posteriors. ``predict_proba`` is the posterior of each row, less sure where few cells are known,
# and ``complete`` fills the gaps from the clusters that a row may belong to.

model = ClAMELBO(n_clusters=3, n_init=3, random_state=0).fit(X)
surest = model.predict_proba(X).max(axis=1)
filled = model.complete(X)

known = (~np.isnan(X)).sum(axis=1)
print(f"mean posterior of rows with 11 cells or more: {surest[known >= 11].mean():.3f}")
print(f"mean posterior of rows with 7 cells or fewer: {surest[known <= 7].mean():.3f}")

# %%
# How much do the gaps cost? For comparison, k-means gets the same tables with each gap filled by
# the mean of its column, which is zero in standard units. The adjusted Rand index compares the
# clusters with the cultivars: 1 means that they are the same.

shares = np.linspace(0, 0.6, 7)
scores = {"ClAMELBO, gaps as they are": [], "column means, then KMeans": []}
for share in shares:
    tables = [with_gaps(share, seed) for seed in range(5)]
    ours = [ClAMELBO(3, n_init=3, random_state=0).fit_predict(table) for table in tables]
    means = [
        KMeans(3, n_init=10, random_state=0).fit_predict(np.nan_to_num(table)) for table in tables
    ]
    for found, labels in zip(scores.values(), (ours, means), strict=True):
        found.append([adjusted_rand_score(wine.target, each) for each in labels])

# %%
# Left: some rows of the table, sorted by cluster; gaps are white. Middle: the completed rows in
# the plane of their first two principal components; small points are unsure. Right: the agreement
# with the cultivars, mean and standard deviation of five tables.

colors = np.array(["#0072b2", "#e69f00", "#009e73"])
fig, (table, plane, curve) = plt.subplots(
    1, 3, figsize=(11, 4.2), layout="constrained", width_ratios=(1, 1.3, 1.3)
)
some = np.concatenate([np.flatnonzero(model.labels_ == cluster)[:15] for cluster in range(3)])
table.imshow(X[some], aspect="auto", cmap="viridis", vmin=-2.5, vmax=2.5)
table.hlines([14.5, 29.5], -0.5, 12.5, color="black")
table.set(title="30 % missing", xlabel="column", xticks=[], ylabel="cluster")
table.set_yticks([7, 22, 37], labels=[0, 1, 2])

x, y = PCA(2).fit_transform(filled).T
for cluster, color in enumerate(colors):
    rows = model.labels_ == cluster
    plane.scatter(x[rows], y[rows], s=30 * surest[rows] ** 2, color=color, label=cluster)
plane.set(title="Completed", xlabel="component 1", ylabel="component 2")
plane.legend(title="cluster", frameon=False)

for (name, found), color, marker in zip(scores.items(), ("#0072b2", "0.5"), "os", strict=True):
    curve.errorbar(
        100 * shares,
        np.mean(found, axis=1),
        np.std(found, axis=1),
        color=color,
        marker=marker,
        capsize=3,
        label=name,
    )
curve.set(
    title="Agreement with the cultivars",
    xlabel="% missing",
    ylabel="adjusted Rand index",
    ylim=(0, 1),
)
curve.legend(frameon=False, loc="lower left")
plt.show()

# %%
# With few gaps it hardly matters how they are treated; with half of the cells missing, leaving
# them open keeps more of the clusters. Beware of the middle panel: completed cells follow the
# clusters, so that the picture is neater than the data.
#
# If you do not know the number of clusters, :class:`isthmus.cluster.BasinFlow` takes gaps as
# well. If you want to fill the gaps of a table for their own sake, see
# :ref:`sphx_glr_gallery_plot_fill_gaps_with_uncertainty.py`.
