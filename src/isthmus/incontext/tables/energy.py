"""TableEnergy: the memory of a table, corrected by a learned bounded energy."""

from __future__ import annotations

import math
from typing import Any, final

import torch
from torch import Tensor

from isthmus.energy import Energy, follows_points
from isthmus.incontext.tables.head import HIGHEST, EnergyHead, ReadTable, query_features
from isthmus.memories.base import generator_for
from isthmus.memories.student_mixture import StudentMixture
from isthmus.normalizer import LogIntegral
from isthmus.validation import as_count, is_transforming

# Draws from the memory behind the normaliser, and their seed.
DRAWS, SEED = 4096, 0
# Entries of the largest temporary of a block of queries, which fits the cache of a processor.
BLOCK_ENTRIES = 2**17


@final
class TableEnergy(Energy):
    r"""The density of a table by a memory q and a bounded energy learned on top of it.

    .. math:: E(x) = -\log q(x) - f(x), \qquad p(x) = q(x)\, e^{f(x)} / Z, \qquad
        Z = \mathbb{E}_q[e^{f(x)}] .

    :meth:`isthmus.incontext.ICLTables.condition` returns it if ``energy_head=True``. The
    correction f is a smooth function of x that lies between -6 and 2 and is zero where it has
    nothing to add. Z is estimated once, from 4,096 draws of the memory: ``normalizer`` holds the
    logarithm, its standard error and the effective number of draws. :meth:`sample` is exact, by
    rejection. Marginals and conditionals are known for the memory alone, :attr:`base`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from isthmus.incontext import ICLTables, TableConfig
    >>> model = ICLTables(TableConfig(head_layers=1))  # not trained: f is 0
    >>> density = model.condition(load_iris().data[::2], energy_head=True)
    >>> float(density.normalizer.value), float(density.normalizer.effective_samples)
    (0.0, 4096.0)
    >>> density.sample(5, seed=0).shape
    (5, 4)
    """

    def __init__(
        self,
        base: StudentMixture,
        head: EnergyHead,
        table: ReadTable,
        *,
        columns: Tensor,
        location: Tensor,
        scale: Tensor,
    ) -> None:
        super().__init__()
        self.base, self.head = base, head
        self.returns_arrays, base.returns_arrays = base.returns_arrays, False
        for name, value in zip(ReadTable._fields, table, strict=True):
            self.register_buffer(f"_table_{name}", value)
        self.register_buffer("_columns", columns)
        self.register_buffer("_location", location)
        self.register_buffer("_scale", scale)
        self._normalizer: LogIntegral | None = None

    @property
    def dim(self) -> int:
        """Columns D of the table."""
        return self.base.dim

    @property
    def _table(self) -> ReadTable:
        return ReadTable(*(self.get_buffer(f"_table_{name}") for name in ReadTable._fields))

    @follows_points
    def correction(self, x: Any) -> Tensor:
        """Return f, what the head adds to the log-density of the memory. x: (..., D) -> (...)."""
        x, table = self.as_input(x), self._table
        columns, location, scale = map(self.get_buffer, ("_columns", "_location", "_scale"))
        standard = (x[..., columns] - location) / scale
        flat, width = standard.reshape(-1, len(columns)), max(1, standard.shape[:-1].numel())
        if not is_transforming():
            width = max(1, BLOCK_ENTRIES // (table.x.shape[1] * len(columns)))
        blocks = flat.split(width) if len(flat) else (flat,)
        found = [self.head(table, query_features(table, block[None]))[0] for block in blocks]
        return torch.cat(found).reshape(x.shape[:-1])

    def energy(self, x: Any) -> Tensor:
        """Return the energy of each point. x: (..., D) -> (...)."""
        x = self.as_input(x)
        return self.base.energy(x) - self.correction(x)

    @property
    def normalizer(self) -> LogIntegral:
        """log Z, its standard error, and the effective number of 4,096 draws."""
        if self._normalizer is None:
            with torch.no_grad():
                drawn = torch.as_tensor(self.base.sample(DRAWS, seed=SEED))
                logs = self.correction(drawn).double()
            value = torch.logsumexp(logs, 0) - math.log(DRAWS)
            weights = (logs - value).exp()
            effective = weights.sum().square() / weights.square().sum()
            self._normalizer = LogIntegral(value, weights.std() / math.sqrt(DRAWS), effective)
        return self._normalizer

    def log_normalizer(self) -> Tensor:
        """Return the estimate of log Z, without a graph: a scalar tensor."""
        return self.normalizer.value.to(self.get_buffer("_location"))

    @torch.no_grad()
    def sample(self, n: int, seed: int | torch.Generator = 0) -> Tensor:
        """Draw points by rejection from the memory, which is exact. -> (n, D)."""
        count = as_count(n, "n", at_least=0)
        location = self.get_buffer("_location")
        generator, kept = generator_for(seed, location.device), location.new_zeros(0, self.dim)
        each = math.exp(HIGHEST - float(self.normalizer.value))  # proposals for a draw
        while len(kept) < count:
            proposals = math.ceil(1.1 * each * (count - len(kept))) + 8
            points = torch.as_tensor(self.base.sample(proposals, seed=generator))
            chance = torch.rand(proposals, generator=generator, device=location.device)
            kept = torch.cat([kept, points[chance.log() < self.correction(points) - HIGHEST]])
        return kept[:count]

    def __repr__(self) -> str:
        return f"TableEnergy({self.base!r})"
