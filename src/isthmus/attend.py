r"""The kernel under every memory: log-sum-exp attention, fused and chunked.

For queries :math:`q` and memories :math:`m_n` with logits

.. math::
    \ell_n(q) = \beta\, q \cdot m_n + b_n
    \quad\text{or}\quad
    \ell_n(q) = -\beta\, \lVert q - m_n \rVert^2 + b_n ,

:func:`attend` returns :math:`\log\sum_n e^{\ell_n}` and
:math:`\sum_n \mathrm{softmax}(\ell)_n m_n`. Both come out of one pass of flash attention:
the bias rides along as one more column of the keys (:math:`q' = [\beta q, 1]`,
:math:`k' = [m, b]`), and memories are taken in blocks whose results are merged, so that
neither a Q x N matrix nor a second copy of the memories is ever held. The backward pass is
flash attention's own, with the gradient of the log-sum-exp riding along in the same column.
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

from torch import Tensor

from isthmus.errors import InvalidInputError, ShapeError
from isthmus.fused import FusedAttention
from isthmus.logits import (
    Metric,
    attention_logits,
    needs_float64,
    observed_as_dot,
    plain_attention,
)
from isthmus.validation import (
    as_log_weights,
    as_mask,
    as_points,
    as_positive,
    is_transforming,
)

__all__ = ["Attention", "Metric", "attend", "attention_logits", "needs_float64"]

# Below this many logits, plain torch operations are faster than setting up the fused pass.
PLAIN_LOGITS = 2**16


class Attention(NamedTuple):
    """What :func:`attend` returns."""

    logsumexp: Tensor
    """Log of the sum over n of exp(logit_n). (...)"""
    mean: Tensor
    """Softmax-weighted mean of the memories. (..., D)"""


def attend(
    queries: Any,
    memories: Any,
    *,
    beta: float | Tensor = 1.0,
    bias: Any = None,
    metric: Metric = "dot",
    observed: Any = None,
) -> Attention:
    r"""Log-sum-exp and softmax-weighted mean of `memories`, as seen from `queries`.

    Parameters
    ----------
    queries : (..., D)
    memories : (N, D)
    beta : float or scalar tensor
        Inverse temperature, above zero.
    bias : (N,), optional
        Added to each memory's logit; ``-inf`` leaves a memory out.
    metric : {"dot", "sqeuclidean"}
        :math:`\beta q \cdot m` or :math:`-\beta \lVert q - m \rVert^2`.
    observed : (..., D) bool, optional
        Take the squared distance over these coordinates of each query only; the mean still
        has all D. Only with ``metric="sqeuclidean"``.

    Returns
    -------
    Attention
        ``logsumexp`` (...) and ``mean`` (..., D), differentiable in queries, memories, bias
        and beta. First derivatives are fused as well; second derivatives are exact too, but
        hold a Q x N matrix.

    Notes
    -----
    Data are centred on the memories first. Where float32 could not hold the logits to about
    1e-3 all the same (a large beta, a query far away), they are computed in float64.

    Examples
    --------
    >>> import torch
    >>> from isthmus.attend import attend
    >>> memories = torch.tensor([[0.0, 0.0], [4.0, 0.0]])
    >>> attend(torch.tensor([[3.0, 0.0]]), memories, metric="sqeuclidean").mean
    tensor([[3.9987, 0.0000]])
    """
    memories = as_points(memories, "memories")
    if memories.ndim != 2 or memories.shape[0] == 0:
        raise ShapeError(f"memories must be (N, D) with N > 0, not {tuple(memories.shape)}.")
    queries = as_points(
        queries, "queries", dim=memories.shape[1], like=memories, allow_nan=observed is not None
    )
    beta = as_positive(beta, "beta", memories)
    if metric not in ("dot", "sqeuclidean"):
        raise InvalidInputError(f"metric must be 'dot' or 'sqeuclidean', not {metric!r}.")
    if bias is None:
        bias = memories.new_zeros(memories.shape[0])
    bias = as_log_weights(bias, "bias", memories)
    flat = queries.reshape(-1, memories.shape[1])
    if observed is None:
        logsumexp, mean = _attend(flat, memories, bias, beta, metric)
    elif metric == "dot":
        raise InvalidInputError("observed needs metric='sqeuclidean'.")
    else:
        seen = as_mask(observed, "observed", queries).reshape(flat.shape)
        logsumexp, mean = _attend_observed(flat, memories, bias, beta, seen)
    return Attention(logsumexp.reshape(queries.shape[:-1]), mean.reshape(queries.shape))


def _attend(
    queries: Tensor, memories: Tensor, bias: Tensor, beta: Tensor, metric: Metric
) -> tuple[Tensor, Tensor]:
    if is_transforming() or queries.shape[0] * memories.shape[0] <= PLAIN_LOGITS:
        return plain_attention(queries, memories, bias, beta, metric)
    fused = FusedAttention.apply(queries, memories, bias, beta, metric)
    return cast("tuple[Tensor, Tensor]", fused)


def _attend_observed(
    queries: Tensor, memories: Tensor, bias: Tensor, beta: Tensor, observed: Tensor
) -> tuple[Tensor, Tensor]:
    doubled_queries, doubled, own = observed_as_dot(queries, memories, bias, beta, observed)
    logsumexp, mean = _attend(doubled_queries, doubled, bias, beta, "dot")
    mean = mean[:, : memories.shape[1]] + memories.detach().mean(0)
    return (logsumexp - own).to(queries.dtype), mean.to(queries.dtype)
