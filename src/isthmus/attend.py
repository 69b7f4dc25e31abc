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
from typing import Any, NamedTuple, cast

from torch import Tensor

from isthmus.errors import InvalidInputError
from isthmus.fused import FusedAttention
from isthmus.logits import (
    Keys,
    Metric,
    attention_logits,
    needs_float64,
    observed_as_dot,
    plain_attention,
)
from isthmus.validation import as_log_weights, as_mask, as_points, as_positive, is_transforming

__all__ = ["Attention", "Keys", "Metric", "attend", "attention_logits", "needs_float64"]

# Below this many logits and entries of memories, plain torch operations are faster than setting
# up the fused pass.
PLAIN_LOGITS = 2**16


class Attention(NamedTuple):
    """Result of :func:`attend`."""

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
    if metric not in ("dot", "sqeuclidean"):
        raise InvalidInputError(f"metric must be 'dot' or 'sqeuclidean', not {metric!r}.")
    if observed is not None:
        if metric == "dot":
            raise InvalidInputError("observed needs metric='sqeuclidean'.")
        observed = as_mask(observed, "observed", queries)
    found = attend_centred(queries, keys, beta, bias, metric, observed)
    return Attention(found.logsumexp, found.mean + keys.centre)


def attend_centred(
    queries: Tensor,
    keys: Keys,
    beta: float | Tensor,
    bias: Any = None,
    metric: Metric = "sqeuclidean",
    observed: Tensor | None = None,
) -> Attention:
    """Return :func:`attend` for checked queries (..., D), with the mean relative to the centre.

    Differences from the centre keep their digits where the data lie far from the origin.
    """
    beta = as_positive(beta, "beta", keys.memories)
    if bias is not None:
        bias = as_log_weights(bias, "bias", keys.memories)
    flat = queries.reshape(-1, queries.shape[-1])
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
