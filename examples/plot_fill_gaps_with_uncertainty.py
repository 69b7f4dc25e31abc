"""
Fill gaps, and know how far to trust them
=========================================

:class:`isthmus.impute.MemoryImputer` fills the missing values of a table. It also states the
error to expect in each column, and draws random fillings whose spread shows how uncertain a value
is. Here both are compared with the truth.
"""

# %%
# The data are ten measurements of 442 patients with diabetes. We delete 20 % of the cells at
# random and keep the true values for later.

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_diabetes

from isthmus.impute import MemoryImputer

table = load_diabetes(as_frame=True, scaled=False).data
table.columns = [*table.columns[:4], "cholesterol", "LDL", "HDL", "ratio", "log lipids", "glucose"]
hidden = np.random.default_rng(0).random(table.shape) < 0.2
gaps = table.mask(hidden)

# %%
# One value for each gap
# ----------------------
#
# ``transform`` fills each gap with its mean given the known values of the row. While it learns,
# the imputer hides known cells and fills them, too. ``errors_`` is the root mean squared error
# that it found there, and ``mean_errors_`` that of filling in the column mean.

imputer = MemoryImputer(random_state=0).fit(gaps)
filled = imputer.transform(gaps)

truth = table.to_numpy()
spread = truth.std(axis=0)
actual = np.sqrt(np.nanmean(np.where(hidden, filled - truth, np.nan) ** 2, axis=0)) / spread
expected, of_means = imputer.errors_ / spread, imputer.mean_errors_ / spread

# %%
# Many values for each gap
# ------------------------
#
# ``draw`` fills the table several times at random. If the draws are right, 90 % of the true
# values lie between their 5th and 95th percentiles.

draws = imputer.draw(gaps, n=100, random_state=0)  # 100 tables
low, high = np.percentile(draws, [5, 95], axis=0)
inside = (low <= truth) & (truth <= high)
print(f"{inside[hidden].mean():.0%} of the hidden values lie in their 90 % intervals")

# %%
# The hidden values of two columns, from the smallest to the largest, and the errors in standard
# deviations of each column. LDL nearly follows from the other blood values; glucose is hardly
# related to anything, and the imputer says so before anybody knows the truth. The intervals of
# LDL are wide where cholesterol is missing as well.

fig, (*cells, columns) = plt.subplots(1, 3, figsize=(11.5, 4.2), layout="constrained")
for ax, name in zip(cells, ("LDL", "glucose"), strict=True):
    column = table.columns.get_loc(name)
    rows = np.flatnonzero(hidden[:, column])
    rows = rows[np.argsort(truth[rows, column])]
    place = np.arange(len(rows))
    ax.vlines(place, low[rows, column], high[rows, column], color="#9ecae1", label="90 % of draws")
    ax.plot(place, filled[rows, column], "o", color="#0072b2", markersize=4, label="filled")
    ax.plot(place, truth[rows, column], "x", color="#d55e00", markersize=4, label="truth")
    ax.set(title=name, xlabel="patient, by true value", xticks=[], ylabel="mg/dl")
cells[0].legend(frameon=False, loc="upper left")

order = np.argsort(expected)
place = np.arange(len(order))
columns.plot(of_means[order], place, "s", color="0.6", label="column mean, expected")
columns.plot(expected[order], place, "o", color="#0072b2", label="MemoryImputer, expected")
columns.plot(actual[order], place, "x", color="#d55e00", label="MemoryImputer, actual")
columns.set_yticks(place, labels=table.columns[order])
columns.set(title="Error", xlabel="standard deviations", xlim=(0, 1.15), ylim=(-0.6, 12.4))
columns.grid(axis="y", alpha=0.3)
columns.legend(frameon=False, loc="upper left")
plt.show()

# %%
# For an analysis that should account for the gaps, run it on each of some twenty draws and pool
# the results by Rubin's rules; :doc:`../tables` has an example. Text and categories are filled as
# well, with probabilities. ``isthmus complete table.csv`` fills the gaps of a file.
