"""
The first hour
==============

Tables as they come, with numbers, categories and gaps: cluster, fill, draw, score, ask and plot,
each in a line and without preparation. Replace ``TABLES`` by frames of your own.
"""

import numpy as np
import pandas as pd
from matplotlib import pyplot as plt
from sklearn.datasets import load_diabetes, load_iris, load_wine

import isthmus as ist
from isthmus.cluster import BasinFlow
from isthmus.impute import MemoryImputer
from isthmus.incontext import score_rows
from isthmus.synthesis import draw_rows
from isthmus.tables import encode

# %%
# Four tables, with a category and a truth value each, and every tenth value missing.


def with_gaps(frame: pd.DataFrame, kind: pd.Series, seed: int) -> pd.DataFrame:
    frame = frame.assign(kind=kind.astype(str).astype("category"), large=frame.iloc[:, 0] > 5)
    return frame.mask(np.random.default_rng(seed).random(frame.shape) < 0.1)


iris, wine, diabetes = (load(as_frame=True) for load in (load_iris, load_wine, load_diabetes))
generator = np.random.default_rng(0)
shops = pd.DataFrame({"size": generator.lognormal(1, 0.5, 120), "staff": generator.poisson(6, 120)})
ROWS = 150
TABLES = {
    "iris": with_gaps(iris.data, iris.target_names[iris.target] + pd.Series([""] * 150), 1),
    "wine": with_gaps(wine.data.iloc[:, :6], wine.target, 2),
    "diabetes": with_gaps(diabetes.data.iloc[:, 2:7], diabetes.data["sex"].round(2), 3),
    "shops": with_gaps(shops, pd.Series(generator.choice(["north", "south"], 120)), 4),
}

# %%
# Each step takes the table with its gaps. ``encode`` turns categories into the numbers that
# distances need.

for name, table in TABLES.items():
    table = table.head(ROWS)
    filled = MemoryImputer().set_output(transform="pandas").fit_transform(table)  # fill
    flow = BasinFlow(random_state=0).fit(encode(table))  # cluster
    drawn = draw_rows(filled, 20, seed=0).rows  # draw
    odd = int(np.argmin(score_rows(table).log_density))  # score
    column = table.columns[0]
    density = ist.GaussianKDE(filled[[column]].to_numpy(dtype=float), "auto")
    low, high = density.interval(0.9)  # ask
    print(
        f"{name}: {int(table.isna().sum().sum())} gaps filled, {flow.n_clusters_} clusters, "
        f"{len(drawn)} rows drawn, row {odd} is the oddest; 90 % of {column!r} lie "
        f"between {low:.3g} and {high:.3g}"
    )
    assert not filled.isna().any().any()
    assert filled.index.equals(table.index)

# %%
# And plot.

figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")
numbers = encode(TABLES["iris"])
BasinFlow(random_state=0).fit(numbers).plot(numbers, axes=left)
MemoryImputer().fit(TABLES["iris"]).plot(TABLES["iris"], axes=right)
plt.show()
