"""Logits of queries against memories, computed about a centre that keeps them exact."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property, partial
from itertools import starmap
from typing import Any, Literal, Self

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from isthmus.errors import ShapeError
from isthmus.validation import as_tensor, is_transforming, require_finite

Metric = Literal["dot", "sqeuclidean"]
"""A query is compared with a memory by the dot product or by minus the squared distance."""

# Float32 rounding (6e-8 of a term) shows in a logit once its terms are larger than this.
FLOAT32_LOGIT_LIMIT = 4096.0
# Beyond this, float64 rounding would show (1e-6), and distances are summed from differences.
FLOAT64_LOGIT_LIMIT = 1e9

# Entries of one block of memories: 16 MiB in float32.
BLOCK_ENTRIES = 2**22
# The centre is the median of about this many memories, so that far ones do not move it; or the
# origin, if the median is nearer to it than this share of their radius.
CENTRE_ROWS, NEAR_ORIGIN = 1024, 0.25
# Entries of the memories that are measured at once, which stay in the cache.
MEASURED_ENTRIES = 2**18


class Keys:
    """Memories (N, D), finite, with the statistics that every call needs, each computed once.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> from isthmus.attend import Keys
    >>> keys = Keys.of(torch.tensor([[0.0, 0.0], [4.0, 0.0]]))  # checked and measured once
    >>> ist.attend(torch.tensor([3.0, 0.0]), keys, metric="sqeuclidean").mean
    tensor([3.9987, 0.0000])
    """

    def __init__(self, memories: Tensor) -> None:
        self.memories = memories
        self._squares: dict[torch.dtype, Tensor] = {}
        self._centred: Tensor | None = None

    @classmethod
    def of(cls, memories: Any) -> Self:
        """Check memories (N, D) and wrap them."""
        checked = as_tensor(memories, "memories")
        if checked.ndim != 2 or checked.shape[0] == 0:
            raise ShapeError(f"memories must be (N, D) with N > 0, not {tuple(checked.shape)}.")
        keys = cls(checked)
        # One pass measures the memories and shows whether all are finite.
        if is_transforming() or not math.isfinite(keys.radius):
            require_finite(checked, "memories", "Remove such rows, or fill unknown values.")
        return keys

    @cached_property
    def centre(self) -> Tensor:
        """The median of some memories, or the origin if it is near, without a gradient. (D,)."""
        rows = self.memories.detach()[:: max(1, len(self.memories) // CENTRE_ROWS)]
        middle = rows.median(0).values
        radius = torch.linalg.vector_norm(rows - middle, dim=1).max()
        is_near = torch.linalg.vector_norm(middle) <= NEAR_ORIGIN * radius
        return torch.where(is_near, torch.zeros_like(middle), middle)

    @torch.no_grad()
    def squares(self, dtype: torch.dtype) -> Tensor:
        """Return the squared distance of each memory from the centre, without a gradient. (N,)."""
        if dtype not in self._squares:
            centre = self.centre.to(dtype)
            memories = self.memories.detach()
            if not is_transforming() and dtype == memories.dtype and not bool(centre.any()):
                norms = torch.linalg.vector_norm(memories, dim=1)
            else:
                blocks = memories.split(max(MEASURED_ENTRIES // max(len(centre), 1), 256))
                apart = (block.to(dtype) - centre for block in blocks)
                norms = torch.cat([torch.linalg.vector_norm(block, dim=1) for block in apart])
            self._squares[dtype] = norms.square_()
        return self._squares[dtype]

    def centred(self, dtype: torch.dtype) -> Tensor:
        """Return the memories about the centre, without a gradient; the last result is kept."""
        if self._centred is None or self._centred.dtype != dtype:
            self._centred = self.memories.detach().to(dtype) - self.centre.to(dtype)
        return self._centred

    def scaled_squares(self, factor: Tensor) -> Tensor:
        """Return `factor` times the squares, in its dtype. (N,)."""
        return float(factor) * self.squares(factor.dtype)

    @cached_property
    def radius(self) -> float:
        """The largest distance of a memory from the centre."""
        return math.sqrt(self.squares(self.memories.dtype).max().item())

    @cached_property
    def off_centre(self) -> float:
        """The distance of the centre from the origin."""
        return torch.linalg.vector_norm(self.centre).item()


def tensor_version(tensor: Tensor) -> tuple[int, int] | None:
    """Return what changes with the contents of a tensor, or None if torch does not record it."""
    if is_transforming() or tensor.is_inference():
        return None
    return tensor.data_ptr(), tensor._version


def in_blocks(
    method: Callable[..., tuple[Tensor, ...]], keys: Keys, *queries: Tensor
) -> tuple[Tensor, ...]:
    """Return a function of queries (Q, D), in blocks that are computed again for derivatives."""
    count, dim = keys.memories.shape
    rows = max(BLOCK_ENTRIES // count, dim)
    if is_transforming() or len(queries[0]) <= rows:
        return method(*queries)
    again = partial(checkpoint, method, use_reentrant=False)
    blocks = zip(*(each.split(rows) for each in queries), strict=True)
    parts = starmap(again if torch.is_grad_enabled() else method, blocks)
    return tuple(map(torch.cat, zip(*parts, strict=True)))


def far_queries(queries: Tensor, centre: Tensor, beta: Tensor) -> Tensor | None:
    """Return which queries (Q,) are so far off that products about the centre lose digits, if any.

    Such are outliers beside a memory of theirs: their distance is a small difference.
    """
    if is_transforming() or queries.device.type == "mps":
        return None
    lengths = torch.linalg.vector_norm(queries.detach() - centre, dim=1)
    far = lengths > math.sqrt(FLOAT64_LOGIT_LIMIT / beta.item())
    return far if bool(far.any()) else None


def split_far(
    far: Tensor | None, near: Callable[..., Any], off: Callable[..., Any], *queries: Tensor
) -> tuple[Tensor, ...]:
    """Return a function of queries (Q, D), computed by another one for those that are far off."""
    if far is None:
        return tuple(near(*queries))
    rows = [torch.nonzero(chosen)[:, 0] for chosen in (~far, far)]
    parts = [
        method(*(each[some] for each in queries))
        for method, some in zip((near, off), rows, strict=True)
    ]
    back = torch.argsort(torch.cat(rows))
    return tuple(torch.cat(each)[back] for each in zip(*parts, strict=True))


def squares_apart(
    x: Tensor, memories: Tensor, observed: Tensor | None = None, precision: Tensor | None = None
) -> Tensor:
    """Return squared distances from differences, exact to rounding. (Q, D), (n, D) -> (Q, n)

    Coordinates may be observed (Q, D), and weighted by a precision (n, D).
    """
    squares = x.new_zeros(len(x), len(memories))
    for d in range(x.shape[1]):
        square = (x[:, d, None] - memories[:, d]).square()
        square = square if precision is None else precision[:, d] * square
        squares = squares + (square if observed is None else square * observed[:, d, None])
    return squares


def attention_logits(
    queries: Tensor,
    memories: Tensor | Keys,
    bias: Tensor | None,
    beta: Tensor,
    metric: Metric,
    observed: Tensor | None = None,
) -> Tensor:
    """Return the logits (..., N), over the coordinates `observed`; in float64 if need be."""
    keys = memories if isinstance(memories, Keys) else Keys(memories)
    flat = queries.reshape(-1, queries.shape[-1])
    mask = None if observed is None else observed.reshape(flat.shape)
    logits, row, _ = _centred_logits(flat, keys, bias, beta, metric, mask)
    return (logits + row[:, None]).reshape(*queries.shape[:-1], logits.shape[1])


def plain_attention(
    queries: Tensor,
    keys: Keys,
    bias: Tensor | None,
    beta: Tensor,
    metric: Metric,
    observed: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp (Q,) and the mean about the centre (Q, D), by ordinary operations."""
    logits, row, centred = _centred_logits(queries, keys, bias, beta, metric, observed)
    total, mean = pooled(logits, centred)
    return (total + row).to(queries.dtype), mean.to(queries.dtype)


def pooled(logits: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp (Q,) of logits (Q, N), and the mean of values (N, V): (Q, V)."""
    return torch.logsumexp(logits, 1), torch.softmax(logits, 1) @ values


def _centred_logits(
    queries: Tensor,
    keys: Keys,
    bias: Tensor | None,
    beta: Tensor,
    metric: Metric,
    observed: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return logits (Q, N) without their term per query, that term (Q,), and centred memories."""
    if observed is not None:
        queries = torch.where(observed, queries, keys.centre)
    if metric == "sqeuclidean" and far_queries(queries, keys.centre, beta) is not None:
        queries, memories, beta = queries.double(), keys.memories.double(), beta.double()
        logits = -beta * squares_apart(queries, memories, observed)
        logits = logits if bias is None else logits + bias
        return logits, queries.new_zeros(len(queries)), memories - keys.centre
    shifted, centre = shift(queries, keys, bias, beta, metric)
    inputs = (queries, keys.memories, beta, bias)
    graph = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    if metric == "sqeuclidean" and observed is None and not (graph or is_transforming()):
        own, factor = keys.scaled_squares(beta.to(shifted.dtype)), float(beta)
        centred = keys.centred(shifted.dtype)
        offset = -own if bias is None else bias.to(own) - own
        logits = torch.addmm(offset, shifted, centred.mT, alpha=2 * factor)
        return logits, -factor * shifted.square().sum(1), centred
    centred = keys.memories.to(centre.dtype) - centre
    beta = beta.to(shifted.dtype)
    bias = centred.new_zeros(()) if bias is None else bias.to(shifted.dtype)
    if metric == "dot":
        row = beta * (shifted @ centre)
        return torch.addmm(bias, beta * shifted, centred.mT), row, centred
    mask = None if observed is None else observed.to(shifted.dtype)
    row = -beta * shifted.square().sum(1)
    return distance_logits(shifted, centred, bias, beta, mask), row, centred


def shift(
    queries: Tensor, keys: Keys, bias: Tensor | None, beta: Tensor, metric: Metric
) -> tuple[Tensor, Tensor]:
    """Return queries, about the centre for distances, and the centre, in float64 if need be."""
    centre = keys.centre
    shifted = queries - centre if metric == "sqeuclidean" else queries
    if needs_float64(shifted, keys, bias, beta, metric):
        centre = centre.double()
        shifted = queries.double() - centre if metric == "sqeuclidean" else queries.double()
    return shifted, centre


def distance_logits(
    queries: Tensor,
    memories: Tensor,
    bias: Tensor | float,
    beta: Tensor | float,
    observed: Tensor | None = None,
) -> Tensor:
    r"""Return :math:`b_n - \beta \lVert q - m_n \rVert^2 + \beta \lVert q \rVert^2` as (Q, N).

    Data must be near the origin, as centred data are. In `observed` (Q, D), 1 marks the known
    coordinates of a query; the others must be 0 in the query itself.
    """
    few = len(queries) <= len(memories)
    left = 2 * beta * queries if few else queries
    right = memories if few else 2 * beta * memories
    if observed is None:
        return torch.addmm(bias - beta * memories.square().sum(1), left, right.mT)
    own = torch.as_tensor(bias, dtype=memories.dtype, device=memories.device)
    logits = torch.addmm(own, left, right.mT)
    return torch.addmm(logits, observed, (-beta * memories.square()).mT)


def needs_float64(
    shifted: Tensor, memories: Tensor | Keys, bias: Tensor | None, beta: Tensor, metric: Metric
) -> bool:
    """Return True if float32 would lose more than about 1e-3 of a logit of centred points."""
    if is_transforming() or shifted.dtype == torch.float64 or shifted.device.type == "mps":
        return False
    query = largest_norm(shifted)
    memory = memories.radius if isinstance(memories, Keys) else largest_norm(memories)
    size = query * memory if metric == "dot" else max(query, memory) ** 2
    if beta.item() * size > FLOAT32_LOGIT_LIMIT:
        return True
    if bias is None:
        return False
    bias = bias.detach()
    return bias.masked_fill(bias == -torch.inf, 0).abs().max().item() > FLOAT32_LOGIT_LIMIT


def largest_norm(points: Tensor) -> float:
    """Return the largest Euclidean norm of a row, 0 if there are none."""
    if not points.shape[0]:
        return 0.0
    return torch.linalg.vector_norm(points.detach(), dim=1).max().item()


def observed_as_dot(
    queries: Tensor, keys: Keys, bias: Tensor | None, beta: Tensor, observed: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return distances over observed coordinates as dot products in twice the dimensions.

    sum_d o_d (q_d - m_d)^2 = sum_d o_d q_d^2 - [2 o q, -o] . [m, m^2]: both factors, (Q, 2 D) and
    (N, 2 D), and beta times the first sum (Q,).
    """
    centre = keys.centre
    shifted = torch.where(observed, queries, centre) - centre
    centred = keys.memories - centre
    if needs_float64(shifted, keys, bias, beta, "sqeuclidean"):
        shifted, centred = shifted.double(), centred.double()
    return (
        torch.cat([2 * shifted, -observed.to(shifted.dtype)], 1),
        torch.cat([centred, centred.square()], 1),
        beta * shifted.square().sum(1),
    )
