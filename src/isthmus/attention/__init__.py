"""Attention as clustering: pre-norm attention is a mixture of von Mises-Fisher distributions."""

from isthmus.attention.entanglement import Entanglement, entanglement
from isthmus.attention.mixture import VMFMixture
from isthmus.attention.prenorm import PreNormAttention
from isthmus.attention.saln import SALNAttention
from isthmus.attention.view import vmf_view

__all__ = [
    "Entanglement",
    "PreNormAttention",
    "SALNAttention",
    "VMFMixture",
    "entanglement",
    "vmf_view",
]
