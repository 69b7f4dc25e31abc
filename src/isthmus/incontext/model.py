r"""ICLEBM: a causal transformer whose output is an energy, :math:`E_\theta(x_n \mid x_{<n})`.

A token at index n, real or a candidate, attends to the *real* tokens before n and to itself. One
pass over real tokens and candidates thus gives the energies of encoding each prefix again.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from copy import deepcopy
from importlib.resources import as_file, files
from itertools import chain
from os.path import exists, isdir  # False, too, for what must not be seen
from pathlib import Path
from typing import Any, Literal, cast, overload

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from isthmus.energy import Energy
from isthmus.errors import InvalidInputError, ShapeError, UnknownNormalizerError
from isthmus.incontext.config import ICLEBMConfig
from isthmus.incontext.storage import Checkpoint, StoredModel, read_model
from isthmus.incontext.tables.model import ICLTables
from isthmus.incontext.tables.network import TableConfig
from isthmus.io.reading import reading
from isthmus.validation import as_choice, as_path, as_points, is_transforming

KeysValues = tuple[Tensor, Tensor]  # of one layer, each (B, H, n, d)
# Hidden activations of one block of candidates: 2 MB, which fit the cache.
ACTIVATIONS_PER_BLOCK = 960 * 512
# Points of a context energy at once, without a graph.
POINTS_PER_BLOCK = 1024
# Lines of the grid that normalises an energy, from the centre of the box to its edge.
LINES_PER_HALF_WIDTH = 45


class Block(nn.Module):
    """A pre-norm transformer block: attention, then a feed-forward part."""

    def __init__(self, config: ICLEBMConfig) -> None:
        super().__init__()
        width, hidden = config.width, config.feedforward_width
        self.heads = config.heads
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.attention_out = nn.Linear(width, width)
        self.feedforward_norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)

    def forward(
        self, stream: Tensor, mask: Tensor | None, cached: KeysValues | None, real: int
    ) -> tuple[Tensor, KeysValues]:
        """Pass stream (B, M, width) through the block; return it, with keys and values it sees."""
        joint = self.query_key_value(self.attention_norm(stream))  # (B, M, 3 width)
        split = joint.unflatten(-1, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)  # each (B, H, M, d)
        seen_keys, seen_values = key[:, :, :real], value[:, :, :real]  # (B, H, n, d)
        if cached is not None:
            seen_keys = torch.cat([cached[0], seen_keys], dim=2)
            seen_values = torch.cat([cached[1], seen_values], dim=2)
        query = query / math.sqrt(query.shape[-1])
        seen = query @ seen_keys.transpose(-1, -2)  # (B, H, M, n)
        if mask is not None:
            seen = seen + mask
        own = (query * key).sum(-1, keepdim=True)  # (B, H, M, 1): never masked, so never empty
        weight = torch.cat([seen, own], dim=-1).softmax(dim=-1)  # (B, H, M, n + 1)
        mixed = weight[..., :-1] @ seen_values + weight[..., -1:] * value  # (B, H, M, d)
        stream = stream + self.attention_out(mixed.transpose(1, 2).flatten(2))
        hidden = F.gelu(self.up(self.feedforward_norm(stream)))  # (B, M, hidden)
        return stream + self.down(hidden), (seen_keys, seen_values)


class ICLEBM(StoredModel):
    r"""An energy-based model that learns in context.

    A causal transformer reads points :math:`x_1, x_2, \dots` and returns the energy of each given
    the earlier ones: :math:`p(x_n \mid x_{<n}) \propto \exp(-E_\theta(x_n \mid x_{<n}))`.

    Parameters
    ----------
    config : ICLEBMConfig, optional

    Examples
    --------
    >>> from isthmus.incontext import ICLEBM, ICLEBMConfig
    >>> model = ICLEBM(ICLEBMConfig(dim=2, layers=1, heads=2, width=8))
    >>> model(torch.zeros(4, 10, 2)).shape
    torch.Size([4, 10])
    >>> model.condition(torch.zeros(10, 2)).energy(torch.zeros(7, 2)).shape
    torch.Size([7])
    """

    unconditional = False
    format = "isthmus-iclebm-2"
    config_type = ICLEBMConfig
    config: ICLEBMConfig

    def __init__(self, config: ICLEBMConfig | None = None) -> None:
        config = ICLEBMConfig() if config is None else config
        super().__init__(config)
        self.embedding = nn.Linear(config.dim, config.width)
        self.position = nn.Embedding(config.positions, config.width) if config.positions else None
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.readout = nn.Linear(config.width, 1)

    @property
    def dim(self) -> int:
        """Coordinates D of a point."""
        return self.config.dim

    @property
    def layers(self) -> list[Block]:
        """The transformer blocks, in order."""
        return cast(list[Block], list(self.blocks))

    def forward(self, x: Any) -> Tensor:
        """Return E(x_n | x_<n) at every index. x: (B, S, D) -> (B, S)."""
        x = self.as_sequence(x, "x")
        return self._sequence_energy(x, torch.arange(x.shape[1], device=x.device), x.shape[1])

    def branch_energy(self, x: Any, candidates: Any) -> Tensor:
        """Return the energy of candidate c at index n given the real x_<n, not x_n.

        x: (B, S, D), candidates: (B, S, C, D) -> (B, S, C), differentiable in all three.
        """
        return self.real_and_branch_energy(x, candidates)[1]

    def real_and_branch_energy(self, x: Any, candidates: Any) -> tuple[Tensor, Tensor]:
        """Return the energies of x and of the candidates from one pass: (B, S), (B, S, C)."""
        x = self.as_sequence(x, "x")
        candidates = as_points(candidates, "candidates", dim=self.dim, like=self.readout.weight)
        if candidates.ndim != 4 or candidates.shape[:2] != x.shape[:2]:
            raise ShapeError(
                f"candidates must be {(*x.shape[:2], 'C', self.dim)}: C of them at each index of "
                f"x, not {tuple(candidates.shape)}."
            )
        batch, length, count, _ = candidates.shape
        index = torch.arange(length, device=x.device)
        index = torch.cat([index, index.repeat_interleave(count)])  # (S + S C,)
        tokens = torch.cat([x, candidates.flatten(1, 2)], dim=1)  # (B, S + S C, D)
        energy = self._sequence_energy(tokens, index, length)
        return energy[:, :length], energy[:, length:].view(batch, length, count)

    def condition(self, context: Any) -> ContextEnergy:
        """Return the energy of a dataset (n, D), n >= 0, or of a batch of datasets (B, n, D)."""
        return ContextEnergy(self, context)

    def encode(self, x: Tensor, before: list[KeysValues] | None = None) -> list[KeysValues]:
        """Return keys and values of x: (B, m, D) for each layer, after those `before` it."""
        known, new = before[0][0].shape[2] if before else 0, x.shape[1]
        index = torch.arange(known, known + new, device=x.device)
        stream, mask, cache = self.embed(x, index), self.mask(index, known + new), []
        for layer, block in enumerate(self.layers):
            stream, seen = block(stream, mask, before[layer] if before else None, new)
            cache.append(seen)
        return cache

    def candidate_energy(
        self,
        candidates: Tensor,
        cache: Sequence[KeysValues | None],
        index: Tensor,
        mask: Tensor | None,
        real: int = 0,
    ) -> Tensor:
        """Return energies (B, M) of candidates (B, M, D) at `index` (M,); the first are `real`."""
        stream = self.embed(candidates, index)
        for block, cached in zip(self.layers, cache, strict=True):
            stream, _ = block(stream, mask, cached, real)
        return self.readout(stream).squeeze(-1) + self.wall_energy(candidates)

    @torch.no_grad()
    def candidate_gradient(
        self, candidates: Tensor, cache: list[KeysValues], index: Tensor, mask: Tensor | None
    ) -> Tensor:
        """Return the gradient of each candidate's energy with respect to it. (B, M, D)."""
        batch, tokens, _ = candidates.shape
        gradient = torch.empty_like(candidates)
        # Blocks whose activations fit the cache halve the time of the products on a CPU.
        width = max(1, ACTIVATIONS_PER_BLOCK // self.config.feedforward_width)
        rows = max(1, width // max(1, tokens))
        for top in range(0, batch, rows):
            part = [(k[top : top + rows].detach(), v[top : top + rows].detach()) for k, v in cache]
            for left in range(0, tokens, width):
                where = slice(top, top + rows), slice(left, left + width)
                seen = None if mask is None else mask[where[1]]
                with torch.enable_grad():
                    leaf = candidates[where].detach().requires_grad_()
                    energy = self.candidate_energy(leaf, part, index[where[1]], seen)
                    (gradient[where],) = torch.autograd.grad(energy.sum(), leaf)
        return gradient

    def branch_gradient(self, x: Tensor, count: int) -> Callable[[Tensor], Tensor]:
        """Return the gradient, a function of `count` candidates an index of x: (B, S count, D)."""
        index = torch.arange(x.shape[1], device=x.device).repeat_interleave(count)
        mask, cache = self.mask(index, x.shape[1]), self.encode(x)
        return lambda candidates: self.candidate_gradient(candidates, cache, index, mask)

    def embed(self, x: Tensor, index: Tensor) -> Tensor:
        """Embed tokens (B, M, D) at index (M,): (B, M, width)."""
        box = self.config.box
        inside = x if box is None else x.clamp(-box, box)
        stream = self.embedding(inside / self.config.scale)
        if self.position is None:
            return stream
        if index.numel() and int(index.max()) >= self.position.num_embeddings:
            raise InvalidInputError(
                f"The model has {self.position.num_embeddings} positions, too few for a sequence "
                f"of {int(index.max()) + 1}. Shorten the context, or train with more positions."
            )
        return stream + self.position(index)

    def mask(self, index: Tensor, length: int) -> Tensor:
        """Return the mask (M, length) of tokens at index (M,): -inf from the index on, else 0."""
        before = torch.arange(length, device=index.device) < index[:, None]
        nothing = torch.zeros_like(before, dtype=self.readout.weight.dtype)
        return nothing.masked_fill(~before, -math.inf)

    def wall_energy(self, x: Tensor) -> Tensor:
        """Return the energy of the wall, which is zero inside the box. x: (..., D) -> (...)."""
        if self.config.box is None:
            return torch.zeros_like(x[..., 0])
        outside = (x.abs() - self.config.box).clamp(min=0) / self.config.wall
        return 0.5 * outside.square().sum(dim=-1)

    def as_sequence(self, value: Any, name: str) -> Tensor:
        """Return `value` as checked points (B, S, D) of the model's dtype."""
        points = as_points(value, name, dim=self.dim, like=self.readout.weight)
        if points.ndim != 3:
            raise ShapeError(
                f"{name} must be (B, S, {self.dim}): a batch of sequences of points, "
                f"not {tuple(points.shape)}."
            )
        return points

    def _sequence_energy(self, tokens: Tensor, index: Tensor, length: int) -> Tensor:
        """Return energies of tokens (B, M, D) at index (M,); the first `length` are real."""
        nothing = [None] * len(self.blocks)
        return self.candidate_energy(tokens, nothing, index, self.mask(index, length), length)


class ContextEnergy(Energy):
    r"""The energy :math:`E_\theta(x \mid \mathcal D)` of a dataset given in context.

    :meth:`isthmus.incontext.ICLEBM.condition` returns it. It holds keys and values of the context,
    so condition again after further training.

    For one context, points are (..., D) and energies (...), as for every energy. For a batch of B
    contexts, points are (B, ..., D), a set for each context, and energies (B, ...);
    :func:`isthmus.retrieve` and :func:`isthmus.sample` refuse the batch. A graph is built only
    where x, the context or a parameter of the model requires a gradient.

    >>> energy = pretrained("mixtures-2d").condition(torch.zeros(3, 2))
    >>> energy.append([1.0, 1.0]).context.shape
    torch.Size([4, 2])
    """

    def __init__(self, model: ICLEBM, context: Any, cache: list[KeysValues] | None = None) -> None:
        super().__init__()
        self.model = model
        self.returns_arrays = not isinstance(context, Tensor)
        if isinstance(context, list) and not context:
            context = model.readout.weight.new_zeros(0, model.dim)
        points = as_points(context, "context", dim=model.dim, like=model.readout.weight)
        if points.ndim not in (2, 3):
            raise ShapeError(
                f"context must be (n, {model.dim}), a dataset, or (B, n, {model.dim}), a batch of "
                f"datasets of one size, not {tuple(points.shape)}."
            )
        if points.ndim == 3 and len(points) == 0:
            raise ShapeError("context is an empty batch: it holds no dataset.")
        self.context = points
        self._cache = model.encode(_batched(points)) if cache is None else cache
        self._log_normalizer: Tensor | None = None

    def __repr__(self) -> str:
        *batch, size, dim = self.context.shape
        many = f"{batch[0]} contexts of " if batch else ""
        return f"ContextEnergy({many}{size} points in {dim} dimensions)"

    def __deepcopy__(self, memo: dict[int, Any]) -> ContextEnergy:
        # Keys and values may belong to a graph, which cannot be copied, so they are recomputed.
        model, context = deepcopy(self.model, memo), self.context.detach().clone()
        return self._alike(ContextEnergy(model, context))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ContextEnergy:
        """Move the model and the context to another dtype or device, as in ``.to``."""
        super()._apply(fn, recurse)
        self.context = fn(self.context)
        self._cache, self._log_normalizer = self.model.encode(_batched(self.context)), None
        return self

    @property
    def dim(self) -> int:
        """Coordinates D of a point."""
        return self.model.dim

    def append(self, points: Any) -> ContextEnergy:
        """Return the energy with more points, (m, D) or (D,), at the end of the context."""
        new = as_points(points, "points", dim=self.dim, like=self.context)
        if new.ndim == self.context.ndim - 1:
            new = new.unsqueeze(-2)
        if new.ndim != self.context.ndim or new.shape[:-2] != self.context.shape[:-2]:
            raise ShapeError(
                f"points of shape {tuple(new.shape)} do not extend a context of shape "
                f"{tuple(self.context.shape)}."
            )
        cache = self.model.encode(_batched(new), self._cache)
        context = torch.cat([self.context, new], dim=-2)
        return self._alike(ContextEnergy(self.model, context, cache))

    def _energy(self, x: Tensor) -> Tensor:
        points, index = self._candidates(x)
        # In blocks, so that memory does not grow with points times context.
        width = max(1, len(index)) if self._needs_graph(x) else POINTS_PER_BLOCK
        energies = [
            self.model.candidate_energy(block, self._cache, index[: block.shape[1]], None)
            for block in points.split(width, dim=1)
        ]
        return torch.cat(energies, dim=1).view(x.shape[:-1])

    def log_normalizer(self) -> Tensor:
        """Return log Z by quadrature on a grid, of models with a box in one or two dimensions.

        It is computed once, without a graph: a scalar, or (B,) for a batch of contexts.
        """
        config = self.model.config
        if config.box is None:
            raise UnknownNormalizerError(
                "The model has no box, so that its energy falls without bound in some direction "
                "and has no normaliser. Train a model with a box."
            )
        if self.dim > 2:
            raise UnknownNormalizerError(
                "The normaliser of an in-context energy is computed on a grid, in one or two "
                f"dimensions, not in {self.dim}. Use isthmus.with_normalizer(energy), which "
                "estimates it for one context by annealing."
            )
        if self._log_normalizer is None:
            from isthmus.normalizer import Grid

            half_width = config.box + 5 * config.wall
            grid = Grid.with_spacing(self.dim, half_width, config.box / LINES_PER_HALF_WIDTH)
            shape = (*self.context.shape[:-2], *grid.nodes.shape)
            with torch.no_grad():
                heights = -self._energy(grid.nodes.to(self.context).expand(shape))
            found = grid.integrate(heights.double().cpu()).value
            self._log_normalizer = found.to(self.context)
        return self._log_normalizer

    def _log_prob(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        if seen is not None or self.context.ndim == 2:
            return super()._log_prob(x, seen)
        energy, log_normalizer = self._energy(x), self.log_normalizer()
        return -energy - log_normalizer.view(-1, *(1,) * (energy.ndim - 1))

    def _score(self, x: Tensor) -> Tensor:
        if self._needs_graph(x):
            return super()._score(x)
        points, index = self._candidates(x)
        return -self.model.candidate_gradient(points, self._cache, index, None).view(x.shape)

    def _needs_graph(self, x: Tensor) -> bool:
        if is_transforming():
            return True
        inputs = chain([x, self._cache[0][0]], self.model.parameters())
        return torch.is_grad_enabled() and any(each.requires_grad for each in inputs)

    def _candidates(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return points as (B, M, D) and their index (M,), right after the context."""
        batch = self.context.shape[0] if self.context.ndim == 3 else 1
        if self.context.ndim == 3 and (x.ndim < 2 or x.shape[0] != batch):
            raise ShapeError(
                f"x must begin with {batch}, a set of points for each of the {batch} contexts, "
                f"but has shape {tuple(x.shape)}. For any other shape, condition on one context."
            )
        points = x.reshape(batch, -1, self.dim)
        size = self.context.shape[-2]
        return points, points.new_full((points.shape[1],), size, dtype=torch.long)


def _batched(context: Tensor) -> Tensor:
    return context if context.ndim == 3 else context[None]


@overload
def pretrained(name: Literal["tables"]) -> ICLTables: ...
@overload
def pretrained(name: Literal["mixtures-2d"] = "mixtures-2d") -> ICLEBM: ...
@overload
def pretrained(name: str | Path) -> Any: ...
def pretrained(name: str | Path = "mixtures-2d") -> ICLEBM | ICLTables:
    """Load a model that is ready to condition, with frozen parameters.

    Parameters
    ----------
    name : str or Path
        ``"tables"``: small tables of numeric columns, in any units; returns an
        :class:`ICLTables`. ``"mixtures-2d"``: mixtures of three Gaussians in two dimensions, means
        in [-3, 3]^2, standard deviations 0.3 to 0.6; bring data to that scale first. Or a folder
        of ``save_pretrained``, or of a training run; that of an unfinished run gives the model of
        its checkpoint, with a warning.

    Examples
    --------
    >>> energy = pretrained("mixtures-2d").condition([[1.0, 1.0], [1.2, 0.9], [-2.0, 0.5]])
    >>> bool(energy.energy([1.1, 1.0]) < energy.energy([-2.0, -2.0]))
    True
    """
    shipped = files("isthmus.incontext") / "weights"
    names = sorted(entry.name for entry in shipped.iterdir() if entry.is_dir())
    folder = as_path(name, "name")
    if str(name) not in names and (isdir(folder) or len(folder.parts) > 1):
        model: ICLEBM | ICLTables
        inner, unfinished = folder / "model", folder / "checkpoint.pt"
        if exists(unfinished) and not isdir(inner):
            found = Checkpoint.load(unfinished)
            settled = f"{found.updates} of its {found.settings['updates']} updates"
            warnings.warn(f"The run in {folder} has made {settled}.", UserWarning, stacklevel=2)
            with reading(unfinished, "checkpoint"):
                model = restored(found)
        else:
            model = _read_model(inner if isdir(inner) else folder)
    else:
        with as_file(shipped / as_choice(str(name), "name", names)) as path:
            model = _read_model(path)
    return model.eval().requires_grad_(False)


def restored(checkpoint: Checkpoint) -> ICLEBM | ICLTables:
    """Return the model as it was after the last update of a run."""
    kind, config = checkpoint.config
    if kind != TableConfig.__name__:
        return ICLEBM.assembled(config, checkpoint.model)
    average = checkpoint.objective[0].items()
    weights = {f"network.{name[7:]}": each for name, each in average if name[:7] == "module."}
    return ICLTables.assembled(config, weights).double()


def _read_model(folder: Path) -> ICLEBM | ICLTables:
    model: ICLEBM | ICLTables = read_model(folder, ICLEBM, ICLTables)
    # Tables in double precision, so that the order of rows does not show in rounding.
    return model.double() if isinstance(model, ICLTables) else model
