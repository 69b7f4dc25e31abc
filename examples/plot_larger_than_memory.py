"""
Larger than memory: clusters and densities with Dask
====================================================

A table that does not fit into memory is usually many files. `Dask <https://docs.dask.org>`_ reads
them block by block, on the threads of this machine or on a cluster. isthmus keeps the blocks where
they are: a fit sends out parameters and adds up statistics, and a memory answers queries from all
blocks at once. The results are those of the same rows in one array.

This example writes a table to eight Parquet files, clusters it, and uses all rows as one kernel
density estimate. It needs ``pip install isthmus[dask]``.
"""

# %%
# A table in several files
# ------------------------
# Each row is a reading of two sensors. Every file is one week, and machines are in one of four
# states. The table is small here, so that the example takes seconds; the code is the same for a
# terabyte.

import tempfile
from pathlib import Path

import dask.dataframe as dd
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from distributed import Client

import isthmus as ist
from isthmus.bandwidth import leave_one_out
from isthmus.cluster import ClAMELBO
from isthmus.distributed import shard

FILES, ROWS = 8, 20_000
rng = np.random.default_rng(0)
centers = np.array([[20.0, 1.0], [45.0, 1.5], [60.0, 4.0], [30.0, 5.0]])
folder = tempfile.TemporaryDirectory()
for week in range(FILES):
    state = rng.choice(4, size=ROWS, p=(0.4, 0.3, 0.2, 0.1))
    readings = centers[state] + rng.normal(size=(ROWS, 2)) * (4.0, 0.45)
    table = pd.DataFrame(readings, columns=["temperature", "vibration"])
    table.to_parquet(Path(folder.name) / f"week{week}.parquet")

# %%
# A cluster of workers
# --------------------
# ``Client(processes=False)`` starts two workers as threads of this process. For workers on other
# machines, pass the address of their scheduler instead: ``Client("tcp://10.0.0.1:8786")``.

client = Client(processes=False, n_workers=2, threads_per_worker=1, dashboard_address=":0")
frame = dd.read_parquet(folder.name)
scaled = (frame - frame.mean()) / frame.std()  # nothing is computed yet
print(f"{len(frame):,} rows in {frame.npartitions} partitions")

# %%
# Clusters
# --------
# The clusterers take Dask collections as they take arrays. Every iteration passes over the blocks
# once. ``predict`` returns a Dask array, which is computed when it is asked for.

model = ClAMELBO(4, random_state=0).fit(scaled)
labels = model.predict(scaled)
print(labels)
shares = np.bincount(labels.compute(), minlength=4) / len(frame)
print("share of each cluster:", np.sort(shares)[::-1].round(3))

# %%
# One memory of all rows
# ----------------------
# ``shard`` makes each block a memory on a worker. Together they are one energy, and whatever works
# on an energy works on it: densities, retrieval, exact samples. The bandwidth is chosen on one
# file.

first = scaled.partitions[0].compute()
sigma = leave_one_out(first)
memory = shard(ist.GaussianKDE, scaled, sigma=sigma, client=client)
print(memory)

side = np.linspace(-2.5, 2.8, 70)
plane = np.stack(np.meshgrid(side, side), -1).reshape(-1, 2)
density = np.exp(memory.log_prob(plane)).reshape(70, 70)

starts = rng.uniform(-2, 2.5, size=(40, 2))
modes = ist.retrieve(memory, starts, max_steps=500).state

# %%
# The answer does not depend on where the rows are. The same memory in this process, of all rows as
# one array, agrees to rounding:

everything = ist.GaussianKDE(scaled.compute(), sigma)
points = plane[::97]
difference = np.abs(memory.log_prob(points) - everything.log_prob(points)).max()
print(f"largest difference of log-densities: {difference:.1e}")

# %%
# The picture
# -----------
# Left: a thousand rows with the four memories that the fit has learned. Right: the density of all
# rows, with the places where retrieval ends.

sample = scaled.sample(frac=1000 / len(frame), random_state=0).compute()
nearest = model.predict(sample)
colours = np.array(["#0072b2", "#e69f00", "#009e73", "#cc79a7"])

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4.6), layout="constrained", sharey=True)
left.scatter(*sample.to_numpy().T, c=colours[nearest], s=6, alpha=0.6)
left.plot(*model.memories_.T, "X", color="white", mec="black", ms=13)
left.set(title="ClAMELBO on Dask: rows and memories", ylabel="vibration (standard units)")
filled = right.contourf(side, side, density, levels=14, cmap="Blues")
right.plot(*starts.T, ".", color="0.45", ms=4, label="queries")
right.plot(*modes.T, "o", color="#d55e00", mec="black", ms=8, label="retrieved")
right.set_title(f"One memory of {len(frame):,} rows, on two workers")
right.legend(loc="upper right", framealpha=0.9)
fig.colorbar(filled, label="density")
for ax in (left, right):
    ax.set(xlabel="temperature (standard units)", xlim=side[[0, -1]], ylim=side[[0, -1]])
plt.show()

client.close()
folder.cleanup()

# %%
# What to try next: ``isthmus cluster big.parquet`` clusters a file row group by row group, without
# Dask and in constant memory. ``BasinFlow`` also fits Dask collections, if the number of clusters
# is not known.
