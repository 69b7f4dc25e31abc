"""A small vision transformer with one of three kinds of attention, and its data."""

from __future__ import annotations

from functools import cache
from typing import cast

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from isthmus.attention.mixture import VMFMixture
from isthmus.attention.prenorm import PreNormAttention
from isthmus.attention.saln import SALNAttention
from isthmus.attention.view import vmf_view
from isthmus.errors import InvalidInputError

__all__ = ["VARIANTS", "PatchTransformer", "digit_patches"]

VARIANTS = ("pre-norm", "QK-norm", "SALN")
CLASSES, PATCHES, PIXELS = 10, 16, 4
TEST_SHARE = 0.2


class PatchTransformer(nn.Module):
    """Classify images from their patches.

    Models with the same seed start from the same pre-norm weights, converted to their variant. So
    pre-norm and SALN start as the same function.

    Parameters
    ----------
    variant : {"pre-norm", "QK-norm", "SALN"}
    width, num_heads, depth : int
    seed : int
        Seed of the initial weights; torch's global stream is not changed.

    Examples
    --------
    >>> import torch
    >>> from isthmus.attention.transformer import PatchTransformer
    >>> PatchTransformer("SALN")(torch.zeros(5, 16, 4)).shape
    torch.Size([5, 10])
    """

    def __init__(
        self,
        variant: str = "pre-norm",
        *,
        width: int = 32,
        num_heads: int = 4,
        depth: int = 2,
        seed: int = 0,
    ) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embed = nn.Linear(PIXELS, width)
            self.places = nn.Parameter(0.02 * torch.randn(PATCHES, width))
            self.blocks = nn.ModuleList(_Block(variant, width, num_heads) for _ in range(depth))
            self.norm = nn.LayerNorm(width)
            self.classify = nn.Linear(width, CLASSES)

    def forward(self, patches: Tensor) -> Tensor:
        """Return class logits. (B, 16, 4) -> (B, 10)."""
        x = self.embed(patches) + self.places
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.classify(self.norm(x).mean(1))
        return logits

    @torch.no_grad()
    def layers(self, patches: Tensor) -> list[tuple[PreNormAttention | SALNAttention, Tensor]]:
        """Return the attention layer of each block and its input. (B, 16, 4) -> (B, 16, D) each."""
        x, found = self.embed(patches) + self.places, []
        for block in self.blocks:
            found.append((cast("_Block", block).attention, x))
            x = block(x)
        return found

    def views(self, patches: Tensor) -> list[VMFMixture]:
        """Return the attention of each block as a mixture. (B, 16, 4) -> list of VMFMixture."""
        return [vmf_view(layer, x) for layer, x in self.layers(patches)]


class _Block(nn.Module):
    def __init__(self, variant: str, width: int, num_heads: int) -> None:
        super().__init__()
        norm = nn.LayerNorm(width)
        attention = nn.MultiheadAttention(width, num_heads, batch_first=True)
        if variant not in VARIANTS:
            raise InvalidInputError(f"variant must be one of {VARIANTS}, not {variant!r}.")
        # A new layer draws weights before it copies others; later draws must not depend on it.
        with torch.random.fork_rng(devices=[]):
            self.attention: PreNormAttention | SALNAttention
            if variant == "SALN":
                self.attention = SALNAttention.from_prenorm(norm, attention)
            else:
                self.attention = PreNormAttention.from_prenorm(
                    norm, attention, qk_norm=variant == "QK-norm"
                )
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Apply attention and feed-forward layer. (B, S, D) -> (B, S, D)."""
        x = x + self.attention(x, x, x, need_weights=False)[0]
        moved: Tensor = x + self.feed_forward(x)
        return moved


@cache
def digit_patches() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return scikit-learn's digits as 16 patches of 2 by 2 pixels, in a fixed split.

    Returns
    -------
    train, train_labels, test, test_labels : Tensor (n, 16, 4), (n,), (m, 16, 4), (m,)
    """
    pixels, labels = load_digits(return_X_y=True)
    pictures = torch.from_numpy(pixels).float().reshape(-1, 4, 2, 4, 2)
    patches = pictures.transpose(2, 3).reshape(-1, PATCHES, PIXELS)
    order = torch.randperm(len(patches), generator=torch.Generator().manual_seed(0))
    patches, targets = patches[order], torch.from_numpy(labels)[order]
    held_out = int(TEST_SHARE * len(patches))
    test, train = patches[:held_out], patches[held_out:]
    mean, spread = train.mean(), train.std()
    return (
        (train - mean) / spread,
        targets[held_out:],
        (test - mean) / spread,
        targets[:held_out],
    )
