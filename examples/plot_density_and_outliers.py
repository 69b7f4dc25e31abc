"""
Density and outliers of a small table
=====================================

How unusual is a row? With a hundred rows, a density is hard to fit, and its settings are hard to
choose. :class:`isthmus.incontext.TableDensity` has no settings and fits nothing: a transformer
that was trained on synthetic tables reads the table and writes down its density.
"""

# %%
# The table has four blood values of 100 patients. Sixty more patients arrive. In every tenth of
# them, cholesterol and LDL were entered in each other's place.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

from isthmus.incontext import TableDensity, score_rows

blood = load_diabetes(scaled=False).data[:, [4, 5, 6, 8]]  # cholesterol, LDL, HDL, log lipids
table, new = blood[:100], blood[100:160].copy()
swapped = np.arange(5, 60, 10)
new[swapped, :2] = new[swapped, 1::-1]

far = np.abs(new - table.mean(axis=0)) > 3 * table.std(axis=0)
print("beyond three standard deviations of a column:", np.flatnonzero(far.any(axis=1)))

# %%
# Columns one by one show half of the mistakes, and suspect a patient who has high values of both.
# ``score_rows`` looks at all columns together. The percentile of a row is the percentage of draws
# from the density that are less likely than the row; below ``level``, the row is an outlier.

scores = score_rows(table, new, level=1.0)
print("outliers:", np.flatnonzero(scores.outlier))
print("swapped: ", swapped)

# %%
# The density of two columns is exact, too: the others are integrated out. LDL is a part of
# cholesterol, so the rows fill a narrow band, and swapped values lie on its other side.

density = TableDensity().fit(table).energy_
x, y = np.meshgrid(np.linspace(60, 320, 160), np.linspace(20, 265, 160))
log_density = density.marginal([0, 1]).log_prob(np.column_stack([x.ravel(), y.ravel()]))
depth = np.maximum(log_density - log_density.max(), -10).reshape(x.shape)

fig, (plane, line) = plt.subplots(1, 2, figsize=(10, 4.4), layout="constrained")
shading = plane.contourf(x, y, depth, levels=np.arange(-10, 1), cmap="Blues", vmax=4)
fig.colorbar(shading, ax=plane, label="log-density, below the maximum")
plane.plot(*table[:, :2].T, ".", color="0.3", markersize=3, label="table")
plane.plot(*new[~scores.outlier, :2].T, "o", color="black", fillstyle="none", label="new")
plane.plot(*new[scores.outlier, :2].T, "D", color="#d55e00", label="outlier")
plane.set(title="Two of the columns", xlabel="cholesterol (mg/dl)", ylabel="LDL (mg/dl)")
plane.legend(loc="upper left")

usual, unusual = np.flatnonzero(~scores.outlier), np.flatnonzero(scores.outlier)
line.semilogy(usual, scores.percentile[usual], "o", color="black", fillstyle="none")
line.semilogy(unusual, scores.percentile[unusual], "D", color="#d55e00")
line.axhline(scores.level, color="0.5", linestyle="--")
line.set(title="The new rows", xlabel="row", ylabel="percentile")
plt.show()

# %%
# ``score_rows(table)`` scores the rows of a table under the density of the others. ``isthmus
# density table.csv --score new.csv`` does it for files. The density has conditionals as well:
# ``density.conditional([200, np.nan, 50, np.nan])`` is that of the other two columns. How good it
# is on real tables, beside kernel densities and Gaussian mixtures, is measured in
# :doc:`../incontext`.
