"""
Choose a bandwidth, and certify what a memory holds
===================================================

A memory of a set of images has one parameter, the bandwidth. A small one gives every image a basin
of its own; a large one merges images into averages. Which value is right depends on what the memory
is for: a *density* should make unseen images likely, a *store* should return each image from as far
away as possible.

This example chooses both for 300 handwritten digits, proves how much error a query may have, and
compares the proof with what the memory recalls.
"""

# %%
# Two questions, two bandwidths
# -----------------------------
# Each digit has 8 by 8 pixels, here between 0 and 1. ``isthmus.bandwidth.choose`` finds the
# bandwidth under which each image is likeliest given all the others.
# ``isthmus.capacity.choose_sigma`` finds the largest bandwidth that still stores a given share of
# the images, 95 % of them here; an image is stored if retrieval has a stable fixed point near it
# that is its own.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import isthmus as ist
from isthmus.bandwidth import choose, left_out_log_density
from isthmus.capacity import capacity_curve, certify, choose_sigma

PATTERNS, REPEATS = 300, 5
X = load_digits().data[:PATTERNS] / 16

for_density = choose(X, "round")
for_storage = choose_sigma(X, stored=0.95)
print(f"density: sigma {for_density.sigma:.3f}")
print(f"storage: sigma {for_storage.sigma:.3f} stores {for_storage.stored:.1%}")

sigmas = np.geomspace(0.08, 0.8, 13)
curve = capacity_curve(X, sigmas)
likelihood = [left_out_log_density(X, sigma) for sigma in sigmas]

# %%
# In 64 dimensions the density asks for the narrower kernel: neighbours are far apart, and a kernel
# that reaches them wastes its mass in between. In the plane it is usually the other way round.
#
# The certificate
# ---------------
# We take a bandwidth between the two, at which every image is stored. ``certify`` proves two
# things about each image. Within its ``guaranteed_radius``, *every* query returns to it, even one
# that is pushed straight at its nearest neighbour. And normal noise of the standard deviation
# ``noise`` is undone with a probability of at least 99 %. Random noise has hardly any component
# towards a neighbour, so it may be several times longer.

sigma = 0.25
memory = ist.GaussianKDE(X, sigma)
certificate = certify(memory, noise=True, delta=0.01)
print(certificate)

# %%
# Proved and measured
# -------------------
# We scale both kinds of error in units of what is proved for each image, and count how many
# queries return. A query has returned if its nearest image is the one that it started from.

multiples = np.linspace(0.25, 4, 16)
rng = np.random.default_rng(0)
distances = np.linalg.norm(X[:, None] - X, axis=-1) + np.diag(np.full(len(X), np.inf))
towards = X[distances.argmin(1)] - X
towards /= np.linalg.norm(towards, axis=1, keepdims=True)


def share_recalled(offsets):
    """Return the share of queries ``X + offsets`` that retrieval brings back to their image."""
    return (ist.retrieve(memory, X + offsets).memory == np.arange(len(X))).mean()


pushed = [share_recalled(m * certificate.guaranteed_radius[:, None] * towards) for m in multiples]
noise = certificate.noise[:, None] * rng.normal(size=(REPEATS, *X.shape))
noisy = [np.mean([share_recalled(m * each) for each in noise]) for m in multiples]
for name, recalled in (("pushed at a neighbour", pushed), ("random noise", noisy)):
    lowest = min(share for share, m in zip(recalled, multiples, strict=True) if m <= 1)
    print(f"{name}: at least {lowest:.1%} recalled within the certificate")

# %%
# The picture
# -----------
# Top left: what the two rules look at. Top right: up to 1, both curves must stay at the top, and
# they do; beyond, recall goes on for a while, because a proof has to allow for the worst case.
# Bottom: eight images, queries with noise of twice the certified deviation, and what the memory
# returns.

fig = plt.figure(figsize=(10, 7.6), layout="constrained")
top, bottom = fig.subfigures(2, 1, height_ratios=(1.25, 1))
left, right = top.subplots(1, 2)

left.plot(sigmas, curve.stored, "o-", color="#0072b2", ms=4, label="share stored")
left.plot(sigmas, curve.proved, "s--", color="#56b4e9", ms=4, label="share proved")
left.set(xscale="log", xlabel="bandwidth σ", ylabel="share of images", ylim=(-0.05, 1.05))
left.set(title="Which bandwidth?", xticks=[0.1, 0.2, 0.4, 0.8], xticklabels=[0.1, 0.2, 0.4, 0.8])
left.minorticks_off()
left.axvline(sigma, color="0.6", lw=1, ls=":")
density_axis = left.twinx()
density_axis.plot(sigmas, likelihood, "^-", color="#d55e00", ms=4, label="left-out log-density")
density_axis.set_ylabel("left-out log-density (nats)")
lines = left.lines[:2] + density_axis.lines
labels = [line.get_label() for line in lines]
left.legend(lines, labels, loc="lower left", frameon=False, fontsize=9)

right.plot(multiples, noisy, "o-", color="#009e73", ms=4)
right.plot(multiples, pushed, "s-", color="#e69f00", ms=4)
right.text(2.6, 0.75, "random noise", color="#007a59")
right.text(2.15, 0.1, "push at a neighbour", color="#a87300")
right.axvspan(0, 1, color="0.92", zorder=0)
right.text(0.5, 0.05, "proved", ha="center", color="0.35")
right.set(
    xlabel="error of the query / certified error", ylabel="share recalled", ylim=(-0.03, 1.05)
)
right.set(xlim=(0, multiples[-1]), title="How much error does it survive?")

shown = np.arange(8)
queries = X[shown] + 2 * certificate.noise[shown, None] * rng.normal(size=(len(shown), X.shape[1]))
rows = {"stored": X[shown], "query": queries, "recalled": ist.retrieve(memory, queries).state}
for axes, (name, images) in zip(bottom.subplots(3, len(shown)), rows.items(), strict=True):
    for ax, image in zip(axes, images, strict=True):
        ax.imshow(image.reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
        ax.set(xticks=[], yticks=[])
    axes[0].set_ylabel(name)
plt.show()

# %%
# What to try next: ``certify(ist.SparseHopfield(X, beta=...))`` gives the exact radius of
# retrieval in one step, ``isthmus.capacity.basins`` groups the images that share a basin at a
# larger bandwidth, and ``isthmus.capacity.capacity_bound(dim)`` bounds the number of patterns in
# advance.
