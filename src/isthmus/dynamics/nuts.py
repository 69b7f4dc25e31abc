"""NUTS: Hamiltonian Monte Carlo whose trajectories end where they turn back, on many chains."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from isthmus.dynamics.samplers import Hamiltonian, Info, MetropolisState, Phase, Scales, noise
from isthmus.energy import Energy
from isthmus.validation import as_count

# A point whose Hamiltonian is this far above the start has diverged.
LARGEST_ERROR = 1000.0
# Trees of up to this depth are grown before they are looked at.
BLOCK = 3


class _Tree(NamedTuple):
    """A trajectory of 2^depth leapfrogs from one edge, for each chain; points are as in `step`."""

    begin: Tensor
    end: Tensor
    proposal: Tensor
    log_weight: Tensor
    acceptance: Tensor
    leaves: int
    stopped: Tensor


@dataclass(frozen=True)
class NUTS(Hamiltonian):
    r"""The No-U-Turn sampler: HMC that chooses the length of each trajectory itself.

    The trajectory doubles, forwards or backwards in time at random, until some balanced part of it
    turns back: until its ends approach each other. The next state is drawn from the trajectory
    with weights :math:`e^{-H}`, with a preference for its later half (Hoffman and Gelman, 2014;
    Betancourt, 2017). All chains grow their trees side by side.

    Parameters
    ----------
    step_size : float
        The time of one leapfrog; ``sample(..., tune=True)`` finds it.
    max_depth : int
        A trajectory has at most 2^max_depth - 1 leapfrogs.
    temperature, scales
        As in :class:`HMC`.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> memory = ist.GaussianKDE(torch.zeros(1, 2), 1.0)
    >>> chains = ist.sample_chains(memory, 100, ist.NUTS(), tune=True, burn_in=60)
    >>> bool(0.6 < chains.acceptance.mean() < 0.97)
    True
    """

    step_size: float = 0.1
    max_depth: int = 8
    temperature: float = 1.0
    scales: Scales | None = field(default=None, repr=False, compare=False)

    target_acceptance: ClassVar[float] = 0.8
    # Of a typical trajectory; the default burn-in counts scores.
    n_leapfrog: ClassVar[int] = 8

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "max_depth", as_count(self.max_depth, "max_depth", at_most=20))

    @torch.no_grad()
    def step(
        self, energy: Energy, state: MetropolisState, generator: torch.Generator
    ) -> tuple[MetropolisState, Info]:
        """Move every chain to a point of its trajectory. Positions are (chains, D)."""
        velocity = noise(state.position, generator)
        # Points of phase space are rows (chains, 3 D + 1): position, velocity, score and energy.
        left = torch.cat([state.position, velocity, state.score, state.energy[:, None]], 1)
        right, proposal = left.clone(), left.clone()
        origin = self._hamiltonian(energy, left)
        log_weight, acceptance, leaves = torch.zeros_like(origin).repeat(3, 1)
        moved = torch.zeros_like(origin, dtype=torch.bool)
        active = torch.arange(len(origin), device=origin.device)
        for depth in range(self.max_depth):
            forward = noise(origin[active], generator, torch.rand) < 0.5
            edge = torch.where(forward[:, None], right[active], left[active])
            sign = torch.where(forward, 1.0, -1.0).to(edge)[:, None]
            tree = self._grow(energy, edge, sign, depth, origin[active], generator)
            acceptance[active] += tree.acceptance
            leaves[active] += tree.leaves
            kept, before = ~tree.stopped, log_weight[active]
            ratio = (tree.log_weight - before).clamp(max=0).exp()
            taken = kept & (noise(ratio, generator, torch.rand) < ratio)
            proposal[active[taken]] = tree.proposal[taken]
            moved[active] |= taken
            log_weight[active] = torch.where(kept, torch.logaddexp(before, tree.log_weight), before)
            for side, grown in ((right, kept & forward), (left, kept & ~forward)):
                side[active[grown]] = tree.end[grown]
            active = active[kept & ~self._turns(left[active], right[active], 1.0)]
            if not len(active):
                break
        position, _, score, value = _parts(proposal)
        return MetropolisState(position, value, score), Info(acceptance / leaves, moved)

    def _grow(
        self,
        energy: Energy,
        edge: Tensor,
        sign: Tensor,
        depth: int,
        origin: Tensor,
        generator: torch.Generator,
    ) -> _Tree:
        """Follow 2^depth leapfrogs from the edge in time of a sign, and draw one of their points.

        A tree is stopped if one of its balanced parts turns back, or one of its points diverged.
        """
        if depth > BLOCK:
            first = self._grow(energy, edge, sign, depth - 1, origin, generator)
            if bool(first.stopped.all()):
                return first
            second = self._grow(energy, first.end, sign, depth - 1, origin, generator)
            log_weight = torch.logaddexp(first.log_weight, second.log_weight)
            share = (second.log_weight - log_weight).exp()
            taken = noise(share, generator, torch.rand) < share
            stopped = first.stopped | second.stopped | self._turns(first.begin, second.end, sign)
            proposal = torch.where(taken[:, None], second.proposal, first.proposal)
            acceptance = first.acceptance + second.acceptance
            leaves = first.leaves + second.leaves
            return _Tree(first.begin, second.end, proposal, log_weight, acceptance, leaves, stopped)
        phase, points, known = Phase(*_parts(edge)[:3]), [], []
        for _ in range(2**depth):
            phase, finite = self._leapfrog(energy, phase, self.step_size * sign)
            points.append(torch.cat(phase, 1))
            known.append(finite)
        rows = torch.stack(points)  # (leaves, chains, 3 D)
        positions = rows[..., : edge.shape[1] // 3].flatten(0, 1)
        value = energy._energy(positions).view(rows.shape[:-1])
        value = torch.where(torch.stack(known) & torch.isfinite(value), value, torch.inf)
        rows = torch.cat([rows, value[..., None]], -1)
        log_ratio = (origin - self._hamiltonian(energy, rows)).nan_to_num(nan=-torch.inf)
        # The largest of log-weights with Gumbel noise is a draw in proportion to the weights.
        gumbel = -(-noise(log_ratio, generator, torch.rand).log()).log()
        drawn = (log_ratio + gumbel).argmax(0)
        stopped = (log_ratio < -LARGEST_ERROR).any(0)
        for part in (2**level for level in range(1, depth + 1)):
            stopped = stopped | self._turns(rows[::part], rows[part - 1 :: part], sign).any(0)
        proposal = rows[drawn, torch.arange(len(origin))]
        log_weight, acceptance = log_ratio.logsumexp(0), log_ratio.clamp(max=0).exp().sum(0)
        return _Tree(rows[0], rows[-1], proposal, log_weight, acceptance, 2**depth, stopped)

    def _hamiltonian(self, energy: Energy, point: Tensor) -> Tensor:
        _, velocity, _, value = _parts(point)
        return self._potential(energy, value) + velocity.square().sum(-1) / 2

    def _turns(self, first: Tensor, second: Tensor, sign: float | Tensor) -> Tensor:
        """Return True where the ends of a trajectory approach each other in time of this sign."""
        start, leaving, *_ = _parts(first)
        end, arriving, *_ = _parts(second)
        apart = sign * (self.scales.shrunk(end - start) if self.scales else end - start)
        return ((apart * leaving).sum(-1) < 0) | ((apart * arriving).sum(-1) < 0)


def _parts(point: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return positions, velocities, scores (..., D), and energies (...) of rows."""
    dim = point.shape[-1] // 3
    position, velocity, score, value = point.split([dim, dim, dim, 1], -1)
    return position, velocity, score, value[..., 0]
