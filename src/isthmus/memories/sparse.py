"""The sparse modern Hopfield network: retrieval that is exact, not only close."""

from __future__ import annotations

from typing import Any, Literal, final

from torch import Tensor

from isthmus.kernel.logits import attention_logits
from isthmus.kernel.sparse import Separation, SparseAttention, attend_sparse, sparse_weights
from isthmus.memories.base import AtBeta, Memory, keep_observed
from isthmus.validation import as_positive, require_range


@final
class SparseHopfield(AtBeta, Memory):
    r"""Hopfield-Fenchel-Young energy: sparse attention with beta = 1 / sigma^2.

    .. math::
        E(x) = -\frac1\beta\, \Omega^*(\beta X x) + \tfrac12 x \cdot x, \qquad
        x \leftarrow X^\top \hat p(\beta X x), \qquad
        \hat p(\theta) = \arg\max_{p} \; \theta \cdot p - \Omega(p),

    with p on the simplex. :math:`\Omega` is Tsallis' negative entropy,
    :math:`(\sum_n p_n^\alpha - 1) / (\alpha (\alpha - 1))`, whose :math:`\hat p` is alpha-entmax
    (2: sparsemax); or :math:`\lVert p \rVert_\alpha - 1`, whose :math:`\hat p` is normmax. As alpha
    falls to 1, entmax becomes softmax and this energy that of :class:`ModernHopfield`.

    Both families have a margin m, 1/(alpha - 1) for entmax and 1 for normmax: one :meth:`step` from
    x ends exactly at :math:`x_n` if and only if
    :math:`x \cdot (x_n - x_j) \ge m/\beta` for all other j. The largest ball about :math:`x_n` with
    that property, which :func:`isthmus.capacity.certify` computes, has the radius
    :math:`\min_j (x_n \cdot (x_n - x_j) - m/\beta) / \lVert x_n - x_j \rVert`.

    The normaliser has no closed form: :func:`isthmus.with_normalizer` estimates it.

    Parameters
    ----------
    memories : array or Tensor (N, D)
    beta : float or scalar Tensor
        Inverse temperature; as in :class:`ModernHopfield`, 1 / sigma^2 of a matching kernel.
    alpha : float
        Order: in (1, 2] for entmax, larger is sparser; above 1 for normmax.
    separation : {"entmax", "normmax"}

    References
    ----------
    Santos, Niculae, McNamee and Martins, Sparse and Structured Hopfield Networks, ICML 2024.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> memory = ist.SparseHopfield(torch.eye(3), beta=4.0, alpha=2.0)
    >>> memory.step(torch.tensor([0.9, 0.2, 0.1]))  # exactly the first memory
    tensor([1., 0., 0.])
    >>> memory.responsibilities(torch.tensor([0.6, 0.4, 0.1]))
    tensor([0.9000, 0.1000, 0.0000])
    """

    has_responsibilities = True

    def __init__(
        self,
        memories: Any,
        beta: float | Tensor = 1.0,
        alpha: float = 1.5,
        separation: Literal["entmax", "normmax"] = "entmax",
    ) -> None:
        super().__init__(memories)
        self._store("beta", as_positive(beta, "beta", self.memories))
        self._rule = Separation(separation, alpha)
        self.alpha, self.separation = float(alpha), self._rule.family

    @property
    def margin(self) -> float:
        """The lead m of a logit that gives its memory all the weight."""
        return self._rule.margin

    def _curvature(self) -> Tensor:
        return self.memories.new_ones(())

    def _attend(self, x: Tensor) -> SparseAttention:
        flat = attend_sparse(x.reshape(-1, self.dim), self._keys(), self.beta, self._rule)
        return SparseAttention(flat.conjugate.reshape(x.shape[:-1]), flat.mean.reshape(x.shape))

    def _energy(self, x: Tensor) -> Tensor:
        energy: Tensor = 0.5 * x.square().sum(-1) - self._attend(x).conjugate / self.beta
        return energy

    def _score(self, x: Tensor) -> Tensor:
        return self._attend(x).mean - x

    def _step(self, x: Tensor, held: Tensor | None = None) -> Tensor:
        return keep_observed(self._attend(x).mean, x, held)

    def _responsibilities(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        logits = attention_logits(x, self._keys(), None, self.beta, "dot")
        return require_range(sparse_weights(logits, self._rule).to(x.dtype), "A logit")

    def _conditional_mean(self, x: Tensor, seen: Tensor) -> Tensor:
        return keep_observed(self._attend(x).mean, x, seen)
