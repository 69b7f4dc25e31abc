"""
A stream with novelty
=====================

Rows arrive in batches, too many to keep, and one day a batch holds something that has never been
seen. :class:`isthmus.cluster.ClAMCRP` learns from a stream, tells for each row how likely it is
to belong to no known cluster, and opens new clusters as they appear.
"""

# %%
# The stream has batches of 150 rows from groups in the plane, about 1 wide. It begins with three
# groups. A fourth appears in batch 8, and a fifth in batch 15, rare at first: 5 rows a batch.

import matplotlib.pyplot as plt
import numpy as np

from isthmus.cluster import ClAMCRP

rng = np.random.default_rng(0)
centers = np.array([[0.0, 0.0], [8.0, 1.0], [3.0, 7.0], [-6.0, 5.0], [11.0, 9.0]])


def next_batch(number):
    """Return the rows of a batch."""
    sizes = [50, 50, 50, 0, 0]
    if number >= 8:
        sizes = [40, 40, 40, 30, 0]
    if number >= 15:
        sizes = [40, 40, 40, 25, 5]
    return np.repeat(centers, sizes, axis=0) + rng.normal(size=(150, 2))


# %%
# Each batch is first judged by what was learned from earlier ones, and then learned.
# ``partial_fit`` keeps no rows: the model is a list of clusters with their counts, however long
# the stream is. The concentration ``beta`` is :math:`1 / (2 \sigma^2)` for groups of width
# :math:`\sigma`. For three of the batches, we also compute a map of the novelty.

x, y = np.meshgrid(np.linspace(-11, 16, 162), np.linspace(-5, 14, 114))
places = np.column_stack([x.ravel(), y.ravel()])

model = ClAMCRP(beta=0.5, random_state=0).partial_fit(next_batch(0))
n_novel, n_clusters, maps = [], [], {}
for number in range(1, 22):
    batch = next_batch(number)
    novel = model.novelty(batch) > 0.5
    if number in (8, 15, 21):
        maps[number] = batch, novel, model.novelty(places).reshape(x.shape)
    model.partial_fit(batch)

    n_novel.append(novel.sum())
    n_clusters.append(model.n_clusters_)
    if novel.sum() > 2:
        print(f"batch {number}: {novel.sum()} rows belong to no known cluster")

# %%
# Above: three batches on the map of novelty, as it was when they arrived. A row outside the pale
# islands belongs to no known cluster. Below: the number of novel rows of each batch, and the
# number of clusters after it was learned. Both new groups raise an alarm in their first batch,
# the rare one included; one batch later they are known.

fig = plt.figure(figsize=(10, 5), layout="constrained")
axes = fig.subplot_mosaic([[8, 15, 21], ["time"] * 3], height_ratios=(1.4, 1))
for number, (batch, novel, novelty) in maps.items():
    ax = axes[number]
    shading = ax.contourf(x, y, novelty, levels=11, cmap="Blues", vmin=0, vmax=1.6)
    ax.scatter(*batch[~novel].T, s=8, color="black", label="known")
    ax.scatter(*batch[novel].T, s=22, color="#d55e00", marker="D", label="novel")
    ax.set(title=f"Batch {number}", xticks=[], yticks=[], aspect="equal")
axes[8].legend(loc="upper right", fontsize=8)
fig.colorbar(shading, ax=axes[21], label="novelty", ticks=[0, 0.5, 1], shrink=0.7)

time = axes["time"]
batches = np.arange(1, 22)
time.bar(batches, n_novel, color="#d55e00", width=0.6)
time.set(xlabel="batch", xticks=batches, ylabel="novel rows")
time.yaxis.label.set_color("#d55e00")
clusters = time.twinx()
clusters.step(batches, n_clusters, where="mid", color="black", linewidth=2)
clusters.set(ylabel="clusters", ylim=(0, 6))
plt.show()

# %%
# The first batch sets the units, so it should have enough rows to show the clusters. A larger
# ``alpha`` opens clusters more readily. ``model.save`` writes the state of the stream to a file,
# and ``ClAMCRP.load`` continues it. :class:`isthmus.cluster.ClAMCRPELBO` does the same for
# clusters that overlap.
