"""
In the pipelines of others
==========================

A clusterer for BERTopic's ``hdbscan_model=``, an energy in a module that a Lightning trainer could
run, and gaps filled inside a ``ColumnTransformer``. BERTopic and Lightning need not be installed.
"""

from typing import Any, Self

import numpy as np
import torch
from matplotlib import pyplot as plt
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_digits, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

import isthmus as ist
from isthmus.cluster import BasinFlow
from isthmus.impute import MemoryImputer

# %%
# BERTopic calls ``fit``, reads ``labels_`` and ``probabilities_``, and calls ``predict`` on new
# documents. BasinFlow gives every document a topic; ``outliers`` is a level of novelty above
# which it is -1.


class TopicClusterer(BasinFlow):
    outliers: float | None = None

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        super().fit(X, y, sample_weight)
        self.probabilities_ = self.predict_proba(X).max(1)
        if self.outliers is not None:
            self.labels_ = np.where(self.novelty(X) > self.outliers, -1, self.labels_)
        return self


embeddings = load_digits().data[:600]
topics = TopicClusterer(random_state=0).fit(embeddings, y=None)
assert topics.labels_.min() >= 0
assert topics.probabilities_.shape == (600,)
print(f"{topics.n_clusters_} topics; new documents: {topics.predict(embeddings[:5])}")
# topic_model = BERTopic(hdbscan_model=TopicClusterer())

# %%
# A module in the form of Lightning's: ``training_step`` returns a loss and
# ``configure_optimizers`` the optimizer. The memories are parameters, and the loss is the
# energy, a negative log-likelihood. Inherit from ``lightning.LightningModule`` instead of
# ``torch.nn.Module`` to give it to a ``Trainer``.


class MemoryModule(torch.nn.Module):
    def __init__(self, memories: torch.Tensor) -> None:
        super().__init__()
        self.energy = ist.GaussianKDE(memories, sigma=0.5).requires_grad_()
        self.energy.bandwidth.requires_grad_(False)

    def training_step(self, batch: torch.Tensor, batch_idx: int) -> torch.Tensor:
        return -self.energy.log_prob(batch).mean()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=0.05)


iris = load_iris(as_frame=True)
rows = torch.tensor(iris.data.to_numpy(), dtype=torch.float32)
module = MemoryModule(rows[::15])
optimizer, losses = module.configure_optimizers(), []
for step in range(60):
    loss = module.training_step(rows, step)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
assert losses[-1] < losses[0]

# %%
# Gaps of numbers and of categories, filled inside a ``ColumnTransformer`` before a classifier.

frame = iris.data.assign(wide=np.where(iris.data.iloc[:, 1] > 3, "wide", "narrow"))
frame = frame.mask(np.random.default_rng(0).random(frame.shape) < 0.15)
numbers, words = list(frame.columns[:4]), ["wide"]
filled = ColumnTransformer(
    [
        ("numbers", MemoryImputer(), numbers),
        (
            "words",
            make_pipeline(MemoryImputer().set_output(transform="pandas"), OneHotEncoder()),
            [*numbers[:1], *words],
        ),
    ]
)
model = make_pipeline(filled, LogisticRegression(max_iter=2000)).fit(frame, iris.target)
print(f"accuracy with gaps: {model.score(frame, iris.target):.2f}")

plt.plot(losses)
plt.xlabel("step")
plt.ylabel("energy of the rows (nats)")
plt.show()
