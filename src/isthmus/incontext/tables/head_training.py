"""Training of the energy head by ranking noise-contrastive estimation, on a frozen memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from isthmus.errors import InvalidInputError
from isthmus.incontext.model import pretrained
from isthmus.incontext.runs import Weights
from isthmus.incontext.tables.head import ReadTable, query_features, read_tables
from isthmus.incontext.tables.model import ICLTables
from isthmus.incontext.tables.network import TableConfig
from isthmus.incontext.tables.training import HeldOutTables, TableRecipe, TableTraining

# Draws behind the normalisers of the held-out score.
HELD_OUT_DRAWS = 512


@dataclass(frozen=True, kw_only=True)
class HeadTraining(TableTraining):
    """Settings of a training run of the energy head; others as in :class:`TableTraining`.

    Parameters
    ----------
    noise : int
        Draws from the memory of each table, from which its fresh rows must be told apart.
    """

    model: TableConfig = field(default_factory=lambda: TableConfig(head_layers=2))
    updates: int = 850
    context_rows: int = 1024
    tables: int = 32
    rows: int = 64
    noise: int = 96
    size_high: int = 512
    average: float = 0.995
    decay: float = 0.5

    def recipe(self, init: ICLTables | None = None) -> HeadRecipe:
        """Return the training of the head of a model. Default: ``pretrained("tables")``."""
        base = pretrained("tables") if init is None else init
        if not isinstance(base, ICLTables):
            raise InvalidInputError("init must be a model of tables, such as 'tables'.")
        return HeadRecipe(self, base)


def contrast(on_rows: Tensor, on_noise: Tensor) -> Tensor:
    r"""Return the mean loss of ranking each fresh row above the noise of its table.

    .. math:: -\log \frac{(K + 1)\, e^{f(y)}}{e^{f(y)} + \sum_k e^{f(z_k)}}

    for fresh rows (B, m) and noise (B, K) from the memory. With much noise it is the negative
    log-density under the corrected memory, less that under the memory itself.
    """
    total = torch.logsumexp(on_noise, 1, keepdim=True)
    return (torch.logaddexp(on_rows, total) - on_rows).mean() - math.log(on_noise.shape[1] + 1)


def correction(model: ICLTables, table: ReadTable, y: Tensor) -> Tensor:
    """Return the head's correction of the log-density of rows (B, m, D)."""
    assert model.head is not None
    with torch.no_grad():
        found = query_features(table, y)
    return cast(Tensor, model.head(table, found))


class HeldOutHead(HeldOutTables):
    """Mean negative log-density of fresh rows, for each column, under the corrected memory."""

    @torch.no_grad()
    def __call__(self, model: Any) -> float:
        """Return the score of a model in nats; its normalisers are estimated."""
        generator, scores = torch.Generator().manual_seed(0), []
        for context, rows in self.batches:
            table = read_tables(model.network, context)
            noise = table.components.sample(HELD_OUT_DRAWS, generator)
            normalizer = torch.logsumexp(correction(model, table, noise), 1) - math.log(
                HELD_OUT_DRAWS
            )
            log_prob = table.components.log_prob(rows) + correction(model, table, rows)
            scores.append(-float((log_prob - normalizer[:, None]).mean()) / rows.shape[2])
        return sum(scores) / len(scores)


class HeadRecipe(TableRecipe):
    """Training of the head of an :class:`ICLTables`, whose other weights stay as they are."""

    def __init__(self, settings: HeadTraining, base: ICLTables) -> None:
        config = replace(base.config, head_layers=settings.model.head_layers)
        super().__init__(replace(settings, model=config))
        self.noise = settings.noise
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            fresh = ICLTables(config)
        fresh.network.load_state_dict(base.network.state_dict())
        self.start = fresh.state_dict()

    def new_network(self) -> nn.Module:
        """Return the model, of which only the head is trained."""
        model = ICLTables(self.settings.model)
        model.network.requires_grad_(False)
        return model

    def optimizer(self, network: nn.Module) -> torch.optim.Optimizer:
        """Return the optimiser of the head."""
        head = [each for each in network.parameters() if each.requires_grad]
        return torch.optim.AdamW(head, weight_decay=self.settings.weight_decay)

    def loss(self, network: nn.Module, update: int, part: int) -> Tensor:
        """Return the loss of one pass, divided by the root of D."""
        model = cast(ICLTables, network)
        device = next(network.parameters()).device
        context, rows = (x.to(device) for x in self.settings.draw(update, part))
        with torch.no_grad():
            table = read_tables(model.network, context)
        generator = torch.Generator(device).manual_seed(
            (self.settings.seed * 1_000_003 + update) * 64 + part
        )
        noise = table.components.sample(self.noise, generator)
        found = correction(model, table, torch.cat([rows, noise], 1))
        parts = found.split([rows.shape[1], noise.shape[1]], 1)
        return contrast(*parts) / math.sqrt(rows.shape[2])

    def held_out(self) -> Callable[[Any], float]:
        """Return the held-out score of a model."""
        return HeldOutHead()

    def finished(self, weights: Weights) -> ICLTables:
        """Return the model with the given weights."""
        model = ICLTables(self.settings.model)
        model.load_state_dict(weights)
        return model
