"""EnergyHead: a bounded correction of the written memory, read from query rows and the context."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from isthmus.incontext.tables.features import features
from isthmus.incontext.tables.network import Components, TableConfig, TableNetwork, two_layers
from isthmus.incontext.tables.resolution import column_resolution, width_floor

# The correction of the log-density lies between these. Draws by rejection take exp(HIGHEST)
# proposals each, divided by Z, so that the upper one is small.
LOWEST, HIGHEST = -6.0, 2.0
# Widths of the kernels that describe a value among those of its column, and the one that chooses
# its neighbours, in standard deviations.
WIDTHS, NEAR = (0.02, 0.07, 0.25, 0.9), 1
# Widths of the kernels that describe a row among the others, in Mahalanobis distances / sqrt(D).
ROW_WIDTHS = (0.1, 0.4)
# Features of a query's cell beside embeddings (the first ODD change sign with the column), of a
# pair beside responsibilities, and of a query row beside the embeddings of its cells.
ODD, CELL, PAIR, ROW = 1 + len(WIDTHS), 3 + 2 * len(WIDTHS), 4, 10 + len(ROW_WIDTHS)


class ReadTable(NamedTuple):
    """What the head knows of B tables of n rows, in standard units."""

    x: Tensor  # (B, n, D)
    share: Tensor  # (B, n, D), of each cell among the observed ones of its column
    white: Tensor  # (B, n, D)
    factor: Tensor  # (B, D, D), of the correlation
    resolution: Tensor  # (B, D)
    cells: Tensor  # (B, n, D, cell)
    rows: Tensor  # (B, n, width)
    means: Tensor  # of the components, (B, C, D)
    scale_trils: Tensor
    dof: Tensor
    log_weights: Tensor

    @property
    def components(self) -> Components:
        """What the network wrote."""
        return Components(self.means, self.scale_trils, self.dof, self.log_weights)


def read_tables(network: TableNetwork, context: Tensor) -> ReadTable:
    """Return what a network reads and writes of contexts (B, n, D) in standard units."""
    resolution = column_resolution(context)
    found = features(context, resolution)
    cells, rows = network.read(found)
    factor = torch.linalg.cholesky(found.correlation)
    white = torch.linalg.solve_triangular(factor, found.x.transpose(1, 2), upper=False)
    share = found.seen / found.seen.sum(1, keepdim=True)
    components = network.write(found, cells, rows, width_floor(resolution))
    return ReadTable(
        found.x, share, white.transpose(1, 2), factor, resolution, cells, rows, *components
    )


class QueryFeatures(NamedTuple):
    """Smooth functions of query rows (B, m, D), even and odd ones of their cells."""

    cell: Tensor  # (B, m, D, CELL)
    near: Tensor  # (B, m, D, cell), embeddings of the neighbours in the column
    row: Tensor  # (B, m, ROW + global kernels)
    pair: Tensor  # (B, m, n, PAIR + kernels)


def query_features(table: ReadTable, y: Tensor) -> QueryFeatures:
    """Return the features of rows (B, m, D) in standard units."""
    size, columns = table.x.shape[1:]
    along, cells, near = torch.zeros((), dtype=y.dtype, device=y.device), [], []
    for column in range(columns):
        gaps = y[:, :, None, column] - table.x[:, None, :, column]  # (B, m, n)
        share = table.share[:, None, :, column]
        along = along + 0.5 * (gaps.square() + 4e-4).log()
        odd, even = [y[..., column].asinh()], [0.5 * y[..., column].square().log1p()]
        for index, width in enumerate(WIDTHS):
            inverse = (gaps.square() + width**2).rsqrt()
            balance = (gaps * inverse * share).sum(-1)  # twice the distribution function, less 1
            odd.append(0.5 * ((1 + balance + 1 / size) / (1 - balance + 1 / size)).log())
            narrow = width * inverse
            kernel = narrow * narrow * narrow * share
            even.append((kernel.sum(-1) + 1e-3 * width).log() - math.log(width))
            if index == NEAR:
                weights = kernel / (kernel.sum(-1, keepdim=True) + 1e-9)
                near.append(weights @ table.cells[:, :, column])
        even.append(((table.resolution[:, column] + 1e-3).log() / 3 + 1)[:, None].expand_as(odd[0]))
        cells.append(torch.stack([*odd, *even], -1))
    pair, row = _pair_and_row(table, y, along / columns)
    return QueryFeatures(torch.stack(cells, 2), torch.stack(near, 2), row, pair)


def _pair_and_row(table: ReadTable, y: Tensor, along: Tensor) -> tuple[Tensor, Tensor]:
    """Return pair features (B, m, n, ...) and row features (B, m, ...)."""
    (size, columns), parts = table.x.shape[1:], table.components
    white = torch.linalg.solve_triangular(table.factor, y.transpose(1, 2), upper=False)
    white = white.transpose(1, 2)
    squares = torch.zeros_like(along)
    for column in range(columns):
        squares = squares + (white[:, :, None, column] - table.white[:, None, :, column]).square()
    squares = squares / columns
    terms = parts.log_terms(y)  # (B, C, m)
    log_prob = torch.logsumexp(terms, 1)
    # Kernels come first, each for all rows; then the components of the whole table.
    shares = (terms - log_prob[:, None]).exp().transpose(1, 2)  # (B, m, C)
    kernels = parts.means.shape[1] // size
    own = shares[..., : kernels * size].unflatten(-1, (kernels, size)).transpose(-1, -2)
    logs = 0.5 * (squares + 1e-4).log()
    distances = [logs, 0.3 * logs.square(), along, 0.3 * along.square()]
    pair = torch.cat([torch.stack(distances, -1), 0.2 * (own + 1e-5).log() + 1], -1)
    crowds = [((squares + w * w).reciprocal().mean(-1) * w * w).log() for w in ROW_WIDTHS]
    norm = 0.5 * (white.square().mean(-1) + 1e-2).log()
    constants = [
        (math.log(size) - 4) / 2,
        (columns - 4) / 4,
        (math.log(size / columns) - 3) / 2,
        1 / columns,
        math.log(size) / (columns + 4) - 0.6,
    ]
    density = log_prob / columns
    row = [*crowds, norm, density.asinh(), (density + 1).tanh()]
    row += [torch.full_like(norm, value) for value in constants]
    row.append(shares[..., : kernels * size].square().sum(-1))
    row.append((table.share == 0).to(y.dtype).mean((1, 2))[:, None].expand_as(norm))
    return pair, torch.cat([torch.stack(row, -1), shares[..., kernels * size :]], -1)


class QueryBlock(nn.Module):
    """A pre-norm transformer block in which queries attend to the rows of a context."""

    def __init__(self, config: TableConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.attention_norm, self.feedforward_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key_value = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.attention_out = nn.Linear(width, width)
        self.pair_bias = nn.Linear(PAIR + config.kernels, config.heads)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, stream: Tensor, rows: Tensor, pair: Tensor) -> Tensor:
        """Pass queries (B, m, width) through the block; rows are (B, n, width)."""
        batch, count, width = stream.shape
        split = width // self.heads
        query = self.query(self.attention_norm(stream)).view(batch, count, self.heads, split)
        joint = self.key_value(rows).view(batch, rows.shape[1], 2, self.heads, split)
        key, value = joint.permute(2, 0, 3, 1, 4)  # each (B, H, n, d)
        logits = query.transpose(1, 2) @ key.transpose(-1, -2) / math.sqrt(split)
        logits = logits + self.pair_bias(pair).permute(0, 3, 1, 2)
        mixed = (logits.softmax(-1) @ value).transpose(1, 2)
        stream = stream + self.attention_out(mixed.reshape(stream.shape))
        return stream + self.down(F.gelu(self.up(self.feedforward_norm(stream))))


class EnergyHead(nn.Module):
    """Turn query rows and a context into a correction of their log-density.

    It is smooth in the queries, lies between :data:`LOWEST` and :data:`HIGHEST`, and treats rows,
    columns and mirror images of columns alike, as :class:`TableNetwork` does.
    """

    def __init__(self, config: TableConfig) -> None:
        super().__init__()
        width, cell = config.width, config.cell_width
        self.cell_in = two_layers(CELL + 2 * cell, cell, cell)
        self.row_in = nn.Linear(2 * cell + ROW + config.global_kernels, width)
        self.blocks = nn.ModuleList(QueryBlock(config) for _ in range(config.head_layers))
        self.row_norm, self.out = nn.LayerNorm(width), two_layers(width, width, 1)
        last = self.out[2]
        assert isinstance(last, nn.Linear)
        nn.init.zeros_(last.weight)
        nn.init.zeros_(last.bias)

    def forward(self, table: ReadTable, found: QueryFeatures) -> Tensor:
        """Return the correction of each query. (B, m)."""
        flip = torch.ones(CELL, dtype=found.cell.dtype, device=found.cell.device)
        flip[:ODD] = -1
        column = (table.cells * table.share[..., None]).sum(1)[:, None].expand_as(found.near)
        both = [torch.cat([each, found.near, column], -1) for each in
                (found.cell, found.cell * flip)]  # fmt: skip
        cells = self.cell_in(torch.stack(both)).mean(0)  # (B, m, D, cell)
        mean = cells.mean(2)
        spread = ((cells - mean[:, :, None]).square().mean(2) + 1e-6).sqrt()
        stream = self.row_in(torch.cat([mean, spread, found.row], -1))
        for block in self.blocks:
            stream = block(stream, table.rows, found.pair)
        raw = self.out(self.row_norm(stream))[..., 0]
        return bounded(raw)


def bounded(raw: Tensor) -> Tensor:
    """Return numbers squeezed into the bounds, with 0 at 0 and slope 1 there."""
    span = HIGHEST - LOWEST
    at_zero = -LOWEST / span
    slope = span * at_zero * (1 - at_zero)
    return LOWEST + span * torch.sigmoid(raw / slope + math.log(at_zero / (1 - at_zero)))
