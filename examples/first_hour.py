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

from isthmus.cluster import BasinFlow
from isthmus.impute import MemoryImputer
from isthmus.incontext import pretrained, score_rows
from isthmus.synthesis import draw_rows

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
# Each step takes the table as it is; clusters are those of what was measured, without the labels.

ADDED = ["kind", "large"]
for name, table in TABLES.items():
    table = table.head(ROWS)
    filled = MemoryImputer().set_output(transform="pandas").fit_transform(table)  # fill
    flow = BasinFlow(random_state=0).fit(table.drop(columns=ADDED))  # cluster
    clusters = f"{flow.n_clusters_} cluster{'s' * (flow.n_clusters_ > 1)}"
    drawn = draw_rows(table, 20, seed=0).rows  # draw
    odd = int(np.argmin(score_rows(table).log_density))  # score
    column = table.columns[0]
    density = pretrained("tables").condition(table)
    low, high = density.interval(column, 0.9, table.iloc[[odd]])  # ask
    print(
        f"{name}: {int(table.isna().sum().sum())} gaps filled, {clusters}, "
        f"{len(drawn)} rows drawn, row {odd} is the oddest; by the rest of it, its {column!r} "
        f"lies between {low[0]:.3g} and {high[0]:.3g} (90 %)"
    )
    assert not filled.isna().any().any()
    assert filled.index.equals(table.index)

# %%
# And plot. Without a display, the figure is written to a file.

figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5), layout="constrained")
table = TABLES["iris"]
measured = table.drop(columns=ADDED)
BasinFlow(random_state=0).fit(measured).plot(measured, axes=left)
MemoryImputer().fit(table).plot(table, axes=right)
if plt.get_backend().lower() == "agg":
    figure.savefig("first_hour.png")
    print("figure written to first_hour.png")
else:
    plt.show()
