"""
In-context energies: a density from a handful of points
=======================================================

A kernel density estimate knows nothing but its points. The transformers that come with isthmus have
seen many datasets and turn a new one into an energy in a single pass, without training. What they
know about datasets is their *prior*, and this example shows both sides of it: how few points are
enough when the data are like those of the prior, and what happens when they are not.
"""

# %%
# The landscape changes with the context
# --------------------------------------
# ``pretrained("mixtures-2d")`` was trained on mixtures of three round Gaussians in the plane, with
# means in [-3, 3]² and standard deviations from 0.3 to 0.6. ``condition`` gives it points and
# returns an :class:`isthmus.Energy`. Another dataset gives another energy; no parameter changes.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine

import isthmus as ist
from isthmus.incontext import pretrained

RESOLUTION, DATASETS = 65, 4
rng = np.random.default_rng(0)
model = pretrained("mixtures-2d")
side = np.linspace(-4, 4, RESOLUTION)
plane = np.stack(np.meshgrid(side, side), -1)


def draw_mixture(means, width, n):
    """Draw n points from round Gaussians of equal weight."""
    return np.asarray(means)[rng.integers(len(means), size=n)] + rng.normal(0, width, (n, 2))


triangle = draw_mixture([(-2, -1.5), (2, -1), (0, 2)], 0.45, 40)
line = draw_mixture([(-2.2, 2.2), (0, 0), (2, -1.8)], 0.35, 40)
contexts = (0, 1, 4, 40)

fig, axes = plt.subplots(2, 4, figsize=(11, 5.8), layout="constrained", sharex=True, sharey=True)
for row, points in zip(axes, (triangle, line), strict=True):
    for ax, n in zip(row, contexts, strict=True):
        density = np.exp(-model.condition(points[:n]).energy(plane))  # not normalised
        ax.contourf(side, side, density, levels=12, cmap="Blues")
        ax.plot(*points[:n].T, ".", color="#d55e00", ms=7)
        ax.set(aspect="equal", xticks=(-3, 0, 3), yticks=(-3, 0, 3))
for ax, n in zip(axes[0], contexts, strict=True):
    ax.set_title("no points" if n == 0 else f"{n} point{'s' * (n > 1)}")
plt.show()

# %%
# Without any points the model returns its prior: data may be anywhere in the square. One point is
# already a cluster of about the right width, and the model still expects two more somewhere else.
# After 40 points nothing is left of that expectation.
#
# The result is an energy like any other. Retrieval finds the three clusters from anywhere,
# although no cluster was ever fitted:

energy = model.condition(triangle)
found = ist.retrieve(energy, rng.uniform(-3, 3, (30, 2)), tol=1e-4, max_steps=200)
print(np.unique(found.state.round(1), axis=0))

# %%
# A prior is an assumption
# ------------------------
# In the plane, ``log_prob`` normalises the energy on a grid, so that models can be compared. Now
# three kinds of data, 32 rows each: clusters as in the prior, clusters that are four times
# narrower, and two columns of a real table (colour intensity and hue of wines), scaled to the
# square. We compare the mean log-density of new rows, averaged over several draws of the data
# (higher is better), under
#
# * ``pretrained("mixtures-2d")``, which believes in three round clusters about half a unit wide,
# * ``pretrained("tables")``, which was trained on many kinds of tables, in any units,
# * a Gaussian kernel density estimate whose kernel is chosen by its leave-one-out likelihood.

wine = load_wine().data[:, [9, 10]]
wine = 1.2 * (wine - wine.mean(0)) / wine.std(0)
places = [(-2, -1.5), (2, -1), (0, 2)]
sources = {
    "as in the prior": lambda: draw_mixture(places, 0.45, 178),
    "narrow clusters": lambda: draw_mixture(places, 0.1, 178),
    "wine": lambda: rng.permutation(wine),
}
models = {
    "mixtures-2d": model.condition,
    "tables": pretrained("tables").condition,
    "kernel density": lambda X: ist.GaussianKDE(X, "auto"),
}

fig, axes = plt.subplots(3, 3, figsize=(9, 9.2), layout="constrained", sharex=True, sharey=True)
for row, (source, draw) in zip(axes, sources.items(), strict=True):
    print(source)
    datasets = [np.split(draw(), [32]) for _ in range(DATASETS)]
    for ax, (name, fit) in zip(row, models.items(), strict=True):
        densities = [fit(X) for X, _ in datasets]
        pairs = zip(densities, datasets, strict=True)
        score = np.mean([density.log_prob(new).mean() for density, (_, new) in pairs])
        print(f"  {name:15s} {score:6.2f} nats a row")
        height = np.exp(densities[0].log_prob(plane))
        levels = np.geomspace(0.01, 1, 9) * height.max()
        ax.contourf(side, side, height, levels=levels, cmap="Blues", extend="max")
        ax.plot(*datasets[0][0].T, ".", color="#d55e00", ms=4)
        ax.set(aspect="equal", xticks=(-3, 0, 3), yticks=(-3, 0, 3))
        ax.set_title(f"{score:.2f} nats", loc="right", fontsize=10)
    row[0].set_ylabel(source)
for ax, name in zip(axes[0], models, strict=True):
    ax.set_title(name, loc="left", fontweight="bold", fontsize=10)
plt.show()

# %%
# Each of the three wins on its own ground. ``mixtures-2d`` makes the most of few points where its
# assumption holds, but it does not believe that clusters can be narrow, however many points say
# so. The kernel estimate believes in nothing and finds the width by itself. ``tables`` was trained
# on tables with skewed and related columns, and is ahead on a real one. If you have rows to spare,
# hold some out and compare, as here.
#
# What to try next: ``energy.append(points)`` adds to the context without reading the rest again,
# ``isthmus.incontext.draw_points(model, X, n)`` draws new points, and
# ``isthmus icl train --prior NAME`` trains a model on the datasets that you expect.
