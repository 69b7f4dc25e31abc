"""
Learn an energy
===============

A network that returns one number for a point is an energy. ``isthmus.fit`` trains it on rows, so
that it becomes the negative log-density of the data, up to a constant. Everything that works on an
energy then works on it: densities, draws, retrieval, completion.
"""

# %%
# Train
# -----
# Two moons. Nothing needs to be chosen: up to 16 columns, the network learns to rank each row above
# draws of a mixture, and training ends when rows that were held out stop becoming more likely. The
# record says what was chosen, and how it went.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import make_moons

import isthmus as ist

ROWS, UPDATES = 1500, 800
X, _ = make_moons(ROWS, noise=0.08, random_state=0)
trained = ist.fit(ist.NeuralEnergy(2), X, updates=UPDATES, progress=False)
print(trained.record)

# %%
# Use it
# ------
# The normaliser makes a density of it, here on a grid. The kernel estimate with the best bandwidth
# is the one to beat, on new rows.

density = ist.with_normalizer(trained.energy)
new, _ = make_moons(5000, noise=0.08, random_state=1)
kernels = ist.GaussianKDE(X, ist.bandwidth.leave_one_out(X))
print("network", density.log_prob(new).mean(), "kernels", kernels.log_prob(new).mean())

drawn = ist.sample(trained.energy, 500, ist.MALA(step_size=0.02), init=X[:500], burn_in=200, seed=0)
starts = np.random.default_rng(0).uniform([-1.5, -1], [2.5, 1.5], size=(40, 2))
found = ist.retrieve(trained.energy, starts, trace=True)

# %%
# Left: the learned density. Middle: draws of a Markov chain on the energy, over the data. Right:
# points move downhill to the moons.

figure, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained", sharey=True)
x, y = np.meshgrid(np.linspace(-1.6, 2.6, 120), np.linspace(-1.2, 1.7, 90))
height = density.log_prob(np.stack([x, y], -1))
for each in axes:
    each.contourf(x, y, np.exp(height), levels=12, cmap="Blues")
    each.set(aspect="equal", xlim=(-1.6, 2.6), ylim=(-1.2, 1.7))
axes[0].set_title("density")
axes[1].plot(*X.T, ".", markersize=2, color="0.6", label="rows")
axes[1].plot(*np.asarray(drawn).T, ".", markersize=3, color="C1", label="draws")
axes[1].legend(loc="upper right")
axes[1].set_title("draws")
for path in np.moveaxis(found.trace, 1, 0):
    axes[2].plot(*path.T, color="C3", linewidth=0.8)
axes[2].plot(*found.state.T, "o", markersize=3, color="C3")
axes[2].set_title("retrieval")
plt.show()

# %%
# The course of training
# ----------------------

trained.record.plot(plt.figure(figsize=(5, 3), layout="constrained").subplots())
plt.show()
