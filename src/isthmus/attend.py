r"""The kernel under every memory: log-sum-exp attention, fused and chunked.

For queries :math:`q` and memories :math:`m_n` with logits :math:`\beta\, q \cdot m_n + b_n` or
:math:`-\beta\, \lVert q - m_n \rVert^2 + b_n`, :func:`attend` returns their log-sum-exp and the
softmax-weighted mean of the memories in one pass of flash attention, whose mask is the bias
and the squared norms. Neither a Q x N matrix nor a second copy of the memories is ever held.
"""

from __future__ import annotations

import sys
from typing import Any, cast

from torch import Tensor

from isthmus.errors import InvalidInputError
from isthmus.index.codes import CompressedKeys
from isthmus.index.index import Index
from isthmus.index.pruned import Plan, Weights, is_prunable
from isthmus.index.sampled import sampled_attention
from isthmus.kernel.attention import Attention, ConfidenceBound, ErrorBound, attend_centred
from isthmus.kernel.logits import Keys, Metric, attention_logits, needs_float64
from isthmus.validation import (
    as_choice,
    as_log_weights,
    as_mask,
    as_number,
    as_points,
    as_positive,
    as_seed,
    require_range,
)

__all__ = [
    "Attention",
    "CompressedKeys",
    "ConfidenceBound",
    "ErrorBound",
    "Index",
    "Keys",
    "Metric",
    "attend",
    "attention_logits",
    "needs_float64",
]

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
    delta: float | None = None,
    seed: int = 0,
) -> Attention:
    r"""Return the log-sum-exp and the softmax-weighted mean of `memories` for each query.

    Parameters
    ----------
    queries : (..., D)
    memories : (N, D), Keys or CompressedKeys
        :class:`Keys` are checked and measured once, which saves several passes over large
        memories in every call. :class:`CompressedKeys` hold one or two bytes for each coordinate:
        the result is in float64, has bounds on its errors, and no derivatives.
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
        the result has bounds on its errors. Without effect with `observed` or gradients.
    tol : float in (0, 0.5]
        With an index: the log-sum-exp is off by at most this, apart from rounding.
    delta : float in (0, 1), optional
        With an index: where its cells cannot tell memories apart, read them rounded to one byte for
        each coordinate, and correct the sum by a random sample. The ``confidence_bound`` of the
        result then holds for each query with probability 1 - `delta`, and is at most `tol` for the
        log-sum-exp. Queries whose sample would be too large are answered from all memories.
    seed : int
        Seed of the sample.

    Returns
    -------
    Attention
        ``logsumexp`` (...) and ``mean`` (..., D), with ``error_bound`` and ``confidence_bound``
        where they apply. Without an index, differentiable in queries, memories, bias and beta,
        any number of times. Float32 logits that would be off by 1e-3 are
        computed in float64.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> memories = torch.tensor([[0.0, 0.0], [4.0, 0.0]])
    >>> ist.attend(torch.tensor([[3.0, 0.0]]), memories, metric="sqeuclidean").mean
    tensor([[3.9987, 0.0000]])
    """
    keys = memories if isinstance(memories, Keys | CompressedKeys) else Keys.of(memories)
    stored = keys.memories
    queries = as_points(
        queries, "queries", dim=stored.shape[1], like=stored, allow_nan=observed is not None
    )
    as_choice(metric, "metric", ("dot", "sqeuclidean"))
    if observed is not None:
        if metric == "dot":
            raise InvalidInputError("observed needs metric='sqeuclidean'.")
        observed = as_mask(observed, "observed", queries)
    checked = as_positive(beta, "beta", stored)
    if bias is not None:
        bias = as_log_weights(bias, "bias", stored)
    if isinstance(keys, CompressedKeys):
        if not (observed is None and index is None and delta is None):
            raise InvalidInputError("CompressedKeys take no observed, index or delta.")
        return keys._attention(queries, float(checked), bias, metric)
    found = None
    if delta is not None:
        if index is None:
            raise InvalidInputError(
                "delta needs an index; pass index=isthmus.attend.Index(memories)."
            )
        delta = as_number(delta, "delta", above=0, below=1)
    if index is not None:
        if not isinstance(index, Index):
            raise InvalidInputError(f"index must be an isthmus.attend.Index, not {index!r}.")
        tol = as_number(tol, "tol", above=0, at_most=LARGEST_TOL)
        index.require(stored)
        if observed is None and is_prunable(queries, stored, checked, bias):
            # As given, not rounded to the dtype of the memories, which would show in the bounds.
            weights = Weights(index, bias, float(beta), metric)
            plan = Plan(queries.reshape(-1, queries.shape[-1]), index, weights, tol)
            if delta is None:
                found = plan.attention(queries.shape, keys)
            else:
                found = sampled_attention(plan, queries, keys, bias, delta, as_seed(seed))
    if found is None:
        found = attend_centred(queries, keys, checked, bias, metric, observed)
    require_range(found.mean, "beta times a product or squared distance of queries and memories")
    mean = found.mean + keys.centre
    return Attention(found.logsumexp, mean, found.error_bound, found.confidence_bound)


# The function is the module: ``ist.attend`` and ``isthmus.attend`` are one object, whose attributes
# are the names above.
for _name in [*__all__, "__all__", "__file__", "__spec__"]:
    setattr(attend, _name, globals()[_name])
sys.modules[__name__] = cast("Any", attend)
