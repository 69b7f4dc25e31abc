"""
Ask a table anything
====================

What would y be? What is missing here? Is this row odd? Each of these usually needs a model of its
own, fitted and tuned. :meth:`isthmus.incontext.ICLTables.condition` reads a table once, numbers,
categories and gaps, and every answer is an exact conditional of one density. Nothing is trained.
"""

# %%
# The table has 150 patients with diabetes: sex, body mass index, blood pressure, two blood values,
# and how far the disease had progressed a year later. A tenth of the cells is missing.

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.datasets import load_diabetes

from isthmus.incontext import TableClassifier, TableRegressor, pretrained

data = load_diabetes(as_frame=True, scaled=False).frame
patients = data[["sex", "bmi", "bp", "s3", "s5", "target"]].rename(
    columns={"s3": "hdl", "s5": "lipids", "target": "progress"}
)
patients["sex"] = np.where(patients["sex"] == 1, "female", "male")
rows, new = patients[:150].copy(), patients[150:300]
rng = np.random.default_rng(0)
for name in ("sex", "bmi", "bp", "hdl", "lipids"):
    rows.loc[rng.random(len(rows)) < 0.1, name] = None if name == "sex" else np.nan

table = pretrained("tables").condition(rows)
print(table)

# %%
# What would y be? A category has probabilities; a number a mean, quantiles and intervals. What is
# not given is integrated out.

print(table.ask("progress", {"bmi": 32.0, "sex": "female"}))
print(table.ask("sex", {"hdl": 70.0, "lipids": 4.2}))

# %%
# What is missing? Gaps get the mean of a number and the most probable category, given the rest of
# their row. ``sample`` draws rows instead, with values that are given.

print(table.fill(rows[rows.isna().any(axis=1)].head(3)).round(1))
print(table.sample(3, given={"sex": "male", "bmi": 35.0}, seed=0).round(1))

# %%
# Which rows are odd, and why? In three of the new rows, one cell is changed. A p-value is the
# probability that a row of the density is no more likely.

changed = new.head(40).copy()
changed.loc[150, "bmi"], changed.loc[151, "lipids"] = 60.0, 9.0
changed["sex"] = changed["sex"].astype(object)
changed.loc[152, "sex"] = "unknown"
print(table.outliers(changed))

# %%
# A table that is read for one question answers it better: ``condition(rows, target="progress")``.
# ``TableRegressor`` and ``TableClassifier`` do that with the interface of scikit-learn. Of the 150
# new patients, about 90 % should lie in the 90 % intervals.

features = [name for name in rows if name != "progress"]
model = TableRegressor().fit(rows[features], rows["progress"])
low, median, high = model.predict_quantile(new[features], [0.05, 0.5, 0.95]).T
inside = (new["progress"] > low) & (new["progress"] < high)
print(f"{inside.mean():.0%} of the new patients lie in their interval")

known = rows["sex"].notna()
classes = TableClassifier().fit(rows.loc[known].drop(columns="sex"), rows.loc[known, "sex"])
print(f"sex is right for {classes.score(new.drop(columns='sex'), new['sex']):.0%}")

# %%
# The same intervals along one column, everything else unknown, are those of a curve with noise that
# may change along it.

line = pd.DataFrame({"bmi": np.linspace(17, 42, 60)})
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
for level, shade in ((0.9, "0.9"), (0.5, "0.75")):
    left.fill_between(line["bmi"], *table.interval("progress", level, line), color=shade)
left.plot(line["bmi"], table.quantile("progress", 0.5, line), color="C0", label="median")
left.plot(new["bmi"], new["progress"], ".", color="C1", markersize=4, label="new patients")
left.set(xlabel="body mass index", ylabel="progress", title="50 % and 90 % intervals")
left.legend()

order = np.argsort(median)
right.vlines(np.arange(len(order)), low[order], high[order], color="0.8")
right.plot(median[order], color="C0", label="median")
right.plot(new["progress"].to_numpy()[order], ".", color="C1", markersize=4, label="new patients")
right.set(
    xlabel="new patients, by their median", title=f"given all columns: {inside.mean():.0%} inside"
)
right.legend()
plt.show()
