r"""The kernel under every memory: log-sum-exp attention, fused and chunked.

For queries :math:`q` and memories :math:`m_n` with logits

.. math::
    \ell_n(q) = \beta\, q \cdot m_n + b_n
    \quad\text{or}\quad
    \ell_n(q) = -\beta\, \lVert q - m_n \rVert^2 + b_n ,

:func:`attend` returns :math:`\log\sum_n e^{\ell_n}` and
:math:`\sum_n \mathrm{softmax}(\ell)_n m_n`. Both come out of one pass of flash attention,
which reads the memories once: the bias and the squared norms of the memories are its additive
mask. Neither a Q x N matrix nor a second copy of the memories is ever held. The backward pass
is flash attention's own, on blocks of memories with the mask as one more column of the keys.

The module itself can be called like the function: ``ist.attend(queries, memories)``.
"""

from __future__ import annotations

import inspect
import sys
from types import ModuleType
from typing import Any, cast

from torch import Tensor

from isthmus.errors import InvalidInputError
from isthmus.fused import FusedAttention
from isthmus.index.index import Index
from isthmus.index.pruned import (
    Attention,
    ErrorBound,
    Plan,
    Weights,
    is_prunable,
    pruned_attention,
)
from isthmus.logits import (
    Keys,
    Metric,
    attention_logits,
    needs_float64,
    observed_as_dot,
    plain_attention,
)
from isthmus.validation import (
    as_choice,
    as_log_weights,
    as_mask,
    as_number,
    as_points,
    as_positive,
    is_transforming,
    require_range,
)

__all__ = [
    "Attention",
    "ErrorBound",
    "Index",
    "Keys",
    "Metric",
    "attend",
    "attention_logits",
    "needs_float64",
]

# Below this many logits and entries of memories, plain torch operations are faster than setting
# up the fused pass.
PLAIN_LOGITS = 2**16

# Largest share of the sum that may be left out; bounds on the mean need it below exp(-1/2).
LARGEST_TOL = 0.5


def attend(
    queries: Any,
    memories: Any,
    *,
    beta: float | Tensor = 1.0,
    bias: Any = None,
    metric: Metric = "dot",
    observed: Any = None,
    index: Index | None = None,
    tol: float = 1e-6,
) -> Attention:
    r"""Return the log-sum-exp and the softmax-weighted mean of `memories` for each query.

    Parameters
    ----------
    queries : (..., D)
    memories : (N, D) or Keys
        :class:`Keys` are checked and measured once, which saves several passes over large
        memories in every call.
    beta : float or scalar tensor
        Inverse temperature, above zero.
    bias : (N,), optional
        Added to each memory's logit; ``-inf`` leaves a memory out.
    metric : {"dot", "sqeuclidean"}
        :math:`\beta q \cdot m` or :math:`-\beta \lVert q - m \rVert^2`.
    observed : (..., D) bool, optional
        Take the squared distance over these coordinates of each query only; the mean still
        has all D. Only with ``metric="sqeuclidean"``.
    index : Index, optional
        An index of the same memories. Memories that provably do not matter are then left out, and
        the result has bounds on its errors. Without effect where `observed` is given or an argument
        requires a gradient.
    tol : float in (0, 0.5]
        With an index: the log-sum-exp is short by at most this, apart from rounding.

    Returns
    -------
    Attention
        ``logsumexp`` (...) and ``mean`` (..., D), differentiable in queries, memories, bias
        and beta. First derivatives are fused as well; second derivatives are exact too, but
        hold a Q x N matrix.

    Notes
    -----
    Logits are computed about the centre of the memories. Where float32 still could not hold
    them to about 1e-3 (a large beta, a query far away), they are computed in float64.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> memories = torch.tensor([[0.0, 0.0], [4.0, 0.0]])
    >>> ist.attend(torch.tensor([[3.0, 0.0]]), memories, metric="sqeuclidean").mean
    tensor([[3.9987, 0.0000]])
    """
    keys = memories if isinstance(memories, Keys) else Keys.of(memories)
    stored = keys.memories
    queries = as_points(
        queries, "queries", dim=stored.shape[1], like=stored, allow_nan=observed is not None
    )
    as_choice(metric, "metric", ("dot", "sqeuclidean"))
    if observed is not None:
        if metric == "dot":
            raise InvalidInputError("observed needs metric='sqeuclidean'.")
        observed = as_mask(observed, "observed", queries)
    found = None
    if index is not None:
        found = _attend_index(queries, keys, beta, bias, metric, observed, index, tol)
    if found is None:
        beta = as_positive(beta, "beta", stored)
        bias = None if bias is None else as_log_weights(bias, "bias", stored)
        found = attend_centred(queries, keys, beta, bias, metric, observed)
        require_range(
            found.mean, "beta times a product or squared distance of queries and memories"
        )
    return Attention(found.logsumexp, found.mean + keys.centre, found.error_bound)


def _attend_index(
    queries: Tensor,
    keys: Keys,
    beta: float | Tensor,
    bias: Any,
    metric: Metric,
    observed: Tensor | None,
    index: Index,
    tol: float,
) -> Attention | None:
    """Return attention over an index, or None if it is of no use for these arguments."""
    if not isinstance(index, Index):
        raise InvalidInputError(f"index must be an isthmus.attend.Index, not {index!r}.")
    tol = as_number(tol, "tol", above=0, at_most=LARGEST_TOL)
    index.require(keys.memories)
    checked = as_positive(beta, "beta", keys.memories)
    if bias is not None:
        bias = as_log_weights(bias, "bias", keys.memories)
    if observed is not None or not is_prunable(queries, keys.memories, checked, bias):
        return None
    # As given, not rounded to the dtype of the memories, which would show beside the bounds.
    value = float(beta)
    weights = Weights(index, bias, value, metric)
    flat = queries.reshape(-1, queries.shape[-1])
    plan = Plan(flat, index, weights, value, metric, tol)
    return pruned_attention(plan, queries.shape, keys)


def attend_centred(
    queries: Tensor,
    keys: Keys,
    beta: Tensor,
    bias: Tensor | None = None,
    metric: Metric = "sqeuclidean",
    observed: Tensor | None = None,
) -> Attention:
    """Return :func:`attend` for checked arguments, with the mean relative to the centre.

    Differences from the centre keep their digits where the data lie far from the origin.
    """
    flat, beta = queries.reshape(-1, queries.shape[-1]), beta.to(keys.memories)
    if observed is None:
        logsumexp, mean = _attend(flat, keys, bias, beta, metric)
    else:
        seen = observed.reshape(flat.shape)
        doubled_queries, doubled, own = observed_as_dot(flat, keys, bias, beta, seen)
        doubled_keys = Keys(doubled)
        logsumexp, mean = _attend(doubled_queries, doubled_keys, bias, beta, "dot")
        logsumexp = (logsumexp - own).to(queries.dtype)
        mean = (mean + doubled_keys.centre)[:, : queries.shape[-1]].to(queries.dtype)
    return Attention(logsumexp.reshape(queries.shape[:-1]), mean.reshape(queries.shape))


def _attend(
    queries: Tensor, keys: Keys, bias: Tensor | None, beta: Tensor, metric: Metric
) -> tuple[Tensor, Tensor]:
    size = max(queries.shape[0] * keys.memories.shape[0], keys.memories.numel())
    if is_transforming() or queries.shape[0] == 0 or size <= PLAIN_LOGITS:
        return plain_attention(queries, keys, bias, beta, metric)
    fused = FusedAttention.apply(queries, keys.memories, bias, beta, metric, keys)
    return cast("tuple[Tensor, Tensor]", fused)


class _CallableModule(ModuleType):
    """A module that is called like its function: both have the name ``isthmus.attend``."""

    __call__ = staticmethod(attend)
    __signature__ = inspect.signature(attend)


sys.modules[__name__].__class__ = _CallableModule
