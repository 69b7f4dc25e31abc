"""TableNetwork: a transformer over the rows of a table that writes a Student mixture."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from isthmus.incontext.config import CheckedFields
from isthmus.incontext.tables.features import (
    CELL,
    ODD,
    PAIR,
    ROW,
    Features,
    column_resolution,
    features,
    width_floor,
)

# The narrowest kernel along a column, in standard deviations of the context.
FLOOR = 1.5e-3


@dataclass(frozen=True, kw_only=True)
class TableConfig(CheckedFields):
    """Settings of a :class:`isthmus.incontext.ICLTables`.

    Parameters
    ----------
    width, cell_width : int
        Of the embedding of a row, and of a cell.
    layers, heads : int
        Transformer blocks over rows, and attention heads.
    kernels, global_kernels : int
        Components for each context row, and components about the mean of the table.
    query_width : int
        Of the queries and keys that choose the neighbours of each component.
    max_columns, max_rows : int
        The largest table that one pass reads.
    """

    width: int = 96
    cell_width: int = 32
    layers: int = 4
    heads: int = 4
    kernels: int = 3
    global_kernels: int = 2
    query_width: int = 16
    max_columns: int = 16
    max_rows: int = 1024

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> Self:
        """Return the settings of a dictionary; those of an energy head are not kept."""
        return super().from_dict({k: v for k, v in settings.items() if k != "head_layers"})


class Components(NamedTuple):
    """Student components in standard units: C of them for each of B tables."""

    means: Tensor  # (B, C, D)
    scale_trils: Tensor  # (B, C, D, D)
    dof: Tensor  # (B, C)
    log_weights: Tensor  # (B, C), normalised

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log-density of rows (B, m, D) -> (B, m)."""
        batch, count, columns = self.means.shape
        identity = torch.eye(columns, dtype=x.dtype, device=x.device).expand_as(self.scale_trils)
        inverse = torch.linalg.solve_triangular(self.scale_trils, identity, upper=False)
        centre = (inverse @ self.means[..., None])[..., 0]
        white = inverse.reshape(batch, count * columns, columns) @ x.transpose(1, 2)
        white = white.view(batch, count, columns, -1) - centre[..., None]
        squares = white.square().sum(2)  # (B, C, m)
        log_det = self.scale_trils.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        power = 0.5 * (self.dof + columns)
        constant = torch.lgamma(power) - torch.lgamma(0.5 * self.dof) - log_det
        constant = constant - 0.5 * columns * (math.pi * self.dof).log() + self.log_weights
        tail = power[..., None] * torch.log1p(squares / self.dof[..., None])
        return torch.logsumexp(constant[..., None] - tail, 1)


class RowBlock(nn.Module):
    """A pre-norm transformer block whose attention is biased by pair features."""

    def __init__(self, config: TableConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.attention_norm, self.feedforward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.pair_bias = nn.Linear(PAIR, config.heads)
        self.own_bias = nn.Parameter(torch.zeros(config.heads))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, stream: Tensor, pair: Tensor) -> Tensor:
        """Pass rows (B, n, width) through the block."""
        batch, size, width = stream.shape
        joint = self.query_key_value(self.attention_norm(stream))
        split = joint.view(batch, size, 3, self.heads, width // self.heads)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (B, H, n, d)
        logits = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        logits = logits + self.pair_bias(pair).permute(0, 3, 1, 2)
        logits = logits + torch.diag_embed(self.own_bias[:, None].expand(-1, size))
        mixed = logits.softmax(-1) @ value
        stream = stream + self.attention_out(mixed.transpose(1, 2).reshape(stream.shape))
        return stream + self.down(F.gelu(self.up(self.feedforward_norm(stream))))


class TableNetwork(nn.Module):
    """Turn the features of tables into Student mixtures.

    Every operation treats rows alike, columns alike, and a column like its mirror image, so that
    the mixture moves with the table under permutations and sign flips.
    """

    def __init__(self, config: TableConfig) -> None:
        super().__init__()
        self.config = config
        width, cell, kernels = config.width, config.cell_width, config.kernels
        self.cell_in = two_layers(CELL, cell, cell)
        self.cell_mix = two_layers(2 * cell, cell, cell)
        self.row_in = nn.Linear(2 * cell + ROW, width)
        self.blocks = nn.ModuleList(RowBlock(config) for _ in range(config.layers))
        self.row_norm = nn.LayerNorm(width)
        self.near_query = nn.Linear(width, kernels * config.query_width)
        self.near_key = nn.Linear(width, kernels * config.query_width)
        self.near_pair = nn.Linear(PAIR, kernels)
        self.near_own = nn.Parameter(torch.linspace(3, 0, kernels))
        self.row_out = two_layers(width + 2 * kernels, width, 6 * kernels)
        self.width_row, self.width_cell = nn.Linear(width, 64), nn.Linear(cell, 64)
        self.width_near = nn.Linear(2 * kernels, 64)
        self.width_out = nn.Linear(64, 2 * kernels)
        self.table_out = two_layers(width, width, 4 * config.global_kernels + 1)
        for layer in (self.row_out[2], self.width_out, self.table_out[2]):
            assert isinstance(layer, nn.Linear)
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)
        nn.init.zeros_(self.near_pair.weight)
        nn.init.zeros_(self.near_pair.bias)
        with torch.no_grad():
            self.near_pair.weight[:, 0] = torch.linspace(-2, -0.5, kernels)

    def forward(self, found: Features, floor: Tensor) -> Components:
        """Return the components of tables; `floor` (B, D) bounds their widths from below."""
        cells = self._embed_cells(found)
        rows = self._embed_rows(found, cells)
        means, covariances, dof, logits = self._row_components(found, cells, rows, floor)
        more = self._table_components(found, rows, floor)
        covariance = torch.cat([covariances.flatten(1, 2), more[1]], 1)
        return Components(
            means=torch.cat([means.flatten(1, 2), more[0]], 1),
            scale_trils=torch.linalg.cholesky(covariance),
            dof=torch.cat([dof.flatten(1), more[2]], 1),
            log_weights=torch.cat([logits.flatten(1), more[3]], 1).log_softmax(1),
        )

    def _embed_cells(self, found: Features) -> Tensor:
        """Return embeddings of cells, the mean over both signs of a column. (B, n, D, cell)."""
        flip = torch.ones(CELL, dtype=found.x.dtype, device=found.x.device)
        flip[:ODD] = -1
        both = torch.stack([found.cell, found.cell * flip])  # (2, B, n, D, CELL)
        cells = self.cell_in(both)
        share = found.seen / found.seen.sum(1, keepdim=True)
        column = (cells * share[..., None]).sum(2, keepdim=True).expand_as(cells)
        return (self.cell_mix(torch.cat([cells, column], -1)) + cells).mean(0)

    def _embed_rows(self, found: Features, cells: Tensor) -> Tensor:
        """Return embeddings of rows. (B, n, width)."""
        mean = cells.mean(2)
        spread = ((cells - mean[:, :, None]).square().mean(2) + 1e-6).sqrt()
        stream = self.row_in(torch.cat([mean, spread, found.row], -1))
        for block in self.blocks:
            stream = block(stream, found.pair)
        normed: Tensor = self.row_norm(stream)
        return normed

    def _row_components(
        self, found: Features, cells: Tensor, rows: Tensor, floor: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return means (B, K, n, D), covariances, degrees of freedom and logits (B, K, n)."""
        x, (batch, size, columns) = found.x, found.x.shape
        near = self._neighbours(found, rows)  # (B, K, n, n)
        seen, identity = found.seen[:, None], torch.eye(columns, dtype=x.dtype, device=x.device)
        local = near @ x[:, None]  # (B, K, n, D)
        outer = (x[..., :, None] * x[..., None, :]).reshape(batch, 1, size, columns**2)
        local_moment = (near @ outer).view(batch, -1, size, columns, columns)
        local_covariance = local_moment - local[..., :, None] * local[..., None, :]
        of_row, of_cell = neighbourhood(near, local_covariance, x[:, None] - local)
        out = 3 * self.row_out(torch.cat([rows, of_row], -1)).view(batch, size, -1, 6)
        logit, gate, local_share, apart, shared, tail = out.permute(3, 0, 2, 1)  # each (B, K, n)
        hidden = self.width_row(rows)[:, :, None] + self.width_cell(cells)
        hidden = F.gelu(hidden + self.width_near(of_cell))
        widths = self.width_out(hidden).view(batch, size, columns, 2, -1).permute(3, 0, 4, 1, 2)
        scott = -math.log(size) / (columns + 4)
        stretch = (3 * widths[0]).clamp(-5, 4).exp()  # (B, K, n, D)
        blur = (3 * widths[1] + scott - 0.7).clamp(math.log(FLOOR), 4).exp()
        # The centre of a missing cell is the mean of its neighbourhood.
        pull = 1 - seen * (1 - torch.sigmoid(gate - 1.5)[..., None])
        means = x[:, None] + pull * (local - x[:, None])
        # Neighbours that are few say little about correlations.
        kept = 1 - torch.sigmoid(apart - 2)[..., None, None] * (1 - identity)
        shape = (local_share - 1.5).exp()[..., None, None] * local_covariance * kept
        everywhere = (shared + 2 * scott - 1.5).exp()[..., None, None]
        shape = shape + everywhere * found.correlation[:, None, None]
        rounding = 1e-6 * (1 + (local_share - 1.5).exp()[..., None] * (1 + x[:, None].square()))
        own = blur.square() + floor[:, None, None].square() + rounding * stretch.square() + 1e-6
        covariances = shape * stretch[..., :, None] * stretch[..., None, :] + torch.diag_embed(own)
        dof = 1.2 + (tail + 2).clamp(max=7).exp()
        return means, covariances, dof, logit

    def _neighbours(self, found: Features, rows: Tensor) -> Tensor:
        """Return weights of the neighbours of each component. (B, K, n, n)."""
        batch, size, _ = rows.shape
        query, key = (
            layer(rows).view(batch, size, self.config.kernels, -1).transpose(1, 2)
            for layer in (self.near_query, self.near_key)
        )
        logits = query @ key.transpose(-1, -2) / math.sqrt(self.config.query_width)
        logits = logits + self.near_pair(found.pair).permute(0, 3, 1, 2)
        logits = logits + torch.diag_embed(self.near_own[:, None].expand(-1, size))
        return logits.softmax(-1)

    def _table_components(
        self, found: Features, rows: Tensor, floor: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return means, covariances, degrees of freedom and logits of the global components."""
        batch, size, columns = found.x.shape
        kernels = self.config.global_kernels
        out = 3 * self.table_out(rows.mean(1))
        own, together = out[:, :-1].view(batch, kernels, 4), out[:, -1:]
        order = torch.arange(kernels, dtype=rows.dtype, device=rows.device)
        identity = torch.eye(columns, dtype=rows.dtype, device=rows.device)
        covariances = (own[..., 1] + order).exp()[..., None, None] * found.correlation[:, None]
        covariances = covariances + (own[..., 2] - 2 + order).exp()[..., None, None] * identity
        covariances = covariances + torch.diag_embed(floor.square())[:, None]
        dof = 1 + (own[..., 3] + 2 - 2.5 * order).clamp(-4, 7).exp()
        rows_and_kernels = math.log(size * self.config.kernels)
        logits = own[..., 0] + together + rows_and_kernels - 3 * order - 0.5
        means = torch.zeros(batch, kernels, columns, dtype=rows.dtype, device=rows.device)
        return means, covariances, dof, logits


def write_memory(network: TableNetwork, context: Tensor) -> Components:
    """Return the components that a network writes for contexts (B, n, D) in standard units."""
    resolution = column_resolution(context)
    return cast(Components, network(features(context, resolution), width_floor(resolution)))


def neighbourhood(near: Tensor, covariance: Tensor, away: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the neighbours of rows look like: of rows (B, n, 2 K), of cells (B, n, D, 2 K).

    `near` (B, K, n, n) are their weights, `covariance` (B, K, n, D, D) is theirs, and `away`
    (B, K, n, D) is the way from their mean to the row.
    """
    spread = 0.5 * (covariance.diagonal(dim1=-2, dim2=-1).clamp(min=0) + 1e-4).log()
    count = -0.5 * near.square().sum(-1).log()  # the root of the number that matters
    of_row = torch.cat([count, spread.mean(-1)], 1).transpose(1, 2)
    of_cell = torch.cat([spread, 0.5 * (away.square() + 1e-4).log()], 1).permute(0, 2, 3, 1)
    return of_row, of_cell


def two_layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Return a network with one hidden layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, outputs))
