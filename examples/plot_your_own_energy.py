"""
Sample your own energy with HMC
===============================

Three stations along a road measure their distance to a hidden transmitter. Where is it? The
negative log-posterior of its position is an energy: define it as a class with one method, and the
functions of isthmus that check, minimise, sample and normalise energies work on it.

The stations stand almost on a line, so a place north of the road explains the distances nearly as
well as its mirror image in the south. Such a posterior with two modes is a trap for Markov chains;
this example shows how to notice and how to get out of it.
"""

# %%
# The energy
# ----------
# Distances are measured with a standard deviation of 0.5 km, and the prior is a wide Gaussian
# around the origin. Only ``energy`` has to be written, for points of any leading shape
# ``(..., 2)``; scores come from autograd. ``dim`` tells isthmus how many coordinates a point has.
# An energy is a ``torch.nn.Module``: data are kept in buffers, which follow its dtype and device.
# ``check_energy`` tests what isthmus expects of an energy, the score against finite differences
# for example.

import matplotlib.pyplot as plt
import numpy as np
import torch
from scipy.integrate import dblquad

import isthmus as ist
from isthmus.checks import check_energy

stations = np.array([[-1.5, -0.2], [0.0, 0.2], [1.5, -0.2]])
measured = np.array([4.6, 3.8, 4.1])


class Transmitter(ist.Energy):
    """Negative log-posterior of a position, up to a constant."""

    dim = 2

    def __init__(self):
        super().__init__()
        self.register_buffer("stations", torch.as_tensor(stations))
        self.register_buffer("measured", torch.as_tensor(measured))

    def energy(self, x):
        distances = torch.linalg.vector_norm(x[..., None, :] - self.stations, dim=-1)
        misfit = ((distances - self.measured) / 0.5).square().sum(-1) / 2
        return misfit + (x / 6.0).square().sum(-1) / 2


posterior = Transmitter()
rng = np.random.default_rng(0)
print(check_energy(posterior, rng.normal(size=(20, 2))))

# %%
# The minima
# ----------
# ``retrieve`` follows the score downhill from many starting points. All of them end in one of two
# places, and the energy says which one is more probable at its peak.

starts = rng.uniform(-6, 6, size=(50, 2))
found = ist.retrieve(posterior, starts)
minima = np.unique(found.state.round(3), axis=0)
print(found)
for place in minima:
    print(place, "energy", posterior.energy(place).round(3))

# %%
# Chains that do not cross
# ------------------------
# Thirty-two chains of Hamiltonian Monte Carlo start at random places. Their step size is tuned
# during the burn-in. The acceptance rate is high and each chain looks healthy by itself, but the
# split R-hat compares chains with each other and is far above 1: nearly all of them have stayed on
# one side of the road. The share of draws in the north then only tells how many chains started
# there.

DRAWS, CHAINS = 250, 32
init = rng.normal(scale=3, size=(CHAINS, 2))
hmc = ist.sample_chains(
    posterior, DRAWS, ist.HMC(n_leapfrog=8), tune=True, chains=CHAINS, init=init
)
print(hmc)
in_north = (hmc.draws[..., 1] > 0).mean(0)
print(f"{np.sum((in_north > 0) & (in_north < 1))} of {CHAINS} chains crossed the road")

# %%
# ``Tempering`` runs copies of every chain at higher temperatures, where the barrier is low, and
# lets them exchange their states. It takes the step size that was found above. With the same
# number of draws, R-hat comes close to 1.

ladder = (1.0, 0.4, 0.16, 0.064)
tempered = ist.sample_chains(
    posterior, DRAWS, ist.Tempering(hmc.sampler, ladder), chains=CHAINS, init=init
)
print(tempered)

# %%
# A normalised density
# --------------------
# ``with_normalizer`` integrates the energy numerically, and the result has a ``log_prob``. In two
# dimensions it uses a grid and states its error; ``centre`` and ``scale`` say where to look, which
# is wise where chains alone might miss a mode. SciPy's adaptive quadrature checks the normaliser,
# and gives the probability of the north to compare the chains with.

density = ist.with_normalizer(posterior, centre=[0.0, 0.0], scale=[4.0, 4.0])
box = {"a": -8, "b": 8, "epsabs": 1e-6, "epsrel": 1e-3}


def likelihood(y, x):
    return np.exp(-posterior.energy([x, y]))


north, _ = dblquad(likelihood, gfun=0, hfun=8, **box)
south, _ = dblquad(likelihood, gfun=-8, hfun=0, **box)
print(f"log Z: grid {float(density.normalizer.value):.6f}, SciPy {np.log(north + south):.6f}")

shares = {
    "HMC": (hmc.draws[..., 1] > 0).mean(),
    "tempered HMC": (tempered.draws[..., 1] > 0).mean(),
    "quadrature": north / (north + south),
}
for name, share in shares.items():
    print(f"probability of the north by {name}: {share:.3f}")

# %%
# The picture
# -----------
# Left and middle: one colour for each side of the road, over the contours of the exact density.
# Right: the marginal density of the north-south coordinate. Plain HMC finds the shape of both
# peaks, but not their heights; the tempered chains agree with the quadrature.

side = np.linspace(-6, 6, 121)
grid = np.stack(np.meshgrid(side, side), -1)
exact = np.exp(density.log_prob(grid))

fig, axes = plt.subplots(1, 3, figsize=(12, 4.2), layout="constrained")
for ax, name, chains in zip(axes, ("HMC", "Tempered HMC"), (hmc, tempered), strict=False):
    draws = chains.flatten()
    for colour, side_of_road in (("#0072b2", draws[:, 1] > 0), ("#d55e00", draws[:, 1] <= 0)):
        ax.plot(*draws[side_of_road][::4].T, ".", ms=2, color=colour, alpha=0.4)
    ax.contour(side, side, exact, levels=6, colors="0.25", linewidths=0.7)
    ax.plot(*stations.T, "k^", ms=8, label="stations")
    ax.plot(*minima.T, "wX", ms=10, mec="k", label="minima of the energy")
    ax.set(title=f"{name}: R-hat {chains.r_hat.max():.2f}", xlabel="east (km)", aspect="equal")
    ax.set(xlim=(-6, 6), ylim=(-6, 6))
axes[0].set_ylabel("north (km)")
axes[0].legend(loc="upper center", ncols=2, fontsize=9, frameon=False, columnspacing=1)

axes[2].plot(side, exact.sum(1) * (side[1] - side[0]), "k", label="quadrature")
for name, chains, colour in (("HMC", hmc, "#e69f00"), ("tempered HMC", tempered, "#009e73")):
    heights, edges = np.histogram(chains.draws[..., 1], bins=60, range=(-6, 6), density=True)
    axes[2].stairs(heights, edges, color=colour, lw=1.5, label=name)
axes[2].set(title="Marginal density", xlabel="north (km)", ylabel="density per km")
axes[2].legend(frameon=False)
plt.show()

# %%
# What to try next: since an energy is a module, a neural network may stand inside it. In more than
# two dimensions ``with_normalizer`` uses annealed importance sampling, and ``ist.NUTS()`` chooses
# the length of its trajectories itself.
