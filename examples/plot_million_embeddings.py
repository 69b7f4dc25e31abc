"""
Retrieve from a million embeddings, with a certificate
======================================================

Approximate search is fast, but it rarely says what it missed. :class:`isthmus.attend.Index`
leaves out only embeddings that provably do not matter, and each result comes with a bound on its
error.
"""

# %%
# A million embeddings of length 1 in 32 dimensions, 500 for each of 2,000 topics. A query is one
# of them plus noise, as of the same text in other words.

import time

import matplotlib.pyplot as plt
import numpy as np

import isthmus as ist
from isthmus.attend import Index

TOPICS, QUERIES = 2_000, 4_000

rng = np.random.default_rng(0)
embeddings = np.repeat(rng.normal(size=(TOPICS, 32)), 500, axis=0)
embeddings += 0.3 * rng.normal(size=embeddings.shape)
embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)

noise = 0.06  # in each coordinate
source = rng.integers(len(embeddings), size=QUERIES)
queries = embeddings[source] + noise * rng.normal(size=(QUERIES, 32))

# %%
# The index groups embeddings into cells. It is built once, for any bandwidth, and ``index.save``
# writes it to a file.

index = Index(embeddings)
print(index)

# %%
# :func:`isthmus.attend` weighs every embedding by how likely it is to be behind the query, and
# returns the weighted mean. With an index it reads only the cells that can matter; ``tol`` is the
# share of the weight that may be left out. For each query, ``error_bound.mean`` bounds the
# distance of the result from the mean of all embeddings. We check it on 200 queries, and measure
# the time of each.

settings = {"beta": 1 / (2 * noise**2), "metric": "sqeuclidean"}
ist.attend(queries[:100], embeddings, index=index, **settings)  # compiles on first use

start = time.process_time()
exact = ist.attend(queries[:200], embeddings, **settings).mean.numpy()
milliseconds = {"all": 1000 * (time.process_time() - start) / 200}

errors, bounds = {}, {}
for tol in ("0.1", "0.001", "1e-06"):
    start = time.process_time()
    found = ist.attend(queries, embeddings, index=index, tol=float(tol), **settings)
    milliseconds[tol] = 1000 * (time.process_time() - start) / QUERIES
    errors[tol] = np.linalg.norm(found.mean.numpy()[:200] - exact, axis=1)
    bounds[tol] = found.error_bound.mean.numpy()[:200]
    rounding = 1e-12
    outside = np.sum(errors[tol] > bounds[tol] + rounding)
    print(f"tol {tol}: {outside} of 200 errors exceed their bound")

# %%
# The answers, beside the queries: most of the noise is gone.

answers = found.mean.numpy()
before = np.linalg.norm(queries - embeddings[source], axis=1)
after = np.linalg.norm(answers - embeddings[source], axis=1)
print(f"mean distance to the source: {before.mean():.3f}, after one step {after.mean():.3f}")

# %%
# Left: distances to the embedding that a query came from. Middle: each point is a query, and all
# lie below the line where the error equals its bound. Most errors are mere rounding: the bound
# allows for the worst that the cells left out could hold, and they seldom hold it. Right: CPU
# time of a query. A small tolerance costs little.

colors = {"all": "0.6", "0.1": "#e69f00", "0.001": "#0072b2", "1e-06": "#009e73"}
fig, (distances, proof, times) = plt.subplots(1, 3, figsize=(11.5, 3.8), layout="constrained")
bins = np.linspace(0, 0.6, 61)
distances.hist(before, bins, color="0.6", label="query")
distances.hist(after, bins, color="#009e73", label="answer")
distances.set(title="Retrieval", xlabel="distance to the source", ylabel="queries", yscale="log")
distances.legend(frameon=False)

for tol, error in errors.items():
    proof.loglog(bounds[tol], error, ".", color=colors[tol], label=f"tol {tol}")
proof.axline((1e-6, 1e-6), (1e-1, 1e-1), color="black", linewidth=1)
proof.set(title="Certificate", xlabel="proved bound", ylabel="error", xlim=(1e-15, 1))
proof.legend(frameon=False, loc="upper left")

bars = times.barh(list(milliseconds), list(milliseconds.values()), color=list(colors.values()))
times.bar_label(bars, fmt="%.2f", padding=3)
times.margins(x=0.15)
times.set(title="Time", xlabel="milliseconds a query", ylabel="tol")
plt.show()

# %%
# Memories take the index as well: ``ist.GaussianKDE(embeddings, sigma=noise, index=index)`` uses
# it for ``log_prob``, ``step``, and all that moves on an energy. Pruning pays where a query has
# few neighbours compared with the number of embeddings; :doc:`../scale` names cases where it does
# and where it does not. For up to tens of thousands of embeddings,
# :func:`isthmus.capacity.certify` proves more: from how far away a query is guaranteed to find
# its embedding.
