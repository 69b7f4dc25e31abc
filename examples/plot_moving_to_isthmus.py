"""
Moving to isthmus from scikit-learn and hopfield-layers
=======================================================

Much of isthmus has a counterpart that you may be using already. This table names the pairs; the
cells below check them number by number.

.. list-table::
   :header-rows: 1
   :widths: 44 44 12

   * - you use
     - in isthmus
     - results
   * - ``KernelDensity(bandwidth=h).fit(X).score_samples(x)``
     - ``GaussianKDE(X, h).log_prob(x)``
     - equal
   * - the same with ``kernel="epanechnikov"``, ``"tophat"`` or ``"exponential"``
     - ``EpanechnikovKDE``, ``UniformKDE``, ``LaplaceKDE``
     - equal
   * - ``KernelDensity(...).sample(n)``
     - ``GaussianKDE(X, h).sample(n)``
     - same density
   * - ``scipy.stats.gaussian_kde(X.T)``
     - ``GaussianKDE(X, f, covariance=np.cov(X.T))`` with its ``factor`` f
     - equal
   * - ``MeanShift(bandwidth=h)``
     - ``GaussianMeanShift(bandwidth=h / 2)``, a smooth kernel in place of a flat one
     - similar
   * - density of a fitted ``GaussianMixture``
     - ``Mixture(means_, log_weights=..., covariance=covariances_)``
     - equal
   * - fit of ``GaussianMixture(covariance_type="tied")`` with one column
     - ``ClAMELBO(n, weights="learned")``
     - equal
   * - fit of ``GaussianMixture(covariance_type="spherical")``
     - ``ClAMELBO``: round clusters, of one width
     - similar
   * - ``KMeans``
     - ``ClAMELBO``, with posteriors and a density
     - similar
   * - ``hflayers.Hopfield``, ``HopfieldPooling``, ``HopfieldLayer``
     - the same names in ``isthmus.nn``
     - equal
   * - ``hflayers.Hopfield`` without projections; softmax attention
     - ``ModernHopfield(X, beta).step(q)``
     - equal

What you gain is that each of these is an energy: the same object completes gaps, retrieves,
samples, and says how likely a point is.
"""

# %%
# Kernel density estimates
# ------------------------
# All four kernels that both libraries have, on the eruptions of a simulated geyser: waiting times
# in minutes.

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.stats import gaussian_kde
from sklearn.cluster import MeanShift
from sklearn.datasets import make_blobs
from sklearn.metrics import adjusted_rand_score
from sklearn.mixture import GaussianMixture
from sklearn.neighbors import KernelDensity
from torch import nn

import isthmus as ist
from isthmus.cluster import ClAMELBO, GaussianMeanShift
from isthmus.nn import Hopfield

rng = np.random.default_rng(0)
minutes = np.concatenate([rng.normal(54, 6, 100), rng.normal(80, 6, 170)])[:, None]
line = np.linspace(35, 100, 300)[:, None]
kernels = {
    "gaussian": ist.GaussianKDE,
    "exponential": ist.LaplaceKDE,
    "epanechnikov": ist.EpanechnikovKDE,
    "tophat": ist.UniformKDE,
}
curves = {}
for kernel, memory in kernels.items():
    theirs = np.exp(KernelDensity(bandwidth=3.0, kernel=kernel).fit(minutes).score_samples(line))
    ours = np.exp(memory(minutes, 3.0).log_prob(line))
    curves[kernel] = theirs, ours
    print(f"{kernel:13s} largest difference {np.abs(theirs - ours).max():.1e}")

scipys = gaussian_kde(minutes.T)
ours = ist.GaussianKDE(minutes, scipys.factor, covariance=np.cov(minutes.T).reshape(1, 1))
difference = np.abs(scipys(line.T) - np.exp(ours.log_prob(line))).max()
print(f"SciPy         largest difference {difference:.1e}")

# %%
# Mean shift
# ----------
# scikit-learn's kernel is flat, ours is Gaussian, and a Gaussian of half the width reaches about
# as far. The clusters are the same here; the centres differ slightly, because a mode of a smooth
# density is not the mean of a disc.

X, _ = make_blobs(300, centers=[(0, 0), (6, 1), (2, 6)], cluster_std=1.0, random_state=0)
flat = MeanShift(bandwidth=2.0, bin_seeding=True).fit(X)
smooth = GaussianMeanShift(bandwidth=1.0).fit(X)
print(f"{len(flat.cluster_centers_)} and {len(smooth.cluster_centers_)} clusters,", end=" ")
print(f"adjusted Rand index {adjusted_rand_score(flat.labels_, smooth.labels_):.3f}")

# %%
# Gaussian mixtures
# -----------------
# A mixture that scikit-learn has fitted becomes an energy by handing over its parameters. And
# where both libraries fit the same model, mixtures of one width in one column, they find the same
# one.

table = np.concatenate([X, rng.normal(size=(100, 2)) @ [[1.5, 1.2], [0, 0.4]] + (8, -5)])
fitted = GaussianMixture(4, random_state=0).fit(table)
energy = ist.Mixture(
    fitted.means_, log_weights=np.log(fitted.weights_), covariance=fitted.covariances_
)
difference = np.abs(fitted.score_samples(table) - energy.log_prob(table)).max()
print(f"log-densities of the fitted mixture: largest difference {difference:.1e}")

theirs = GaussianMixture(2, covariance_type="tied", tol=1e-8, reg_covar=0, random_state=0)
theirs.fit(minutes)
ours = ClAMELBO(2, weights="learned", tol=1e-8, random_state=0).fit(minutes)
print("scikit-learn:", np.sort(theirs.means_.ravel()).round(4), "isthmus:", end=" ")
print(np.sort(ours.memories_.ravel()).round(4))
print(f"mean log-likelihood: {theirs.score(minutes):.6f} and {ours.score(minutes):.6f}")

# %%
# As an energy, the mixture also fills gaps, which scikit-learn's does not: given the first column,
# the second is at its conditional mean.

print(ist.complete(energy, [[8.0, np.nan], [2.0, np.nan]]).round(2))

# %%
# Layers of hopfield-layers
# -------------------------
# A checkpoint of ``hflayers.Hopfield(16, num_heads=4)`` without norms has the names below, and
# holds the projections of states, stored patterns and values in one matrix. With one update, that
# layer is multi-head attention, so PyTorch's own can check the result.

torch.manual_seed(0)
reference = nn.MultiheadAttention(16, 4, batch_first=True)
checkpoint = {f"association_core.{name}": value for name, value in reference.state_dict().items()}
layer = Hopfield(16, num_heads=4, norm=False)
weights = {
    name.removeprefix("association_core."): value
    for name, value in checkpoint.items()
    if "out_proj" in name
}
for kind in ("weight", "bias"):
    parts = checkpoint[f"association_core.in_proj_{kind}"].chunk(3)
    names = ("state_proj", "stored_proj", "value_proj")
    weights |= {f"{name}.{kind}": part for name, part in zip(names, parts, strict=True)}
print(layer.load_state_dict(weights))
bags = torch.randn(5, 12, 16, generator=torch.Generator().manual_seed(0))
with torch.no_grad():
    expected, found = reference(bags, bags, bags)[0].numpy(), layer(bags).numpy()
print(f"largest difference of outputs: {np.abs(expected - found).max():.1e}")

# %%
# The picture
# -----------
# Wide pale lines and open circles are scikit-learn's or PyTorch's, thin dark lines and dots ours.

fig, axes = plt.subplots(2, 2, figsize=(10, 7.6), layout="constrained")
colours = {"gaussian": "#0072b2", "exponential": "#d55e00", "epanechnikov": "#009e73"}
colours["tophat"] = "#e69f00"
for place, (kernel, (theirs_, ours_)) in enumerate(curves.items()):
    axes[0, 0].plot(line, theirs_ + 0.03 * place, color=colours[kernel], lw=6, alpha=0.35)
    axes[0, 0].plot(line, ours_ + 0.03 * place, color=colours[kernel], lw=1.2)
    axes[0, 0].text(102, 0.03 * place, kernel, va="center")
axes[0, 0].set(title="KernelDensity, four kernels", xlabel="minutes", yticks=[], xlim=(33, 124))
axes[0, 0].set_ylabel("density (shifted)")

axes[0, 1].scatter(*X.T, c=np.array(["#56b4e9", "#e69f00", "#009e73"])[smooth.labels_], s=10)
axes[0, 1].plot(*flat.cluster_centers_.T, "ko", ms=13, mfc="none", label="MeanShift")
axes[0, 1].plot(*smooth.cluster_centers_.T, "kX", ms=7, label="GaussianMeanShift")
axes[0, 1].set_title("Mean shift: the same clusters")
axes[0, 1].legend(loc="upper right", frameon=False)

side = np.linspace(table.min(0) - 1, table.max(0) + 1, 120)
plane = np.stack(np.meshgrid(*side.T), -1)
heights = fitted.score_samples(plane.reshape(-1, 2)).reshape(120, 120)
look = {"levels": np.arange(-10, -2), "linestyles": "solid"}
axes[1, 0].contour(*side.T, heights, colors="#56b4e9", linewidths=5, alpha=0.5, **look)
axes[1, 0].contour(*side.T, energy.log_prob(plane), colors="#003a5d", linewidths=1, **look)
axes[1, 0].plot(*table.T, ".", color="0.5", ms=3)
axes[1, 0].set_title("GaussianMixture: log-density")

axes[1, 1].plot(expected.ravel(), found.ravel(), ".", color="#0072b2", ms=4)
axes[1, 1].axline((0, 0), slope=1, color="0.5", lw=1, zorder=0)
axes[1, 1].set(title="Layers: outputs after conversion", xlabel="PyTorch's attention")
axes[1, 1].set_ylabel("isthmus.nn.Hopfield")
plt.show()
