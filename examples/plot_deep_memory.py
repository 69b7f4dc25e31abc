"""
A deep memory that completes digits
===================================

A deep memory has layers of neurons, joined by synapses. Its energy is the sum of the Legendre
transforms of the layers and of the energies of the synapses, and every step of retrieval lowers it.
Here the pixels are joined to 16 groups of 32 hidden neurons, in each of which softmax chooses a
part: the image is the sum of the parts.
"""

# %%
# Train it to complete
# --------------------
# ``over`` is the energy of the pixels alone, with the hidden neurons at their best. The objective
# hides half of the pixels, takes four steps of retrieval, and compares.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits

import isthmus as ist
from isthmus.deep import Bias, DeepMemory, Dense, Neurons

UPDATES, SHOWN = 600, 8
digits = load_digits().data / 16
train, test = digits[:1400], digits[1400:]
layers = {"pixels": Neurons(64), "parts": Neurons((16, 32), "softmax", beta=4.0)}
memory = DeepMemory(layers, [Dense("pixels", "parts"), Bias("pixels"), Bias("parts")])
trained = ist.fit(
    memory.over("pixels"), train, "completion", updates=UPDATES, learning_rate=0.01, progress=False
)
print(trained.record)

# %%
# Complete the lower halves of new digits
# ---------------------------------------
# The known pixels are held, and the others start at the mean image.

half = test.copy()
half[:, 32:] = np.nan
filled = ist.complete(trained.energy, half, init=train.mean(0), max_steps=4)
stored = ist.complete(ist.GaussianKDE(train, ist.bandwidth.leave_one_out(train)), half)
for name, images in {
    "mean image": train.mean(0) + 0 * test,
    "kernels": stored,
    "deep": filled,
}.items():
    print(name, np.sqrt(np.mean((images - test)[:, 32:] ** 2)).round(3))

figure, axes = plt.subplots(3, SHOWN, figsize=(SHOWN, 3.2), layout="constrained")
for row, images in zip(axes, (half, filled, test), strict=True):
    for each, image in zip(row, images, strict=False):
        each.imshow(image.reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
        each.set_axis_off()
plt.show()

# %%
# The energy falls
# ----------------

path = ist.retrieve(trained.energy, np.where(np.isnan(half), train.mean(0), half)[:50],
                    observed=~np.isnan(half)[:50], max_steps=12, trace=True)  # fmt: skip
heights = trained.energy.energy(path.trace)
axes = plt.figure(figsize=(5, 3), layout="constrained").subplots()
axes.plot(heights, color="C0", linewidth=0.7)
axes.set_xlabel("step")
axes.set_ylabel("energy")
plt.show()
