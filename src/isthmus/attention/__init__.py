"""Attention as clustering: pre-norm attention is a mixture of von Mises-Fisher distributions."""

from isthmus.attention.layers import PreNormAttention, SALNAttention
from isthmus.attention.mixture import Entanglement, VMFMixture, entanglement
from isthmus.attention.view import vmf_view

__all__ = [
    "Entanglement",
    "PreNormAttention",
    "SALNAttention",
    "VMFMixture",
    "entanglement",
    "vmf_view",
]
