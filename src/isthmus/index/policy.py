"""Pruning: whether the queries of a memory go through an index, and why."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor

from isthmus.errors import InvalidInputError
from isthmus.index.index import Index, is_indexable
from isthmus.index.pruned import Plan, Weights, is_prunable
from isthmus.kernel.attention import Attention, attend_centred
from isthmus.kernel.logits import Keys, Metric, attention_logits, tensor_version

Setting = bool | Literal["auto"] | Index
"""The argument `index` of memories."""
Kernel = tuple[Tensor, Tensor | None, Metric]
"""The arguments beta, bias and metric of :func:`isthmus.attend.attend`."""

# Largest error of the log-sum-exp by memories left out.
TOL = 1e-6
# "auto" keeps to all memories up to this number.
FEWEST_MEMORIES = 30_000
# "auto" builds an index when as many queries were asked, which takes about as long as it does. Each
# call with as many is judged by its own sample, smaller ones by the last.
QUERIES = 4096
# "auto" uses the index if sample tiles need at most this share of the memories, and for calls with
# few queries, which share their tiles with none, if they need less.
KEPT, KEPT_FEW, FEW_QUERIES = 0.2, 0.05, 64
# Queries and memories that tell, before an index is built, whether one could help.
LEAST_QUERIES, LEAST_MEMORIES = 64, 2**14


@dataclass(frozen=True)
class IndexReport:
    """What a memory did with its last queries, and why.

    `kept` is the share of the memories that they needed, and `tol` the largest error of a
    log-sum-exp by memories left out.
    """

    setting: str
    used: bool
    reason: str
    kept: float | None = None
    tol: float = TOL

    def __str__(self) -> str:
        share = "" if self.kept is None else f"; queries need {self.kept:.2%} of the memories"
        return f"{'index' if self.used else 'all memories'}: {self.reason}{share}"


def _least_share(queries: Tensor, keys: Keys, kernel: Kernel) -> float:
    """Return the share of memories that some queries would need of any index, however fine."""
    beta, bias, metric = kernel
    rows = slice(None, None, max(len(keys.memories) // LEAST_MEMORIES, 1))
    some = queries[:: max(len(queries) // LEAST_QUERIES, 1)][:LEAST_QUERIES]
    total = attend_centred(some, keys, beta, bias, metric).logsumexp
    part, own = Keys(keys.memories[rows]), None if bias is None else bias[rows]
    logits = attention_logits(some, part, own, beta, metric)
    needed = logits > total[:, None] + math.log(TOL / len(keys.memories))
    return float(needed.double().mean()) if len(some) else 0.0


class Pruning:
    """The index of a memory, if it has one, and the rule that decides about its use."""

    def __init__(self, setting: Setting) -> None:
        named = isinstance(setting, str) and setting == "auto"
        if not (named or isinstance(setting, bool | Index)):
            raise InvalidInputError(
                f"index must be 'auto', True, False or an isthmus.attend.Index, not {setting!r}."
            )
        self.setting = setting
        self.asked = 0
        self.kept: float | None = None
        self._index = setting if isinstance(setting, Index) else None
        self._weights: tuple[Any, Tensor | None, Weights] | None = None
        self._report("nothing was asked yet", used=False)

    def __getstate__(self) -> dict[str, Any]:
        # Copies and pickles start afresh, and build an index of their own unless it was given.
        return vars(Pruning(self.setting))

    def _report(self, reason: str, used: bool) -> None:
        self.report = IndexReport(repr(self.setting), used, reason, self.kept)

    def moved(self, setting: Setting, memories: Tensor) -> Pruning:
        """Return the pruning of memories that are these after a shift or a linear map."""
        other = Pruning(setting)
        other.asked = self.asked
        if self._index is not None and is_indexable(memories):
            other._index = self._index.moved(memories)
        return other

    def may_prune(self, count: int) -> bool:
        """Return True if `count` memories may go through an index at all."""
        return self.setting is not False and (self.setting != "auto" or count >= FEWEST_MEMORIES)

    def attend(self, queries: Tensor, keys: Keys, *kernel: *Kernel) -> Attention:
        """Return attention with the mean about the centre, by the index where it helps."""
        plan, reason = self._plan(queries.reshape(-1, queries.shape[-1]), keys, kernel)
        if plan is None:
            self._report(reason, used=False)
            return attend_centred(queries, keys, *kernel)
        found = plan.attention(queries.shape, keys)
        self.kept = plan.kept
        self._report(reason, used=True)
        return found

    def _plan(self, queries: Tensor, keys: Keys, kernel: Kernel) -> tuple[Plan | None, str]:
        """Return a plan if the queries should go through the index, and the reason."""
        if not self.may_prune(len(keys.memories)):
            few = f"fewer than {FEWEST_MEMORIES:,} memories"
            return None, "index=False" if self.setting is False else few
        if not is_prunable(queries, keys.memories, *kernel[:2]):
            return None, "gradients, a transformation, another device or huge numbers"
        self.asked += len(queries)
        if self.setting != "auto":
            reason = "asked for" if self.setting is True else "given"
            return self._make(queries, keys, kernel), reason
        if self._index is None and self.asked < QUERIES:
            return None, f"fewer than {QUERIES:,} queries so far do not pay for an index"
        known = self._index is not None and self._index.is_of(keys.memories)
        if not (known or is_indexable(keys.memories)):
            return None, "huge numbers"
        plan, sampled = None, self.kept is None or len(queries) >= QUERIES
        limit = KEPT if sampled or len(queries) >= FEW_QUERIES else KEPT_FEW
        if sampled and self._index is None:
            self.kept = _least_share(queries, keys, kernel)
        if self.kept is None or self.kept <= limit or (sampled and self._index is not None):
            plan = self._make(queries, keys, kernel)
            if sampled or self.kept is None:
                self.kept = plan.kept_share()
        if self.kept > limit:
            return None, f"a sample of queries needs more than {limit:.0%}"
        return plan, f"a sample of queries needs at most {limit:.0%}"

    def _make(self, queries: Tensor, keys: Keys, kernel: Kernel) -> Plan:
        index, (beta, bias, metric) = self._index_of(keys), kernel
        state = float(beta), metric, id(bias), None if bias is None else tensor_version(bias)
        if self._weights is None or self._weights[0] != state:
            # The bias is kept too, so that no other has its address.
            self._weights = state, bias, Weights(index, bias, state[0], metric)
        return Plan(queries, index, self._weights[2], TOL)

    def _index_of(self, keys: Keys) -> Index:
        """Return the index of the memories, built anew if they changed."""
        if isinstance(self.setting, Index):
            self.setting.require(keys.memories)
            return self.setting
        if self._index is None or not self._index.is_of(keys.memories):
            self._index, self.kept, self._weights = Index(keys), None, None
        return self._index
