"""
Denoise and complete images
===========================

A memory that has stored clean images can clean a noisy one and fill in what is hidden. Here the
memory is a kernel density estimate, :class:`isthmus.GaussianKDE`, of 1,500 images of handwritten
digits. The images that it repairs are not among them.
"""

# %%
# The digits are 8 x 8 pixels. The last 297 are kept apart.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import isthmus as ist

rng = np.random.default_rng(0)
digits = load_digits()
images = digits.data / 16  # from 0, white, to 1, black
stored, unseen = images[:1500], images[1500:]


def error(repaired):
    """Return the root mean squared error of a pixel."""
    return np.sqrt(np.mean((repaired - unseen) ** 2))


# %%
# Denoise
# -------
#
# Add Gaussian noise to the unseen images. A memory whose ``sigma`` is that of the noise is the
# density of stored images plus noise. One ``step`` replaces an image by the mean of the stored
# images, weighted by how likely each is to be behind the noise. ``retrieve`` repeats the step
# until the image rests at a minimum of the energy: sharper, and closer to a single stored image.

noise = 0.3
noisy = unseen + noise * rng.normal(size=unseen.shape)

memory = ist.GaussianKDE(stored, sigma=noise)
one_step = memory.step(noisy)
retrieved = ist.retrieve(memory, noisy).state

print(f"noisy      {error(noisy):.3f}")
print(f"one step   {error(one_step):.3f}")
print(f"retrieved  {error(retrieved):.3f}")

# %%
# Complete
# --------
#
# Hide the lower half of the images and mark it with NaN. ``complete`` fills in the mean of the
# hidden pixels given the visible ones. With ``how="mode"`` it moves on to a minimum of the
# energy: again sharper, at the price of a larger error where the upper half fits several digits.

hidden = unseen.copy()
hidden[:, 32:] = np.nan

memory = ist.GaussianKDE(stored, sigma=0.25)
mean = ist.complete(memory, hidden)
mode = ist.complete(memory, hidden, how="mode")

average = np.where(np.isnan(hidden), stored.mean(axis=0), hidden)
print(f"average of all images  {error(average):.3f}")
print(f"completed, mean        {error(mean):.3f}")
print(f"completed, mode        {error(mode):.3f}")

# %%
# The first unseen image of each digit. Blue marks hidden pixels.

rows = {
    "original": unseen,
    "noisy": noisy,
    "one step": one_step,
    "retrieved": retrieved,
    "hidden": hidden,
    "mean": mean,
    "mode": mode,
}
shown = [np.flatnonzero(digits.target[1500:] == digit)[0] for digit in range(10)]
ink = plt.get_cmap("gray_r").with_extremes(bad="#9ecae1")

fig, axes = plt.subplots(len(rows), len(shown), figsize=(8, 6), layout="constrained")
for line, (name, pictures) in zip(axes, rows.items(), strict=True):
    for ax, number in zip(line, shown, strict=True):
        ax.imshow(pictures[number].reshape(8, 8), cmap=ink, vmin=0, vmax=1)
        ax.set(xticks=[], yticks=[])
        ax.spines[:].set_visible(False)
    line[0].set_ylabel(name, rotation=0, ha="right", va="center")
plt.show()

# %%
# Try another ``sigma``. A small one recalls single images, a large one blurs them into few means.
# The memory is a density as well: ``memory.log_prob`` tells how likely an image is, and
# ``memory.sample`` draws new ones. :ref:`sphx_glr_gallery_plot_fill_gaps_with_uncertainty.py`
# fills the gaps of a table and says how sure it is.
