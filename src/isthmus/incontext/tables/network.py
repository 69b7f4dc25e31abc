"""TableNetwork: a transformer over the rows of a table that writes a mixture of mixed rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Self, cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from isthmus.incontext.config import CheckedFields
from isthmus.incontext.tables.features import (
    CATEGORY_CELL,
    CELL,
    MIXED_PAIR,
    MIXED_ROW,
    NUMBER_CELL,
    ODD,
    PAIR,
    ROW,
    Categories,
    Features,
    column_resolution,
    features,
    read_categories,
    width_floor,
)

# The narrowest kernel along a column, in standard deviations of the context.
FLOOR = 1.5e-3
# The probability of a value that a column does not have.
NEVER = 1e-30


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
    max_columns: int = 64
    max_rows: int = 1024

    @classmethod
    def from_dict(cls, settings: dict[str, Any]) -> Self:
        """Return the settings of a dictionary, without one that older models have."""
        return super().from_dict({k: v for k, v in settings.items() if k != "head_layers"})


class Components(NamedTuple):
    """Components of B tables in standard units: Student-t numbers times categories."""

    means: Tensor  # (B, N, D)
    scale_trils: Tensor  # (B, N, D, D)
    dof: Tensor  # (B, N)
    log_weights: Tensor  # (B, N), normalised
    log_shares: Tensor  # (B, N, C, V + 1), the last of others; NEVER beyond a column's values

    def log_probs(self, x: Tensor, codes: Tensor, number: bool = True) -> tuple[Tensor, Tensor]:
        """Return log-densities of rows, and of the last column given the rest: (B, m) each.

        Rows are numbers (B, m, D) and categories (B, m, C); the last `number` or category is asked.
        """
        white = self._white(x)
        numbers, shares = self._numbers(white), self._shares(codes)
        if number:
            rest = self._numbers(white[:, :, :-1]) + shares
        else:
            rest = numbers + self._shares(F.pad(codes[..., :-1], (0, 1), value=-1))
        joint = torch.logsumexp(numbers + shares, 1)
        return joint, joint - torch.logsumexp(rest, 1)

    def _white(self, x: Tensor) -> Tensor:
        """Return whitened rows. (B, N, D, m)"""
        batch, count, columns = self.means.shape
        identity = torch.eye(columns, dtype=x.dtype, device=x.device).expand_as(self.scale_trils)
        inverse = torch.linalg.solve_triangular(self.scale_trils, identity, upper=False)
        centre = (inverse @ self.means[..., None])[..., 0]
        white = inverse.reshape(batch, count * columns, columns) @ x.transpose(1, 2)
        return white.view(batch, count, columns, -1) - centre[..., None]

    def _numbers(self, white: Tensor) -> Tensor:
        """Return logarithms of weight times Student density of the first columns. (B, N, m)"""
        columns = white.shape[2]
        if not columns:
            return self.log_weights[..., None].expand(-1, -1, white.shape[3])
        squares = white.square().sum(2)
        diagonal = self.scale_trils.diagonal(dim1=-2, dim2=-1)[..., :columns]
        power = 0.5 * (self.dof + columns)
        constant = torch.lgamma(power) - torch.lgamma(0.5 * self.dof) - diagonal.log().sum(-1)
        constant = constant - 0.5 * columns * (math.pi * self.dof).log() + self.log_weights
        return constant[..., None] - power[..., None] * torch.log1p(squares / self.dof[..., None])

    def _shares(self, codes: Tensor) -> Tensor:
        """Return log-probabilities of categories; -1 counts as 1, and V is another value."""
        index = torch.arange(self.log_shares.shape[-1], device=codes.device)
        flags = (codes[..., None] == index).to(self.log_shares.dtype).flatten(2)
        return self.log_shares.flatten(2) @ flags.transpose(1, 2)


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

    def forward(self, stream: Tensor, pair: Tensor, more: Tensor) -> Tensor:
        """Pass rows (B, n, width) through the block; `more` (B, H, n, n) is added to logits."""
        joint = self.query_key_value(self.attention_norm(stream))
        split = joint.unflatten(-1, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (B, H, n, d)
        logits = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        logits = logits + self.pair_bias(pair).permute(0, 3, 1, 2) + more
        logits = logits + torch.diag_embed(self.own_bias[:, None].expand(-1, stream.shape[1]))
        mixed = logits.softmax(-1) @ value
        stream = stream + self.attention_out(mixed.transpose(1, 2).reshape(stream.shape))
        return stream + self.down(F.gelu(self.up(self.feedforward_norm(stream))))


class TableNetwork(nn.Module):
    """Turn features into mixtures that move with the table: rows, columns, signs and names."""

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
        self.mixed = MixedLayers(config)

    def forward(self, found: Features, mixed: Categories, floor: Tensor) -> Components:
        """Return the components of tables; `floor` (B, D) bounds their widths from below."""
        cells = self._embed_cells(found) + self.mixed.number_cell(mixed.number_cell)
        categories = self.mixed.embed(mixed)
        rows = self._embed_rows(found, mixed, cells, categories)
        near = self._neighbours(found, mixed, rows)  # (B, K, n, n)
        parts = [
            self._row_components(found, cells, rows, near, floor),
            self._table_components(found, rows, floor),
        ]
        shares = [
            self.mixed.row_shares(mixed, rows, categories, near),
            self.mixed.table_shares(mixed, rows),
        ]
        if mixed.grouped.shape[1]:
            groups, group_shares = self.mixed.groups(found, mixed, rows, categories, floor)
            parts.append(groups)
            shares.append(group_shares)
        means, covariances, dof, logits = (torch.cat(each, 1) for each in zip(*parts, strict=True))
        return Components(
            means=means,
            scale_trils=torch.linalg.cholesky(covariances),
            dof=dof,
            log_weights=logits.log_softmax(1),
            log_shares=torch.cat(shares, 1).clamp(min=NEVER).log(),
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

    def _embed_rows(
        self, found: Features, mixed: Categories, cells: Tensor, categories: Tensor
    ) -> Tensor:
        """Return embeddings of rows. (B, n, width)."""
        stream = self.row_in(torch.cat([*_pooled(cells), found.row], -1))
        stream = stream + self.mixed.row(mixed.row)
        if categories.shape[2]:
            stream = stream + self.mixed.row_categories(torch.cat(_pooled(categories), -1))
        more = self.mixed.pair(mixed.pair).permute(0, 3, 1, 2).chunk(len(self.blocks) + 1, 1)
        for block, bias in zip(self.blocks, more, strict=False):
            stream = block(stream, found.pair, bias)
        normed: Tensor = self.row_norm(stream)
        return normed

    def _row_components(
        self, found: Features, cells: Tensor, rows: Tensor, near: Tensor, floor: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return means (B, K n, D), covariances, degrees of freedom and logits (B, K n)."""
        x, (batch, size, columns) = found.x, found.x.shape
        seen, identity = found.seen[:, None], torch.eye(columns, dtype=x.dtype, device=x.device)
        local = near @ x[:, None]  # (B, K, n, D)
        outer = (x[..., :, None] * x[..., None, :]).reshape(batch, 1, size, columns**2)
        local_moment = (near @ outer).view(batch, -1, size, columns, columns)
        local_covariance = local_moment - local[..., :, None] * local[..., None, :]
        # What the neighbours of rows, and of their cells, look like.
        variance = local_covariance.diagonal(dim1=-2, dim2=-1).clamp(min=0)
        spread, away = 0.5 * (variance + 1e-4).log(), x[:, None] - local
        count = -0.5 * near.square().sum(-1).log()  # the root of the number that matters
        of_row = torch.cat([count, spread.mean(-1)], 1).transpose(1, 2)
        of_cell = torch.cat([spread, 0.5 * (away.square() + 1e-4).log()], 1).permute(0, 2, 3, 1)
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
        return means.flatten(1, 2), covariances.flatten(1, 2), dof.flatten(1), logit.flatten(1)

    def _neighbours(self, found: Features, mixed: Categories, rows: Tensor) -> Tensor:
        """Return weights of the neighbours of each component. (B, K, n, n)."""
        batch, size, _ = rows.shape
        query, key = (
            layer(rows).view(batch, size, self.config.kernels, -1).transpose(1, 2)
            for layer in (self.near_query, self.near_key)
        )
        logits = query @ key.transpose(-1, -2) / math.sqrt(self.config.query_width)
        logits = logits + self.near_pair(found.pair).permute(0, 3, 1, 2)
        logits = logits + self.mixed.near(mixed.pair).permute(0, 3, 1, 2)
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


class MixedLayers(nn.Module):
    """The layers of categories and of the target column, which start at zero."""

    def __init__(self, config: TableConfig) -> None:
        super().__init__()
        width, cell, kernels = config.width, config.cell_width, config.kernels
        self.kernels, self.global_kernels = kernels, config.global_kernels
        self.number_cell = nn.Linear(NUMBER_CELL, cell, bias=False)
        self.row = nn.Linear(MIXED_ROW, width, bias=False)
        self.pair = nn.Linear(MIXED_PAIR, (config.layers + 1) * config.heads, bias=False)
        self.near = nn.Linear(MIXED_PAIR, kernels, bias=False)
        self.cell_in = two_layers(CATEGORY_CELL, cell, cell)
        self.cell_mix = two_layers(2 * cell, cell, cell)
        self.row_categories = nn.Linear(2 * cell, width, bias=False)
        self.share_row, self.share_cell = nn.Linear(width, 64), nn.Linear(cell, 64)
        self.share_near = nn.Linear(2 * kernels, 64)
        self.share_out = nn.Linear(64, 4 * kernels)
        self.table_share = nn.Linear(width, 2 * config.global_kernels)
        self.group_table, self.group_column = nn.Linear(width, 64), nn.Linear(cell, 64)
        self.group_count, self.group_out = nn.Linear(2, 64), nn.Linear(64, 11)
        new = (self.number_cell, self.row, self.pair, self.near, self.row_categories)
        for layer in (*new, self.share_out, self.table_share, self.group_out):
            nn.init.zeros_(layer.weight)
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)

    def embed(self, mixed: Categories) -> Tensor:
        """Return embeddings of categorical cells. (B, n, C, cell)"""
        cells = self.cell_in(mixed.cell)
        column = cells.mean(1, keepdim=True).expand_as(cells)
        embedded: Tensor = cells + self.cell_mix(torch.cat([cells, column], -1))
        return embedded

    def row_shares(
        self, mixed: Categories, rows: Tensor, categories: Tensor, near: Tensor
    ) -> Tensor:
        """Return the distribution of each category in the components of rows. (B, K n, C, V + 1)"""
        batch, size, columns, values = mixed.one_hot.shape
        flat = mixed.one_hot.flatten(2)
        local = (near @ flat[:, None]).view(batch, self.kernels, size, columns, values)
        agreed = (local * mixed.one_hot[:, None]).sum(-1)  # (B, K, n, C)
        order = (local * (local + 1e-6).log()).sum(-1)
        of_cell = torch.cat([(agreed + 0.01).log(), order], 1).permute(0, 2, 3, 1)
        hidden = self.share_row(rows)[:, :, None] + self.share_cell(categories)
        hidden = F.gelu(hidden + self.share_near(of_cell))
        gates = 3 * self.share_out(hidden).view(batch, size, columns, self.kernels, 4)
        gates = gates + gates.new_tensor([1.0, 1.0, -1.0, -3.0])
        own, beside, overall, any_value = gates.softmax(-1).permute(4, 0, 3, 1, 2)[..., None]
        known = mixed.known[:, None, ..., None]
        found = own * known * mixed.one_hot[:, None] + (beside + own * (1 - known)) * local
        found = found + overall * mixed.frequency[:, None, None]
        return _with_uniform(found, any_value, mixed.valid[:, None, None]).flatten(1, 2)

    def table_shares(self, mixed: Categories, rows: Tensor) -> Tensor:
        """Return the distributions of the components of the whole table. (B, G, C, V + 1)"""
        logits = 3 * self.table_share(rows.mean(1)).view(len(rows), -1, 2)
        overall, any_value = (logits + logits.new_tensor([0.0, -2.0])).softmax(-1).unbind(-1)
        found = overall[..., None, None] * mixed.frequency[:, None]
        return _with_uniform(found, any_value[..., None, None], mixed.valid[:, None])

    def groups(
        self, found: Features, mixed: Categories, rows: Tensor, categories: Tensor, floor: Tensor
    ) -> tuple[tuple[Tensor, Tensor, Tensor, Tensor], Tensor]:
        """Return a component for each value of some categories, of the rows with that value."""
        size, _, values = mixed.one_hot.shape[1:]
        pick = mixed.grouped  # (B, G)
        place = pick[:, None, :, None].expand(-1, size, -1, values)
        members = mixed.one_hot.gather(2, place).permute(0, 2, 3, 1).flatten(1, 2)  # (B, G V, n)
        heads = members.sum(-1)  # (B, G V)
        average = members / heads.clamp(min=1e-6)[..., None]
        column = categories.mean(1).gather(1, pick[..., None].expand(-1, -1, categories.shape[-1]))
        hidden = self.group_column(column) + self.group_table(rows.mean(1))[:, None]  # (B, G, 64)
        sizes = torch.stack([(heads + 0.1).log() / 4, heads / size], -1)
        hidden = F.gelu(hidden.repeat_interleave(values, 1) + self.group_count(sizes))
        out = 3 * self.group_out(hidden)  # (B, G V, 11)
        logit, pull, tail = out[..., :3].unbind(-1)
        present = mixed.valid.gather(1, place[:, 0]).flatten(1)
        logits = logit + (heads + 0.1).log() - 2 + torch.where(present > 0, 0.0, -1e4)
        dof = 2 + (tail + 3).clamp(max=7).exp()
        local = average @ found.x
        covariances = self._group_shapes(found, average, local, heads, out[..., 3:7])
        covariances = covariances + torch.diag_embed(floor.square())[:, None]
        # Few rows say little about where their group is.
        means = local * torch.sigmoid(pull + 1 + (heads + 0.1).log())[..., None]
        shares = self._group_shares(mixed, average, out[..., 7:])
        return (means, covariances, dof, logits), shares

    def _group_shapes(
        self, found: Features, average: Tensor, local: Tensor, heads: Tensor, out: Tensor
    ) -> Tensor:
        """Return covariances of groups: pooled, their own, round, and of all rows. (B, N, D, D)"""
        (size, dim), values = found.x.shape[1:], average.shape[1]
        outer = (found.x[..., :, None] * found.x[..., None, :]).flatten(2)
        moment = (average @ outer).unflatten(-1, (dim, dim))
        own = moment - local[..., :, None] * local[..., None, :]
        count = round(float(heads[0].sum()) / size)
        weighted = (own * (heads / size)[..., None, None]).unflatten(1, (count, -1))
        pooled = weighted.sum(2).repeat_interleave(values // count, 1)
        identity = torch.eye(dim, dtype=local.dtype, device=local.device)
        a, b, c, d = (out - out.new_tensor([0.3, 2.0, 3.0, 2.0])).clamp(-9, 3).exp().unbind(-1)
        shape = a[..., None, None] * pooled + b[..., None, None] * own
        shape = shape + (c[..., None, None] + 1e-4) * identity
        return shape + d[..., None, None] * found.correlation[:, None]

    def _group_shares(self, mixed: Categories, average: Tensor, out: Tensor) -> Tensor:
        """Return the distributions of groups, nearly certain in their own column."""
        batch, _, columns, values = mixed.one_hot.shape
        gates = (out[..., :3] + out.new_tensor([1.0, 0.0, -3.0])).softmax(-1)[..., None, None]
        within, overall, any_value = gates.unbind(2)
        shares = (average @ mixed.one_hot.flatten(2)).view(batch, average.shape[1], columns, values)
        shares = within * shares + overall * mixed.frequency[:, None]
        spread = _with_uniform(shares, any_value, mixed.valid[:, None])
        own_column = F.one_hot(mixed.grouped, columns).to(out.dtype).repeat_interleave(values, 1)
        certain = (own_column * torch.sigmoid(out[..., 3:] + 3))[..., None]  # (B, G V, C, 1)
        value = torch.eye(values, dtype=out.dtype, device=out.device)
        exact = F.pad(value.repeat(mixed.grouped.shape[1], 1), (0, 1))[None, :, None]
        return spread * (1 - certain) + certain * exact


def _with_uniform(shares: Tensor, weight: Tensor, valid: Tensor) -> Tensor:
    """Add a share of the uniform distribution over valid values and another one: (..., V + 1)."""
    full = F.pad(valid, (0, 1), value=1.0)
    return F.pad(shares, (0, 1)) + weight * full / full.sum(-1, keepdim=True)


def _pooled(cells: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the spread of the cells of rows. (B, n, D, cell) -> (B, n, cell) each."""
    mean = cells.mean(2)
    return mean, ((cells - mean[:, :, None]).square().mean(2) + 1e-6).sqrt()


def write_memory(
    network: TableNetwork,
    context: Tensor,
    codes: Tensor | None = None,
    counts: Tensor | None = None,
    target: int | None = None,
) -> Components:
    """Return the components of contexts (B, n, D), codes (B, n, C) of `counts` (B, C) values."""
    if codes is None or counts is None:
        codes = torch.zeros(*context.shape[:2], 0, dtype=torch.long, device=context.device)
        counts = codes[:, 0]
    resolution = column_resolution(context)
    found = features(context, resolution)
    mixed = read_categories(found, codes, counts, target)
    return cast(Components, network(found, mixed, width_floor(resolution)))


def two_layers(inputs: int, hidden: int, outputs: int) -> nn.Sequential:
    """Return a network with one hidden layer."""
    return nn.Sequential(nn.Linear(inputs, hidden), nn.GELU(), nn.Linear(hidden, outputs))
